/* Which rows of a batch go through the head: those whose loss counts. The others' logits would have a gradient of zero,
 * and the head is a third of a small model's work.
 *
 * The rows are chosen on the host as the batch arrives. Where they are all, or nearly, they stay where they are and
 * nothing here costs a pass anything. */
#include "model-internal.h"

#include <stdlib.h>

int head_staging_open(struct model *model) {
    size_t rows = (size_t)model->options.max_rows;
    if (!model->has_head || model->options.use == MODEL_INFER)
        return STATUS_OK;
    int32_t *numbers = calloc(4 * rows, sizeof *numbers);
    if (!numbers)
        return status_fail(STATUS_MEMORY, "out of memory");
    model->staging = (struct head_staging){numbers, numbers + rows, numbers + 2 * rows, numbers + 3 * rows,
                                           calloc(rows, sizeof *model->staging.loss_weight)};
    return model->staging.loss_weight ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
}

void head_staging_close(struct model *model) {
    free(model->staging.row);
    free(model->staging.loss_weight);
}

/* The batch's rows that count, with their labels and weights, then fill; returns how many with it. */
static int64_t choose(const struct model_batch *batch, struct head_staging *staging, int64_t *counted) {
    int64_t count = 0;
    for (int64_t i = 0; i < batch->rows; i++)
        if (batch->loss_weight[i] != 0) {
            staging->row[count] = (int32_t)i;
            staging->labels[count] = batch->labels[i];
            staging->loss_weight[count++] = batch->loss_weight[i];
        }
    *counted = count;
    int64_t filled = (count + HEAD_ROWS_MULTIPLE - 1) / HEAD_ROWS_MULTIPLE * HEAD_ROWS_MULTIPLE;
    filled = filled ? filled : HEAD_ROWS_MULTIPLE; /* gradients are written even where nothing counts */
    for (int64_t i = count; i < filled && i < batch->rows; i++) {
        staging->row[i] = -1;
        staging->labels[i] = 0;
        staging->loss_weight[i] = 0;
    }
    return filled;
}

/* What this rank has of them. */
static void choose_own(const struct model *model, int64_t rows, int64_t counted, struct head_rows *head) {
    const struct head_staging *staging = &model->staging;
    int64_t start = rank_first_stream_row(model->rank, rows), stream = rank_stream_rows(model->rank, rows);
    head->first = 0;
    while (head->first < counted && staging->row[head->first] < start)
        head->first++;
    head->own = 0;
    for (int64_t i = head->first; i < counted && staging->row[i] < start + stream; i++)
        staging->source[head->own++] = (int32_t)(staging->row[i] - start);
    for (int64_t i = 0; i < stream; i++)
        staging->place[i] = -1;
    for (int64_t i = 0; i < head->own; i++)
        staging->place[staging->source[i]] = (int32_t)i;
    for (; !model->rank->is_sequence_parallel && head->own < head->count; head->own++)
        staging->source[head->own] = -1;
}

void head_rows_upload(struct model *model, const struct model_batch *batch, struct head_rows *head) {
    const struct head_staging *staging = &model->staging;
    struct upload *upload = &model->upload;
    int64_t counted;
    if (!model->has_head)
        return;
    head->count = choose(batch, &model->staging, &counted);
    head->is_all = head->count >= batch->rows;
    if (head->is_all)
        head->count = batch->rows;
    else
        choose_own(model, batch->rows, counted, head);
    size_t bytes = (size_t)head->count * 4;
    head->labels = upload_add(upload, head->is_all ? batch->labels : staging->labels, bytes);
    head->loss_weight = upload_add(upload, head->is_all ? batch->loss_weight : staging->loss_weight, bytes);
    if (head->is_all)
        return;
    head->source = upload_add(upload, staging->source, (size_t)head->own * 4);
    head->place = upload_add(upload, staging->place, (size_t)rank_stream_rows(model->rank, batch->rows) * 4);
}

static void *row_at(const struct model *model, void *base, int64_t row) {
    return (char *)base + (size_t)(row * model->options.config.hidden_size) * dtype_bytes(model->options.dtype);
}

int head_rows_forward(struct model *model) {
    const struct head_rows *head = &model->stash->batch.head;
    struct rank *rank = model->rank;
    int64_t C = model->options.config.hidden_size, elements = head->count * C;
    bool is_cut = rank->is_sequence_parallel;
    void *out = is_cut ? row_at(model, model->whole, head->first) : model->final;
    int status =
        is_cut ? stream_zero(rank->exec.stream, model->whole, (size_t)elements * dtype_bytes(model->options.dtype))
               : STATUS_OK;
    if (!status)
        status = rank_run(rank, PHASE_REST, gather_rows, head->own, C, model->options.dtype, model->stash->x_last,
                          head->source, model->branch);
    if (!status)
        status = norm_forward(model, &model->final_norm, head->own, model->branch, out, model->final_mean,
                              model->final_rstd);
    /* Each row is one rank's, and zero elsewhere. */
    return status || !is_cut ? status : rank_sum(rank, rank->tensor, model->whole, elements, model->options.dtype);
}

int head_rows_backward(struct model *model, int64_t rows) {
    const struct head_rows *head = &model->stash->batch.head;
    struct rank *rank = model->rank;
    int64_t C = model->options.config.hidden_size;
    void *whole = rank->is_sequence_parallel ? model->whole_gradient : model->d_norm;
    int status = rank_sum(rank, rank->tensor, whole, head->count * C, model->options.dtype);
    if (!status)
        status = norm_backward(model, &model->final_norm, head->own, model->branch, model->final_mean,
                               model->final_rstd, row_at(model, whole, head->first), NULL, model->final);
    return status ? status
                  : rank_run(rank, PHASE_REST, gather_rows, rank_stream_rows(rank, rows), C, model->options.dtype,
                             model->final, head->place, model->d);
}

void head_rows_put_back(const struct model *model, float *losses) {
    const struct head_rows *head = &model->stash->batch.head;
    int64_t rows = model->stash->batch.rows, next = rows;
    for (int64_t i = head->is_all ? 0 : head->count; i-- > 0;) {
        int64_t row = model->staging.row[i]; /* i or behind it */
        if (row < 0)
            continue;
        float loss = losses[i];
        while (next > row + 1)
            losses[--next] = 0;
        losses[--next] = loss;
    }
    while (!head->is_all && next > 0)
        losses[--next] = 0;
}
