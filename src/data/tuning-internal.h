/* Between the files of tuning rows: from a line to pieces (tuning_parse.c, tuning_template.c), from pieces to tokens
 * (tuning_rows.c), from rows to samples (tuning_order.c), from samples to batches (tuning_batch.c). */
#ifndef CAMBIUM_DATA_TUNING_INTERNAL_H
#define CAMBIUM_DATA_TUNING_INTERNAL_H

#include "base/json.h"
#include "data-internal.h"
#include "data/tuning.h"
#include "text/text.h"

/* ---- tuning_parse.c ---- */

enum { TUNING_LINE_BYTES = 1 << 24 }; /* the longest line */

enum tuning_piece_flags {
    PIECE_TRAINED = 1 << 0,
    PIECE_SPECIAL = 1 << 1, /* names of special tokens are the tokens: only in texts of ours */
    PIECE_END = 1 << 2,     /* no text: the end-of-text token */
};
struct tuning_piece {
    const char *text;
    size_t length;
    unsigned flags;
};
/* A row before it is tokenized; texts are constants, or belong to `root` or `joined`. */
struct tuning_pieces {
    json_t *root;
    struct strbuf joined;
    struct tuning_piece *items;
    size_t count, capacity;
};
void tuning_pieces_free(struct tuning_pieces *pieces);
int tuning_pieces_add(struct tuning_pieces *pieces, const char *text, size_t length, unsigned flags);
/* An answer and the end-of-text, both trained; an empty answer is none. */
int tuning_pieces_add_answer(struct tuning_pieces *pieces, const char *text, size_t length);

/* How messages and instructions are put in words: the same for all rows. */
struct tuning_format {
    const struct tokenizer_files *tokenizer_files;
    enum tuning_template named, used; /* used: AUTO until a row needed one */
    int32_t eos;
    int32_t turn_end; /* <|im_end|> of the tokenizer, -1 when it is no token */
};
/* A line without its end becomes pieces. `is_first`: of its file. */
int tuning_parse_line(const char *line, size_t length, bool is_first, struct tuning_format *format,
                      struct tuning_pieces *pieces);

/* ---- tuning_template.c ---- */

enum tuning_role { TUNING_ROLE_SYSTEM, TUNING_ROLE_USER, TUNING_ROLE_ASSISTANT, TUNING_ROLE_COUNT };
struct tuning_turn {
    enum tuning_role role;
    const char *text;
    size_t length;
    bool is_first, is_last;
};
int tuning_template_add_turn(const struct tuning_format *format, const struct tuning_turn *turn,
                             struct tuning_pieces *pieces);
/* input_length 0: none is given. */
struct tuning_instruction {
    const char *instruction, *input, *output;
    size_t instruction_length, input_length, output_length;
};
int tuning_template_add_instruction(const struct tuning_format *format, const struct tuning_instruction *row,
                                    struct tuning_pieces *pieces);

/* ---- tuning_rows.c ---- */

/* Rows end to end. A bit a token says whether it is trained. */
struct tuning_rows {
    bool is_wide;      /* tokens are int32, not uint16 */
    void *tokens;      /* [start[count]] */
    uint64_t *trained; /* bits */
    int64_t *start;    /* [count + 1] */
    int64_t count;
    int64_t token_capacity, row_capacity;
};
static inline int64_t tuning_row_length(const struct tuning_rows *rows, int64_t row) {
    return rows->start[row + 1] - rows->start[row];
}
static inline int32_t tuning_row_token(const struct tuning_rows *rows, int64_t at) {
    return rows->is_wide ? ((const int32_t *)rows->tokens)[at] : ((const uint16_t *)rows->tokens)[at];
}
static inline bool tuning_row_is_trained(const struct tuning_rows *rows, int64_t at) {
    return rows->trained[at / 64] >> at % 64 & 1;
}
void tuning_rows_free(struct tuning_rows *rows);
/* Adds the rows of a file. */
int tuning_rows_read(struct tuning_rows *rows, const struct tuning_options *options, struct tuning_format *format,
                     struct tokenizer_encoder *encoder, struct tuning_file_count *count);
/* Gives back what was reserved for more. */
void tuning_rows_finish(struct tuning_rows *rows);
size_t tuning_rows_bytes(const struct tuning_rows *rows);

/* ---- tuning_order.c ---- */

/* Place i of a permutation of 0 .. count-1 that follows from the seed, the epoch and the number of the pool. */
int64_t tuning_shuffle(uint64_t seed, uint32_t pool, uint32_t epoch, int64_t count, int64_t i);

/* Rows that are drawn from together: samples are rows of it, or packs of them. */
struct tuning_pool {
    int64_t first_row, rows, samples;
    uint32_t *packed;     /* [rows] of the samples, end to end; NULL: sample i is row first_row + i */
    uint32_t *pack_start; /* [samples + 1] */
};
struct tuning_split {
    struct tuning_rows rows;
    struct tuning_pool *pools; /* one, or by weights one a file */
    int64_t pool_count;
    bool is_shuffled;
    uint64_t seed;
    int64_t epoch, length;
    int16_t *pool_index;        /* [length] by weights: the pool of a sample, and its number among the pool's */
    int64_t *pool_sample_index; /* [length] */
};
void tuning_split_free(struct tuning_split *split);
size_t tuning_split_bytes(const struct tuning_split *split, int64_t length);
/* Makes samples of the pools' rows by first fit in the shuffled order: `extra` rows are added to each (virtual tokens
 * less the last token), and a pack has at most `most`. */
int tuning_split_pack(struct tuning_split *split, int64_t extra, int64_t most);
/* Rows of sample k: *first of `packed`, or a row number where that is NULL; *count of them. */
int64_t tuning_split_sample(const struct tuning_split *split, int64_t k, const uint32_t **packed, int64_t *row);

/* ---- tuning_data.c ---- */

struct tuning_data {
    struct tuning_split splits[SPLIT_COUNT]; /* the test split stays empty */
    struct tuning_file_count *files;
    size_t file_count;
    int64_t seq_length, virtual_tokens, first_position, row_multiple, vocab_size;
    bool has_few_sizes;
    struct tuning_format format;
};

#endif
