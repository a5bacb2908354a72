/* Weights and optimizer from and to files. Loading fills the fp32 master copy (in fp32: the weights themselves). The
 * working weights are rounded from it, so a run may resume in the other precision. */
#include "save-internal.h"

#include "pretrained/pretrained.h"

static int read_model(const char *path, const struct param_store *store, const struct ckpt_array *array) {
    struct pretrained model;
    int status = pretrained_open(path, NULL, &model);
    THEN(status, ckpt_read(model.tensors, store->map.table, array, 1));
    pretrained_close(&model);
    return status;
}

static int load_weights(struct trainer *trainer, const struct ckpt_array *arrays, const char *directory) {
    struct ckpt_array array = optimizer_master_array(arrays);
    array.only_trainable = trainer->run.tuner != NULL;
    return trainer->run.tuner ? trainer->run.tuner->load(trainer->model.tuner.self, directory, &array)
                              : read_model(directory, trainer->stepper.store, &array);
}

/* Loads the moments, and the master weights that a bf16 run has saved; without them the model's weights are the master
 * weights. */
static int load_checkpoint(struct trainer *trainer, const struct ckpt_array *arrays) {
    struct ckpt_tensors *tensors = NULL;
    bool has_master = false;
    int status = ckpt_open_optimizer(trainer->run.checkpoint, &tensors);
    THEN(status, optimizer_arrays_read(&trainer->stepper, arrays, tensors, &has_master));
    ckpt_close(tensors);
    THEN_IF(status, !has_master, load_weights(trainer, arrays, trainer->run.checkpoint));
    trainer->stepper.optimizer.step = trainer->run.optimizer_step;
    return status;
}

static int read_base(struct trainer *trainer) {
    struct param_store *store = base_store(trainer->model.base);
    struct ckpt_flat flat = ckpt_flat_weights(store, trainer->rank.exec.stream);
    flat.threads = device_threads(trainer->device);
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    array.must_be_finite = array.heeds_stop = true;
    return read_model(trainer->run.model_directory, store, &array);
}

static int read_encoded_base(struct trainer *trainer) {
    struct train_model *model = &trainer->model;
    int status = pretrained_load(&model->encodings, model->base, trainer->rank.exec.stream, true);
    train_close_files(model);
    return status;
}

int train_load_base(struct trainer *trainer) {
    uint64_t seed = (uint64_t)trainer->run.config.train.seed;
    int status = pretrained_describes(&trainer->model.encodings) ? read_encoded_base(trainer)
                 : *trainer->run.model_directory                 ? read_base(trainer)
                                                                 : base_initialise(trainer->model.base, seed);
    status = comm_agree(trainer->world, status); /* the next steps may sum over ranks */
    return status ? status
                  : trainer->run.tuner->start(trainer->run.tuner->description, trainer->model.tuner.self,
                                              trainer->model.base, seed);
}

/* Returns the directory of the values when there is no checkpoint; NULL: initial values. */
static const char *initial_directory(const struct trainer *trainer) {
    if (trainer->run.tuner)
        return trainer->run.tuner->init_directory;
    return *trainer->run.model_directory ? trainer->run.model_directory : NULL;
}

int train_load(struct trainer *trainer) {
    const char *directory = initial_directory(trainer);
    if (!*trainer->run.checkpoint && !directory) {
        int status = trainer->run.tuner
                         ? STATUS_OK /* it has started with them */
                         : base_initialise(trainer->model.base, (uint64_t)trainer->run.config.train.seed);
        return status ? status : optimizer_reset(&trainer->stepper.optimizer);
    }
    struct optimizer_arrays *state;
    const struct ckpt_array *arrays;
    int status = optimizer_arrays_open(&trainer->stepper, false, &state, &arrays);
    if (!status && *trainer->run.checkpoint)
        status = load_checkpoint(trainer, arrays);
    else if (!status)
        status = load_weights(trainer, arrays, directory);
    optimizer_arrays_close(state);
    THEN(status, train_fp8_load(trainer));
    status = comm_agree(trainer->world, status);
    return status ? status : optimizer_round_weights(&trainer->stepper.optimizer);
}
