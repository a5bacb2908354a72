/* Shared by the files of tuning rows: a line becomes pieces (tuning_parse.c), pieces become tokens (tuning_rows.c),
 * rows become samples (tuning_order.c), samples become batches (tuning_batch.c). Functions that return a status fail
 * with STATUS_INVALID for a bad row, STATUS_UNSUPPORTED, STATUS_IO or STATUS_MEMORY. */
#pragma once

#include "data-internal.h"
#include "data/tuning.h"
#include "text/text.h"

/* ---- tuning_parse.c ---- */

enum { TUNING_LINE_BYTES = 1 << 24 }; /* the longest line */

/* A row before it is tokenized; its answers are trained. Its texts are constants, or belong to `root` or to the
 * pieces. */
struct tuning_row {
    json_t *root;
    struct chat_pieces pieces[2]; /* with each answer of a pair, the better one first; other rows have one text */
    float weight;                 /* of its losses; below 0: the answer is labelled as not wanted */
    bool is_chat;                 /* a template wrote it whole: the tokenizer adds nothing before it */
};
void tuning_row_free(struct tuning_row *row);

/* How messages and instructions become text, the same for all rows. */
struct tuning_format {
    const struct tokenizer_files *tokenizer_files;
    const struct tokenizer *tokenizer;
    struct chat_template *named, *used; /* named: NULL when none is named; used: NULL until a row needs a template */
    enum tuning_form form;
    enum chat_answers answers;
    enum special_tokens special_tokens; /* of rows without a template */
    double template_timeout;
    int32_t eos;
    const int32_t *ends; /* [end_count] other tokens at which generators stop */
    size_t end_count;
};
/* Turns a line, without its end, into pieces. */
int tuning_parse_line(const char *line, size_t length, struct tuning_format *format, struct tuning_row *row);
/* tuning_preference.c: the same for the object of a line with pairs or labels. */
int tuning_parse_preference(struct tuning_format *format, struct tuning_row *row);

/* ---- tuning_template.c ---- */

/* Chooses the template when a row first needs it. `otherwise`: ours, for a tokenizer without one; NULL: none. */
int tuning_choose_template(struct tuning_format *format, const char *otherwise);
struct chat_request tuning_request(const struct tuning_format *format);

/* ---- tuning_rows.c ---- */

/* Rows end to end, with one bit per token that is set when the token is trained. */
struct tuning_rows {
    bool has_pairs;
    bool has_int32;    /* tokens are int32 rather than uint16 */
    void *tokens;      /* [start[count]] */
    uint64_t *trained; /* bits */
    int64_t *start;    /* [count + 1] */
    float *weight;     /* [count] of each row's losses; below 0: of an answer that is not wanted */
    int32_t *first;    /* [count] tokens of a pair's first text, which its second one follows; NULL: no pairs */
    int64_t count;
    int64_t token_capacity, row_capacity;
};
static inline int64_t tuning_row_length(const struct tuning_rows *rows, int64_t row) {
    return rows->start[row + 1] - rows->start[row];
}
static inline int32_t tuning_row_token(const struct tuning_rows *rows, int64_t at) {
    return rows->has_int32 ? ((const int32_t *)rows->tokens)[at] : ((const uint16_t *)rows->tokens)[at];
}
static inline bool tuning_row_is_trained(const struct tuning_rows *rows, int64_t at) {
    return rows->trained[at / 64] >> at % 64 & 1;
}
/* Returns the tokens of a row's first text. */
static inline int64_t tuning_first_length(const struct tuning_rows *rows, int64_t row) {
    return rows->first ? rows->first[row] : tuning_row_length(rows, row);
}
void tuning_rows_free(struct tuning_rows *rows);
/* Adds the rows of a file. */
int tuning_rows_read(struct tuning_rows *rows, const struct tuning_options *options, struct tuning_format *format,
                     struct tokenizer_encoder *encoder, struct tuning_file_count *count);
/* Releases the memory that was reserved for more rows. */
void tuning_rows_finish(struct tuning_rows *rows);
size_t tuning_rows_bytes(const struct tuning_rows *rows);

/* ---- tuning_order.c ---- */

/* Rows that are drawn together. A sample is one row of the pool, or a pack of several. */
struct tuning_pool {
    int64_t first_row, rows, samples;
    uint32_t *packed;     /* [rows] rows of the samples, end to end; NULL: sample i is row first_row + i */
    uint32_t *pack_start; /* [samples + 1] */
};
struct tuning_split {
    struct tuning_rows rows;
    struct tuning_pool *pools; /* one pool, or with weights one per file */
    int64_t pool_count;
    bool is_shuffled;
    uint64_t seed;
    int64_t epoch, length;
    int16_t *pool_index;        /* [length] with weights: the pool of a sample, and its number within the pool */
    int64_t *pool_sample_index; /* [length] */
};
void tuning_split_free(struct tuning_split *split);
size_t tuning_split_bytes(const struct tuning_split *split, int64_t length);
/* Packs the pools' rows into samples by first fit, in the shuffled order. Each text takes `extra` more batch rows
 * (virtual tokens less the last token); a pack has at most `most`. STATUS_MEMORY. */
int tuning_split_pack(struct tuning_split *split, int64_t extra, int64_t most);
/* Returns the number of rows of sample k. They begin at *packed, or are the single row *row when *packed is NULL. */
int64_t tuning_split_sample(const struct tuning_split *split, int64_t k, const uint32_t **packed, int64_t *row);

/* ---- tuning_data.c ---- */

struct tuning_data {
    struct tuning_split splits[SPLIT_COUNT]; /* the test split stays empty */
    struct tuning_file_count *files;
    size_t file_count;
    int64_t row_limit; /* the option seq_length, at which rows are cut */
    int64_t seq_length, virtual_tokens, first_position, row_multiple, vocab_size;
    bool has_few_sizes, is_packed;
    struct tuning_format format;
};
