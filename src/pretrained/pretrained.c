/* Opening a model: a directory, or a GGUF file. */
#include "pretrained.h"

#include "ckpt/codec.h"
#include "gguf_model-internal.h"

/* Finds the directory or file that the path means; the first rank chooses. */
static int find_directory(const char *path, struct comm *world, char directory[PATH_MAX]) {
    int status = STATUS_OK;
    if (!world || world->rank == 0)
        status = ckpt_resolve_model(path, directory, PATH_MAX);
    if (!world)
        return status;
    struct comm_data data = {.send = directory, .receive = directory, .count = PATH_MAX, .dtype = DTYPE_U8};
    status = comm_agree(world, status);
    return status ? status : comm_broadcast(world, &data, 0);
}

static int read_generation_config(struct pretrained *model) {
    char where[PATH_MAX + 32];
    struct strbuf text = STRBUF_INIT;
    snprintf(where, sizeof where, "%s/generation_config.json", model->directory);
    int status = ckpt_read_generation_config(model->directory, &text);
    if (status == STATUS_NOT_FOUND)
        status = STATUS_OK;
    else if (!status)
        status = model_read_generation_config(strbuf_text(&text), where, &model->config, &model->ends);
    strbuf_free(&text);
    return status;
}

/* Reads the config.json of model->directory, and the ids that end its completions. */
static int read_config(struct pretrained *model) {
    char where[PATH_MAX + 16];
    snprintf(where, sizeof where, "%s/config.json", model->directory);
    int status = ckpt_read_config(model->directory, &model->config_text);
    if (!status)
        status =
            model_read_config(strbuf_text(&model->config_text), where, &model->config, &model->dtype, &model->ends);
    return status ? status : read_generation_config(model);
}

static int open_tensors(struct pretrained *model) {
    char where[PATH_MAX + 16];
    snprintf(where, sizeof where, "%s/config.json", model->directory);
    int status = ckpt_open_model(model->directory, &model->tensors);
    THEN(status, ckpt_attach_codec(model->tensors, strbuf_text(&model->config_text), where));
    if (!status && model->dtype == DTYPE_COUNT)
        model->dtype = ckpt_dtype(model->tensors);
    return status;
}

int pretrained_open(const char *path, struct comm *world, struct pretrained *model) {
    *model = (struct pretrained){0};
    TRY(find_directory(path, world, model->directory));
    if (gguf_is_file(model->directory))
        return gguf_model_open(model, true);
    TRY(read_config(model));
    return open_tensors(model);
}

int pretrained_open_config(const char *path, struct pretrained *model) {
    *model = (struct pretrained){0};
    TRY(find_directory(path, NULL, model->directory));
    return gguf_is_file(model->directory) ? gguf_model_open(model, false) : read_config(model);
}

int pretrained_open_encoded(const char *path, struct pretrained *model) {
    bool is_quantised = false;
    *model = (struct pretrained){0};
    TRY(find_directory(path, NULL, model->directory));
    if (gguf_is_file(model->directory))
        return gguf_model_open(model, true);
    TRY(read_config(model));
    TRY(ckpt_names_codec(strbuf_text(&model->config_text), model->directory, &is_quantised));
    return is_quantised ? open_tensors(model) : STATUS_OK;
}

int pretrained_read_config(const char *directory, struct pretrained *model) {
    *model = (struct pretrained){0};
    int n = snprintf(model->directory, sizeof model->directory, "%s", directory);
    return n >= 0 && (size_t)n < sizeof model->directory
               ? read_config(model)
               : status_fail(STATUS_INVALID, "path too long: %.200s", directory);
}

int pretrained_facts(const char *path, struct facts *facts) {
    struct pretrained model;
    uint64_t digest;
    int status = pretrained_open(path, NULL, &model);
    THEN(status,
         facts_add_digest(facts, "the model's configuration", model.directory,
                          digest_bytes(DIGEST_START, strbuf_text(&model.config_text), model.config_text.length)));
    THEN(status, ckpt_digest(model.tensors, &digest));
    THEN(status, facts_add_digest(facts, "the model's weights", model.directory, digest));
    pretrained_close(&model);
    return status;
}

int pretrained_read_tokenizer(const char *path, struct tokenizer_files *files) {
    struct gguf *file;
    *files = (struct tokenizer_files){0};
    if (!gguf_is_file(path))
        return tokenizer_files_read(path, files);
    TRY(gguf_open(path, &file));
    int status = gguf_read_tokenizer(file, files);
    gguf_close(file);
    return status;
}

int pretrained_open_tokenizer(const char *path, struct tokenizer **tokenizer) {
    struct tokenizer_files files;
    TRY(pretrained_read_tokenizer(path, &files));
    int status = tokenizer_open_files(&files, tokenizer);
    tokenizer_files_free(&files);
    return status;
}

bool pretrained_has_tokenizer(const char *path) {
    struct gguf *file;
    if (!gguf_is_file(path))
        return tokenizer_is_present(path);
    if (gguf_open(path, &file))
        return false;
    bool is_there = gguf_has_tokenizer(file);
    gguf_close(file);
    return is_there;
}

void pretrained_close(struct pretrained *model) {
    ckpt_close(model->tensors);
    strbuf_free(&model->config_text);
    *model = (struct pretrained){0};
}
