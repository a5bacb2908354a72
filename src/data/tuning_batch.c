/* Turns samples into the flat batch that the model takes. */
#include "tuning-internal.h"

/* The contents of a batch row; its keys and segment are in the batch. */
struct batch_row {
    int32_t token, label, position;
    float weight; /* of the label's loss; 0: it is not trained */
};

static void put(struct gpt_batch *batch, struct batch_row row, int64_t sample, int64_t place) {
    int64_t at = batch->rows++;
    batch->tokens[at] = row.token;
    batch->labels[at] = row.label;
    batch->loss_mask[at] = row.weight;
    batch->positions[at] = row.position;
    batch->sample[at] = (uint32_t)sample;
    batch->token[at] = (uint32_t)place;
}

/* A text as two runs of tokens of the rows; the second one may be empty. */
struct text {
    int64_t start[2], count[2];
    float weight;
};

static int64_t token_at(const struct text *text, int64_t i) {
    return i < text->count[0] ? text->start[0] + i : text->start[1] + i - text->count[0];
}

/* Adds a text as a segment of sample k, starting at batch row `begin`. */
static void add_segment(struct gpt_batch *batch, const struct tuning_view *view, int64_t vocab_size,
                        const struct tuning_rows *rows, const struct text *text, const int64_t sample[2]) {
    int64_t V = view->virtual_tokens, count = text->count[0] + text->count[1], begin = sample[1];
    int32_t position = (int32_t)view->first_position;
    batch->segment_start[batch->segments++] = batch->rows;
    for (int64_t i = -V; i + 1 < count; i++) {
        bool is_predicted = i >= -1;
        int64_t next = is_predicted ? token_at(text, i + 1) : 0;
        struct batch_row row = {
            .token = i < 0 ? (int32_t)(vocab_size + V + i) : tuning_row_token(rows, token_at(text, i)),
            .label = is_predicted ? tuning_row_token(rows, next) : 0,
            .position = position++,
            .weight = is_predicted && tuning_row_is_trained(rows, next) ? text->weight : 0,
        };
        put(batch, row, sample[0], batch->rows - begin);
    }
}

/* Returns the tokens of a row before its answer. */
static int64_t prompt_length(const struct tuning_rows *rows, int64_t row) {
    int64_t start = rows->start[row], at = start;
    while (!tuning_row_is_trained(rows, at))
        at++;
    return at - start;
}

/* Returns the row after row `i` of the sample at *packed, or that of the next sample of the cycle. */
static int64_t next_row(const struct tuning_data *data, const struct tuning_split *split,
                        const struct tuning_view *view, int64_t k, int64_t i) {
    const uint32_t *packed;
    int64_t row, count = tuning_split_sample(split, k, &packed, &row);
    if (data->is_packed)
        return packed[(i + 1) % count];
    int64_t end = view->cycle_first + view->cycle;
    end = end < split->length ? end : split->length;
    tuning_split_sample(split, k + 1 < end ? k + 1 : view->cycle_first, &packed, &row);
    return row;
}

/* Makes the text of `row`'s prompt with the answer of the row after it. */
static struct text mismatch(const struct tuning_data *data, const struct tuning_rows *rows, int64_t row, int64_t next,
                            int64_t most) {
    int64_t prompt = prompt_length(rows, row), before = prompt_length(rows, next);
    int64_t answer = tuning_row_length(rows, next) - before;
    most = data->is_packed ? tuning_row_length(rows, row) : most;
    return (struct text){.start = {rows->start[row], rows->start[next] + before},
                         .count = {prompt, answer < most - prompt ? answer : most - prompt},
                         .weight = rows->weight[row]};
}

/* Adds the texts of row i of sample k. */
static void add_row(struct gpt_batch *batch, const struct tuning_data *data, const struct tuning_split *split,
                    const struct tuning_view *view, int64_t row, const int64_t at[3]) {
    const struct tuning_rows *rows = &split->rows;
    int64_t first = tuning_first_length(rows, row), second = tuning_row_length(rows, row) - first;
    struct text text = {.start = {rows->start[row]}, .count = {first}, .weight = rows->weight[row]};
    if (view->cycle)
        text = mismatch(data, rows, row, next_row(data, split, view, at[0], at[2]),
                        data->seq_length - data->virtual_tokens - data->first_position);
    add_segment(batch, view, data->vocab_size, rows, &text, at);
    text = (struct text){.start = {rows->start[row] + first}, .count = {second}, .weight = -rows->weight[row]};
    if (rows->first)
        add_segment(batch, view, data->vocab_size, rows, &text, at);
}

enum { SIZE_STEP = 16 };

static int64_t round_up(int64_t rows, int64_t multiple) {
    return (rows + multiple - 1) / multiple * multiple;
}

/* Returns the size that a batch of `rows` rows is padded to; at most `most`, which is a multiple. */
static int64_t filled_rows(const struct tuning_data *data, int64_t rows, int64_t most) {
    int64_t step = SIZE_STEP;
    while (rows > step * SIZE_STEP)
        step *= 2;
    rows = rows > 0 ? rows : 1; /* a batch is never empty */
    int64_t filled = round_up(data->has_few_sizes ? round_up(rows, step) : rows, data->row_multiple);
    return filled < most ? filled : most;
}

int tuning_batch_read(struct gpt_batch *batch, const struct tuning_data *data, enum data_split which, int64_t first) {
    const struct tuning_view view = {.virtual_tokens = data->virtual_tokens, .first_position = data->first_position};
    return tuning_batch_view(batch, data, which, first, &view);
}

int tuning_batch_view(struct gpt_batch *batch, const struct tuning_data *data, enum data_split which, int64_t first,
                      const struct tuning_view *view) {
    const struct tuning_split *split = &data->splits[which];
    int64_t M = data->row_multiple, rows = tuning_sample_rows(data->format.form, data->seq_length);
    if (batch->seq_length != rows || first < 0)
        return status_fail(STATUS_INVALID, "sample %lld of %lld tokens is asked of samples of %lld", (long long)first,
                           (long long)batch->seq_length, (long long)rows);
    if (batch->samples * batch->seq_length % M != 0)
        return status_fail(STATUS_USAGE, "%lld samples of %lld tokens are not a multiple of %lld rows",
                           (long long)batch->samples, (long long)batch->seq_length, (long long)M);
    batch->rows = batch->segments = 0;
    for (int64_t k = first; k - first < batch->samples && k < split->length; k++) {
        const uint32_t *packed;
        int64_t row, begin = batch->rows, count = tuning_split_sample(split, k, &packed, &row);
        for (int64_t i = 0; i < count; i++)
            add_row(batch, data, split, view, packed ? packed[i] : row, (const int64_t[]){k, begin, i});
    }
    int64_t padding = filled_rows(data, batch->rows, batch->samples * batch->seq_length) - batch->rows;
    if (padding > 0) {
        batch->segment_start[batch->segments++] = batch->rows;
        for (int64_t i = 0; i < padding; i++)
            put(batch, (struct batch_row){.position = (int32_t)view->first_position}, first, i);
    }
    batch->padding = padding > 0 ? padding : 0;
    batch->segment_start[batch->segments] = batch->rows;
    return STATUS_OK;
}
