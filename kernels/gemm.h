/* Arguments of products, and of packing a weight for them (ops.h). */
#pragma once

#include "kernels/matrix.h"

enum gemm_epilogue {
    EPILOGUE_NONE,
    EPILOGUE_GELU_TANH, /* C = gelu(AB + bias); the GELU's input is rounded to `type`, and aux, if given, receives it */
    EPILOGUE_GELU_EXACT,
    EPILOGUE_DGELU_TANH, /* C = AB * gelu'(aux); aux is read. A GPU may round AB to bf16 if C is bf16 */
    EPILOGUE_DGELU_EXACT,
};

/* C[m,n] = epilogue(scale * op(A)[m,k] op(B)[k,n] + bias) (+ C when accumulate), accumulated in fp32. A, B, bias and
 * aux have one type. A and B may be FP8 together, but not both E5M2. Their two scales then multiply the sums, and bias
 * and aux are bf16. TF32 is fp32 with 10 bits of fraction; a backend with tensor cores has it. A packed B may be
 * encoded: a forward product then takes its values as they are, and others take them rounded to its type. So does a
 * GPU's forward product of many rows.
 *
 * On the CPU, forward products have the same bits with a plain B as with a packed one. A row's bits depend on that row
 * only. This leaves out FP8, scaled products, and sums into a bf16 C. The library multiplies the others. Without
 * AVX-512, it divides sums among threads: their bits depend on the number of threads, and it has no bf16 products. */
struct gemm {
    struct matrix_view a; /* [m,k], or [k,m] when a_transposed; plain or FP8 */
    struct matrix_view b; /* [k,n], or [n,k] when b_transposed (a weight [out, in] used forward) */
    struct matrix_view c; /* [m,n], written; plain, of A's type (for FP8: bf16) or fp32 */
    bool a_transposed;    /* a weight gradient: C is fp32, no epilogue */
    bool b_transposed;    /* forward. A packed B may be either, but A is then not transposed */
    bool accumulate;      /* C +=, without bias or epilogue; the sum is rounded once */
    bool is_scaled;       /* without bias or epilogue */
    float scale;          /* read if is_scaled; 0 is allowed */
    bool is_tf32;         /* A and B are fp32, and may be rounded to TF32 before they are multiplied */
    const void *bias;     /* [n] or NULL */
    const void *residual; /* [m,n] of C's type and row stride, added before C is rounded; or NULL. Not on the CPU, and
                             only without epilogue, scale and accumulation */
    enum gemm_epilogue epilogue;
    void *aux;            /* [m,n] with C's row stride */
    float *bias_gradient; /* [m] += sums of op(A)'s rows over k: db beside dW = dY^T X; or NULL. Not for FP8 */
};

/* Writes the packed form of a plain weight to `out`, which the caller owns; matrix_packed gives its view. The packed
 * form multiplies any number of rows, and a row's bits do not depend on that number. */
enum { PACK_ROWS = 64 };
struct pack_call {
    struct matrix_view plain; /* the weight; of an encoded one, its shape and type */
    void *out;                /* packed_bytes of memory */
    /* Each call packs rows of one part of an encoded weight (plain.encoded): from their codes, or with CODES_NONE from
     * `plain`, which is then the plain rows of the whole part. */
    const struct encoded_rows *rows; /* whole blocks of PACK_ROWS, or up to the part's end */
    int part;
    int64_t row; /* the first of these rows in the part, a multiple of PACK_ROWS */
};

/* Return the sizes of op(A) op(B): rows, columns, and the inner dimension. */
static inline int64_t gemm_m(const struct gemm *gemm) {
    return gemm->c.rows;
}
static inline int64_t gemm_n(const struct gemm *gemm) {
    return gemm->c.columns;
}
static inline int64_t gemm_k(const struct gemm *gemm) {
    return gemm->a_transposed ? gemm->a.rows : gemm->a.columns;
}
