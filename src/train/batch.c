/* A global batch: this rank's part of it, its way through the stages, and the update. */
#include "train-internal.h"

#include "parallel/sharded.h"

#include <math.h>

/* Counts of rows in a global batch: without padding, and with a loss that counts. */
enum { ROWS_TOKENS, ROWS_LABELS, ROWS_COUNTS };

/* Reads this rank's part of the global batch of samples from `first` on. */
static int read_global_batch(struct stepper *stepper, enum data_split split, int64_t first,
                             int64_t counts[ROWS_COUNTS]) {
    const struct comm *group = stepper->rank->data;
    counts[ROWS_TOKENS] = counts[ROWS_LABELS] = 0;
    for (int64_t m = 0; m < stepper->micro_count; m++) {
        struct gpt_batch *batch = &stepper->micros[m];
        int64_t size = stepper->config->train.micro_batch_size;
        int64_t sample = gpt_batch_first(first, m, size, group->rank, group->size);
        TRY(stepper->source->read(stepper->source, batch, split, sample));
        counts[ROWS_TOKENS] += batch->rows - batch->padding;
        for (int64_t i = 0; i < batch->rows; i++)
            counts[ROWS_LABELS] += batch->loss_mask[i] != 0;
    }
    return STATUS_OK;
}

/* Turns masks into each row's weight in the mean loss. */
static void weigh_rows(struct stepper *stepper, int64_t labels) {
    float weight = labels > 0 ? (float)(1.0 / (double)labels) : 0;
    for (int64_t m = 0; m < stepper->micro_count; m++) {
        struct gpt_batch *batch = &stepper->micros[m];
        for (int64_t i = 0; i < batch->rows; i++)
            batch->loss_mask[i] *= weight;
    }
}

struct model_batch stepper_view(const struct gpt_batch *batch) {
    return (struct model_batch){
        .rows = batch->rows,
        .tokens = batch->tokens,
        .positions = batch->positions,
        .sample = batch->sample,
        .token = batch->token,
        .segments = batch->segments,
        .segment_start = batch->segment_start,
        .labels = batch->labels,
        .loss_weight = batch->loss_mask,
    };
}

static int watch_output(void *context, int layer, const void *x, int64_t rows) {
    struct train_watch *watch = ((struct stepper *)context)->watch;
    return watch->output(watch, layer, x, rows);
}

/* Starts the sums of a layer's gradients, which are final. A tuner's gradients may change until its `end`, so their
 * sums, which are small, start after it. */
static int start_sums(void *context, int layer) {
    struct stepper *stepper = context;
    if (layer < 0 ||
        stepper->tuner) /* stages share the parameters before the layers, whose gradients are not summed yet */
        return STATUS_OK;
    return gradient_sync_layer(&stepper->sync, layer);
}

static int watch_gradients(void *context, int layer) {
    struct stepper *stepper = context;
    TRY(stepper->watch->gradients(stepper->watch, layer));
    return stepper->watch->micro_batch + 1 == stepper->micro_count ? start_sums(stepper, layer) : STATUS_OK;
}

/* Finishes the gradients of a global batch, and everything that its passes share. The passes have summed the model's
 * whole gradients over the tensor ranks. */
static int finish_gradients(struct stepper *stepper) {
    const struct tuner *tuner = stepper->tuner;
    bool sums = tuner || param_cuts_gradients(stepper->store);
    int status = tuner ? tuner->end(stepper->model->tuner.self) : param_settle_gradients(stepper->store);
    if (tuner && stepper->watch && !status)
        status = stepper->watch->gradients(stepper->watch, WATCH_ALL_LAYERS);
    if (sums && !status)
        status = gradient_sum_all_over_tensor(stepper->rank, stepper->store);
    return status || tuner ? status : model_sum_tied_gradients(stepper->model->runner);
}

static int await_weights(void *context, int layer) {
    struct stepper *stepper = context;
    return gradient_sync_gather_wait(&stepper->sync, layer);
}

static int train_micro_batch(void *context, const struct pipeline_step *step, const void *in, void *out) {
    struct stepper *stepper = context;
    bool is_last = step->micro_batch + 1 == stepper->micro_count;
    struct model_pass pass = {.chunk = step->chunk,
                              .stash = step->stash,
                              .is_first_micro_batch = step->micro_batch == 0,
                              .is_last_micro_batch = is_last,
                              .has_dropout = true,
                              .layer_needed = await_weights,
                              .layer_done = is_last ? start_sums : NULL,
                              .context = stepper};
    if (stepper->watch) {
        stepper->watch->micro_batch = step->micro_batch;
        pass.layer_output = watch_output;
        pass.layer_done = watch_gradients;
    }
    if (step->kind == PIPELINE_BACKWARD) {
        double start = clock_seconds();
        int status = model_backward(stepper->model->runner, &pass, in, out);
        stepper->last_backward += is_last ? clock_seconds() - start : 0;
        return status;
    }
    struct model_batch batch = stepper_view(&stepper->micros[step->micro_batch]);
    return model_forward(stepper->model->runner, &batch, &pass, in, out);
}

int stepper_sum_loss(struct stepper *stepper, double *loss) {
    int status = train_sum_over_data(stepper->rank, loss, 1, DTYPE_F64);
    struct comm_data data = {.send = loss, .receive = loss, .count = 1, .dtype = DTYPE_F64};
    return status ? status : comm_all_reduce(stepper->rank->pipeline[PIPELINE_FORWARD], &data, COMM_SUM);
}

/* Runs the steps of a batch. Weights that are cut are gathered in the order of their use. */
int stepper_run(struct stepper *stepper, bool is_forward_only, const struct pipeline_worker *worker) {
    const struct param_store *store = base_store(stepper->model->base);
    const struct unit_order *order = &stepper->order[is_forward_only];
    int status = sharded_follow(store, order->units, order->count);
    THEN(status, pipeline_run(&stepper->pipeline, is_forward_only, worker));
    int ended = sharded_follow(store, NULL, 0);
    return status ? status : ended;
}

int stepper_pass(struct stepper *stepper, int64_t first, struct stepper_result *result) {
    int64_t counts[ROWS_COUNTS];
    int status = read_global_batch(stepper, SPLIT_TRAIN, first, counts);
    THEN(status, train_sum_over_data(stepper->rank, counts, ROWS_COUNTS, DTYPE_I64));
    TRY(status);
    *result = (struct stepper_result){.tokens = counts[ROWS_TOKENS], .labels = counts[ROWS_LABELS]};
    weigh_rows(stepper, result->labels);
    if (stepper->tuner)
        status = stepper->tuner->begin(stepper->model->tuner.self, first);
    if (!status)
        status = stepper_run(stepper, false, &(const struct pipeline_worker){train_micro_batch, stepper});
    THEN(status, finish_gradients(stepper));
    THEN(status, gradient_sync_layer(&stepper->sync, -1));
    return status ? status : model_loss_fetch(stepper->model->runner);
}

int stepper_await_weights(struct stepper *stepper) {
    return gradient_sync_gather_wait(&stepper->sync, INT_MAX);
}

int stepper_update(struct stepper *stepper, int64_t iteration, double lr, struct stepper_result *result) {
    int status = optimizer_start(&stepper->optimizer, lr);
    THEN(status, model_fp8_end_step(stepper->model->runner, iteration));
    THEN(status, rank_finish(stepper->rank));
    result->loss = model_fetched_loss(stepper->model->runner);
    THEN(status, stepper_sum_loss(stepper, &result->loss));
    TRY(status);
    if (isfinite(result->loss)) {
        status = optimizer_finish(&stepper->optimizer, &result->grad_norm);
        if (!status || isfinite(result->grad_norm))
            return status;
    }
    TRY(gradient_sync_finish(&stepper->sync));
    TRY(stepper_await_weights(stepper));
    return status_fail(STATUS_INVALID, "the loss or the gradient norm is not finite");
}

static int evaluate_micro_batch(void *context, const struct pipeline_step *step, const void *in, void *out) {
    struct stepper *stepper = context;
    struct model_batch batch = stepper_view(&stepper->micros[step->micro_batch]);
    return model_evaluate_chunk(stepper->model->runner, &batch, step->chunk, in, out);
}

int stepper_evaluate(struct stepper *stepper, int64_t first, int64_t *labels) {
    int64_t counts[ROWS_COUNTS];
    TRY(read_global_batch(stepper, SPLIT_VALID, first, counts));
    *labels = counts[ROWS_LABELS];
    return stepper_run(stepper, true, &(const struct pipeline_worker){evaluate_micro_batch, stepper});
}
