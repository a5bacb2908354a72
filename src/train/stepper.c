/* A stepper opens what its steps need, and closes it. A close of a part that was never opened does nothing. */
#include "train-internal.h"

#include "parallel/sharded.h"

static int open_batches(struct stepper *stepper) {
    const struct run_config *run = stepper->config;
    int64_t count = run->train.global_batch_size / run->train.micro_batch_size / stepper->rank->data->size;
    stepper->micros = calloc((size_t)count, sizeof *stepper->micros);
    int status = status_allocated(stepper->micros);
    for (; stepper->micro_count < count && !status; stepper->micro_count++)
        status = gpt_batch_init(&stepper->micros[stepper->micro_count], run->train.micro_batch_size,
                                train_sample_rows(run, stepper->loss));
    return status;
}

/* Lists the units that a batch uses, if weights are gathered before their use. */
static int open_order(struct stepper *stepper) {
    const struct pipeline *pipeline = &stepper->pipeline;
    struct training_runner *runner = stepper->model->runner;
    int steps = pipeline_step_count(&pipeline->shape);
    if (!sharded_cuts_weights(base_store(stepper->model->base)))
        return STATUS_OK;
    int status = model_unit_order(runner, pipeline->steps, steps, false, &stepper->order[0]);
    return status ? status : model_unit_order(runner, pipeline->forward_steps, steps / 2, true, &stepper->order[1]);
}

static int open_sync(struct stepper *stepper) {
    const struct run_config *run = stepper->config;
    const struct gradient_sync_options options = {
        .is_sharded = run_sharding(run) >= SHARDING_OPTIM,
        .overlaps_gradients = run->parallel.overlap_grad_reduce,
        /* a tuner has few weights, and some are used before the layers */
        .overlaps_weights = run->parallel.overlap_param_gather && !stepper->tuner,
    };
    return gradient_sync_open(&stepper->sync, stepper->rank, stepper->store, &options);
}

static int open_optimizer(struct stepper *stepper) {
    const struct run_config *run = stepper->config;
    const struct optimizer_options adamw = {
        .beta1 = run->optim.adam_beta1,
        .beta2 = run->optim.adam_beta2,
        .epsilon = run->optim.adam_eps,
        .weight_decay = run->optim.weight_decay,
        .clip_grad = run->optim.clip_grad,
    };
    return optimizer_open(&stepper->optimizer, &adamw, &stepper->sync);
}

int stepper_open(struct stepper *stepper, const struct pipeline_shape *shape) {
    const struct train_model *model = stepper->model;
    stepper->store = stepper->tuner ? model->tuner.store : base_store(model->base);
    int status = open_batches(stepper);
    THEN(status, answers_open(stepper));
    THEN(status, pipeline_open(&stepper->pipeline, stepper->rank, shape, training_stream_elements(model->runner),
                               run_dtype(stepper->config)));
    THEN(status, open_order(stepper));
    THEN(status, open_sync(stepper));
    THEN(status, open_optimizer(stepper));
    if (status)
        stepper_close(stepper);
    return status;
}

void stepper_close(struct stepper *stepper) {
    optimizer_close(&stepper->optimizer);
    gradient_sync_close(&stepper->sync);
    for (int i = 0; i < 2; i++)
        free(stepper->order[i].units);
    pipeline_close(&stepper->pipeline);
    for (int64_t m = 0; m < stepper->micro_count; m++)
        gpt_batch_free(&stepper->micros[m]);
    free(stepper->micros);
    answers_close(stepper);
}
