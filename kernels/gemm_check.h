/* The products that there are, on any backend: the rules of struct gemm (ops.h), and its parts. */
#pragma once

#include "ops.h"

/* Returns true if B is packed. */
static inline bool gemm_is_packed(const struct gemm *gemm) {
    return gemm->b.form == MATRIX_PACKED;
}

/* Returns true if A and B are FP8. */
static inline bool gemm_is_fp8(const struct gemm *gemm) {
    return gemm->a.form == MATRIX_FP8;
}

/* Returns true if each row is multiplied on its own on the CPU, by one chain of sums for each output: forward. */
static inline bool gemm_is_row_by_row(const struct gemm *gemm) {
    bool is_rounded_again = gemm->accumulate && gemm->c.type != DTYPE_F32;
    return gemm->b_transposed && !gemm->a_transposed && !gemm_is_fp8(gemm) && !gemm->is_scaled && !is_rounded_again;
}

/* Returns the type of bias and aux. */
static inline enum dtype gemm_type(const struct gemm *gemm) {
    return gemm_is_fp8(gemm) ? DTYPE_BF16 : gemm->a.type;
}

/* Returns C's memory, to write. */
static inline void *gemm_c(const struct gemm *gemm) {
    return (void *)(uintptr_t)gemm->c.data;
}

/* Returns the sums of a weight gradient's bias gradient. */
static inline struct column_sum gemm_bias_sums(const struct gemm *gemm) {
    return (struct column_sum){.rows = gemm_k(gemm),
                               .cols = gemm_m(gemm),
                               .type = gemm->a.type,
                               .x = gemm->a.data,
                               .stride = gemm->a.stride,
                               .out = gemm->bias_gradient};
}

/* Returns true if the epilogue is a GELU's backward. */
static inline bool gemm_is_dgelu(const struct gemm *gemm) {
    return gemm->epilogue == EPILOGUE_DGELU_TANH || gemm->epilogue == EPILOGUE_DGELU_EXACT;
}

/* Returns why no backend has the product, or NULL. It reads types and forms, and whether pointers are NULL. */
const char *gemm_refusal(const struct gemm *gemm);
/* STATUS_UNSUPPORTED with the text of gemm_refusal; STATUS_INVALID if the shapes do not agree. */
int gemm_check(const struct gemm *gemm);
/* Returns the product of rows [first, first + count) of A. */
struct gemm gemm_rows(const struct gemm *gemm, int64_t first, int64_t count);
