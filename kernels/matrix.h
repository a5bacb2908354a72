/* A matrix in device memory, as operations read it: element type, order, place, shape, scale.
 *
 * A view owns nothing and says nothing about who may write: an operation writes its result and nothing else. Shapes
 * alone serve while planning: data is NULL then. */
#ifndef CAMBIUM_KERNELS_MATRIX_H
#define CAMBIUM_KERNELS_MATRIX_H

#include "base/base.h"

#include <stdint.h>

enum matrix_form {
    MATRIX_PLAIN, /* row-major: element [i, j] stands at i * stride + j */
    MATRIX_PACKED /* the backend's own order, made by `pack` (ops.h): gemm's `b`, and row_squares, read it */
};

/* [rows, columns]; a weight is [out, in]. */
struct matrix_view {
    enum dtype type;
    enum matrix_form form;
    const void *data;
    int64_t rows, columns;
    int64_t stride;     /* of a plain matrix: elements from row to row */
    const float *scale; /* [rows], device memory: the values of row i are scale[i] times its elements; NULL: 1 */
};

/* A plain matrix whose rows stand `stride` elements apart. */
static inline struct matrix_view matrix_strided(enum dtype type, const void *data, int64_t rows, int64_t columns,
                                                int64_t stride) {
    return (struct matrix_view){.type = type, .data = data, .rows = rows, .columns = columns, .stride = stride};
}

/* A plain matrix without gaps. */
static inline struct matrix_view matrix_plain(enum dtype type, const void *data, int64_t rows, int64_t columns) {
    return matrix_strided(type, data, rows, columns, columns);
}

/* `rows` rows of a plain matrix, from row `first` on. */
static inline struct matrix_view matrix_rows(struct matrix_view view, int64_t first, int64_t rows) {
    if (view.data)
        view.data = (const char *)view.data + (size_t)(first * view.stride) * dtype_bytes(view.type);
    if (view.scale)
        view.scale += first;
    view.rows = rows;
    return view;
}

#endif
