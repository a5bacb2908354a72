/* A model directory, opened. */
#include "pretrained.h"

/* The directory that the path means: the first rank's choice. */
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

/* The config.json of model->directory. */
static int read_config(struct pretrained *model) {
    char where[PATH_MAX + 16];
    snprintf(where, sizeof where, "%s/config.json", model->directory);
    int status = ckpt_read_config(model->directory, &model->config_text);
    return status ? status
                  : model_read_config(strbuf_text(&model->config_text), where, &model->config, &model->dtype,
                                      &model->eos_id);
}

static int open_tensors(struct pretrained *model) {
    int status = ckpt_open_model(model->directory, &model->tensors);
    if (!status && !model->config.untie_embeddings_and_output_weights)
        status = ckpt_head_differs(model->tensors, &model_family(&model->config)->files, &model->is_untied_by_files);
    model->config.untie_embeddings_and_output_weights |= model->is_untied_by_files;
    if (!status && model->dtype == DTYPE_COUNT)
        model->dtype = ckpt_dtype(model->tensors);
    return status;
}

int pretrained_open(const char *path, struct comm *world, struct pretrained *model) {
    *model = (struct pretrained){.eos_id = -1};
    int status = find_directory(path, world, model->directory);
    if (!status)
        status = read_config(model);
    return status ? status : open_tensors(model);
}

int pretrained_open_config(const char *path, struct pretrained *model) {
    *model = (struct pretrained){.eos_id = -1};
    int status = find_directory(path, NULL, model->directory);
    return status ? status : read_config(model);
}

int pretrained_read_config(const char *directory, struct pretrained *model) {
    *model = (struct pretrained){.eos_id = -1};
    int n = snprintf(model->directory, sizeof model->directory, "%s", directory);
    return n >= 0 && (size_t)n < sizeof model->directory
               ? read_config(model)
               : status_fail(STATUS_INVALID, "path too long: %.200s", directory);
}

void pretrained_close(struct pretrained *model) {
    ckpt_close(model->tensors);
    strbuf_free(&model->config_text);
    *model = (struct pretrained){.eos_id = -1};
}
