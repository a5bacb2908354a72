/* Chooses the rows of a batch that go through the head: those whose loss counts. The logits of other rows would have a
 * gradient of zero, and the head is a third of a small model's work.
 *
 * The host chooses the rows when the batch arrives. If all or nearly all rows count, they stay where they are, and
 * nothing here costs any time. */
#include "model-internal.h"

int head_staging_open(struct training_runner *training) {
    size_t rows = (size_t)training->run.max_rows;
    if (!training->run.base->part.has_head)
        return STATUS_OK;
    int32_t *numbers = calloc(4 * rows, sizeof *numbers);
    TRY(status_allocated(numbers));
    training->staging = (struct head_staging){.row = numbers,
                                              .source = numbers + rows,
                                              .place = numbers + 2 * rows,
                                              .labels = numbers + 3 * rows,
                                              .loss_weight = calloc(rows, sizeof *training->staging.loss_weight),
                                              .sample = calloc(2 * rows, sizeof *training->staging.sample)};
    training->staging.token = training->staging.sample ? training->staging.sample + rows : NULL;
    return status_allocated(training->staging.loss_weight && training->staging.sample);
}

void head_staging_close(struct training_runner *training) {
    free(training->staging.row);
    free(training->staging.loss_weight);
    free(training->staging.sample);
}

/* Each new number of rows needs a prepared product, so rows are padded to a few numbers. */
int64_t head_rows_count(const struct runner *run, const struct model_batch *batch) {
    int64_t counted = 0, multiple = model_sizes(run)->head_rows_multiple;
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
            staging->sample[count] = batch->sample[i];
            staging->token[count] = batch->token[i];
            staging->loss_weight[count++] = batch->loss_weight[i];
        }
    for (int64_t i = count; i < filled; i++) {
        staging->row[i] = -1;
        staging->labels[i] = 0;
        staging->loss_weight[i] = 0;
        staging->sample[i] = staging->token[i] = 0;
    }
    return count;
}

/* Finds the rows among them that lie in this rank's part of the stream. */
static void choose_local(const struct training_runner *training, int64_t rows, int64_t counted,
                         struct head_rows *head) {
    const struct head_staging *staging = &training->staging;
    const struct runner *run = &training->run;
    int64_t start = rank_first_stream_row(run->rank, rows), stream = rank_stream_rows(run->rank, rows);
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
    for (; !run->rank->is_sequence_parallel && head->local < head->count; head->local++)
        staging->source[head->local] = -1;
}

void head_rows_upload(struct training_runner *training, const struct model_batch *batch, struct head_rows *head) {
    const struct head_staging *staging = &training->staging;
    struct runner *run = &training->run;
    struct upload *upload = &run->upload;
    if (!run->base->part.has_head)
        return;
    head->count = head_rows_count(run, batch);
    head->is_all = head->count == batch->rows;
    if (!head->is_all)
        choose_local(training, batch->rows, choose(batch, staging, head->count), head);
    size_t bytes = (size_t)head->count * 4;
    head->labels = upload_add(upload, head->is_all ? batch->labels : staging->labels, bytes);
    head->loss_weight = upload_add(upload, head->is_all ? batch->loss_weight : staging->loss_weight, bytes);
    head->keys = (struct row_keys){0};
    if (head_hooks(run)->count) {
        head->keys.sample = upload_add(upload, head->is_all ? batch->sample : staging->sample, bytes);
        head->keys.token = upload_add(upload, head->is_all ? batch->token : staging->token, bytes);
    }
    if (head->is_all)
        return;
    head->source = upload_add(upload, staging->source, (size_t)head->local * 4);
    head->place = upload_add(upload, staging->place, (size_t)rank_stream_rows(run->rank, batch->rows) * 4);
}

int head_rows_forward(const struct pass *pass) {
    const struct runner *run = pass->run;
    const struct head_rows *head = &pass->batch->head;
    struct rank *rank = run->rank;
    int64_t C = run->base->options.config.hidden_size, elements = head->count * C;
    bool is_cut = rank->is_sequence_parallel;
    void *out = is_cut ? model_row(run, run->scratch.whole, head->first) : run->scratch.final;
    int status = is_cut ? stream_zero(rank->exec.stream, run->scratch.whole,
                                      (size_t)elements * dtype_bytes(run->base->options.dtype))
                        : STATUS_OK;
    const struct gather_rows wanted = {.rows = head->local,
                                       .cols = C,
                                       .type = run->base->options.dtype,
                                       .x = pass->stash->x_last,
                                       .index = head->source,
                                       .out = run->scratch.branch};
    THEN(status, rank_run(rank, PHASE_REST, gather_rows, &wanted));
    if (!status)
        status = norm_forward(run, &run->base->final_norm,
                              &(const struct norm){.rows = head->local,
                                                   .x = run->scratch.branch,
                                                   .y = out,
                                                   .mean = run->scratch.final_mean,
                                                   .rstd = run->scratch.final_rstd});
    /* One rank has each row; the other ranks have zeros. */
    return status || !is_cut ? status
                             : rank_sum(rank, RANK_TENSOR, run->scratch.whole, elements, run->base->options.dtype);
}

int head_rows_backward(const struct pass *pass) {
    const struct runner *run = pass->run;
    const struct head_rows *head = &pass->batch->head;
    struct rank *rank = run->rank;
    int64_t C = run->base->options.config.hidden_size;
    void *whole = rank->is_sequence_parallel ? run->gradients.whole : run->gradients.norm;
    int status = rank_sum(rank, RANK_TENSOR, whole, head->count * C, run->base->options.dtype);
    if (!status)
        status = norm_backward(run, &run->base->final_norm,
                               &(const struct norm){.rows = head->local,
                                                    .x = run->scratch.branch,
                                                    .mean = run->scratch.final_mean,
                                                    .rstd = run->scratch.final_rstd,
                                                    .dy = model_row(run, whole, head->first),
                                                    .dx = run->scratch.final});
    const struct gather_rows back = {.rows = rank_stream_rows(rank, pass->rows),
                                     .cols = C,
                                     .type = run->base->options.dtype,
                                     .x = run->scratch.final,
                                     .index = head->place,
                                     .out = pass->d};
    return status ? status : rank_run(rank, PHASE_REST, gather_rows, &back);
}
