/* A matrix in device memory, as operations take it: element type, form, address, shape, encoding.
 *
 * A view owns nothing. Its const pointer does not say who may write: an operation writes its result and nothing else.
 * While planning, only the shape is used, and data is NULL. */
#pragma once

#include "kernels/encoding.h"

enum matrix_form {
    MATRIX_PLAIN,  /* row-major: element [i, j] is at i * stride + j */
    MATRIX_PACKED, /* the backend's order, made by `pack` (ops.h); gemm's `b`, row_squares and embeddings may have it */
    MATRIX_FP8     /* the backend's form of FP8 numbers, made by fp8_cast (ops.h); only gemm's `a` and `b`, together */
};

/* A matrix [rows, columns]; a weight is [out, in]. */
struct matrix_view {
    enum dtype type;
    enum matrix_form form;
    const void *data;
    int64_t rows, columns;
    int64_t stride;     /* elements from row to row, of a plain matrix */
    int64_t first_row;  /* of a packed matrix: the view's first row, among those that were packed */
    const float *scale; /* [1] in device memory, of form MATRIX_FP8: values are its multiples. NULL in other forms */
    const struct encoded_layout *encoded; /* of a packed matrix in few bits: its parts, which outlive the view. The
                                           * view's rows and columns count values; `type` is what products multiply
                                           * with. NULL: all values are of `type` */
};

/* Returns a view of a plain matrix whose rows start `stride` elements apart. */
static inline struct matrix_view matrix_strided(enum dtype type, const void *data, int64_t rows, int64_t columns,
                                                int64_t stride) {
    return (struct matrix_view){.type = type, .data = data, .rows = rows, .columns = columns, .stride = stride};
}

/* Returns a view of a plain matrix without gaps between rows. */
static inline struct matrix_view matrix_plain(enum dtype type, const void *data, int64_t rows, int64_t columns) {
    return matrix_strided(type, data, rows, columns, columns);
}

/* Returns the view of a plain matrix's packed form, which `pack` writes to this memory (ops.h). */
static inline struct matrix_view matrix_packed(struct matrix_view plain, const void *memory) {
    plain.form = MATRIX_PACKED;
    plain.data = memory;
    return plain;
}

/* Returns a view of `rows` rows of a plain or packed matrix, from row `first` on. */
static inline struct matrix_view matrix_rows(struct matrix_view view, int64_t first, int64_t rows) {
    if (view.form == MATRIX_PACKED)
        view.first_row += first;
    else if (view.data)
        view.data = (const char *)view.data + (size_t)(first * view.stride) * dtype_bytes(view.type);
    view.rows = rows;
    return view;
}
