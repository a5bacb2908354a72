/* The contents of a directory besides tensors, and its publication: the first rank's part. */
#include "save-internal.h"

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

/* The files of a model beside its run's checkpoints. */
static const char *const beside_names[] = {CONFIG_FILE,         GENERATION_FILE,       MODEL_FILE,
                                           MODEL_INDEX_FILE,    "tokenizer.json",      "tokenizer_config.json",
                                           "vocab.json",        "merges.txt",          "special_tokens_map.json",
                                           "added_tokens.json", "chat_template.jinja", NULL};
const struct staging_files save_beside_files = {.kind = "model", .key = CONFIG_FILE, .names = beside_names};

/* True when the model in `directory` has the configuration of its newest checkpoint. */
static bool is_of_checkpoints(const char *directory) {
    char newest[PATH_MAX];
    struct strbuf ours = STRBUF_INIT, theirs = STRBUF_INIT;
    bool is = !ckpt_latest(directory, newest, sizeof newest, NULL) && !ckpt_read_config(newest, &ours) &&
              !ckpt_read_config(directory, &theirs) && ours.length == theirs.length &&
              !memcmp(strbuf_text(&ours), strbuf_text(&theirs), ours.length);
    strbuf_free(&ours);
    strbuf_free(&theirs);
    return is;
}

int ckpt_check_beside(const char *directory) {
    if (directory_has_file(directory, CONFIG_FILE))
        return is_of_checkpoints(directory)
                   ? STATUS_OK
                   : status_fail(STATUS_USAGE, "%s holds a model: the new one needs another directory", directory);
    for (const char *const *name = beside_names; *name; name++)
        if (directory_has_file(directory, *name))
            return status_fail(STATUS_USAGE, "%s holds %s, which a model would replace: name another directory",
                               directory, *name);
    return STATUS_OK;
}

int save_check_replaceable(const char *directory) {
    char **names, *other = NULL;
    size_t count;
    int status = directory_check(directory);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    THEN(status, file_list(directory, &names, &count));
    TRY(status);
    if (count > 0 && !directory_has_model(directory))
        status = status_fail(STATUS_INVALID, "%s is not empty and no model directory: name another, or remove it",
                             directory);
    file_list_free(names, count);
    THEN(status, file_find_other(directory, is_of_model, &other));
    if (!status && *other)
        status = status_fail(STATUS_INVALID,
                             "%s holds %s, which is not a file of a model: name another directory, or remove it",
                             directory, other);
    free(other);
    return status;
}

void save_prune(const struct ckpt_save *save, const int64_t *others, size_t other_count) {
    char path[PATH_MAX];
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
        if (snprintf(path, sizeof path, "%s/iter_%07lld", save->root, (long long)iterations[i]) < (int)sizeof path &&
            staging_remove(path))
            log_warning("%s", status_text());
    free(iterations);
}

int save_texts(const char *directory, const struct ckpt_save *save) {
    const struct ckpt_model *model = &save->model;
    int status = model->config_text ? write_text(directory, CONFIG_FILE, model->config_text) : STATUS_OK;
    for (int i = 0; i < model->text_count && !status; i++)
        status = write_text(directory, model->texts[i].name, model->texts[i].text);
    THEN_IF(status, model->tokenizer, tokenizer_files_write(model->tokenizer, directory));
    return status;
}
