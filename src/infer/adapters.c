/* Adapters by name. A name has a current version; replaced or unloaded versions stay until their last completion has
 * ended. A version in memory has an image, and a slot is an ordered set of images. */
#include "infer/adapters.h"
#include "images.h"
#include "slots.h"

/* One generation of a name. */
struct version {
    struct named *named; /* NULL: replaced or unloaded */
    uint64_t generation;
    int image; /* -1: not in memory */
    size_t bytes;
    int64_t virtual_tokens;
    int64_t users;
    uint64_t last_use;
    struct receipt_result receipt;
};

struct named {
    char *name, *directory;
    char digest[PEFT_SHA256_BYTES];
    struct version *version; /* NULL: never loaded */
    bool is_pinned, is_spared;
};

/* A generation that is loaded between steps. */
struct job {
    struct named *named; /* NULL: none */
    struct adapter_files files;
    enum adapter_change change;
    bool is_under_way; /* the engine has begun */
    bool is_done;      /* status and message are then set: */
    int status;
    char reason[512];
};

struct adapters {
    struct job job;
    struct engine *engine;
    struct named **named; /* [count] in the order of adding */
    int count;
    struct version **versions; /* [version_count] all versions, replaced ones too */
    int version_count;
    uint64_t last_generation, uses;
    uint64_t receipts[RECEIPT_WORDS];
};

int adapters_open(struct engine *engine, struct adapters **out) {
    *out = calloc(1, sizeof **out);
    TRY(status_allocated(*out));
    (*out)->engine = engine;
    return STATUS_OK;
}

static void free_named(struct named *named) {
    free(named->name);
    free(named->directory);
    free(named);
}

static void end_job(struct job *job) {
    adapter_files_free(&job->files);
    *job = (struct job){0};
}

void adapters_close(struct adapters *adapters) {
    if (!adapters)
        return;
    if (adapters->job.is_under_way)
        engine_image_end(adapters->engine);
    end_job(&adapters->job);
    for (int i = 0; i < adapters->version_count; i++)
        free(adapters->versions[i]);
    for (int i = 0; i < adapters->count; i++)
        free_named(adapters->named[i]);
    free(adapters->versions);
    free(adapters->named);
    free(adapters);
}

/* ---- names ---- */

static struct named *find(const struct adapters *adapters, const char *name) {
    for (int i = 0; i < adapters->count; i++)
        if (!strcmp(adapters->named[i]->name, name))
            return adapters->named[i];
    return NULL;
}

static int find_known(const struct adapters *adapters, const char *name, struct named **named) {
    *named = find(adapters, name);
    return *named ? STATUS_OK : status_fail(STATUS_NOT_FOUND, "there is no adapter %s", name);
}

int adapters_add(struct adapters *adapters, const char *name, const char *directory) {
    if (!*name)
        return status_fail(STATUS_INVALID, "an adapter without a name");
    if (find(adapters, name))
        return status_fail(STATUS_INVALID, "there is an adapter %s already", name);
    struct named *named = calloc(1, sizeof *named);
    struct named **all = realloc(adapters->named, ((size_t)adapters->count + 1) * sizeof(struct named *));
    adapters->named = all ? all : adapters->named;
    if (named) {
        named->name = strdup(name);
        named->directory = strdup(directory);
    }
    if (!all || !named || !named->name || !named->directory) {
        if (named)
            free_named(named);
        return status_no_memory();
    }
    adapters->named[adapters->count++] = named;
    return STATUS_OK;
}

/* ---- versions ---- */

static struct version *add_version(struct adapters *adapters) {
    size_t count = (size_t)adapters->version_count + 1;
    struct version *version = calloc(1, sizeof *version);
    struct version **all = realloc(adapters->versions, count * sizeof(struct version *));
    adapters->versions = all ? all : adapters->versions;
    if (!all || !version) {
        free(version);
        status_no_memory();
        return NULL;
    }
    version->image = -1;
    adapters->versions[adapters->version_count++] = version;
    return version;
}

static void forget_version(struct adapters *adapters, struct version *version) {
    int i = 0;
    while (adapters->versions[i] != version)
        i++;
    adapters->versions[i] = adapters->versions[--adapters->version_count];
    free(version);
}

static int drop_image(struct adapters *adapters, struct version *version) {
    int image = version->image;
    version->image = -1;
    return image < 0 ? STATUS_OK : engine_image_drop(adapters->engine, image);
}

/* Frees a version that has no name any more, when its last completion has ended. */
static int end_if_retired(struct adapters *adapters, struct version *version) {
    if (version->named || version->users)
        return STATUS_OK;
    int status = drop_image(adapters, version);
    forget_version(adapters, version);
    return status;
}

static int retire(struct adapters *adapters, struct version *version) {
    if (!version)
        return STATUS_OK;
    version->named = NULL;
    return end_if_retired(adapters, version);
}

/* ---- memory ---- */

static bool is_idle(const struct version *version) {
    return version->image >= 0 && !version->users && version->named && !version->named->is_pinned &&
           !version->named->is_spared;
}

/* Evicts the least recently used idle image; sets *is_any to whether there was one. */
static int evict(struct adapters *adapters, const struct version *spared, bool *is_any) {
    struct version *oldest = NULL;
    for (int i = 0; i < adapters->version_count; i++) {
        struct version *version = adapters->versions[i];
        if (is_idle(version) && version != spared && (!oldest || version->last_use < oldest->last_use))
            oldest = version;
    }
    *is_any = oldest != NULL;
    return oldest ? drop_image(adapters, oldest) : STATUS_OK;
}

static bool has_users(const struct adapters *adapters) {
    for (int i = 0; i < adapters->version_count; i++)
        if (adapters->versions[i]->users)
            return true;
    return false;
}

static void settle(struct adapters *adapters);

/* Makes an image of the bytes, and evicts idle ones to make room. STATUS_MEMORY when completions use the memory;
 * another failure when the image is larger than all memory. Another rank's failure counts as one of memory: all ranks
 * have the same bytes. */
static int make_image(struct adapters *adapters, const struct peft_bytes *bytes, const struct version *spared,
                      int *image) {
    for (bool is_any = true;;) {
        *image = engine_image_load(adapters->engine, bytes);
        if (*image >= 0)
            return STATUS_OK;
        if (*image != STATUS_MEMORY && *image != STATUS_PEER)
            return *image;
        char reason[512];
        snprintf(reason, sizeof reason, "%s", status_text());
        TRY(evict(adapters, spared, &is_any));
        if (!is_any)
            return status_fail(has_users(adapters) || spared ? STATUS_MEMORY : STATUS_UNSUPPORTED, "%s", reason);
    }
}

/* Replays the receipt of a new image, unless a name has files of this digest: they were proved. A refused image is
 * dropped. */
static int prove_image(struct adapters *adapters, const struct adapter_files *files, int image,
                       struct receipt_result *result) {
    char reason[512];
    for (int i = 0; i < adapters->count; i++) {
        const struct named *named = adapters->named[i];
        if (named->version && !strcmp(named->digest, files->digest)) {
            *result = named->version->receipt;
            return STATUS_OK;
        }
    }
    int status = engine_replay(adapters->engine, &files->bytes, image, result);
    if (!status || status == STATUS_INVALID)
        adapters->receipts[status ? RECEIPT_REFUSED : result->word]++;
    if (!status)
        return STATUS_OK;
    snprintf(reason, sizeof reason, "%s", status_text());
    engine_image_drop(adapters->engine, image);
    return status_fail(status, "%s", reason);
}

static int check_digest(const struct named *named, const char *digest) {
    if (!*named->digest || !strcmp(named->digest, digest))
        return STATUS_OK;
    return status_fail(STATUS_INVALID, "%s: the files of adapter %s have changed since it was loaded: replace it",
                       named->directory, named->name);
}

static void set_image(struct adapters *adapters, struct version *version, int image) {
    version->image = image;
    version->last_use = ++adapters->uses; /* its first user has not started yet */
    version->bytes = engine_image_bytes(adapters->engine, image);
    version->virtual_tokens = engine_image_virtual_tokens(adapters->engine, image);
}

struct peft_limits adapters_limits(const struct adapters *adapters) {
    return (struct peft_limits){.bytes = ENGINE_ADAPTER_BYTES, .bank = engine_bank(adapters->engine)};
}

/* Reads files. An adapter larger than all memory is refused: no ending completion can make room for it. */
static int read_files(const struct adapters *adapters, const char *directory, struct adapter_files *files) {
    struct peft_limits limits = adapters_limits(adapters);
    int status = adapter_files_read(&(struct peft_place){.path = directory}, &limits, files);
    return status == STATUS_MEMORY ? STATUS_UNSUPPORTED : status;
}

int adapters_check(const struct adapters *adapters, const char *name) {
    struct named *named;
    struct peft_limits limits = adapters_limits(adapters);
    int status = find_known(adapters, name, &named);
    return status ? status : peft_check_directory(&(struct peft_place){.path = named->directory}, &limits);
}

/* Loads a directory as a version without a name. `digest`: of the files. */
static int load_version(struct adapters *adapters, const char *directory, const struct version *spared,
                        struct version *version, char digest[PEFT_SHA256_BYTES], const struct named *expected) {
    struct adapter_files files;
    int image = -1, status = read_files(adapters, directory, &files);
    *digest = 0;
    TRY(status);
    memcpy(digest, files.digest, sizeof files.digest);
    if (expected)
        status = check_digest(expected, digest);
    THEN(status, make_image(adapters, &files.bytes, spared, &image));
    THEN(status, prove_image(adapters, &files, image, &version->receipt));
    adapter_files_free(&files);
    if (!status)
        set_image(adapters, version, image);
    return status;
}

/* Brings the name's current version into memory, or loads its first. */
static int make_resident(struct adapters *adapters, struct named *named) {
    char digest[PEFT_SHA256_BYTES] = "";
    if (named->version && named->version->image >= 0)
        return STATUS_OK;
    settle(adapters); /* this may give the name another version */
    struct version *version = named->version ? named->version : add_version(adapters);
    if (!version)
        return STATUS_MEMORY;
    if (version->image >= 0)
        return STATUS_OK;
    int status = load_version(adapters, named->directory, NULL, version, digest, named);
    if (named->version)
        return status;
    if (status) {
        forget_version(adapters, version);
        return status;
    }
    memcpy(named->digest, digest, sizeof digest);
    version->generation = ++adapters->last_generation;
    version->named = named;
    named->version = version;
    return STATUS_OK;
}

int adapters_load(struct adapters *adapters, const char *name, bool is_pinned) {
    struct named *named;
    int status = find_known(adapters, name, &named);
    THEN(status, make_resident(adapters, named));
    return status ? status : adapters_pin(adapters, name, is_pinned);
}

int adapters_pin(struct adapters *adapters, const char *name, bool is_pinned) {
    struct named *named;
    int status = find_known(adapters, name, &named);
    if (!status)
        named->is_pinned = is_pinned;
    return status;
}

void adapters_spare(struct adapters *adapters, const char *const *names, int count) {
    for (int i = 0; i < adapters->count; i++)
        adapters->named[i]->is_spared = false;
    for (int i = 0; i < count; i++) {
        struct named *named = find(adapters, names[i]);
        if (named)
            named->is_spared = true;
    }
}

int adapters_clear(struct adapters *adapters) {
    int status = STATUS_OK;
    adapters_spare(adapters, NULL, 0);
    for (bool is_any = true; is_any && !status;)
        status = evict(adapters, NULL, &is_any);
    return status;
}

static int check_generation(const struct named *named, uint64_t if_generation) {
    uint64_t present = named->version ? named->version->generation : 0;
    if (!if_generation || if_generation == present)
        return STATUS_OK;
    return status_fail(STATUS_INVALID, "adapter %s is of generation %llu, not %llu", named->name,
                       (unsigned long long)present, (unsigned long long)if_generation);
}

/* Makes the version the name's current one; the previous one stays until its last completion has ended. Takes over the
 * directory. */
static int install(struct adapters *adapters, struct named *named, struct version *version, char *directory,
                   const char *digest) {
    struct version *old = named->version;
    free(named->directory);
    named->directory = directory;
    memcpy(named->digest, digest, sizeof named->digest);
    version->generation = ++adapters->last_generation;
    version->named = named;
    named->version = version;
    return retire(adapters, old);
}

int adapters_replace(struct adapters *adapters, const char *name, const char *directory, uint64_t if_generation) {
    struct named *named;
    int status = find_known(adapters, name, &named);
    settle(adapters);
    THEN(status, check_generation(named, if_generation));
    TRY(status);
    char digest[PEFT_SHA256_BYTES] = "";
    char *kept = strdup(directory ? directory : named->directory);
    struct version *version = kept ? add_version(adapters) : NULL;
    status = version ? load_version(adapters, kept, named->version, version, digest, NULL) : status_no_memory();
    if (!status)
        return install(adapters, named, version, kept, digest);
    if (version)
        forget_version(adapters, version);
    free(kept);
    return status;
}

/* ---- loading between steps ---- */

/* Begins the load. When there is no room, evicts an idle image and tries again. */
static int begin_job(struct adapters *adapters) {
    struct job *job = &adapters->job;
    for (bool is_any = true;;) {
        int status = engine_image_begin(adapters->engine, &job->files.bytes);
        job->is_under_way = !status;
        if (status != STATUS_MEMORY)
            return status;
        snprintf(job->reason, sizeof job->reason, "%s", status_text());
        status = evict(adapters, job->named->version, &is_any);
        if (status || !is_any)
            return status ? status : status_fail(STATUS_MEMORY, "%s", job->reason);
    }
}

/* Gives the finished image to the name: to its current generation, which had none, or to a new one. */
static int use_image(struct adapters *adapters, int image) {
    struct job *job = &adapters->job;
    struct version *present = job->named->version;
    struct receipt_result receipt;
    TRY(prove_image(adapters, &job->files, image, &receipt));
    if (job->change == ADAPTER_BRING && present) {
        set_image(adapters, present, image);
        return STATUS_OK;
    }
    struct version *version = add_version(adapters);
    char *directory = version ? strdup(job->files.bytes.directory) : NULL;
    if (directory) {
        set_image(adapters, version, image);
        version->receipt = receipt;
        return install(adapters, job->named, version, directory, job->files.digest);
    }
    if (version)
        forget_version(adapters, version);
    int status = engine_image_drop(adapters->engine, image);
    return status ? status : status_no_memory();
}

/* Ends the load on all ranks: the image is used, or there is none, or the load begins again. */
static int end_image(struct adapters *adapters) {
    struct job *job = &adapters->job;
    int image = engine_image_end(adapters->engine), status = STATUS_OK;
    bool is_any = false;
    job->is_under_way = false;
    if (image >= 0) {
        job->is_done = true;
        return use_image(adapters, image);
    }
    snprintf(job->reason, sizeof job->reason, "%s", status_text());
    if (image == STATUS_MEMORY || image == STATUS_PEER)
        status = evict(adapters, job->named->version, &is_any);
    if (!status && is_any)
        return begin_job(adapters);
    return status ? status : status_fail(image, "%s", job->reason);
}

int adapters_begin(struct adapters *adapters, const char *name, struct adapter_files *files, enum adapter_change change,
                   uint64_t if_generation) {
    struct job *job = &adapters->job;
    struct named *named;
    int status = find_known(adapters, name, &named);
    THEN_IF(status, job->named, status_fail(STATUS_INVALID, "adapter %s is being loaded", job->named->name));
    THEN(status, check_generation(named, if_generation));
    THEN_IF(status, change == ADAPTER_BRING, check_digest(named, files->digest));
    TRY(status);
    *job = (struct job){.named = named, .files = *files, .change = change};
    job->is_done = change == ADAPTER_BRING && named->version && named->version->image >= 0;
    status = job->is_done ? STATUS_OK : begin_job(adapters);
    if (status)
        *job = (struct job){0};
    else
        *files = (struct adapter_files){0};
    return status;
}

int adapters_absent(const struct adapters *adapters, const char *const *names, int count) {
    for (int i = 0; i < count; i++) {
        const struct named *named = find(adapters, names[i]);
        if (named && !(named->version && named->version->image >= 0))
            return i;
    }
    return -1;
}

static void continue_job(struct adapters *adapters, double seconds) {
    struct job *job = &adapters->job;
    bool is_ready = false;
    int status = engine_image_continue(adapters->engine, seconds, &is_ready);
    THEN_IF(status, is_ready, end_image(adapters));
    if (!status)
        return;
    job->status = status;
    job->is_done = true;
    snprintf(job->reason, sizeof job->reason, "%s", status_text());
}

int adapters_continue(struct adapters *adapters, bool *is_done) {
    struct job *job = &adapters->job;
    *is_done = false;
    if (!job->named)
        return STATUS_OK;
    if (!job->is_done)
        continue_job(adapters, engine_step_seconds(adapters->engine) / 8);
    if (!job->is_done)
        return STATUS_OK;
    int status = job->status ? status_fail(job->status, "%s", job->reason) : STATUS_OK;
    *is_done = true;
    end_job(job);
    return status;
}

/* Completes the load under way, because only one adapter is loaded at a time. The next adapters_continue reports it. */
static void settle(struct adapters *adapters) {
    while (adapters->job.named && !adapters->job.is_done)
        continue_job(adapters, 1e9);
}

int adapters_unload(struct adapters *adapters, const char *name) {
    struct named *named;
    int i = 0, status = find_known(adapters, name, &named);
    if (!status && adapters->job.named == named && !adapters->job.is_done)
        status = status_fail(STATUS_INVALID, "adapter %s is being loaded", name);
    TRY(status);
    status = retire(adapters, named->version);
    while (adapters->named[i] != named)
        i++;
    memmove(&adapters->named[i], &adapters->named[i + 1], (size_t)(--adapters->count - i) * sizeof(struct named *));
    free_named(named);
    return status;
}

/* ---- slots of completions ---- */

static struct version *version_of(const struct adapters *adapters, int image) {
    int i = 0;
    while (adapters->versions[i]->image != image)
        i++;
    return adapters->versions[i];
}

/* Loads what is not in memory, and counts a user of each. On failure nothing is counted, and *which had failed. */
static int take_images(struct adapters *adapters, const char *const *names, int count, int images[PEFT_SLOT_IMAGES],
                       uint64_t generations[PEFT_SLOT_IMAGES], int *which) {
    struct version *taken[PEFT_SLOT_IMAGES];
    int done = 0, status = STATUS_OK;
    for (; done < count; done++) {
        struct named *named;
        status = find_known(adapters, names[done], &named);
        THEN(status, make_resident(adapters, named));
        if (status)
            break;
        taken[done] = named->version;
        taken[done]->users++; /* protects it while the next one is loaded */
        taken[done]->last_use = ++adapters->uses;
        images[done] = taken[done]->image;
        generations[done] = taken[done]->generation;
    }
    for (int i = 0; i < done && status; i++)
        taken[i]->users--;
    *which = done;
    return status;
}

static int give_images(struct adapters *adapters, const int *images, int count) {
    int status = STATUS_OK;
    for (int i = 0; i < count && !status; i++) {
        struct version *version = version_of(adapters, images[i]);
        version->users--;
        status = end_if_retired(adapters, version);
    }
    return status;
}

int adapters_take(struct adapters *adapters, const char *const *names, int count, int *slot,
                  uint64_t generations[PEFT_SLOT_IMAGES]) {
    int images[PEFT_SLOT_IMAGES], which;
    *slot = -1;
    if (count > PEFT_SLOT_IMAGES)
        return status_fail(STATUS_USAGE, "%d adapters for one text: expected at most %d", count, PEFT_SLOT_IMAGES);
    int status = take_images(adapters, names, count, images, generations, &which);
    if (status == STATUS_MEMORY && which > 0) { /* those before it may lie in the middle of memory that nobody uses */
        TRY(adapters_clear(adapters));
        status = take_images(adapters, names, count, images, generations, &which);
    }
    TRY(status);
    status = engine_slot_open(adapters->engine, images, count, slot);
    if (status)
        give_images(adapters, images, count);
    return status;
}

int adapters_give(struct adapters *adapters, int slot) {
    int images[PEFT_SLOT_IMAGES], count = engine_slot_images(adapters->engine, slot, images);
    engine_slot_close(adapters->engine, slot);
    return give_images(adapters, images, count);
}

/* ---- reports ---- */

const uint64_t *adapters_receipts(const struct adapters *adapters) {
    return adapters->receipts;
}

static struct adapter_view view_of(const struct named *named) {
    const struct version *version = named->version;
    struct adapter_view view = {
        .name = named->name, .directory = named->directory, .digest = named->digest, .is_pinned = named->is_pinned};
    if (!version)
        return view;
    view.state = version->image >= 0 ? ADAPTER_RESIDENT : ADAPTER_EVICTED;
    view.generation = version->generation;
    view.bytes = version->image >= 0 ? version->bytes : 0;
    view.virtual_tokens = version->virtual_tokens;
    view.users = version->users;
    view.receipt = version->receipt;
    return view;
}

bool adapters_at(const struct adapters *adapters, int number, struct adapter_view *view) {
    if (number >= 0 && number < adapters->count)
        *view = view_of(adapters->named[number]);
    return number >= 0 && number < adapters->count;
}

bool adapters_find(const struct adapters *adapters, const char *name, struct adapter_view *view) {
    const struct named *named = find(adapters, name);
    if (named)
        *view = view_of(named);
    return named != NULL;
}
