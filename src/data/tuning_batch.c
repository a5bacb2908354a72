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

/* Adds a row as a segment of sample k, starting at batch row `begin`. */
static void add_segment(struct gpt_batch *batch, const struct tuning_data *data, const struct tuning_rows *rows,
                        int64_t row, int64_t k, int64_t begin) {
    int64_t V = data->virtual_tokens, start = rows->start[row], end = rows->start[row + 1];
    int32_t position = (int32_t)data->first_position;
    batch->segment_start[batch->segments++] = batch->rows;
    for (int64_t v = 0; v < V; v++) {
        bool is_last = v + 1 == V;
        struct batch_row virtual_row = {
            .token = (int32_t)(data->vocab_size + v),
            .label = is_last ? tuning_row_token(rows, start) : 0,
            .position = position++,
            .weight = is_last && tuning_row_is_trained(rows, start) ? rows->weight[row] : 0,
        };
        put(batch, virtual_row, k, batch->rows - begin);
    }
    for (int64_t at = start; at + 1 < end; at++) {
        struct batch_row real_row = {
            .token = tuning_row_token(rows, at),
            .label = tuning_row_token(rows, at + 1),
            .position = position++,
            .weight = tuning_row_is_trained(rows, at + 1) ? rows->weight[row] : 0,
        };
        put(batch, real_row, k, batch->rows - begin);
    }
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
    const struct tuning_split *split = &data->splits[which];
    int64_t M = data->row_multiple;
    if (batch->seq_length != data->seq_length || first < 0)
        return status_fail(STATUS_INVALID, "sample %lld of %lld tokens is asked of samples of %lld", (long long)first,
                           (long long)batch->seq_length, (long long)data->seq_length);
    if (batch->samples * batch->seq_length % M != 0)
        return status_fail(STATUS_USAGE, "%lld samples of %lld tokens are not a multiple of %lld rows",
                           (long long)batch->samples, (long long)batch->seq_length, (long long)M);
    batch->rows = batch->segments = 0;
    for (int64_t k = first; k - first < batch->samples && k < split->length; k++) {
        const uint32_t *packed;
        int64_t row, begin = batch->rows, count = tuning_split_sample(split, k, &packed, &row);
        for (int64_t i = 0; i < count; i++)
            add_segment(batch, data, &split->rows, packed ? packed[i] : row, k, begin);
    }
    int64_t padding = filled_rows(data, batch->rows, batch->samples * batch->seq_length) - batch->rows;
    if (padding > 0) {
        batch->segment_start[batch->segments++] = batch->rows;
        for (int64_t i = 0; i < padding; i++)
            put(batch, (struct batch_row){.position = (int32_t)data->first_position}, first, i);
    }
    batch->padding = padding > 0 ? padding : 0;
    batch->segment_start[batch->segments] = batch->rows;
    return STATUS_OK;
}
