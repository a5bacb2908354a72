/* Finds the model directory or training checkpoint that a path means, and reads its texts. */
#include "ckpt-internal.h"
#include "gguf.h"

#include <errno.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

bool directory_has_file(const char *directory, const char *name) {
    char path[PATH_MAX];
    return !file_join(path, sizeof path, directory, name) && file_exists(path);
}

static bool has_adapter(const char *directory) {
    static const char *const parts[] = {CKPT_ADAPTER_PART, CKPT_HUB_PART};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.safetensors", parts[i]);
        if (directory_has_file(directory, name))
            return directory_has_file(directory, ADAPTER_FILE);
    }
    return false;
}

/* Adapters side by side. */
static bool has_stack(const char *directory) {
    char **names;
    size_t count;
    bool has = false;
    if (file_list(directory, &names, &count))
        return false;
    for (size_t i = 0; i < count && !has; i++) {
        char path[PATH_MAX];
        has = !file_join(path, sizeof path, directory, names[i]) && has_adapter(path);
    }
    file_list_free(names, count);
    return has;
}

bool directory_has_model(const char *directory) {
    if (directory_has_file(directory, CONFIG_FILE))
        return directory_has_file(directory, MODEL_FILE) || directory_has_file(directory, MODEL_INDEX_FILE);
    return has_adapter(directory);
}

bool ckpt_has_encoder(const char *directory) {
    return directory_has_file(directory, CKPT_ENCODER_PART ".safetensors");
}

int64_t checkpoint_iteration(const char *name) {
    char again[32];
    if (strncmp(name, "iter_", 5) || !name[5] || name[5 + strspn(name + 5, "0123456789")])
        return -1;
    errno = 0;
    long long iteration = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "iter_%07lld", iteration);
    return errno == 0 && !strcmp(name, again) ? iteration : -1;
}

int copy_path(const char *path, char *out, size_t bytes) {
    int n = snprintf(out, bytes, "%s", path);
    return n >= 0 && (size_t)n < bytes ? STATUS_OK : status_fail(STATUS_INVALID, "path too long: %.200s", path);
}

int directory_check(const char *path) {
    struct stat info;
    if (stat(path, &info)) {
        int status = errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO;
        status_fail_errno("cannot open %s", path);
        return status;
    }
    return S_ISDIR(info.st_mode) ? STATUS_OK : status_fail(STATUS_INVALID, "%s is not a directory", path);
}

int ckpt_latest(const char *root, char *out, size_t bytes, int64_t *iteration) {
    char **names, damaged[PATH_MAX] = "";
    size_t count;
    int64_t best = -1;
    int status = directory_check(root);
    THEN(status, file_list(root, &names, &count));
    TRY(status);
    for (size_t i = 0; i < count && !status; i++) {
        char path[PATH_MAX], name[NAME_MAX + 1];
        bool is_displaced = staging_displaced(root, names[i], path, name);
        int64_t number = checkpoint_iteration(is_displaced ? name : names[i]);
        if (number < 0 || number < best || (is_displaced && number == best))
            continue;
        status = is_displaced ? STATUS_OK : file_join(path, sizeof path, root, names[i]);
        if (status)
            break;
        bool has_weights = directory_has_model(path) || has_stack(path);
        if (!has_weights || !directory_has_file(path, STATE_FILE)) {
            status = copy_path(path, damaged, sizeof damaged);
            continue;
        }
        best = number;
        status = copy_path(path, out, bytes);
    }
    file_list_free(names, count);
    if (!status && best < 0 && *damaged)
        status =
            status_fail(STATUS_INVALID,
                        "%s is not a whole checkpoint (expected %s, %s and %s, or those of an adapter), and %s has no "
                        "other. Bring back the missing file, or remove the directory to start afresh",
                        damaged, CONFIG_FILE, MODEL_FILE, STATE_FILE, root);
    else if (!status && best < 0)
        status = status_fail(STATUS_NOT_FOUND, "%s holds no checkpoint (iter_*)", root);
    else if (!status && *damaged)
        log_warning("%s is not a whole checkpoint (expected %s, %s and %s, or those of an adapter); passed over",
                    damaged, CONFIG_FILE, MODEL_FILE, STATE_FILE);
    if (iteration)
        *iteration = best;
    return status;
}

/* True for OWNER/NAME, where OWNER is no directory here. */
static bool is_hub_name(const char *path) {
    char parent[PATH_MAX];
    const char *slash = strchr(path, '/');
    return slash && slash > path && slash[1] && !strchr(slash + 1, '/') && path[0] != '.' && path[0] != '~' &&
           !file_parent(path, parent, sizeof parent) && !file_exists(parent);
}

/* Says what to do in place of naming a model in a form that is not read. */
static int explain_model(int status, const char *path) {
    size_t length = strlen(path);
    if (status == STATUS_NOT_FOUND && length > 5 && !strcasecmp(path + length - 5, ".gguf"))
        return status_fail(status, "there is no file %s, and nothing is fetched from a hub: download it first", path);
    if (status == STATUS_NOT_FOUND && is_hub_name(path))
        return status_fail(status,
                           "there is no directory %s, and nothing is fetched from a hub: download the model first (hf "
                           "download %s --local-dir DIR) and name its directory",
                           path, path);
    return status;
}

/* Says how to name an adapter in `directory`, which was given as the model `path`. */
static int explain_adapter(const char *path, const char *directory) {
    struct strbuf text = STRBUF_INIT;
    json_t *root = NULL;
    json_error_t error;
    if (!ckpt_read_adapter_config(directory, &text))
        json_read(strbuf_text(&text), text.length, 0, &root, &error); /* a damaged one names no base */
    const char *base = json_string_value(json_object_get(root, "base_model_name_or_path"));
    int status =
        status_fail(STATUS_INVALID,
                    "%s is an adapter, not a model (no config.json): name its base and it, --model %s --adapter %s "
                    "(for serve --adapter NAME=%s, for finetune --init-adapter %s)",
                    path, base && *base ? base : "BASE", path, path, path);
    json_decref(root);
    strbuf_free(&text);
    return status;
}

int ckpt_resolve_model(const char *path, char *out, size_t bytes) {
    if (gguf_is_file(path))
        return copy_path(path, out, bytes);
    int status = directory_check(path);
    if (status)
        return explain_model(status, path);
    if (directory_has_file(path, CONFIG_FILE))
        return copy_path(path, out, bytes);
    if (directory_has_file(path, ADAPTER_FILE))
        return explain_adapter(path, path);
    status = ckpt_latest(path, out, bytes, NULL);
    if (status == STATUS_NOT_FOUND ? has_stack(path) : !status && !directory_has_file(out, CONFIG_FILE))
        return explain_adapter(path, status ? path : out);
    if (status == STATUS_NOT_FOUND)
        status_fail(status, "%s is not a model directory: it holds neither %s nor a checkpoint (iter_*)", path,
                    CONFIG_FILE);
    return status == STATUS_NOT_FOUND ? explain_other_system(status, path) : status;
}

int ckpt_resolve_checkpoint(const char *path, char *out, size_t bytes) {
    TRY(directory_check(path));
    if (directory_has_file(path, STATE_FILE))
        return copy_path(path, out, bytes);
    int status = ckpt_latest(path, out, bytes, NULL);
    if (status == STATUS_NOT_FOUND && directory_has_file(path, CONFIG_FILE))
        return status_fail(STATUS_INVALID, "%s is a model directory without training state (no %s)", path, STATE_FILE);
    return status;
}

static int read_text(const char *directory, const char *name, size_t limit, struct strbuf *text) {
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, directory, name);
    return status ? status : file_read(path, limit, text);
}

int ckpt_read_config(const char *directory, struct strbuf *text) {
    return read_text(directory, CONFIG_FILE, JSON_FILE_LIMIT, text);
}

int ckpt_read_generation_config(const char *directory, struct strbuf *text) {
    return read_text(directory, GENERATION_FILE, JSON_FILE_LIMIT, text);
}

int ckpt_read_adapter_config(const char *directory, struct strbuf *text) {
    return read_text(directory, ADAPTER_FILE, CKPT_ADAPTER_CONFIG_BYTES, text);
}

int ckpt_read_state(const char *directory, struct strbuf *text) {
    return read_text(directory, STATE_FILE, JSON_FILE_LIMIT, text);
}
