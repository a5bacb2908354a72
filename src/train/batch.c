/* A global batch: this rank's part of it, and its way through the stages. */
#include "train-internal.h"

#include "parallel/sharded.h"

/* Counts of rows in a global batch: without padding, and with a loss that counts. */
enum { ROWS_TOKENS, ROWS_LABELS, ROWS_COUNTS };

/* Reads this rank's part of the global batch of samples from `first` on. */
static int read_global_batch(struct trainer *trainer, enum data_split split, int64_t first,
                             int64_t counts[ROWS_COUNTS]) {
    const struct comm *group = trainer->rank.data;
    counts[ROWS_TOKENS] = counts[ROWS_LABELS] = 0;
    for (int64_t m = 0; m < trainer->micro_count; m++) {
        struct gpt_batch *batch = &trainer->micros[m];
        int64_t size = trainer->run.config.train.micro_batch_size;
        int64_t sample = gpt_batch_first(first, m, size, group->rank, group->size);
        TRY(trainer->run.source ? trainer->run.source->read(trainer->run.source, batch, sample)
            : trainer->rows     ? tuning_batch_read(batch, trainer->rows, split, sample)
                                : gpt_batch_read(batch, &trainer->data.splits[split], sample));
        counts[ROWS_TOKENS] += batch->rows - batch->padding;
        for (int64_t i = 0; i < batch->rows; i++)
            counts[ROWS_LABELS] += batch->loss_mask[i] != 0;
    }
    return STATUS_OK;
}

/* Turns masks into each row's weight in the mean loss. */
static void weigh_rows(struct trainer *trainer, int64_t labels) {
    float weight = labels > 0 ? (float)(1.0 / (double)labels) : 0;
    for (int64_t m = 0; m < trainer->micro_count; m++) {
        struct gpt_batch *batch = &trainer->micros[m];
        for (int64_t i = 0; i < batch->rows; i++)
            batch->loss_mask[i] *= weight;
    }
}

static struct model_batch view_batch(const struct gpt_batch *batch) {
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
    struct train_watch *watch = ((struct trainer *)context)->watch;
    return watch->output(watch, layer, x, rows);
}

/* Starts the sums of a layer's gradients, which are final. A tuner's gradients may change until its `end`, so their
 * sums, which are small, start after it. */
static int start_sums(void *context, int layer) {
    struct trainer *trainer = context;
    if (layer < 0 ||
        trainer->run.tuner) /* stages share the parameters before the layers, whose gradients are not summed yet */
        return STATUS_OK;
    return gradient_sync_layer(&trainer->sync, layer);
}

static int watch_gradients(void *context, int layer) {
    struct trainer *trainer = context;
    TRY(trainer->watch->gradients(trainer->watch, layer));
    return trainer->watch->micro_batch + 1 == trainer->micro_count ? start_sums(trainer, layer) : STATUS_OK;
}

/* Finishes the gradients of a global batch, and everything that its passes share. The passes have summed the model's
 * whole gradients over the tensor ranks. */
static int finish_gradients(struct trainer *trainer) {
    const struct tuner *tuner = trainer->run.tuner;
    bool sums = tuner || param_cuts_gradients(trainer->store);
    int status = tuner ? tuner->end(trainer->model.tuner.self) : param_settle_gradients(trainer->store);
    if (tuner && trainer->watch && !status)
        status = trainer->watch->gradients(trainer->watch, WATCH_ALL_LAYERS);
    if (sums && !status)
        status = gradient_sum_all_over_tensor(&trainer->rank, trainer->store);
    return status || tuner ? status : model_sum_tied_gradients(trainer->model.runner);
}

static int await_weights(void *context, int layer) {
    struct trainer *trainer = context;
    return gradient_sync_gather_wait(&trainer->sync, layer);
}

static int train_micro_batch(void *context, const struct pipeline_step *step, const void *in, void *out) {
    struct trainer *trainer = context;
    bool is_last = step->micro_batch + 1 == trainer->micro_count;
    struct model_pass pass = {.chunk = step->chunk,
                              .stash = step->stash,
                              .is_first_micro_batch = step->micro_batch == 0,
                              .is_last_micro_batch = is_last,
                              .has_dropout = true,
                              .layer_needed = await_weights,
                              .layer_done = is_last ? start_sums : NULL,
                              .context = trainer};
    if (trainer->watch) {
        trainer->watch->micro_batch = step->micro_batch;
        pass.layer_output = watch_output;
        pass.layer_done = watch_gradients;
    }
    if (step->kind == PIPELINE_BACKWARD) {
        double start = clock_seconds();
        int status = model_backward(trainer->model.runner, &pass, in, out);
        trainer->last_backward += is_last ? clock_seconds() - start : 0;
        return status;
    }
    struct model_batch batch = view_batch(&trainer->micros[step->micro_batch]);
    return model_forward(trainer->model.runner, &batch, &pass, in, out);
}

int train_sum_loss(struct trainer *trainer, double *loss) {
    int status = train_sum_over_data(trainer, loss, 1, DTYPE_F64);
    struct comm_data data = {.send = loss, .receive = loss, .count = 1, .dtype = DTYPE_F64};
    return status ? status : comm_all_reduce(trainer->rank.pipeline[PIPELINE_FORWARD], &data, COMM_SUM);
}

/* Runs the steps of a batch. Weights that are cut are gathered in the order of their use. */
static int run_steps(struct trainer *trainer, bool is_forward_only, const struct pipeline_worker *worker) {
    const struct param_store *store = base_store(trainer->model.base);
    const struct unit_order *order = &trainer->order[is_forward_only];
    int status = sharded_follow(store, order->units, order->count);
    THEN(status, pipeline_run(&trainer->pipeline, is_forward_only, worker));
    int ended = sharded_follow(store, NULL, 0);
    return status ? status : ended;
}

int train_global_batch(struct trainer *trainer, int64_t *tokens, int64_t *labels) {
    int64_t counts[ROWS_COUNTS];
    int status = read_global_batch(trainer, SPLIT_TRAIN, trainer->consumed_samples, counts);
    THEN(status, train_sum_over_data(trainer, counts, ROWS_COUNTS, DTYPE_I64));
    TRY(status);
    *tokens = counts[ROWS_TOKENS];
    *labels = counts[ROWS_LABELS];
    weigh_rows(trainer, *labels);
    if (trainer->run.tuner)
        status = trainer->run.tuner->begin(trainer->model.tuner.self, trainer->consumed_samples);
    if (!status)
        status = run_steps(trainer, false, &(const struct pipeline_worker){train_micro_batch, trainer});
    THEN(status, finish_gradients(trainer));
    THEN(status, gradient_sync_layer(&trainer->sync, -1));
    return status ? status : model_loss_fetch(trainer->model.runner);
}

static int evaluate_micro_batch(void *context, const struct pipeline_step *step, const void *in, void *out) {
    struct trainer *trainer = context;
    struct model_batch batch = view_batch(&trainer->micros[step->micro_batch]);
    return model_evaluate_chunk(trainer->model.runner, &batch, step->chunk, in, out);
}

int train_evaluate_batch(struct trainer *trainer, int64_t first, int64_t *labels) {
    int64_t counts[ROWS_COUNTS];
    TRY(read_global_batch(trainer, SPLIT_VALID, first, counts));
    *labels = counts[ROWS_LABELS];
    return run_steps(trainer, true, &(const struct pipeline_worker){evaluate_micro_batch, trainer});
}

/* ---- texts ---- */

struct texts_pass {
    struct trainer *trainer;
    const struct train_texts *texts;
    int64_t first; /* text of the first micro batch */
};

static int64_t text_of(const struct texts_pass *pass, int64_t micro_batch) {
    int64_t text = pass->first + micro_batch;
    return text < pass->texts->count ? text : pass->texts->count - 1; /* the last one runs again */
}

/* The rows whose logits are wanted: after the last virtual token, and after each token. */
static int64_t wanted_rows(const struct train_texts *texts) {
    return texts->tokens + (texts->virtual_tokens > 0);
}

/* Sequence parallelism cuts the rows over the tensor ranks. */
static int64_t padded(const struct run_config *run, int64_t rows) {
    int64_t multiple = run->parallel.sequence_parallel ? run->parallel.tensor_model_parallel_size : 1;
    return (rows + multiple - 1) / multiple * multiple;
}

static void fill_batch(const struct run_config *run, struct gpt_batch *batch, const struct train_texts *texts,
                       int64_t text) {
    int64_t rows = texts->virtual_tokens + texts->tokens, vocab = run->model.vocab_size;
    batch->rows = padded(run, rows);
    batch->padding = batch->rows - rows;
    batch->segments = 1 + (batch->padding > 0);
    batch->segment_start[0] = 0;
    batch->segment_start[1] = rows;
    batch->segment_start[batch->segments] = batch->rows;
    for (int64_t i = 0; i < batch->rows; i++) {
        int64_t token = i - texts->virtual_tokens;
        batch->tokens[i] = i >= rows ? 0 : token < 0 ? (int32_t)(vocab + i) : texts->ids[text * texts->tokens + token];
        batch->positions[i] = i < rows ? (int32_t)(texts->first_position + i) : 0;
        batch->labels[i] = 0;
        batch->loss_mask[i] = 0;
        batch->sample[i] = batch->token[i] = 0;
    }
}

static int run_text(void *context, const struct pipeline_step *step, const void *in, void *out) {
    const struct texts_pass *pass = context;
    struct trainer *trainer = pass->trainer;
    const struct train_texts *texts = pass->texts;
    int64_t vocab = trainer->run.config.model.vocab_size, wanted = wanted_rows(texts);
    struct model_batch batch = view_batch(&trainer->micros[step->micro_batch]);
    const struct model_logits_part part = {.first = texts->virtual_tokens + texts->tokens - wanted,
                                           .count = wanted,
                                           .logits = texts->logits + text_of(pass, step->micro_batch) * wanted * vocab};
    return model_logits_chunk(trainer->model.runner, &batch, step->chunk, in, out, &part);
}

bool trainer_takes_texts(const struct trainer *trainer, int64_t rows) {
    const struct run_config *run = &trainer->run.config;
    return padded(run, rows) <= run->data.seq_length && run->train.precision != PRECISION_FP8;
}

int trainer_logits(struct trainer *trainer, const struct train_texts *texts) {
    struct texts_pass pass = {.trainer = trainer, .texts = texts};
    int64_t vocab = trainer->run.config.model.vocab_size, elements = texts->count * wanted_rows(texts) * vocab;
    size_t bytes = (size_t)elements * sizeof(float);
    memset(texts->logits, 0, bytes);
    TRY(trainer_await_weights(trainer));
    TRY(trainer->run.tuner->begin(trainer->model.tuner.self, TUNER_NO_DROPOUT)); /* its weights have changed */
    const struct hook_table *all = training_set_hooks(trainer->model.runner, texts->hooks);
    int status = STATUS_OK;
    for (; pass.first < texts->count && !status; pass.first += trainer->micro_count) {
        for (int64_t m = 0; m < trainer->micro_count; m++)
            fill_batch(&trainer->run.config, &trainer->micros[m], texts, text_of(&pass, m));
        status = run_steps(trainer, true, &(const struct pipeline_worker){run_text, &pass});
    }
    training_set_hooks(trainer->model.runner, all);
    if (trainer->rank.place.data > 0) /* the first of the ranks that hold the same has set them */
        memset(texts->logits, 0, bytes);
    struct comm_data sum = {.send = texts->logits, .receive = texts->logits, .count = elements, .dtype = DTYPE_F32};
    return status ? status : comm_all_reduce(trainer->world, &sum, COMM_SUM);
}
