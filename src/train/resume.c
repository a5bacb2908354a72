/* Weights and optimizer from and to files. Loading fills the fp32 master copy (in fp32: the weights themselves), from
 * which the working weights are rounded, so that a run may go on in the other precision. */
#include "train-internal.h"

#include <stdlib.h>

static const char master_prefix[] = "master.", mean_prefix[] = "exp_avg.", square_prefix[] = "exp_avg_sq.";

static struct ckpt_flat flat_of(struct trainer *trainer, void *memory, enum dtype dtype) {
    const struct param_store *store = model_store(trainer->model);
    return (struct ckpt_flat){.store = store, .stream = trainer->rank.exec.stream, .memory = memory, .dtype = dtype};
}

static int load_weights(struct trainer *trainer, const char *directory) {
    struct ckpt_flat flat = flat_of(trainer, trainer->optimizer.master, DTYPE_F32);
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    struct ckpt_tensors *tensors = NULL;
    int status = ckpt_open_model(directory, &tensors);
    if (!status)
        status = ckpt_read(tensors, model_table(trainer->model), &array, 1);
    ckpt_close(tensors);
    return status;
}

/* Moments, and the master weights where a bf16 run left them beside; else those are the model's. */
static int load_checkpoint(struct trainer *trainer) {
    struct optimizer *optimizer = &trainer->optimizer;
    const struct param_table *table = model_table(trainer->model);
    struct ckpt_flat flats[] = {flat_of(trainer, optimizer->m, DTYPE_F32), flat_of(trainer, optimizer->v, DTYPE_F32),
                                flat_of(trainer, optimizer->master, DTYPE_F32)};
    struct ckpt_array arrays[] = {ckpt_flat_array(&flats[0], mean_prefix, true),
                                  ckpt_flat_array(&flats[1], square_prefix, true),
                                  ckpt_flat_array(&flats[2], master_prefix, false)};
    struct ckpt_tensors *tensors = NULL;
    int status = ckpt_open_optimizer(trainer->run.checkpoint, &tensors);
    bool has_master = !status && ckpt_has_prefix(tensors, master_prefix);
    if (!status)
        status = ckpt_read(tensors, table, arrays, has_master ? 3 : 2);
    ckpt_close(tensors);
    if (!status && !has_master)
        status = load_weights(trainer, trainer->run.checkpoint);
    optimizer->step = trainer->run.optimizer_step;
    return status;
}

int train_load(struct trainer *trainer) {
    int status;
    if (*trainer->run.checkpoint)
        status = load_checkpoint(trainer);
    else if (*trainer->run.model_directory)
        status = load_weights(trainer, trainer->run.model_directory);
    else {
        status = model_initialise(trainer->model, (uint64_t)trainer->run.config.train.seed);
        return status ? status : optimizer_reset(&trainer->optimizer);
    }
    return status ? status : optimizer_round_weights(&trainer->optimizer);
}

int trainer_save(struct trainer *trainer) {
    struct optimizer *optimizer = &trainer->optimizer;
    struct param_store *store = model_store(trainer->model);
    const struct run_config *run = &trainer->run.config;
    bool has_master = store->dtype != DTYPE_F32;
    struct ckpt_flat flats[] = {flat_of(trainer, optimizer->m, DTYPE_F32), flat_of(trainer, optimizer->v, DTYPE_F32),
                                flat_of(trainer, optimizer->master, DTYPE_F32),
                                flat_of(trainer, store->weights, store->dtype)};
    struct ckpt_array arrays[] = {ckpt_flat_array(&flats[0], mean_prefix, true),
                                  ckpt_flat_array(&flats[1], square_prefix, true),
                                  ckpt_flat_array(&flats[2], master_prefix, false)};
    struct ckpt_array weights = ckpt_flat_array(&flats[3], "", false);
    char *config_text = NULL, *state_text = NULL;
    int status = gpt2_write_config(&run->model, store->dtype, trainer->run.eos_id, &config_text);
    if (!status)
        status = train_state_write(trainer, &state_text);
    struct ckpt_save save = {
        .root = run->checkpoint.save,
        .iteration = trainer->iteration,
        .model = {.table = store->table,
                  .weights = &weights,
                  .config_text = config_text,
                  .tokenizer_directory = trainer->run.tokenizer_directory},
        .optimizer = arrays,
        .optimizer_count = has_master ? 3 : 2,
        .state_text = state_text,
        .keep_last = run->checkpoint.keep_last,
    };
    if (!status)
        status = ckpt_save(&save);
    free(config_text);
    free(state_text);
    return status;
}
