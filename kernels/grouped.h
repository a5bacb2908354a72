/* Arguments of grouped operations, whose rows of one batch belong to many adapters (ops.h).
 *
 * Rows come in segments. Each segment has a table of entries, one for each place of the model, and an operation names
 * the place by its number. Both tables lie in device memory. Segments come in any order. They share no rows, need not
 * cover all rows, and may be empty. Rows are unchanged if their segment has no table, or their entry has no outputs. */
#pragma once

#include "base/base.h"

enum group_unit {
    GROUP_UNIT_NONE,
    GROUP_UNIT_GELU_TANH,
    GROUP_UNIT_GELU_EXACT,
    GROUP_UNIT_RELU,
    GROUP_UNIT_SWISH,
    GROUP_UNIT_TANH
};
struct group_entry {
    int64_t n, k;         /* outputs and inputs; k is only of products */
    int64_t first_column; /* the column of output 0: in c; in x and y */
    const void *data;     /* grouped_gemm: the matrix, [n, k] or, with is_by_input, [k, n]; the others: [n] */
    bool is_by_input;
    enum dtype type; /* of data: fp32 or bf16 */
    /* grouped_gemm: [n] added, or NULL; group_scale: [n] the fixed part, or NULL; grouped_norm: [n] */
    const void *bias;
    enum dtype bias_type;
    float scale; /* read only by grouped_gemm; 0 is allowed */
    enum group_unit unit;
};
struct group_segment {
    int64_t first_row, rows; /* of the batch */
    const struct group_entry *entries;
};

/* c[i, first_column + j] (+)= scale * unit(sum over k of a[i, k] matrix[j, k] + bias[j]), with the entry of each row.
 * The sum is in fp32, and the result is rounded once. A sum of zero that is added changes no bit. A row's bits depend
 * only on that row and its entry, not on how rows are cut into segments and calls. c and a do not overlap. */
struct grouped_gemm {
    int64_t count; /* of segments */
    const struct group_segment *segments;
    int64_t entry;           /* the entry's number in each segment's table */
    int64_t first_row, rows; /* the rows of the batch that this call works on */
    const void *a;           /* row i at a + (i - a_row) * lda */
    int64_t a_row, lda;
    enum dtype a_type; /* fp32 or bf16 */
    void *c;           /* row i at c + (i - c_row) * ldc */
    int64_t c_row, ldc;
    enum dtype c_type;
    bool accumulate;
};

/* Scales columns first_column .. first_column + n - 1 of each row by the vector s of the row's entry: y = x * s. With a
 * fixed part, y = x + (x - fixed) * (s - 1). With is_difference, y = x * (s - 1), and any fixed part is ignored. */
struct group_scale {
    int64_t count;
    const struct group_segment *segments;
    int64_t entry;
    int64_t first_row, rows;
    const void *x; /* row i at x + (i - x_row) * ldx */
    int64_t x_row, ldx;
    enum dtype x_type; /* fp32 or bf16 */
    void *y;           /* row i at y + (i - y_row) * ldy; may be x, of the same type */
    int64_t y_row, ldy;
    enum dtype y_type;
    bool is_difference;
};

/* Replaces columns first_column .. first_column + n - 1 of each row by their LayerNorm, with the gain (`data`) and the
 * bias of the row's entry. Both have the type of x. A row's bits depend only on that row and its entry, as those of
 * grouped_gemm do. */
struct grouped_norm {
    int64_t count;
    const struct group_segment *segments;
    int64_t entry;
    int64_t first_row, rows;
    void *x; /* row i at x + (i - x_row) * ldx; ldx is at least first_column + n */
    int64_t x_row, ldx;
    enum dtype type; /* fp32 or bf16 */
    float epsilon;
};
