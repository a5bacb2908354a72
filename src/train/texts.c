/* Short texts through the forward that trains: the logits of all their tokens. */
#include "train-internal.h"

struct texts_pass {
    struct stepper *stepper;
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
    struct stepper *stepper = pass->stepper;
    const struct train_texts *texts = pass->texts;
    int64_t vocab = stepper->config->model.vocab_size, wanted = wanted_rows(texts);
    struct model_batch batch = stepper_view(&stepper->micros[step->micro_batch]);
    const struct model_logits_part part = {.first = texts->virtual_tokens + texts->tokens - wanted,
                                           .count = wanted,
                                           .logits = texts->logits + text_of(pass, step->micro_batch) * wanted * vocab};
    return model_logits_chunk(stepper->model->runner, &batch, step->chunk, in, out, &part);
}

bool trainer_takes_texts(const struct trainer *trainer, int64_t rows) {
    const struct run_config *run = &trainer->run.config;
    return padded(run, rows) <= run->data.seq_length && run->train.precision != PRECISION_FP8;
}

int trainer_logits(struct trainer *trainer, const struct train_texts *texts) {
    struct texts_pass pass = {.stepper = &trainer->stepper, .texts = texts};
    struct stepper *stepper = pass.stepper;
    int64_t vocab = trainer->run.config.model.vocab_size, elements = texts->count * wanted_rows(texts) * vocab;
    size_t bytes = (size_t)elements * sizeof(float);
    memset(texts->logits, 0, bytes);
    TRY(trainer_await_weights(trainer));
    TRY(trainer->run.tuner->begin(trainer->model.tuner.self, TUNER_NO_DROPOUT)); /* its weights have changed */
    const struct hook_table *all = training_set_hooks(trainer->model.runner, texts->hooks);
    int status = STATUS_OK;
    for (; pass.first < texts->count && !status; pass.first += stepper->micro_count) {
        for (int64_t m = 0; m < stepper->micro_count; m++)
            fill_batch(&trainer->run.config, &stepper->micros[m], texts, text_of(&pass, m));
        status = stepper_run(stepper, true, &(const struct pipeline_worker){run_text, &pass});
    }
    training_set_hooks(trainer->model.runner, all);
    if (trainer->rank.place.data > 0) /* the first of the ranks that hold the same has set them */
        memset(texts->logits, 0, bytes);
    struct comm_data sum = {.send = texts->logits, .receive = texts->logits, .count = elements, .dtype = DTYPE_F32};
    return status ? status : comm_all_reduce(trainer->world, &sum, COMM_SUM);
}
