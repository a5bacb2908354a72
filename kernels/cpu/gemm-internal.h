/* Products on the CPU: who does what.
 *
 *   gemm.c               plain matrices: pieces, epilogues, bias gradients
 *   gemm_cache.c         oneDNN's primitives, made once per form
 *   level/gemm_epilogue.c what follows a product, in fp32, for each instruction-set level
 *   level/packed.c       packed weights: the layout, and the one kernel that multiplies any number of rows */
#ifndef CAMBIUM_KERNELS_CPU_GEMM_INTERNAL_H
#define CAMBIUM_KERNELS_CPU_GEMM_INTERNAL_H

#include "cpu/cpu-internal.h"

/* ---- oneDNN (gemm_cache.c) ---- */

/* A product as oneDNN sees it: everything that a primitive depends on, and nothing else. Compared as bytes. */
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

/* Whether oneDNN has the form on this processor. */
bool gemm_cache_has(struct device *device, const struct gemm_form *form);
/* Bytes of scratchpad; 0 for a form that it does not have. */
size_t gemm_cache_scratchpad(struct device *device, const struct gemm_form *form);
int gemm_cache_run(struct device *device, const struct gemm_form *form, const struct gemm_pointers *pointers);

/* ---- what each level adds -------------------------------------------------------------------------------------- */

/* A block of products in fp32 that stands at (row, col) of C. */
struct gemm_block {
    float *ab; /* [rows, cols]; overwritten */
    int64_t stride;
    int64_t row, col, rows, cols;
    const float *scale; /* [cols] that the sums are multiplied by first, or NULL */
    bool needs_bias;
};

struct gemm_level {
    /* Scale, bias where needed, aux, the epilogue and the store to C. `ab` may be the block's place in C or in aux
     * itself. */
    void (*epilogue)(const struct gemm *gemm, const struct gemm_block *block);
    int (*column_sum)(const struct exec *exec, int64_t rows, int64_t cols, enum dtype type, const void *x,
                      int64_t stride, float *out);
    size_t (*column_sum_workspace)(struct device *device, int64_t rows, int64_t cols);
    size_t (*packed_workspace)(struct device *device, const struct gemm *gemm);
    void (*packed_gemm)(const struct exec *exec, const struct gemm *gemm);
};

static inline bool gemm_is_packed(const struct gemm *gemm) {
    return gemm->b.form == MATRIX_PACKED;
}

static inline bool gemm_is_int8(const struct gemm *gemm) {
    return gemm->b.type == DTYPE_I8;
}

/* C as memory to write. */
static inline void *gemm_c(const struct gemm *gemm) {
    return (void *)(uintptr_t)gemm->c.data;
}

/* The operation with a level's parts (gemm.c). */
size_t gemm_workspace(const struct gemm_level *level, struct device *device, const struct gemm *gemm);
int gemm_run(const struct gemm_level *level, const struct exec *exec, const struct gemm *gemm);

#endif
