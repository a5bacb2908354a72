/* AdamW and clipping, driven by the parameter table. */
#include "optim/optim.h"

#include <math.h>
#include <string.h>

/* Numbers that stay on the device between the norm and the update. */
struct scalars {
    double sum_of_squares;
    float norm, factor;
};

size_t optimizer_bytes(int64_t flat_elements, enum dtype dtype) {
    return (size_t)flat_elements * sizeof(float) * (dtype == DTYPE_F32 ? 2 : 3) + sizeof(struct scalars);
}

void optimizer_plan(struct rank *rank, int64_t flat_elements) {
    rank_need(rank, rank->ops->sum_of_squares_workspace(rank->device, flat_elements));
}

int optimizer_open(struct optimizer *optimizer, const struct optimizer_options *options, struct rank *rank,
                   struct param_store *store) {
    *optimizer = (struct optimizer){.options = *options, .rank = rank, .store = store};
    size_t flat = (size_t)store->flat_elements * sizeof(float);
    void *block[3] = {0};
    int status = STATUS_OK;
    for (int i = 0; i < (store->dtype == DTYPE_F32 ? 2 : 3) && !status; i++)
        status = device_alloc(rank->device, flat, &block[i]);
    if (!status)
        status = device_alloc(rank->device, sizeof(struct scalars), &optimizer->scalars);
    optimizer->m = block[0];
    optimizer->v = block[1];
    optimizer->master = store->dtype == DTYPE_F32 ? store->weights : block[2];
    if (status) {
        optimizer_close(optimizer);
        return status_wrap(status, "optimizer");
    }
    return STATUS_OK;
}

void optimizer_close(struct optimizer *optimizer) {
    if (!optimizer->rank)
        return;
    struct device *device = optimizer->rank->device;
    device_free(device, optimizer->m);
    device_free(device, optimizer->v);
    if (optimizer->store->dtype != DTYPE_F32)
        device_free(device, optimizer->master);
    device_free(device, optimizer->scalars);
    *optimizer = (struct optimizer){0};
}

int optimizer_reset(struct optimizer *optimizer) {
    struct rank *rank = optimizer->rank;
    struct param_store *store = optimizer->store;
    size_t flat = (size_t)store->flat_elements * sizeof(float);
    optimizer->step = 0;
    int status = stream_zero(rank->exec.stream, optimizer->m, flat);
    if (!status)
        status = stream_zero(rank->exec.stream, optimizer->v, flat);
    if (!status && store->dtype != DTYPE_F32)
        status = rank_run(rank, PHASE_OPTIMIZER, cast, store->flat_elements, store->dtype, store->weights, DTYPE_F32,
                          optimizer->master);
    return status;
}

int optimizer_round_weights(struct optimizer *optimizer) {
    struct param_store *store = optimizer->store;
    if (store->dtype == DTYPE_F32)
        return STATUS_OK;
    return rank_run(optimizer->rank, PHASE_OPTIMIZER, cast, store->flat_elements, DTYPE_F32, optimizer->master,
                    store->dtype, store->weights);
}

/* Leaves the norm and the clip factor on the device, and the norm on the host. */
static int measure_norm(struct optimizer *optimizer, double *norm) {
    struct rank *rank = optimizer->rank;
    struct scalars *scalars = optimizer->scalars;
    struct clip_factor clip = {
        .sum_of_squares = &scalars->sum_of_squares,
        .max_norm = (float)optimizer->options.clip_grad,
        .norm = &scalars->norm,
        .factor = &scalars->factor,
    };
    const struct param_store *store = optimizer->store;
    int status = rank_run(rank, PHASE_OPTIMIZER, sum_of_squares, store->sharded_elements, store->gradients, false,
                          &scalars->sum_of_squares);
    if (!status)
        status = rank_sum(rank, rank->tensor, &scalars->sum_of_squares, 1, DTYPE_F64);
    if (!status) /* what every tensor rank has a copy of counts once */
        status = rank_run(rank, PHASE_OPTIMIZER, sum_of_squares, store->flat_elements - store->sharded_elements,
                          store->gradients + store->sharded_elements, true, &scalars->sum_of_squares);
    if (!status)
        status = rank_run(rank, PHASE_OPTIMIZER, clip_factor, &clip);
    float value = 0;
    if (!status)
        status = stream_copy_to_host(rank->exec.stream, &value, &scalars->norm, sizeof value);
    if (!status)
        status = stream_wait(rank->exec.stream);
    *norm = value;
    return status;
}

int optimizer_step(struct optimizer *optimizer, double lr, double *norm) {
    struct rank *rank = optimizer->rank;
    struct param_store *store = optimizer->store;
    const struct param_table *table = store->table;
    int status = measure_norm(optimizer, norm);
    if (!status && !isfinite(*norm))
        return status_fail(STATUS_INVALID, "the gradient norm is %g", *norm);
    if (status)
        return status;
    optimizer->step++;
    for (int i = 0; i < table->count && !status; i++) {
        const struct param *row = &table->rows[i];
        if (!param_trains(store, i))
            continue;
        int64_t at = store->offset[i];
        struct adamw update = {
            .count = param_local_elements(store, i),
            .master = optimizer->master + at,
            .m = optimizer->m + at,
            .v = optimizer->v + at,
            .gradient = store->gradients + at,
            .gradient_scale = &((struct scalars *)optimizer->scalars)->factor,
            .weights =
                store->dtype == DTYPE_F32 ? NULL : (char *)store->weights + at * (int64_t)dtype_bytes(store->dtype),
            .weights_type = store->dtype,
            .lr = (float)lr,
            .beta1 = (float)optimizer->options.beta1,
            .beta2 = (float)optimizer->options.beta2,
            .epsilon = (float)optimizer->options.epsilon,
            .weight_decay = row->decays ? (float)optimizer->options.weight_decay : 0,
            .step = optimizer->step,
        };
        status = rank_run(rank, PHASE_OPTIMIZER, adamw, &update);
    }
    return status;
}
