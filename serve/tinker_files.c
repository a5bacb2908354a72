/* Saved weights: a directory with PEFT's files, the state of the optimizer, and tinker.json with what else is known. It
 * appears whole, by a rename. */
#include "tinker-internal.h"

#include "base/base.h"
#include "base/json_keys.h"
#include "base/staging.h"

#include <errno.h>
#include <sys/stat.h>

#define STATE_FILE "optimizer.safetensors"
#define FACTS_FILE "tinker.json"
enum { FACTS_BYTES = 1 << 20 };
static const size_t state_most = (size_t)1 << 34, files_most = (size_t)1 << 34;

void tinker_saved_free(struct tinker_saved *saved) {
    json_decref(saved->metadata);
    saved->metadata = NULL;
}

bool tinker_name_is_valid(const char *name) {
    size_t length = strlen(name);
    return length && length < TINKER_NAME_BYTES && *name != '.' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == length;
}

/* A run's id is that of a session, ":train:" and a number. */
static bool run_is_valid(const char *run) {
    return *run && *run != '.' && strspn(run, "abcdefghijklmnopqrstuvwxyz0123456789:") == strlen(run);
}

bool tinker_parse_path(const char *path, struct tinker_saved *saved) {
    static const char scheme[] = "tinker://";
    if (strncmp(path, scheme, sizeof scheme - 1) != 0)
        return false;
    const char *run = path + sizeof scheme - 1, *kind = strchr(run, '/'), *name = kind ? strchr(kind + 1, '/') : NULL;
    if (!name || (size_t)(kind - run) >= sizeof saved->run || !tinker_name_is_valid(name + 1))
        return false;
    snprintf(saved->run, sizeof saved->run, "%.*s", (int)(kind - run), run);
    snprintf(saved->name, sizeof saved->name, "%s", name + 1);
    saved->is_sampler = !strncmp(kind, "/sampler_weights/", 17);
    return run_is_valid(saved->run) && (saved->is_sampler || !strncmp(kind, "/weights/", 9));
}

int tinker_directory(const char *root, const struct tinker_saved *saved, char path[PATH_MAX]) {
    int length = snprintf(path, PATH_MAX, "%s/%s/%s/%s", root, saved->run,
                          saved->is_sampler ? "sampler_weights" : "weights", saved->name);
    return length < PATH_MAX ? STATUS_OK : status_fail(STATUS_INVALID, "%s: the path is too long", saved->name);
}

/* ---- writing ---- */

static int write_facts(const char *directory, const struct tinker_saved *saved) {
    char path[PATH_MAX], *text;
    const struct tinker_shape *shape = &saved->shape;
    json_begin();
    json_t *root = json_pack(
        "{s:s, s:s, s:b, s:s, s:s, s:I, s:I, s:b, s:b, s:b, s:I, s:I, s:f, s:f}", "run", saved->run, "name",
        saved->name, "is_sampler", saved->is_sampler, "base_model", saved->base, "owner", saved->owner, "lora_rank",
        (json_int_t)shape->rank, "seed", (json_int_t)shape->seed, "train_unembed", shape->trains_head, "train_mlp",
        shape->trains_mlp, "train_attn", shape->trains_attention, "updates", (json_int_t)saved->updates, "bytes",
        (json_int_t)saved->bytes, "created", saved->created, "expires", saved->expires);
    if (saved->metadata)
        json_object_set(root, "user_metadata", saved->metadata);
    int status = json_end(root, JSON_COMPACT, &text);
    THEN(status, file_join(path, sizeof path, directory, FACTS_FILE));
    THEN(status, file_write_atomic(path, text, strlen(text)));
    free(text);
    return status;
}

/* Writes the files of an adapter, each as a whole. */
static int write_adapter(const char *directory, const struct adapter_files *files) {
    struct peft_member file;
    char path[PATH_MAX];
    int status = STATUS_OK;
    for (int i = 0; !status && peft_bytes_file(&files->bytes, i, &file); i++) {
        status = file_join(path, sizeof path, directory, file.name);
        THEN(status, file_write_atomic(path, file.data, file.length));
    }
    return status;
}

int tinker_write(const char *directory, const struct tinker_saved *saved, const struct adapter_files *files,
                 const struct strbuf *state, bool overwrites) {
    struct staging staging = {.mark = -1};
    struct tinker_saved facts = *saved;
    char path[PATH_MAX];
    if (!overwrites && file_exists(directory))
        return status_fail(STATUS_INVALID, "path: there are weights %s already, and overwrite is false", saved->name);
    facts.bytes = (int64_t)(files->bytes.length + (state ? state->length : 0));
    int status = staging_begin(&staging, directory);
    THEN(status, write_adapter(staging.directory, files));
    THEN_IF(status, state && state->length, file_join(path, sizeof path, staging.directory, STATE_FILE));
    THEN_IF(status, state && state->length, file_write_atomic(path, state->data, state->length));
    THEN(status, write_facts(staging.directory, &facts));
    THEN(status, staging_commit(&staging));
    staging_abort(&staging);
    return status;
}

int tinker_write_plain(const char *directory, const struct adapter_files *files) {
    TRY(file_make_directories(directory));
    return write_adapter(directory, files);
}

/* ---- reading ---- */

int tinker_read(const char *directory, const char *owner, struct tinker_saved *saved) {
    struct strbuf text = STRBUF_INIT;
    struct json_keys keys = {0};
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, directory, FACTS_FILE);
    THEN(status, file_read(path, FACTS_BYTES, &text));
    THEN(status, json_keys_open(&keys, strbuf_text(&text), path, JSON_MUST_BE));
    strbuf_free(&text);
    if (status)
        return status;
    struct tinker_saved read = {
        .is_sampler = json_keys_bool(&keys, "is_sampler", false),
        .shape = {.rank = json_keys_integer(&keys, "lora_rank", 0, 1, TINKER_MOST_RANK),
                  .seed = json_keys_integer(&keys, "seed", 0, 0, INT64_MAX),
                  .trains_head = json_keys_bool(&keys, "train_unembed", false),
                  .trains_mlp = json_keys_bool(&keys, "train_mlp", false),
                  .trains_attention = json_keys_bool(&keys, "train_attn", false)},
        .updates = json_keys_integer(&keys, "updates", 0, 0, INT64_MAX),
        .bytes = json_keys_integer(&keys, "bytes", 0, 0, INT64_MAX),
        .created = json_keys_number(&keys, "created", 0, 0, 1e12),
        .expires = json_keys_number(&keys, "expires", 0, 0, 1e12),
    };
    snprintf(read.run, sizeof read.run, "%s", json_keys_string(&keys, "run", ""));
    snprintf(read.name, sizeof read.name, "%s", json_keys_string(&keys, "name", ""));
    snprintf(read.base, sizeof read.base, "%s", json_keys_string(&keys, "base_model", ""));
    snprintf(read.owner, sizeof read.owner, "%s", json_keys_string(&keys, "owner", ""));
    const json_t *metadata = json_keys_find(&keys, "user_metadata");
    read.metadata = json_is_object(metadata) ? json_deep_copy(metadata) : NULL;
    status = keys.status;
    json_keys_close(&keys);
    if (!status && (strcmp(read.owner, owner) != 0 || (read.expires > 0 && read.expires < clock_wall_seconds())))
        status = status_fail(STATUS_NOT_FOUND, "%s: there is nothing", directory);
    if (status)
        tinker_saved_free(&read);
    else {
        tinker_saved_free(saved);
        *saved = read;
    }
    return status;
}

int tinker_read_files(const char *directory, struct adapter_files *files) {
    return adapter_files_read(&(struct peft_place){.path = directory}, &(struct peft_limits){.bytes = files_most},
                              files);
}

int tinker_read_state(const char *directory, struct strbuf *state) {
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, directory, STATE_FILE));
    return file_read(path, state_most, state);
}
