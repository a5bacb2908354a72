/* Products on a GPU, by file:
 *
 *     encoded_gemm.c  the operation, and products with encoded weights
 *     gemm.c          plain products: what the library computes whole, and what needs a kernel of ours
 *     gemm_cache.c    the library's descriptors, and its algorithm for each form, found once
 *     gemm_algorithms.c  algorithms that were measured, as texts
 *     gemm_finish.cu  the kernel that finishes sums in fp32: bias, GELU and its backward
 *     cublaslt.c      opens the library */
#pragma once

#include "algorithms-internal.h"
#include "cuda/cuda-internal.h"
#include "gemm_check.h"

/* A product as the library sees it: exactly the values that its choice of an algorithm depends on. Forms are compared
 * as bytes, so that unused ones are zero. */
struct gemm_form {
    int64_t m, n, k, lda, ldb, ldc;
    uint8_t a_transposed, b_transposed, type, c_type; /* enum dtype */
    uint8_t a_alignment, b_alignment, c_alignment;    /* bytes that the addresses are multiples of; at most 16 */
    uint8_t epilogue;                                 /* CUBLASLT_GELU_AUX_BIAS and others */
    uint8_t is_tf32, b_type;
    uint8_t is_one_pass;        /* no partial sums, in whatever type */
    uint8_t is_fast;            /* FP8 sums may lose bits of fp32 */
    uint8_t is_batch_invariant; /* one algorithm for every m and ldc, without partial sums */
    uint8_t unused;
    uint16_t multiprocessors; /* that it runs on; 0: all */
};

struct gemm_pointers {
    const void *a, *b, *bias;       /* bias is aligned to 16 bytes */
    void *c, *aux;                  /* aux is aligned to 16 bytes, and has C's row stride */
    const float *a_scale, *b_scale; /* of FP8 */
    const void *residual;           /* of C's layout; or NULL */
    float alpha, beta;
    void *workspace; /* gemm_library_bytes, aligned to 256 bytes */
};

/* Returns why this backend lacks a product of plain matrices that others may have, or NULL. */
const char *cuda_gemm_lack(const struct device *device, const struct gemm *g);
/* As the operation, of plain matrices with rows and columns, which have been checked. */
size_t cuda_plain_gemm_workspace(struct device *device, const struct gemm *g);
int cuda_plain_gemm(const struct exec *exec, const struct gemm *g);
/* Returns the bytes of workspace that the library may use on this GPU. */
size_t gemm_library_bytes(const struct device *device);
/* Returns true if the library has the form on this GPU. */
bool cuda_gemm_cache_has(struct device *device, const struct gemm_form *form, const struct gemm_pointers *pointers);
/* Queues C = epilogue(alpha * AB) + beta * C. STATUS_UNSUPPORTED for a form that the library does not have. */
int cuda_gemm_cache_run(const struct exec *exec, const struct gemm_form *form, const struct gemm_pointers *pointers);

/* ---- gemm_algorithms.c ---- */

/* An algorithm that was chosen by measuring. */
struct gemm_choice {
    struct gemm_form form;
    struct cublaslt_algorithm algorithm;
    double seconds, first_seconds; /* as in struct device_algorithm */
};
struct gemm_choices {
    struct gemm_choice *items; /* [count] */
    int count;
};

/* Returns the choice for a form, or NULL. */
const struct gemm_choice *gemm_choices_find(const struct gemm_choices *choices, const struct gemm_form *form);
/* Adds a choice. STATUS_MEMORY. */
int gemm_choices_add(struct gemm_choices *choices, const struct gemm_choice *choice);
void gemm_choices_free(struct gemm_choices *choices);
/* Write a choice as texts, and read it. STATUS_INVALID for other texts. */
void gemm_choice_write(const struct gemm_choice *choice, struct device_algorithm *text);
int gemm_choice_read(const struct device_algorithm *text, struct gemm_choice *choice);

/* ---- few_rows.c: products of few rows that a kernel of ours computes whole ---- */

bool cuda_few_rows_takes(const struct device *device, const struct gemm *g);
int cuda_few_rows(const struct exec *exec, const struct gemm *g);
/* Returns true if such a kernel computes all that the product asks for, whatever its rows and its weight. */
bool cuda_few_rows_suits(const struct device *device, const struct gemm *g);
struct few_rows cuda_few_rows_of(const struct gemm *g);
