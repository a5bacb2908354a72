/* trainer_state.json, which ties a checkpoint together. It has digests of the files next to it, and one of itself, so a
 * directory of files from two checkpoints is recognised. Both cover contents only: the same for any ranks. */
#include "save-internal.h"

#include <errno.h>

static const char files_key[] = "files", digest_key[] = "digest";

/* The number of places of a file that are read, 64 KiB each. Training changes values everywhere, so a few places are
 * enough. */
enum { PLACES = 64, DIGEST_TEXT = 17 };

static void write_digest(uint64_t digest, char out[DIGEST_TEXT]) {
    snprintf(out, DIGEST_TEXT, "%016llx", (unsigned long long)digest);
}

/* Computes the digest of a state without the digest in it. It covers the values, however they are spaced. Called after
 * json_begin(). */
static int digest_state(json_t *state, char out[DIGEST_TEXT]) {
    char *text;
    int status = json_end(json_incref(state), JSON_COMPACT | JSON_SORT_KEYS, &text);
    if (!status)
        write_digest(digest_bytes(DIGEST_START, text, strlen(text)), out);
    free(text);
    return status;
}

static int digest_of(const char *directory, const char *name, char out[DIGEST_TEXT]) {
    char path[PATH_MAX];
    int64_t bytes;
    uint64_t digest;
    int status = file_join(path, sizeof path, directory, name);
    THEN(status, digest_places(path, PLACES, &bytes, &digest));
    if (!status)
        write_digest(digest, out);
    return status;
}

static int add_digest(json_t *files, const char *directory, const char *name) {
    char digest[DIGEST_TEXT];
    int status = digest_of(directory, name, digest);
    THEN_IF(status, json_object_set_new(files, name, json_string(digest)), status_no_memory());
    return status;
}

int save_state(const char *directory, const struct ckpt_save *save, const struct save_files *files,
               const char *state_text) {
    char path[PATH_MAX], digest[DIGEST_TEXT], *text = NULL;
    json_begin();
    json_t *state = NULL, *digests = json_object();
    int status = file_join(path, sizeof path, directory, STATE_FILE);
    THEN(status, json_object_parse(path, 0, state_text, strlen(state_text), &state));
    THEN_IF(status, save->model.config_text, add_digest(digests, directory, CONFIG_FILE));
    for (int i = 0; i < save->model.text_count && !status; i++)
        status = add_digest(digests, directory, save->model.texts[i].name);
    for (int f = 0; f < files->count && !status; f++)
        status = add_digest(digests, directory, files->items[f].name);
    THEN_IF(status, json_object_set(state, files_key, digests), status_no_memory());
    THEN(status, digest_state(state, digest));
    THEN_IF(status, json_object_set_new(state, digest_key, json_string(digest)), status_no_memory());
    if (!status) {
        status = json_end(state, JSON_INDENT(2), &text);
        state = NULL;
    }
    THEN(status, file_write_atomic(path, text, strlen(text)));
    free(text);
    json_decref(digests);
    json_decref(state);
    return status;
}

/* ---- reading ---- */

static int check_file(const char *directory, const char *name, const json_t *expected) {
    char digest[DIGEST_TEXT], part[SHOWN_BYTES];
    if (*name == '/' || strstr(name, "..") || !json_is_string(expected))
        return status_fail(STATUS_INVALID, "%s/%s: 'files' has a bad entry '%s'", directory, STATE_FILE,
                           shown(name, part));
    int status = digest_of(directory, name, digest);
    if (!status && strcmp(digest, json_string_value(expected)))
        status = status_fail(STATUS_INVALID,
                             "%s/%s is not the file that was saved with %s: it is another checkpoint's, or was changed",
                             directory, name, STATE_FILE);
    return status;
}

/* `digest` is the one in the state; NULL: it has none. */
static int check_state(const char *directory, json_t *state, const json_t *digest) {
    const json_t *files = json_object_get(state, files_key), *expected;
    const char *name;
    char found[DIGEST_TEXT];
    json_begin();
    if (!digest || !json_is_object(files))
        return status_fail(
            STATUS_INVALID,
            "%s/%s has no digests ('%s' and '%s'), so nothing says whether the checkpoint is whole: resume "
            "from another one",
            directory, STATE_FILE, files_key, digest_key);
    int status = digest_state(state, found);
    if (!status && (!json_is_string(digest) || strcmp(found, json_string_value(digest))))
        return status_fail(STATUS_INVALID, "%s/%s was changed after it was saved: its digest is that of other values",
                           directory, STATE_FILE);
    void *at = json_object_iter((json_t *)files);
    for (; at && !status; at = json_object_iter_next((json_t *)files, at)) {
        name = json_object_iter_key(at);
        expected = json_object_iter_value(at);
        status = check_file(directory, name, expected);
    }
    return status;
}

int ckpt_check_state(const char *directory) {
    struct strbuf text = STRBUF_INIT;
    char path[PATH_MAX];
    json_t *state = NULL;
    int status = ckpt_read_state(directory, &text);
    THEN(status, file_join(path, sizeof path, directory, STATE_FILE));
    THEN(status, json_object_parse(path, 0, strbuf_text(&text), text.length, &state));
    json_t *digest = status ? NULL : json_incref(json_object_get(state, digest_key));
    if (!status) {
        json_object_del(state, digest_key);
        status = check_state(directory, state, digest);
    }
    json_decref(digest);
    json_decref(state);
    strbuf_free(&text);
    return status;
}

/* Returns the iteration in a checkpoint's name, also of one that waits displaced; -1: it has none. */
static int64_t iteration_of(const char *path) {
    char box[PATH_MAX], parent[PATH_MAX], old[PATH_MAX], name[NAME_MAX + 1];
    const char *slash = strrchr(path, '/');
    int64_t number = slash ? checkpoint_iteration(slash + 1) : -1;
    if (number >= 0 || file_parent(path, box, sizeof box) || file_parent(box, parent, sizeof parent))
        return number;
    slash = strrchr(box, '/');
    bool is_displaced = slash && staging_displaced(parent, slash + 1, old, name) && !strcmp(old, path);
    return is_displaced ? checkpoint_iteration(name) : -1;
}

int ckpt_check_iteration(const char *directory, int64_t iteration) {
    char *path = realpath(directory, NULL);
    if (!path && errno == ENOMEM)
        return status_no_memory();
    int64_t number = path ? iteration_of(path) : -1;
    free(path);
    if (number < 0 || number == iteration)
        return STATUS_OK;
    return status_fail(STATUS_INVALID, "%s/%s is of iteration %lld: it is another checkpoint's, or was changed",
                       directory, STATE_FILE, (long long)iteration);
}
