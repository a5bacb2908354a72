/* Products on the CPU, by file:
 *
 *     gemm.c                 products by oneDNN: pieces, epilogues, bias gradients
 *     gemm_cache.c           oneDNN's primitives, made once per form
 *     level/gemm_epilogue.c  the fp32 work after a product, for each instruction-set level
 *     level/packed.c         packed weights: the layout, and the one kernel, which multiplies any number of rows
 *                            forward. It packs plain weights piece by piece
 *     level/encoded.c        packed weights in few bits: packing and decoding; encoded.h has the layout
 *     level/encoded_gemm.c   their forward products */
#pragma once

#include "cpu/cpu-internal.h"
#include "gemm_check.h"

/* ---- oneDNN (gemm_cache.c) ---- */

/* A product as oneDNN sees it: exactly the values that a primitive depends on. Forms are compared as bytes, so unused
 * bytes must be zero. */
struct gemm_form {
    int64_t m, n, k, lda, ldb, ldc;
    uint8_t a_transposed, b_transposed, has_bias, accumulate;
    uint8_t type, c_type, unused[6];
    float scale;
};

struct gemm_pointers {
    const void *a, *b, *bias;
    void *c, *scratchpad;
};

/* Returns true if oneDNN has the form on this processor. */
bool gemm_cache_has(struct device *device, const struct gemm_form *form);
/* Returns the bytes of scratchpad that the form needs; 0 for a form that oneDNN does not have. */
size_t gemm_cache_scratchpad(struct device *device, const struct gemm_form *form);
/* Runs the product. STATUS_UNSUPPORTED for a form that oneDNN does not have; STATUS_MEMORY. */
int gemm_cache_run(struct device *device, const struct gemm_form *form, const struct gemm_pointers *pointers);

/* ---- parts that each level adds
 * -------------------------------------------------------------------------------------- */

/* A block of C in fp32, before the epilogue. Its first element is C's at (row, col). */
struct gemm_block {
    float *ab; /* [rows, cols]; overwritten */
    int64_t stride;
    int64_t row, col, rows, cols;
    float factor; /* of all sums, applied first */
    bool needs_bias;
};

struct gemm_level {
    /* Applies the factor, the bias if needed, aux and the epilogue, and stores to C. `ab` may be the block's
     * place in C or in aux. */
    void (*epilogue)(const struct gemm *gemm, const struct gemm_block *block);
    int (*column_sum)(const struct exec *exec, const struct column_sum *a);
    size_t (*column_sum_workspace)(struct device *device, const struct column_sum *a);
    size_t (*packed_workspace)(struct device *device, const struct gemm *gemm);
    void (*packed_gemm)(const struct exec *exec, const struct gemm *gemm);
    /* Writes the values in columns [col, col + cols) of a view of packed rows; `col` and `stride` are even. */
    void (*unpack)(const struct exec *exec, const struct matrix_view *packed, int64_t col, int64_t cols, void *out,
                   int64_t stride);
};

/* gemm_workspace and gemm of ops.h, with the parts of a level (gemm.c). Errors as gemm. */
size_t gemm_workspace(const struct gemm_level *level, struct device *device, const struct gemm *gemm);
int gemm_run(const struct gemm_level *level, const struct exec *exec, const struct gemm *gemm);
