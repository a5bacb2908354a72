/* Chooses the rows of a batch that go through the head: those whose loss counts. The logits of other rows would have a
 * gradient of zero, and the head is a third of a small model's work.
 *
 * The host chooses the rows when the batch arrives. If all or nearly all rows count, they stay where they are, and
 * nothing here costs any time. */
#include "model-internal.h"

#include <stdlib.h>

int head_staging_open(struct model *model) {
    size_t rows = (size_t)model->options.max_rows;
    if (!model->share.has_head || model->options.use == MODEL_INFER)
        return STATUS_OK;
    int32_t *numbers = calloc(4 * rows, sizeof *numbers);
    TRY(status_allocated(numbers));
    model->staging = (struct head_staging){numbers, numbers + rows, numbers + 2 * rows, numbers + 3 * rows,
                                           calloc(rows, sizeof *model->staging.loss_weight)};
    return status_allocated(model->staging.loss_weight);
}

void head_staging_close(struct model *model) {
    free(model->staging.row);
    free(model->staging.loss_weight);
}

/* Each new number of rows needs a prepared product, so rows are padded to a few numbers. */
int64_t head_rows_count(const struct model *model, const struct model_batch *batch) {
    int64_t counted = 0, multiple = model_sizes(model)->head_rows_multiple;
    for (int64_t i = 0; i < batch->rows; i++)
        counted += batch->loss_weight[i] != 0;
    int64_t filled = (counted + multiple - 1) / multiple * multiple;
    filled = filled ? filled : multiple; /* gradients are written even if no row counts */
    return filled < batch->rows ? filled : batch->rows;
}

/* Lists the batch's rows that count, with their labels and weights, then padding up to `filled` rows. Returns how many
 * count. */
static int64_t choose(const struct model_batch *batch, const struct head_staging *staging, int64_t filled) {
    int64_t count = 0;
    for (int64_t i = 0; i < batch->rows; i++)
        if (batch->loss_weight[i] != 0) {
            staging->row[count] = (int32_t)i;
            staging->labels[count] = batch->labels[i];
            staging->loss_weight[count++] = batch->loss_weight[i];
        }
    for (int64_t i = count; i < filled; i++) {
        staging->row[i] = -1;
        staging->labels[i] = 0;
        staging->loss_weight[i] = 0;
    }
    return count;
}

/* Finds the rows among them that lie in this rank's part of the stream. */
static void choose_local(const struct model *model, int64_t rows, int64_t counted, struct head_rows *head) {
    const struct head_staging *staging = &model->staging;
    int64_t start = rank_first_stream_row(model->rank, rows), stream = rank_stream_rows(model->rank, rows);
    head->first = 0;
    while (head->first < counted && staging->row[head->first] < start)
        head->first++;
    head->local = 0;
    for (int64_t i = head->first; i < counted && staging->row[i] < start + stream; i++)
        staging->source[head->local++] = (int32_t)(staging->row[i] - start);
    for (int64_t i = 0; i < stream; i++)
        staging->place[i] = -1;
    for (int64_t i = 0; i < head->local; i++)
        staging->place[staging->source[i]] = (int32_t)i;
    for (; !model->rank->is_sequence_parallel && head->local < head->count; head->local++)
        staging->source[head->local] = -1;
}

void head_rows_upload(struct model *model, const struct model_batch *batch, struct head_rows *head) {
    const struct head_staging *staging = &model->staging;
    struct upload *upload = &model->upload;
    if (!model->share.has_head)
        return;
    head->count = head_rows_count(model, batch);
    head->is_all = head->count == batch->rows;
    if (!head->is_all)
        choose_local(model, batch->rows, choose(batch, staging, head->count), head);
    size_t bytes = (size_t)head->count * 4;
    head->labels = upload_add(upload, head->is_all ? batch->labels : staging->labels, bytes);
    head->loss_weight = upload_add(upload, head->is_all ? batch->loss_weight : staging->loss_weight, bytes);
    if (head->is_all)
        return;
    head->source = upload_add(upload, staging->source, (size_t)head->local * 4);
    head->place = upload_add(upload, staging->place, (size_t)rank_stream_rows(model->rank, batch->rows) * 4);
}

static void *row_at(const struct model *model, void *base, int64_t row) {
    return (char *)base + (size_t)(row * model->options.config.hidden_size) * dtype_bytes(model->options.dtype);
}

int head_rows_forward(const struct pass *pass) {
    const struct model *model = pass->model;
    const struct head_rows *head = &pass->batch->head;
    struct rank *rank = model->rank;
    int64_t C = model->options.config.hidden_size, elements = head->count * C;
    bool is_cut = rank->is_sequence_parallel;
    void *out = is_cut ? row_at(model, model->scratch.whole, head->first) : model->scratch.final;
    int status = is_cut ? stream_zero(rank->exec.stream, model->scratch.whole,
                                      (size_t)elements * dtype_bytes(model->options.dtype))
                        : STATUS_OK;
    const struct gather_rows wanted = {.rows = head->local,
                                       .cols = C,
                                       .type = model->options.dtype,
                                       .x = pass->stash->x_last,
                                       .index = head->source,
                                       .out = model->scratch.branch};
    THEN(status, rank_run(rank, PHASE_REST, gather_rows, &wanted));
    if (!status)
        status = norm_forward(model, &model->final_norm,
                              &(const struct norm){.rows = head->local,
                                                   .x = model->scratch.branch,
                                                   .y = out,
                                                   .mean = model->scratch.final_mean,
                                                   .rstd = model->scratch.final_rstd});
    /* One rank has each row; the other ranks have zeros. */
    return status || !is_cut ? status
                             : rank_sum(rank, RANK_TENSOR, model->scratch.whole, elements, model->options.dtype);
}

int head_rows_backward(const struct pass *pass) {
    const struct model *model = pass->model;
    const struct head_rows *head = &pass->batch->head;
    struct rank *rank = model->rank;
    int64_t C = model->options.config.hidden_size;
    void *whole = rank->is_sequence_parallel ? model->gradients.whole : model->gradients.norm;
    int status = rank_sum(rank, RANK_TENSOR, whole, head->count * C, model->options.dtype);
    if (!status)
        status = norm_backward(model, &model->final_norm,
                               &(const struct norm){.rows = head->local,
                                                    .x = model->scratch.branch,
                                                    .mean = model->scratch.final_mean,
                                                    .rstd = model->scratch.final_rstd,
                                                    .dy = row_at(model, whole, head->first),
                                                    .dx = model->scratch.final});
    const struct gather_rows back = {.rows = rank_stream_rows(rank, pass->rows),
                                     .cols = C,
                                     .type = model->options.dtype,
                                     .x = model->scratch.final,
                                     .index = head->place,
                                     .out = pass->d};
    return status ? status : rank_run(rank, PHASE_REST, gather_rows, &back);
}

void head_rows_put_back(const struct model *model, const struct model_batch *batch, float *losses) {
    int64_t next = 0;
    if (head_rows_count(model, batch) == batch->rows)
        return;
    for (int64_t i = 0; i < batch->rows; i++)
        next += batch->loss_weight[i] != 0;
    for (int64_t i = batch->rows; i-- > 0;) /* a row's loss lies at its place or before it, so the last goes first */
        losses[i] = batch->loss_weight[i] != 0 ? losses[--next] : 0;
}
