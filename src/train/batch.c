/* A global batch: this rank's part of it, its way through the stages, and the update. */
#include "train-internal.h"

#include "parallel/sharded.h"

#include <math.h>

/* Counts of a global batch: rows without padding, rows whose loss counts, and segments. */
enum { ROWS_TOKENS, ROWS_LABELS, ROWS_SEGMENTS, ROWS_COUNTS };

int stepper_read(struct stepper *stepper, const struct train_samples *samples) {
    const struct comm *group = stepper->rank->data;
    struct train_samples of = *samples;
    int status = STATUS_OK;
    of.batch_first = samples->first;
    of.batch_samples = stepper->config->train.global_batch_size;
    for (int64_t m = 0; m < stepper->micro_count && !status; m++) {
        int64_t size = stepper->config->train.micro_batch_size;
        of.first = gpt_batch_first(samples->first, m, size, group->rank, group->size);
        status = stepper->source->read(stepper->source, &stepper->micros[m], &of);
    }
    return status;
}

static void count_rows(const struct stepper *stepper, int64_t counts[ROWS_COUNTS]) {
    counts[ROWS_TOKENS] = counts[ROWS_LABELS] = counts[ROWS_SEGMENTS] = 0;
    for (int64_t m = 0; m < stepper->micro_count; m++) {
        const struct gpt_batch *batch = &stepper->micros[m];
        counts[ROWS_TOKENS] += batch->rows - batch->padding;
        counts[ROWS_SEGMENTS] += batch->segments - (batch->padding > 0);
        for (int64_t i = 0; i < batch->rows; i++)
            counts[ROWS_LABELS] += batch->loss_mask[i] != 0;
    }
}

/* Returns the number over which the loss is a mean. */
static int64_t mean_count(const struct stepper *stepper, const int64_t counts[ROWS_COUNTS]) {
    if (!stepper_has_answers(stepper))
        return counts[ROWS_LABELS];
    if (stepper->loss->is_of_tokens) /* a sum */
        return 1;
    return counts[ROWS_SEGMENTS] / tuning_texts(stepper->loss->form);
}

/* Turns masks into each row's weight in the mean loss. */
static void weigh_rows(struct stepper *stepper) {
    float weight = (float)stepper->scale;
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
    bool has_tokens = stepper->loss && stepper->loss->is_of_tokens;
    struct model_pass pass = {.chunk = step->chunk,
                              .stash = step->stash,
                              .is_first_micro_batch = step->micro_batch == 0,
                              .is_last_micro_batch = is_last,
                              .has_dropout = !has_tokens, /* q is from samples, which have none */
                              .layer_needed = await_weights,
                              .layer_done = is_last ? start_sums : NULL,
                              .context = stepper};
    stepper->micro_batch = step->micro_batch;
    pass.weigh = stepper_has_answers(stepper) ? answers_weigh : NULL;
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

int stepper_sum(struct stepper *stepper, double *values, int64_t count) {
    int status = train_sum_over_data(stepper->rank, values, count, DTYPE_F64);
    struct comm_data data = {.send = values, .receive = values, .count = count, .dtype = DTYPE_F64};
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

int stepper_begin(struct stepper *stepper, int64_t first) {
    stepper->figures = (struct loss_figures){0};
    return stepper->tuner ? stepper->tuner->begin(stepper->model->tuner.self, first) : STATUS_OK;
}

int stepper_add(struct stepper *stepper, int64_t first, struct stepper_result *result) {
    const struct train_samples samples = {.split = SPLIT_TRAIN, .first = first};
    int64_t counts[ROWS_COUNTS] = {0};
    stepper->forwards = 0;
    int status = answers_prepare(stepper, &samples);
    THEN(status, stepper_read(stepper, &samples));
    if (!status)
        count_rows(stepper, counts);
    THEN(status, train_sum_over_data(stepper->rank, counts, ROWS_COUNTS, DTYPE_I64));
    TRY(status);
    *result = (struct stepper_result){
        .tokens = counts[ROWS_TOKENS], .labels = counts[ROWS_LABELS], .forwards = stepper->forwards};
    int64_t mean = mean_count(stepper, counts);
    stepper->scale = mean > 0 ? 1.0 / (double)mean : 0;
    if (!stepper_has_answers(stepper))
        weigh_rows(stepper);
    status = stepper_run(stepper, false, &(const struct pipeline_worker){train_micro_batch, stepper});
    return status ? status : model_loss_fetch(stepper->model->runner);
}

int stepper_end(struct stepper *stepper) {
    int status = finish_gradients(stepper);
    return status ? status : gradient_sync_layer(&stepper->sync, -1);
}

int stepper_pass(struct stepper *stepper, int64_t first, struct stepper_result *result) {
    int status = stepper_begin(stepper, first);
    THEN(status, stepper_add(stepper, first, result));
    return status ? status : stepper_end(stepper);
}

int stepper_await_weights(struct stepper *stepper) {
    return gradient_sync_gather_wait(&stepper->sync, INT_MAX);
}

/* Sets *figures to the sums of all ranks. `summed`: the loss that the model's head has summed. */
static int sum_figures(struct stepper *stepper, double summed, struct loss_figures *figures) {
    *figures = stepper->figures;
    stepper->figures = (struct loss_figures){0};
    if (stepper_has_answers(stepper))
        return stepper_sum(stepper, (double *)figures, LOSS_FIGURES);
    figures->loss = summed;
    return stepper_sum(stepper, &figures->loss, 1);
}

int stepper_find_loss(struct stepper *stepper, struct stepper_result *result) {
    int status = rank_finish(stepper->rank);
    THEN(status, sum_figures(stepper, model_fetched_loss(stepper->model->runner), &result->figures));
    result->loss = result->figures.loss * (stepper_has_answers(stepper) ? stepper->scale : 1);
    return status;
}

int stepper_apply(struct stepper *stepper, double lr, double *norm) {
    int status = optimizer_start(&stepper->optimizer, lr);
    THEN(status, rank_finish(stepper->rank));
    THEN(status, optimizer_finish(&stepper->optimizer, norm));
    return status;
}

int stepper_update(struct stepper *stepper, int64_t iteration, double lr, struct stepper_result *result) {
    int status = optimizer_start(&stepper->optimizer, lr);
    THEN(status, model_fp8_end_step(stepper->model->runner, iteration));
    THEN(status, stepper_find_loss(stepper, result));
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

int stepper_evaluate_micro(struct stepper *stepper, const struct pipeline_step *step,
                           int (*weigh)(void *context, int64_t count, float *values), const void *in, void *out) {
    struct model_batch batch = stepper_view(&stepper->micros[step->micro_batch]);
    const struct model_pass pass = {.chunk = step->chunk, .weigh = weigh, .context = stepper};
    stepper->micro_batch = step->micro_batch;
    return model_evaluate(stepper->model->runner, &batch, &pass, in, out);
}

static int evaluate_micro_batch(void *context, const struct pipeline_step *step, const void *in, void *out) {
    struct stepper *stepper = context;
    return stepper_evaluate_micro(stepper, step, stepper_has_answers(stepper) ? answers_weigh : NULL, in, out);
}

int stepper_evaluate(struct stepper *stepper, int64_t first, int64_t *labels) {
    const struct train_samples samples = {.split = SPLIT_VALID, .first = first};
    int64_t counts[ROWS_COUNTS];
    TRY(answers_prepare(stepper, &samples));
    TRY(stepper_read(stepper, &samples));
    count_rows(stepper, counts);
    *labels = mean_count(stepper, counts);
    return stepper_run(stepper, true, &(const struct pipeline_worker){evaluate_micro_batch, stepper});
}

int stepper_end_evaluation(struct stepper *stepper, double *loss) {
    struct loss_figures figures;
    int status = model_loss(stepper->model->runner, loss);
    THEN(status, sum_figures(stepper, *loss, &figures));
    *loss = status ? 0 : figures.loss;
    return status;
}
