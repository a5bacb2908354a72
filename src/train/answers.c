/* Losses of answers in the passes of a stepper. The head of the last stage gives log-probabilities of a micro batch,
 * and gets their gradients. What the loss needs of the reference model comes from forwards before that, in the same
 * order. The model without what trains is the reference: no weight is there twice. */
#include "train-internal.h"

#include <math.h>

static int64_t micro_rows(const struct stepper *stepper) {
    return stepper->config->train.micro_batch_size * train_sample_rows(stepper->config, stepper->loss);
}

size_t stepper_answer_bytes(const struct train_run *run, int data_ranks) {
    int64_t rows = run->config.train.micro_batch_size * train_sample_rows(&run->config, run->loss);
    int64_t micros = run->config.train.global_batch_size / run->config.train.micro_batch_size / data_ranks;
    bool has_answers = run->loss && run->loss->run;
    return has_answers ? (size_t)rows * (sizeof(float) + (size_t)micros * sizeof(double)) : 0;
}

double *stepper_references(const struct stepper *stepper, int64_t micro_batch) {
    return stepper->references + micro_batch * micro_rows(stepper);
}

int answers_open(struct stepper *stepper) {
    if (!stepper_has_answers(stepper))
        return STATUS_OK;
    size_t rows = (size_t)micro_rows(stepper);
    stepper->values = calloc(rows, sizeof *stepper->values);
    stepper->references = calloc((size_t)stepper->micro_count * rows, sizeof *stepper->references);
    return status_allocated(stepper->values && stepper->references);
}

void answers_close(struct stepper *stepper) {
    free(stepper->values);
    free(stepper->references);
}

struct answer {
    int64_t count; /* rows that count */
    float weight;  /* of its row; below 0: it is not preferred */
};

/* Finds the answer of a segment. Returns the number of its rows that count: 0 only for padding. */
static int64_t find_answer(const struct gpt_batch *batch, int64_t segment, struct answer *answer) {
    *answer = (struct answer){0};
    for (int64_t i = batch->segment_start[segment]; i < batch->segment_start[segment + 1]; i++)
        if (batch->loss_mask[i] != 0) {
            answer->count++;
            answer->weight = batch->loss_mask[i];
        }
    return answer->count;
}

/* Copies the log-probabilities of the rows that count, from losses of all rows or of only these. */
static void take_values(const struct gpt_batch *batch, bool is_all, const float *losses, float *values) {
    int64_t taken = 0;
    for (int64_t i = 0; i < batch->rows; i++)
        if (batch->loss_mask[i] != 0) {
            values[taken] = -losses[is_all ? i : taken];
            taken++;
        }
}

/* The reverse: gradients of log-probabilities become those of losses. Other rows get 0. */
static void give_gradients(const struct gpt_batch *batch, int64_t count, const float *gradients, float *weights) {
    int64_t given = 0, filled = 0;
    for (int64_t i = 0; i < batch->rows; i++) {
        bool counts = batch->loss_mask[i] != 0;
        if (counts || count == batch->rows)
            weights[filled++] = counts ? -gradients[given++] : 0;
    }
    while (filled < count)
        weights[filled++] = 0;
}

/* Only the first tensor rank has the values of a loss of tokens. */
static int share_gradients(struct stepper *stepper, int64_t count) {
    const struct comm_data data = {
        .send = stepper->values, .receive = stepper->values, .count = count, .dtype = DTYPE_F32};
    return stepper->rank->tensor->size > 1 ? comm_broadcast(stepper->rank->tensor, &data, 0) : STATUS_OK;
}

int answers_weigh(void *context, int64_t count, float *values) {
    struct stepper *stepper = context;
    const struct gpt_batch *batch = &stepper->micros[stepper->micro_batch];
    const double *references = stepper_references(stepper, stepper->micro_batch);
    int texts = tuning_texts(stepper->loss->form);
    float *at = stepper->values;
    take_values(batch, count == batch->rows, values, at);
    for (int64_t s = 0; s + texts <= batch->segments; s += texts) {
        struct loss_segment segments[2] = {0};
        struct loss_figures figures = {0};
        struct answer answer = {0};
        float *first = at;
        for (int t = 0; t < texts && find_answer(batch, s + t, &answer); t++) {
            segments[t] = (struct loss_segment){.count = answer.count,
                                                .values = at,
                                                .reference = stepper->loss->has_reference ? references[s + t] : 0,
                                                .is_preferred = answer.weight > 0};
            at += answer.count;
        }
        if (!segments[texts - 1].count) /* padding */
            break;
        double weight = fabs((double)answer.weight);
        if (stepper->loss->is_of_tokens && stepper->source->fill)
            stepper->source->fill(stepper->source, batch, s, segments);
        else if (stepper->loss->is_of_tokens) /* another tensor rank's */
            continue;
        stepper->loss->run(&stepper->loss_options, stepper->shift, segments, &figures);
        figures.loss *= weight;
        for (int i = 0; i < LOSS_FIGURES; i++)
            ((double *)&stepper->figures)[i] += ((double *)&figures)[i];
        for (; first < at; first++)
            *first = (float)((double)*first * weight * stepper->scale);
    }
    if (stepper->loss->is_of_tokens)
        TRY(share_gradients(stepper, at - stepper->values));
    give_gradients(batch, count, stepper->values, values);
    return STATUS_OK;
}

/* ---- forwards before the loss ---- */

/* Keeps the sum of each segment. */
static int take_sums(void *context, int64_t count, float *values) {
    struct stepper *stepper = context;
    const struct gpt_batch *batch = &stepper->micros[stepper->micro_batch];
    double *sums = stepper_references(stepper, stepper->micro_batch);
    const float *at = stepper->values;
    struct answer answer;
    take_values(batch, count == batch->rows, values, stepper->values);
    for (int64_t s = 0; s < batch->segments && find_answer(batch, s, &answer); s++) {
        sums[s] = 0;
        for (int64_t i = 0; i < answer.count; i++)
            sums[s] += (double)*at++;
        stepper->sum += sums[s];
        stepper->summed++;
    }
    return STATUS_OK;
}

static int sum_micro_batch(void *context, const struct pipeline_step *step, const void *in, void *out) {
    return stepper_evaluate_micro(context, step, take_sums, in, out);
}

/* Sums the log-probabilities of each answer of the global batch, by the model or its reference. */
static int sum_answers(struct stepper *stepper, const struct train_samples *samples) {
    const struct tuner_reference *reference = &stepper->model->tuner.reference;
    struct training_runner *runner = stepper->model->runner;
    const struct hook_table *all = samples->is_reference ? training_set_hooks(runner, reference->hooks) : NULL;
    stepper->sum = stepper->summed = 0;
    stepper->forwards++;
    int status = stepper_read(stepper, samples);
    THEN(status, stepper_run(stepper, true, &(const struct pipeline_worker){sum_micro_batch, stepper}));
    if (samples->is_reference)
        training_set_hooks(runner, all);
    return status;
}

int answers_prepare(struct stepper *stepper, const struct train_samples *samples) {
    struct train_samples of = *samples;
    double sums[2];
    bool are_known;
    if (!stepper_has_answers(stepper) || !stepper->loss->has_reference)
        return STATUS_OK;
    TRY(stepper_await_weights(stepper));
    of.is_mismatched = stepper->loss->has_shift;
    if (of.is_mismatched) {
        TRY(sum_answers(stepper, &of));
        sums[0] = stepper->sum;
        of.is_reference = true;
        TRY(sum_answers(stepper, &of));
        sums[0] -= stepper->sum;
        sums[1] = stepper->summed;
        TRY(stepper_sum(stepper, sums, 2));
        stepper->shift = sums[1] > 0 ? fmax(sums[0] / sums[1], 0) : 0;
    }
    of.is_mismatched = false;
    of.is_reference = true;
    TRY(references_find(stepper, &of, &are_known));
    if (are_known)
        return STATUS_OK;
    TRY(sum_answers(stepper, &of));
    return references_keep(stepper, &of);
}
