/* Opening a model directory. */
#include "pretrained.h"

#include "ckpt/codec.h"

/* Finds the directory that the path means; the first rank chooses. */
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
    int status = find_directory(path, world, model->directory);
    THEN(status, read_config(model));
    return status ? status : open_tensors(model);
}

int pretrained_open_config(const char *path, struct pretrained *model) {
    *model = (struct pretrained){0};
    int status = find_directory(path, NULL, model->directory);
    return status ? status : read_config(model);
}

int pretrained_read_config(const char *directory, struct pretrained *model) {
    *model = (struct pretrained){0};
    int n = snprintf(model->directory, sizeof model->directory, "%s", directory);
    return n >= 0 && (size_t)n < sizeof model->directory
               ? read_config(model)
               : status_fail(STATUS_INVALID, "path too long: %.200s", directory);
}

void pretrained_close(struct pretrained *model) {
    ckpt_close(model->tensors);
    strbuf_free(&model->config_text);
    *model = (struct pretrained){0};
}
