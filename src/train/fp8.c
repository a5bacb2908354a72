/* The scales and histories of FP8 products, from and to checkpoints. */
#include "save-internal.h"

static const char part_name[] = "fp8";

bool train_has_fp8(const struct train_run *run) {
    return run->config.train.precision == PRECISION_FP8;
}

int train_fp8_describe(const struct train_run *run, struct fp8_part *part) {
    part->array = (struct ckpt_array){.prefix = "", .dtype = DTYPE_F32};
    part->part = (struct ckpt_part){.table = &part->table, .weights = &part->array};
    snprintf(part->part.name, sizeof part->part.name, "%s", part_name);
    return model_fp8_describe(&run->config.model, run->config.train.fp8_amax_history_len, &part->table);
}

void train_fp8_open(struct trainer *trainer, struct fp8_part *part) {
    const struct param_store *store = model_fp8_store(trainer->model.runner);
    part->flat = ckpt_flat_weights(store, trainer->rank.exec.stream);
    part->flat.is_copy = trainer->rank.data->rank > 0;
    part->flat.copy_of = train_first_copy(&trainer->rank);
    part->flat.leaves_copies = true;
    part->array = ckpt_flat_array(&part->flat, "", false);
}

/* Returns true if the files have histories of the run's length. */
static bool has_histories(const struct trainer *trainer, const struct ckpt_tensors *tensors) {
    const struct param_table *table = model_fp8_store(trainer->model.runner)->map.table;
    for (int id = 0; id < table->count; id++) {
        const struct safetensor *tensor = ckpt_find_tensor(tensors, table->rows[id].slices[0].name);
        if (tensor && tensor->dims == 2 && tensor->shape[0] != table->rows[id].shape[0])
            return false;
    }
    return true;
}

int train_fp8_load(struct trainer *trainer) {
    const char *directory = trainer->run.checkpoint;
    struct param_store *store = model_fp8_store(trainer->model.runner);
    struct ckpt_tensors *tensors;
    if (!store || !*directory)
        return STATUS_OK;
    int status = ckpt_open_state(directory, part_name, &tensors);
    bool has_none = status == STATUS_NOT_FOUND || (!status && !has_histories(trainer, tensors));
    if (has_none) {
        log_info("%s has no FP8 histories of %lld iterations: they begin empty", directory,
                 (long long)trainer->run.config.train.fp8_amax_history_len);
    } else if (!status) {
        struct ckpt_flat flat = ckpt_flat_weights(store, trainer->rank.exec.stream);
        struct ckpt_array array = ckpt_flat_array(&flat, "", false);
        status = ckpt_read(tensors, store->map.table, &array, 1);
    }
    ckpt_close(tensors);
    return has_none ? STATUS_OK : status;
}
