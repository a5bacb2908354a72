/* Images on all ranks. One rank reads an adapter's files once and sends the bytes to the others. */
#include "engine-internal.h"

static int agree(const struct engine *engine, int status) {
    return engine->shared->holders ? comm_agree(engine->shared->holders, status) : status;
}

/* ---- an image that is being made ---- */

static void end_loading(struct engine *engine) {
    if (engine->bank)
        peft_bank_abandon(engine->bank);
    peft_files_close(engine->loading.files);
    engine->loading = (struct engine_loading){0};
    if (engine->leader)
        engine->leader->sending = NULL;
}

/* Begins the image on this rank. A failure is reported when all ranks vote. */
static void begin_loading(struct engine *engine, const struct peft_bytes *bytes) {
    struct engine_loading *loading = &engine->loading;
    int status = peft_files_open_bytes(bytes, 1, &loading->files);
    if (!status && !engine->options.random && !bytes->fits_base && engine->leader)
        status = peft_files_check_base(loading->files, engine->directory, engine->options.load_in);
    THEN(status, peft_bank_begin(engine->bank, loading->files, 0));
    loading->has_begun = true;
    loading->status = status;
    if (status)
        snprintf(loading->reason, sizeof loading->reason, "%s", status_text());
}

static void continue_loading(struct engine *engine, double seconds) {
    struct engine_loading *loading = &engine->loading;
    if (!loading->has_begun || loading->status || loading->is_ready)
        return;
    loading->status = peft_bank_continue(engine->bank, seconds, &loading->is_ready);
    if (loading->status)
        snprintf(loading->reason, sizeof loading->reason, "%s", status_text());
}

void engine_load_beside(struct engine *engine, double step_seconds) {
    continue_loading(engine, step_seconds / 8);
}

/* Completes the image on all ranks, and returns its number, the same on all. When a rank fails, no rank has it. */
static int commit_loading(struct engine *engine) {
    struct engine_loading *loading = &engine->loading;
    while (!loading->status && !loading->is_ready)
        continue_loading(engine, 1e9);
    int status = loading->status ? status_fail(loading->status, "%s", loading->reason) : STATUS_OK;
    status = agree(engine, status); /* completing may sum over ranks */
    int image = status ? status : peft_bank_commit(engine->bank);
    THEN(status, agree(engine, image < 0 ? image : STATUS_OK));
    if (status && image >= 0)
        peft_bank_drop(engine->bank, image);
    end_loading(engine);
    return status ? status : image;
}

/* ---- opening an engine ---- */

static int share(struct engine *engine, void *data, int64_t count, enum dtype dtype) {
    struct comm_data moved = {.send = data, .receive = data, .count = count, .dtype = dtype};
    return engine->options.world ? comm_broadcast(engine->options.world, &moved, 0) : STATUS_OK;
}

/* Sends the bytes from the first rank of the world to all. */
static int share_bytes(struct engine *engine, struct peft_bytes *bytes) {
    bool is_first = !engine->options.world || engine->options.world->rank == 0;
    int64_t lengths[2] = {(int64_t)bytes->length, is_first ? (int64_t)strlen(bytes->directory) + 1 : 0};
    int status = share(engine, lengths, 2, DTYPE_I64);
    if (!status && !is_first) {
        *bytes = (struct peft_bytes){
            .directory = malloc((size_t)lengths[1]), .data = malloc((size_t)lengths[0]), .length = (size_t)lengths[0]};
        if (!bytes->directory || !bytes->data)
            status = status_no_memory();
    }
    if (engine->options.world)
        status = comm_agree(engine->options.world, status);
    THEN(status, share(engine, bytes->directory, lengths[1], DTYPE_U8));
    return status ? status : share(engine, bytes->data, lengths[0], DTYPE_U8);
}

struct found {
    char **names; /* [name_count] first rank only */
    size_t name_count, count;
    struct peft_bytes *bytes; /* [count] */
};

/* Reads an adapter. Its header is checked against the base first, so a damaged file is not read. */
static int read_adapter(const struct engine *engine, const char *directory, struct peft_bytes *bytes) {
    struct peft_limits limits = {.bytes = ENGINE_ADAPTER_BYTES, .bank = engine->bank};
    return peft_bytes_read_at(&(struct peft_place){.path = directory}, &limits, bytes);
}

/* Finds and reads the adapters on the first rank of the world, and copies them to all. */
static int find_adapters(struct engine *engine, struct found *found) {
    const struct engine_options *o = &engine->options;
    bool is_first = !o->world || o->world->rank == 0;
    int status = is_first ? peft_find(o->adapters, o->adapter_count, &found->names, &found->name_count) : STATUS_OK;
    found->count = found->name_count;
    if (!status && found->count > PEFT_SLOT_IMAGES)
        status =
            status_fail(STATUS_USAGE, "%zu adapters for one text: expected at most %d", found->count, PEFT_SLOT_IMAGES);
    if (o->world)
        status = comm_agree(o->world, status);
    int64_t count = (int64_t)found->count;
    THEN(status, share(engine, &count, 1, DTYPE_I64));
    found->count = status ? 0 : (size_t)count;
    found->bytes = calloc(found->count + 1, sizeof *found->bytes);
    THEN_IF(status, !found->bytes, status_no_memory());
    for (size_t i = 0; i < found->count && is_first && !status; i++)
        status = read_adapter(engine, found->names[i], &found->bytes[i]);
    if (o->world)
        status = comm_agree(o->world, status);
    for (size_t i = 0; i < found->count && !status; i++)
        status = share_bytes(engine, &found->bytes[i]);
    return status;
}

static void forget_found(struct found *found) {
    for (size_t i = 0; found->bytes && i < found->count; i++)
        peft_bytes_free(&found->bytes[i]);
    free(found->bytes);
    if (found->names)
        file_list_free(found->names, found->name_count);
}

/* Adds the memory of the adapters that the options name to adapter_memory, in engine->images. */
static int count_bytes(struct engine *engine, const struct found *found) {
    int status = STATUS_OK;
    engine->images = engine->options.adapter_memory;
    for (size_t i = 0; i < found->count && !status; i++) {
        struct peft_files *files;
        size_t one = 0;
        status = peft_files_open_bytes(&found->bytes[i], 1, &files);
        THEN(status, peft_bank_image_bytes(engine->bank, peft_files_configs(files), &one));
        peft_files_close(files);
        engine->images += one;
    }
    return status;
}

static int allocate(struct engine *engine, const struct found *found) {
    TRY(count_bytes(engine, found));
    return peft_bank_allocate(engine->bank, engine->images);
}

int engine_plan_images(struct engine *engine) {
    struct found found = {0};
    if (!engine->bank)
        return STATUS_OK;
    peft_bank_set_base(engine->bank, base_store(engine->base));
    int status = engine->options.adapter_count ? find_adapters(engine, &found) : STATUS_OK;
    THEN(status, count_bytes(engine, &found));
    forget_found(&found);
    return status;
}

int engine_open_images(void *self) {
    struct engine *engine = self;
    struct found found = {0};
    int images[PEFT_SLOT_IMAGES], status = STATUS_OK;
    if (!engine->bank)
        return STATUS_OK;
    peft_bank_set_base(engine->bank, base_store(engine->base));
    if (engine->options.adapter_count)
        status = find_adapters(engine, &found);
    THEN(status, agree(engine, allocate(engine, &found)));
    for (size_t i = 0; i < found.count && !status; i++) {
        begin_loading(engine, &found.bytes[i]);
        images[i] = commit_loading(engine);
        status = images[i] < 0 ? images[i] : STATUS_OK;
    }
    if (!status && found.count && engine->leader)
        status = engine_slot_open(engine, images, (int)found.count, &engine->leader->opened_slot);
    if (!status && found.count && engine->leader) { /* their receipts are replayed when all ranks are open */
        engine->leader->opened = found.bytes;
        engine->leader->opened_count = found.count;
        found.bytes = NULL;
    }
    forget_found(&found);
    return status;
}

void engine_close_images(void *self) {
    struct engine *engine = self;
    struct engine_leader *leader = engine->leader;
    end_loading(engine);
    for (size_t i = 0; leader && i < leader->opened_count; i++)
        peft_bytes_free(&leader->opened[i]);
    if (leader) {
        free(leader->opened);
        free(leader->base);
    }
}

/* ---- loading while the engine runs ---- */

/* Sends the next piece to the other ranks. */
static int send_piece(struct engine *engine) {
    struct engine_leader *leader = engine->leader;
    size_t total = leader->sending->length, rest = total - leader->sent_bytes;
    struct plan plan = {.header = {.kind = PLAN_BYTES, .total = (int64_t)total}};
    plan.header.offset = (int64_t)leader->sent_bytes;
    plan.header.counts.bytes = rest < ENGINE_PIECE_BYTES ? (int64_t)rest : ENGINE_PIECE_BYTES;
    plan.bytes = (char *)leader->sending->data + leader->sent_bytes;
    leader->sent_bytes += (size_t)plan.header.counts.bytes;
    return engine_send_plan(engine, &plan);
}

static bool has_sent_all(const struct engine *engine) {
    return !engine->shared->holders || engine->leader->sent_bytes == engine->leader->sending->length;
}

int engine_image_begin(struct engine *engine, const struct peft_bytes *bytes) {
    if (!engine->bank)
        return status_fail(STATUS_UNSUPPORTED, "an engine that was opened without memory for adapters");
    if (engine->loading.has_begun)
        return status_fail(STATUS_INVALID, "an adapter is being loaded already");
    begin_loading(engine, bytes);
    engine->leader->sending = bytes;
    engine->leader->sent_bytes = 0;
    if (!engine->loading.status)
        return STATUS_OK;
    int status = status_fail(engine->loading.status, "%s", engine->loading.reason);
    end_loading(engine); /* no other rank knows of it yet */
    return status;
}

int engine_image_continue(struct engine *engine, double seconds, bool *is_ready) {
    int status = has_sent_all(engine) ? STATUS_OK : send_piece(engine);
    continue_loading(engine, seconds);
    *is_ready = has_sent_all(engine) && (engine->loading.is_ready || engine->loading.status);
    return status;
}

int engine_image_end(struct engine *engine) {
    struct plan plan = {.header = {.kind = PLAN_LOAD}};
    int status = STATUS_OK;
    while (!has_sent_all(engine) && !status)
        status = send_piece(engine);
    THEN(status, engine_send_plan(engine, &plan));
    return status ? status : commit_loading(engine);
}

int engine_image_load(struct engine *engine, const struct peft_bytes *bytes) {
    int status = engine_image_begin(engine, bytes);
    return status ? status : engine_image_end(engine);
}

const struct peft_bank *engine_bank(const struct engine *engine) {
    return engine->bank;
}

size_t engine_adapter_bytes(const struct engine *engine) {
    return engine->bank ? peft_bank_used(engine->bank) : 0;
}

size_t engine_image_bytes(const struct engine *engine, int image) {
    return peft_bank_bytes_of(engine->bank, image);
}

int64_t engine_image_virtual_tokens(const struct engine *engine, int image) {
    return peft_bank_prefix_tokens(engine->bank, image) + peft_bank_virtual_tokens(engine->bank, image);
}

int engine_image_drop(struct engine *engine, int image) {
    struct plan plan = {.header = {.kind = PLAN_DROP, .image = image}};
    engine_forget_slots(engine, image);
    int status = engine_send_plan(engine, &plan);
    return status ? status : engine_forget_image(engine, image);
}

int engine_forget_image(struct engine *engine, int image) {
    peft_bank_drop(engine->bank, image);
    return STATUS_OK;
}

/* Adds a piece to a follower's copy of the files. The first piece gives the total size; with the last one the image
 * begins. */
int engine_take_bytes(struct engine *engine, const struct plan *plan) {
    const struct plan_header *h = &plan->header;
    struct peft_bytes *arriving = &engine->follower->arriving;
    if (h->offset == 0) {
        end_loading(engine);
        peft_bytes_free(arriving);
        *arriving = (struct peft_bytes){
            .directory = strdup("an adapter"), .data = malloc((size_t)h->total), .length = (size_t)h->total};
    }
    bool has_memory = arriving->data && arriving->directory;
    if (h->offset < 0 || h->counts.bytes > (int64_t)arriving->length - h->offset)
        return status_fail(STATUS_INVALID, "a piece of an adapter is out of place");
    if (has_memory)
        memcpy((char *)arriving->data + h->offset, plan->bytes, (size_t)h->counts.bytes);
    if (h->offset + h->counts.bytes < h->total)
        return STATUS_OK;
    if (has_memory) {
        begin_loading(engine, arriving);
        return STATUS_OK;
    }
    engine->loading.has_begun = true;
    engine->loading.status = STATUS_MEMORY;
    snprintf(engine->loading.reason, sizeof engine->loading.reason, "out of memory for an adapter's files");
    return STATUS_OK;
}

int engine_make_image(struct engine *engine) {
    commit_loading(engine); /* the leader reports a failure */
    peft_bytes_free(&engine->follower->arriving);
    engine->follower->arriving = (struct peft_bytes){0};
    return STATUS_OK;
}
