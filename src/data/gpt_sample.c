/* Makes the model's input from index maps: a sample's tokens, labels, masks, positions and segments, and batches of
 * them. The masks are those of _get_ltor_masks_and_position_ids (gpt_dataset.py). Segments represent the attention
 * mask, because all rows of one segment see the same first column. */
#include "data-internal.h"

/* Reads S+1 tokens from the start of piece `j`: the first S into `tokens`, the last one into *last. */
static int read_piece(const struct gpt_dataset *dataset, int64_t j, int64_t vocab_size, int32_t *tokens,
                      int32_t *last) {
    int64_t document = dataset->sample_index[j].document, offset = dataset->sample_index[j].offset;
    int64_t S = dataset->seq_length, done = 0;
    while (done <= S) {
        if (document >= dataset->document_count)
            return status_fail(STATUS_INVALID, "%s: sample piece %lld runs past the last document",
                               dataset->tokens->prefix, (long long)j);
        int64_t sequence = dataset->document_index[document];
        int64_t left = sequence >= 0 && sequence < dataset->tokens->sequences
                           ? indexed_dataset_length(dataset->tokens, sequence) - offset
                           : -1;
        if (left < 0 || offset < 0) /* the maps may be a file that another program changes */
            return status_fail(STATUS_INVALID, "%s: the index map of sample piece %lld is damaged",
                               dataset->tokens->prefix, (long long)j);
        int64_t n = left < S - done ? left : S - done;
        int status = STATUS_OK;
        if (n > 0)
            status = indexed_dataset_read(dataset->tokens, sequence, offset, n, vocab_size, tokens + done);
        done += n;
        if (!status && done == S && left > n) {
            status = indexed_dataset_read(dataset->tokens, sequence, offset + n, 1, vocab_size, last);
            done++;
        }
        TRY(status);
        document++;
        offset = 0;
    }
    return STATUS_OK;
}

static void apply_rules(const struct gpt_rules *rules, int64_t S, int32_t last, struct gpt_sample *sample) {
    int32_t position = 0;
    sample->segment_count = 1;
    sample->segments[0] = 0;
    for (int64_t i = 0; i < S; i++) {
        int32_t token = sample->tokens[i], label = i + 1 < S ? sample->tokens[i + 1] : last;
        bool is_eod = rules->eod_id >= 0 && token == rules->eod_id;
        bool is_pad_label = rules->pad_id >= 0 && label == rules->pad_id;
        sample->labels[i] = is_pad_label ? 0 : label;
        sample->loss_mask[i] = is_pad_label || (is_eod && rules->eod_mask_loss) ? 0.0f : 1.0f;
        sample->positions[i] = position++;
        if (is_eod && rules->reset_position_ids)
            position = 0;
        if (is_eod && rules->reset_attention_mask && i + 1 < S)
            sample->segments[sample->segment_count++] = i + 1;
    }
    for (int64_t i = 0; i < S && rules->pad_id >= 0; i++)
        if (sample->tokens[i] == rules->pad_id)
            sample->tokens[i] = 0;
}

int gpt_split_get(const struct gpt_split *split, int64_t k, struct gpt_sample *sample) {
    const struct gpt_dataset *part = split->parts;
    int64_t inside = k;
    if (k < 0 || k >= split->length)
        return status_fail(STATUS_INVALID, "sample %lld is asked of a dataset of %lld samples", (long long)k,
                           (long long)split->length);
    if (split->is_blend) {
        part += split->dataset_index[k];
        inside = split->dataset_sample_index[k];
    }
    int32_t last = 0;
    int64_t piece = part->shuffle_index[inside];
    if (piece >= part->length)
        return status_fail(STATUS_INVALID, "%s: the index map of sample %lld is damaged", part->tokens->prefix,
                           (long long)k);
    int status = read_piece(part, piece, split->rules.vocab_size, sample->tokens, &last);
    if (!status)
        apply_rules(&split->rules, split->seq_length, last, sample);
    return status ? status_wrap(status, "sample %lld", (long long)k) : status;
}

int gpt_batch_init(struct gpt_batch *batch, int64_t samples, int64_t seq_length) {
    *batch = (struct gpt_batch){.samples = samples, .seq_length = seq_length};
    size_t rows = (size_t)samples * (size_t)seq_length;
    batch->tokens = calloc(rows, sizeof *batch->tokens);
    batch->labels = calloc(rows, sizeof *batch->labels);
    batch->loss_mask = calloc(rows, sizeof *batch->loss_mask);
    batch->positions = calloc(rows, sizeof *batch->positions);
    batch->sample = calloc(rows, sizeof *batch->sample);
    batch->token = calloc(rows, sizeof *batch->token);
    batch->segment_start = calloc(rows + 1, sizeof *batch->segment_start);
    if (batch->tokens && batch->labels && batch->loss_mask && batch->positions && batch->sample && batch->token &&
        batch->segment_start)
        return STATUS_OK;
    gpt_batch_free(batch);
    return status_fail(STATUS_MEMORY, "no memory for a batch of %lld samples of %lld tokens", (long long)samples,
                       (long long)seq_length);
}

void gpt_batch_free(struct gpt_batch *batch) {
    free(batch->tokens);
    free(batch->labels);
    free(batch->loss_mask);
    free(batch->positions);
    free(batch->sample);
    free(batch->token);
    free(batch->segment_start);
    *batch = (struct gpt_batch){0};
}

int gpt_batch_read(struct gpt_batch *batch, const struct gpt_split *split, int64_t first) {
    int64_t S = batch->seq_length;
    if (split->length > 0 && split->seq_length != S)
        return status_fail(STATUS_INVALID, "a batch of %lld tokens a sample is asked of samples of %lld", (long long)S,
                           (long long)split->seq_length);
    batch->segments = 0;
    for (int64_t b = 0; b < batch->samples; b++) {
        int64_t row = b * S;
        struct gpt_sample sample = {
            .tokens = batch->tokens + row,
            .labels = batch->labels + row,
            .loss_mask = batch->loss_mask + row,
            .positions = batch->positions + row,
            .segments = batch->segment_start + batch->segments,
        };
        TRY(gpt_split_get(split, first + b, &sample));
        for (int64_t s = 0; s < sample.segment_count; s++)
            sample.segments[s] += row;
        batch->segments += sample.segment_count;
        for (int64_t i = 0; i < S; i++) {
            batch->sample[row + i] = (uint32_t)(first + b);
            batch->token[row + i] = (uint32_t)i;
        }
    }
    batch->rows = batch->samples * S;
    batch->segment_start[batch->segments] = batch->rows;
    return STATUS_OK;
}
