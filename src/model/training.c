/* A training runner: its opening, first as a sketch that plans everything it will run. */
#include "model-internal.h"

#include "parallel/sync.h"

/* Sets up the stashes of activations. Chunks that keep nothing use transient_stash. */
static int open_stashes(struct training_runner *training, const struct model_options *options) {
    const struct base *base = training->run.base;
    const struct model_chunk *last = &base->options.chunks[base->options.chunk_count - 1];
    struct model_kept *kept = &training->kept;
    int64_t lowest = training->run.lowest = model_lowest_layer(options), layers = base_chunk_layers(base);
    size_t stashes = (size_t)training->options.stashes, count = layers ? (size_t)layers : 1; /* no array is empty */
    kept->stashes = calloc(stashes + 1, sizeof *kept->stashes);
    kept->saved = calloc(stashes * count, sizeof *kept->saved);
    kept->again = calloc(count, sizeof *kept->again);
    TRY(status_allocated(kept->stashes && kept->saved && kept->again));
    for (size_t stash = 0; stash < stashes; stash++)
        kept->stashes[stash].saved = kept->saved + stash * count;
    kept->transient_stash = &kept->stashes[chunk_has_backward(&training->run, last) ? stashes : 0];
    kept->first_layer = lowest < last->first ? 0 : lowest < last->first + last->count ? lowest - last->first : layers;
    return STATUS_OK;
}

/* Plans evaluations of a batch by a chunk. */
static int plan_evaluations(struct training_runner *training, int chunk, int count, const struct hook_table *hooks) {
    const struct hook_table *before = training_set_hooks(training, hooks);
    int status = STATUS_OK;
    for (int i = 0; i < count && !status; i++)
        status = pass_evaluate(training, &(const struct model_pass){.chunk = chunk}, NULL, NULL);
    training_set_hooks(training, before);
    return status;
}

/* Plans a batch of `rows` rows through every chunk. */
static int plan_batch(void *self, int64_t rows) {
    struct training_runner *training = self;
    struct device_rows *batch = &training->kept.stashes[0].batch;
    int64_t segment_rows = training->options.segment_rows;
    int status = STATUS_OK;
    batch->rows = batch->head.count = rows;
    batch->segments = segment_rows && rows > segment_rows ? rows / segment_rows : 1;
    batch->head.is_all = true;
    for (int c = 0; c < training->run.base->options.chunk_count && !status; c++) {
        struct model_pass pass = {.chunk = c, .has_dropout = true};
        status = plan_evaluations(training, c, training->options.evaluations, training->run.hooks);
        THEN(status, plan_evaluations(training, c, training->options.other_evaluations, training->options.other_hooks));
        THEN(status, pass_forward(training, &pass, PARAM_FORWARD, NULL, NULL));
        THEN(status, model_backward(training, &pass, NULL, NULL));
    }
    return status;
}

/* Plans the work on gradients once for a global batch. */
static int plan_gradients(struct training_runner *training) {
    const struct base *base = training->run.base;
    int status = STATUS_OK;
    rank_plan_part(training->run.rank, WORK_GRADIENTS, 0);
    for (int c = 0; c < base->options.chunk_count && !status && !param_cuts_gradients(&base->store); c++)
        status = chunk_clear_gradients(training, &base->options.chunks[c]);
    THEN(status, gradient_sum_all_over_tensor(training->run.rank, &base->store));
    THEN(status, model_fp8_end_step(training, 0));
    THEN(status, model_sum_tied_gradients(training));
    rank_plan_part(training->run.rank, WORK_UPDATE, 0);
    return status;
}

static size_t row_loss_bytes(const struct training_runner *training) {
    return training->options.has_row_losses ? 2 * (size_t)training->run.max_rows * sizeof *training->row_losses : 0;
}

static int build(struct training_runner *training, const struct model_options *options, struct model_plan *plan) {
    struct runner *run = &training->run;
    struct arena arena = ARENA_PLAN;
    TRY(open_stashes(training, options));
    TRY(fp8_sketch(training));
    TRY(block_choose_activation(run));
    training_place(training, &arena);
    run->activation_bytes = arena.used;
    plan->weights += fp8_weight_bytes(training);
    plan->activations += arena.used;
    plan->transfers += UPLOAD_TURNS * training_upload_bytes(run) + sizeof(double) + row_loss_bytes(training);
    plan->stream_bytes = model_stream_bytes(run, run->max_rows);
    TRY(runner_plan(run, plan_batch, training));
    return plan_gradients(training);
}

int training_sketch(const struct model_options *options, struct base *base, struct model_plan *plan,
                    struct training_runner **out) {
    struct training_runner *training = *out = calloc(1, sizeof *training);
    TRY(status_allocated(training));
    runner_begin(&training->run, base, options);
    training->run.recompute = options->train.recompute;
    training->options = options->train;
    training->run.head_rows = options->train.head_rows;
    training->options.stashes = options->train.stashes ? options->train.stashes : 1;
    return build(training, options, plan);
}

int training_allocate(struct training_runner *training) {
    struct runner *run = &training->run;
    TRY(rank_open_sharers(run->rank));
    TRY(head_staging_open(training));
    TRY(runner_allocate(run));
    struct arena arena = arena_over(run->activations, run->activation_bytes);
    training_place(training, &arena);
    TRY(fp8_open(training));
    TRY(runner_open_uploads(run, training_upload_bytes(run)));
    TRY(device_host_alloc(run->rank->device, sizeof(double), &training->fetched_loss));
    if (training->options.has_row_losses)
        TRY(device_host_alloc(run->rank->device, row_loss_bytes(training), (void **)&training->row_losses));
    TRY(model_upload_cleared(training));
    return run->scratch.loss_sum ? stream_zero(run->rank->exec.stream, run->scratch.loss_sum, sizeof(double))
                                 : STATUS_OK;
}

void training_close(struct training_runner *training) {
    if (!training)
        return;
    fp8_close(training);
    device_host_free(training->run.rank->device, training->fetched_loss);
    device_host_free(training->run.rank->device, training->row_losses);
    runner_close(&training->run);
    head_staging_close(training);
    free(training->kept.stashes);
    free(training->kept.saved);
    free(training->kept.again);
    free(training);
}
