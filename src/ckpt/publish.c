/* The contents of a directory besides tensors, and its publication: the first rank's part. */
#include "save-internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int write_text(const char *directory, const char *name, const char *text) {
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, directory, name);
    return status ? status : file_write_atomic(path, text, strlen(text));
}

/* "model-00001-of-00002.safetensors" */
static bool is_shard(const char *name) {
    int shard, count, end = 0;
    return sscanf(name, "model-%5d-of-%5d.safetensors%n", &shard, &count, &end) == 2 && end && !name[end];
}

/* True for the names of a model directory's files. */
static bool is_of_model(const char *name) {
    for (int i = 0; i < TOKENIZER_FILE_COUNT; i++)
        if (!strcmp(name, tokenizer_file_names[i]))
            return true;
    return !strcmp(name, CONFIG_FILE) || !strcmp(name, MODEL_FILE) || !strcmp(name, MODEL_INDEX_FILE) || is_shard(name);
}

int save_check_replaceable(const char *directory) {
    char **names, *other = NULL;
    size_t count;
    int status = directory_check(directory);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    if (!status)
        status = file_list(directory, &names, &count);
    if (status)
        return status;
    if (count > 0 && !directory_has_model(directory))
        status = status_fail(STATUS_INVALID, "%s is not empty and no model directory: name another, or remove it",
                             directory);
    file_list_free(names, count);
    if (!status)
        status = file_find_other(directory, is_of_model, &other);
    if (!status && *other)
        status = status_fail(STATUS_INVALID,
                             "%s holds %s, which is not a file of a model: name another directory, or remove it",
                             directory, other);
    free(other);
    return status;
}

static void prune_one(const char *root, int64_t iteration) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/iter_%07lld", root, (long long)iteration) >= (int)sizeof path)
        return;
    if (staging_remove(path))
        log_warning("%s", status_text());
}

void save_prune(const struct ckpt_save *save, const int64_t *others, size_t other_count) {
    int64_t *iterations;
    size_t count, found = 0;
    if (save->keep_last <= 0)
        return;
    if (ckpt_list_above(save->root, -1, &iterations, &count)) {
        log_warning("%s", status_text());
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (iterations[i] != save->iteration && !checkpoint_is_among(iterations[i], others, other_count))
            iterations[found++] = iterations[i];
    for (size_t i = 0; i < found && (int64_t)(found - i) > save->keep_last - 1; i++)
        prune_one(save->root, iterations[i]);
    free(iterations);
}

int save_texts(const char *directory, const struct ckpt_save *save) {
    const struct ckpt_model *model = &save->model;
    int status = model->config_text ? write_text(directory, CONFIG_FILE, model->config_text) : STATUS_OK;
    for (int i = 0; i < model->text_count && !status; i++)
        status = write_text(directory, model->texts[i].name, model->texts[i].text);
    if (!status && model->tokenizer)
        status = tokenizer_files_write(model->tokenizer, directory);
    return status;
}
