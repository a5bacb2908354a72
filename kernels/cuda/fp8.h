/* FP8 matrices on a GPU, and the arguments of the kernels that make them. */
#pragma once

#include "kernels/ops.h"

/* A matrix is there twice: by rows, and its transpose by rows. Rows begin at multiples of 16 numbers, and zeros fill
 * them: so the library can have the whole row as the inner dimension of a product. */
static inline int64_t fp8_row_stride(int64_t columns) {
    return fp8_padded(columns);
}
/* Returns the place of the transpose. */
static inline uint8_t *fp8_transpose(const void *matrix, int64_t rows, int64_t columns) {
    return (uint8_t *)(uintptr_t)matrix + fp8_padded(rows) * fp8_padded(columns);
}
/* Returns the place of the matrix's scale: the library wants it at a multiple of 16 bytes. */
static inline float *fp8_scale(const void *matrix, int64_t rows, int64_t columns) {
    return (float *)(void *)((uint8_t *)(uintptr_t)matrix + 2 * fp8_padded(rows) * fp8_padded(columns));
}

/* A block of fp8_cast has a tile of 128 columns. Its threads read 16 numbers each, and eight have a row. */
enum { FP8_TILE_ROWS = 128, FP8_TILE_COLS = 128, FP8_CAST_THREADS = 256, FP8_SCALES_THREADS = 128 };

struct fp8_cast_call {
    int64_t rows, cols, stride; /* of x */
    int64_t by_rows_stride, by_columns_stride;
    const void *x;
    void *result; /* [rows, cols] receives the bf16 matrix, or NULL; not of a matrix in memory */
    const float *scale, *inverse;
    float *kept_inverse;
    uint32_t *amax;      /* the bits of a float; or NULL */
    uint8_t *by_rows;    /* [rows, by_rows_stride], or NULL */
    uint8_t *by_columns; /* [cols, by_columns_stride], or NULL */
};

/* A result of an operation, cast by tiles. */
struct fp8_result_call {
    struct fp8_cast_call to; /* x: the operation's */
    bool is_e5m2;
    bool is_tanh;             /* of a GELU */
    const void *dy;           /* of a gradient */
    bool is_rms;              /* of a norm, as the next ones */
    const void *gain, *bias;  /* bias: NULL if is_rms */
    const float *mean, *rstd; /* mean: NULL if is_rms */
};

/* Operations whose result, in bf16, is cast to FP8 in the same kernel; of a norm, one whose statistics are known. They
 * fail as cuda_launch. */
int cuda_fp8_gelu(const struct exec *exec, const struct gelu *a, bool is_backward);
int cuda_fp8_swiglu(const struct exec *exec, const struct swiglu *a, bool is_backward);
int cuda_fp8_norm(const struct exec *exec, const struct norm *a);
