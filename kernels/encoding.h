/* Matrices in few bits: their encoding, and rows of codes and scales on their way from a file to a packed weight.
 *
 * An encoding says how a number follows from its code. All arithmetic is in fp32, and each step is rounded once:
 *
 *     value = scale * (number(code) - zero of the group)    with ENCODED_ZEROS
 *     value = scale * number(code) - offset                 with ENCODED_OFFSETS
 *     value = scale * number(code)                          otherwise
 *
 * A group is a run of neighbouring positions of one row that share a scale. A position is an input, but for matrices
 * with an order (act-order). These say for each position which input it holds, or -1 for none. With two levels of
 * scales, the scale of a group is a small integer times the scale of its block, and an offset is formed in the same
 * way. */
#pragma once

#include "base/base.h"

/* The numbers that codes mean. */
enum encoded_codes {
    CODES_NONE,     /* there are no codes: plain values of the matrix's type */
    CODES_INTEGERS, /* code - bias */
    CODES_E4M3,
    CODES_NF4,
    CODES_FP4,
    CODES_IQ4, /* the table of GGUF's IQ4_NL and IQ4_XS */
};

enum encoded_shift { ENCODED_SYMMETRIC, ENCODED_ZEROS, ENCODED_OFFSETS };

struct encoding {
    uint8_t codes;           /* enum encoded_codes */
    uint8_t bits;            /* of a code: 2 to 8. The packed form of a backend may hold more */
    uint8_t bias;            /* of CODES_INTEGERS */
    uint8_t shift;           /* enum encoded_shift */
    enum dtype scale_type;   /* F32, F16 or BF16; with blocks U8 or I8. Offsets have it too; zeros are U8 */
    int32_t group;           /* positions that share a scale; the last group of a row may be short */
    int32_t groups_of_block; /* groups that share the scale of a block, in fp16; 0: scales have one level */
};

enum { ENCODED_MAX_PARTS = 4 };

/* Neighbouring rows of a matrix that are encoded alike. */
struct encoded_part {
    int64_t rows;
    int64_t positions; /* of a row: the matrix's columns, or more where there is an order */
    bool has_order;
    struct encoding encoding; /* with CODES_NONE, the rows are plain values of the view's type */
};

/* An encoded matrix, part by part: slices of a fused weight may be encoded differently. */
struct encoded_layout {
    int count;
    struct encoded_part parts[ENCODED_MAX_PARTS];
};

/* Rows of one part in host memory, as a codec writes them: one code a byte. It owns nothing. */
struct encoded_rows {
    struct encoding encoding;
    int64_t rows, positions;
    uint8_t *codes;          /* [rows, positions]; those of positions without an input are not read */
    void *scales;            /* [rows, groups] of scale_type */
    void *shifts;            /* [rows, groups]: zeros as U8, or offsets of scale_type; NULL: symmetric */
    uint16_t *block_scales;  /* [rows, blocks] fp16; NULL: scales have one level */
    uint16_t *block_offsets; /* [rows, blocks] fp16; NULL without offsets or blocks */
    int32_t *order;          /* [positions] inputs, or NULL */
};

/* Return the numbers of groups and blocks in a row. */
static inline int64_t encoded_groups(const struct encoding *encoding, int64_t positions) {
    return (positions + encoding->group - 1) / encoding->group;
}
static inline int64_t encoded_blocks(const struct encoding *encoding, int64_t positions) {
    return encoding->groups_of_block
               ? (encoded_groups(encoding, positions) + encoding->groups_of_block - 1) / encoding->groups_of_block
               : 0;
}
/* Returns true if two encodings are equal. */
bool encoding_equals(const struct encoding *a, const struct encoding *b);
/* Returns true for a part whose encoding is one of those above, with groups of whole eights or one group a row. Packed
 * forms take these; `columns` are the matrix's. */
bool encoded_part_is_regular(const struct encoded_part *part, int64_t columns);
/* Makes the encoding of rows that of their columns [column, column + columns). Columns in one group are one group.
 * Those that begin inside a group, or a block, have groups and blocks that divide it, with repeated scales. */
void encoding_cut(struct encoding *encoding, int64_t column, int64_t columns);
/* Returns the bytes that the rows of a part take in host memory (encoded_rows_place). */
size_t encoded_rows_bytes(const struct encoded_part *part);
/* Returns the rows of a part, with its arrays in `memory` (encoded_rows_bytes, aligned to 8). */
struct encoded_rows encoded_rows_place(const struct encoded_part *part, void *memory);
/* Returns a number of an array of scales or offsets, of any scale_type. */
float encoded_element(enum dtype type, const void *array, int64_t i);
/* Returns the 16 numbers of a table of codes, or the 256 of CODES_E4M3; NULL for integers. */
const float *encoded_table(enum encoded_codes codes);
/* Writes the values of one row to out[inputs] in fp32: what the encoding means, which all products follow. */
void encoded_row_values(const struct encoded_rows *rows, int64_t row, float *out);
