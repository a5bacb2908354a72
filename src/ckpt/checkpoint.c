/* Model directories and training checkpoints: which one is meant, and how a new one comes to be. */
#include "ckpt-internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const int64_t default_shard_bytes = 50000000000; /* transformers' */

static bool has_file(const char *directory, const char *name) {
    char path[PATH_MAX];
    return !file_join(path, sizeof path, directory, name) && file_exists(path);
}

static bool has_model(const char *directory) {
    return has_file(directory, CONFIG_FILE) &&
           (has_file(directory, MODEL_FILE) || has_file(directory, MODEL_INDEX_FILE));
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

static int copy_path(const char *path, char *out, size_t bytes) {
    int n = snprintf(out, bytes, "%s", path);
    return n >= 0 && (size_t)n < bytes ? STATUS_OK : status_fail(STATUS_INVALID, "path too long: %.200s", path);
}

/* STATUS_NOT_FOUND when there is nothing, STATUS_IO when what there is cannot be a directory of ours. */
static int check_directory(const char *path) {
    struct stat info;
    if (stat(path, &info)) {
        int status = errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO;
        status_fail_errno("cannot open %s", path);
        return status;
    }
    return S_ISDIR(info.st_mode) ? STATUS_OK : status_fail(STATUS_INVALID, "%s is not a directory", path);
}

int ckpt_latest(const char *root, char *out, size_t bytes, int64_t *iteration) {
    char **names;
    size_t count;
    int64_t best = -1;
    int status = check_directory(root);
    if (!status)
        status = file_list(root, &names, &count);
    if (status)
        return status;
    for (size_t i = 0; i < count && !status; i++) { /* sorted: "iter_7" comes before "iter_7.old-1" */
        char path[PATH_MAX];
        int64_t number = checkpoint_iteration(names[i]);
        if ((number < 0 && !checkpoint_is_displaced(names[i], &number)) || number <= best)
            continue;
        status = file_join(path, sizeof path, root, names[i]);
        if (status)
            break;
        if (!has_model(path) || !has_file(path, STATE_FILE)) {
            log_warning("%s is no whole checkpoint (expected %s, %s and %s); passed over", path, CONFIG_FILE,
                        MODEL_FILE, STATE_FILE);
            continue;
        }
        best = number;
        status = copy_path(path, out, bytes);
    }
    file_list_free(names, count);
    if (!status && best < 0)
        status = status_fail(STATUS_NOT_FOUND, "%s holds no checkpoint (iter_*)", root);
    if (iteration)
        *iteration = best;
    return status;
}

int ckpt_resolve_model(const char *path, char *out, size_t bytes) {
    int status = check_directory(path);
    if (status)
        return status;
    if (has_file(path, CONFIG_FILE))
        return copy_path(path, out, bytes);
    status = ckpt_latest(path, out, bytes, NULL);
    if (status == STATUS_NOT_FOUND)
        status_fail(status, "%s is no model directory: it holds neither %s nor a checkpoint (iter_*)", path,
                    CONFIG_FILE);
    return status;
}

int ckpt_resolve_checkpoint(const char *path, char *out, size_t bytes) {
    int status = check_directory(path);
    if (status)
        return status;
    if (has_file(path, STATE_FILE))
        return copy_path(path, out, bytes);
    if (has_file(path, CONFIG_FILE))
        return status_fail(STATUS_INVALID, "%s is a model directory without training state (no %s)", path, STATE_FILE);
    return ckpt_latest(path, out, bytes, NULL);
}

static int read_text(const char *directory, const char *name, struct strbuf *text) {
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, directory, name);
    return status ? status : file_read(path, JSON_FILE_LIMIT, text);
}

int ckpt_read_config(const char *directory, struct strbuf *text) {
    return read_text(directory, CONFIG_FILE, text);
}

int ckpt_read_state(const char *directory, struct strbuf *text) {
    return read_text(directory, STATE_FILE, text);
}

static int write_text(const char *directory, const char *name, const char *text) {
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, directory, name);
    return status ? status : file_write_atomic(path, text, strlen(text));
}

static int copy_tokenizer(const char *from, const char *to) {
    static const char *const names[] = {
        "tokenizer.json",        "vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json",
        "generation_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char source[PATH_MAX], target[PATH_MAX];
        if (!has_file(from, names[i]))
            continue;
        int status = file_join(source, sizeof source, from, names[i]);
        if (!status)
            status = file_join(target, sizeof target, to, names[i]);
        if (!status)
            status = file_copy(source, target);
        if (!status)
            status = file_sync(target);
        if (status)
            return status;
    }
    return STATUS_OK;
}

static int write_model_files(const char *directory, const struct ckpt_model *model) {
    struct write_request request = {
        .directory = directory,
        .name = "model",
        .table = model->table,
        .arrays = model->weights,
        .array_count = 1,
        .max_shard_bytes = model->max_shard_bytes > 0 ? model->max_shard_bytes : default_shard_bytes,
    };
    int status = write_text(directory, CONFIG_FILE, model->config_text);
    if (!status && model->tokenizer_directory)
        status = copy_tokenizer(model->tokenizer_directory, directory);
    return status ? status : write_tensors(&request);
}

/* An --output that names the wrong directory must not cost its contents. */
static int check_replaceable(const char *directory) {
    char **names;
    size_t count;
    int status = check_directory(directory);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    if (!status)
        status = file_list(directory, &names, &count);
    if (status)
        return status;
    if (count > 0 && !has_model(directory))
        status = status_fail(STATUS_INVALID, "%s is not empty and no model directory: name another, or remove it",
                             directory);
    file_list_free(names, count);
    return status;
}

int ckpt_write_model(const char *directory, const struct ckpt_model *model) {
    struct staging staging;
    int status = check_replaceable(directory);
    if (!status)
        status = staging_begin(&staging, directory, false);
    if (status)
        return status_wrap(status, "model %s was not written", directory);
    status = write_model_files(staging.temporary, model);
    if (!status)
        status = staging_commit(&staging);
    staging_abort(&staging);
    return status ? status_wrap(status, "model %s was not written", directory) : STATUS_OK;
}

static int write_checkpoint_files(const char *directory, const struct ckpt_save *save) {
    struct write_request request = {
        .directory = directory,
        .name = "optimizer",
        .table = save->model.table,
        .arrays = save->optimizer,
        .array_count = save->optimizer_count,
    };
    int status = write_model_files(directory, &save->model);
    if (!status)
        status = write_tensors(&request);
    return status ? status : write_text(directory, STATE_FILE, save->state_text);
}

static int compare_iterations(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void prune_one(const char *root, int64_t iteration) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/iter_%07lld", root, (long long)iteration) >= (int)sizeof path)
        return;
    if (staging_remove(path))
        log_warning("%s", status_text());
}

static void prune(const char *root, int64_t saved, int64_t keep_last) {
    char **names;
    size_t count, found = 0;
    if (keep_last <= 0)
        return;
    if (file_list(root, &names, &count)) {
        log_warning("%s", status_text());
        return;
    }
    int64_t *iterations = calloc(count + 1, sizeof *iterations);
    for (size_t i = 0; iterations && i < count; i++) {
        int64_t number = checkpoint_iteration(names[i]);
        if (number >= 0 && number != saved)
            iterations[found++] = number;
    }
    if (found)
        qsort(iterations, found, sizeof *iterations, compare_iterations);
    for (size_t i = 0; i < found && (int64_t)(found - i) > keep_last - 1; i++)
        prune_one(root, iterations[i]);
    free(iterations);
    file_list_free(names, count);
}

int ckpt_save(const struct ckpt_save *save) {
    char target[PATH_MAX];
    struct staging staging;
    if (save->iteration < 0 ||
        snprintf(target, sizeof target, "%s/iter_%07lld", save->root, (long long)save->iteration) >= (int)sizeof target)
        return status_fail(STATUS_INVALID, "cannot save iteration %lld under %.200s", (long long)save->iteration,
                           save->root);
    int status = staging_begin(&staging, target, true);
    if (status)
        return status_wrap(status, "checkpoint %s was not saved", target);
    status = write_checkpoint_files(staging.temporary, save);
    if (!status)
        status = staging_commit(&staging);
    staging_abort(&staging);
    if (status)
        return status_wrap(status, "checkpoint %s was not saved", target);
    prune(save->root, save->iteration, save->keep_last);
    return STATUS_OK;
}
