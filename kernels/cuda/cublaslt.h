/* NVIDIA's library of matrix products, cuBLASLt, as far as the program uses it. Prototypes and enumerators are our own.
 * A table of functions is filled at run time from libcublasLt.so.13 or .12.
 *
 * prototypes_test.c compares all of it with the library's header. Functions return a status, 0 for success. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct cublasLtContext; /* the library on one GPU */
struct CUstream_st;

/* An algorithm for products of one form. */
struct cublaslt_algorithm {
    uint64_t data[8];
};

/* An algorithm that the library proposes. */
struct cublaslt_result {
    struct cublaslt_algorithm algorithm;
    size_t workspace_bytes;
    unsigned state; /* CUBLASLT_SUCCESS, or the proposal is none */
    float waves;
    int reserved[4];
};

/* The library's header gives its opaque structs no tags. The test of prototypes puts the library's types here. */
#define CUBLASLT_OPERATION  struct cublaslt_operation
#define CUBLASLT_LAYOUT     struct cublaslt_layout
#define CUBLASLT_PREFERENCE struct cublaslt_preference
#define CUBLASLT_ALGORITHM  struct cublaslt_algorithm
#define CUBLASLT_RESULT     struct cublaslt_result
CUBLASLT_OPERATION;  /* how a product is computed */
CUBLASLT_LAYOUT;     /* a matrix in memory, by columns */
CUBLASLT_PREFERENCE; /* limits on the algorithms that the library may propose */

/* ROW(our name, the library's name, value) */
#define CUBLASLT_ENUMERATORS(ROW)                                                                                      \
    ROW(CUBLASLT_SUCCESS, CUBLAS_STATUS_SUCCESS, 0)                                                                    \
    ROW(CUBLASLT_NO_MEMORY, CUBLAS_STATUS_ALLOC_FAILED, 3)                                                             \
    ROW(CUBLASLT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE, 7)                                                        \
    ROW(CUBLASLT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED, 15)                                                       \
    ROW(CUBLASLT_PLAIN, CUBLAS_OP_N, 0)                                                                                \
    ROW(CUBLASLT_TRANSPOSED, CUBLAS_OP_T, 1)                                                                           \
    ROW(CUBLASLT_COMPUTE_FP32, CUBLAS_COMPUTE_32F, 68)                                                                 \
    ROW(CUBLASLT_COMPUTE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32, 77)                                                       \
    ROW(CUBLASLT_FP32, CUDA_R_32F, 0)                                                                                  \
    ROW(CUBLASLT_BF16, CUDA_R_16BF, 14)                                                                                \
    ROW(CUBLASLT_E4M3, CUDA_R_8F_E4M3, 28)                                                                             \
    ROW(CUBLASLT_E5M2, CUDA_R_8F_E5M2, 29)                                                                             \
    ROW(CUBLASLT_LAYOUT_TYPE, CUBLASLT_MATRIX_LAYOUT_TYPE, 0)                                                          \
    ROW(CUBLASLT_LAYOUT_ROWS, CUBLASLT_MATRIX_LAYOUT_ROWS, 2)                                                          \
    ROW(CUBLASLT_LAYOUT_COLUMNS, CUBLASLT_MATRIX_LAYOUT_COLS, 3)                                                       \
    ROW(CUBLASLT_LAYOUT_STRIDE, CUBLASLT_MATRIX_LAYOUT_LD, 4)                                                          \
    ROW(CUBLASLT_OPERATION_COMPUTE, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 0)                                              \
    ROW(CUBLASLT_OPERATION_A, CUBLASLT_MATMUL_DESC_TRANSA, 3)                                                          \
    ROW(CUBLASLT_OPERATION_B, CUBLASLT_MATMUL_DESC_TRANSB, 4)                                                          \
    ROW(CUBLASLT_OPERATION_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE, 7)                                                 \
    ROW(CUBLASLT_OPERATION_BIAS, CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)                                                 \
    ROW(CUBLASLT_OPERATION_AUX, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 11)                                         \
    ROW(CUBLASLT_OPERATION_AUX_STRIDE, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 12)                                       \
    ROW(CUBLASLT_OPERATION_MULTIPROCESSORS, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 15)                                  \
    ROW(CUBLASLT_OPERATION_A_SCALE, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 17)                                          \
    ROW(CUBLASLT_OPERATION_B_SCALE, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 18)                                          \
    ROW(CUBLASLT_OPERATION_FAST, CUBLASLT_MATMUL_DESC_FAST_ACCUM, 25)                                                  \
    ROW(CUBLASLT_NO_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT, 1)                                                            \
    ROW(CUBLASLT_BIAS, CUBLASLT_EPILOGUE_BIAS, 4)                                                                      \
    ROW(CUBLASLT_GELU, CUBLASLT_EPILOGUE_GELU, 32)                                                                     \
    ROW(CUBLASLT_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX, 160)                                                            \
    ROW(CUBLASLT_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS, 36)                                                           \
    ROW(CUBLASLT_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 164)                                                  \
    ROW(CUBLASLT_DGELU, CUBLASLT_EPILOGUE_DGELU, 192)                                                                  \
    ROW(CUBLASLT_MOST_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)                                          \
    ROW(CUBLASLT_REDUCTIONS, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3)                                            \
    ROW(CUBLASLT_REDUCE_IN_FP32, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2)                                            \
    ROW(CUBLASLT_ALIGNMENT_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)                                           \
    ROW(CUBLASLT_ALIGNMENT_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6)                                           \
    ROW(CUBLASLT_ALIGNMENT_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7)                                           \
    ROW(CUBLASLT_ALIGNMENT_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)

/* Those of version 13.10 and newer. A flag of batch invariance names the alignment of all matrices. */
#define CUBLASLT_LATER_ENUMERATORS(ROW)                                                                                \
    ROW(CUBLASLT_OPERATION_INVARIANCE, CUBLASLT_MATMUL_DESC_BATCH_INVARIANCE_FLAGS, 41)                                \
    ROW(CUBLASLT_INVARIANT_2_BYTES, CUBLASLT_BATCH_INVARIANCE_ALIGN_2B, 1)                                             \
    ROW(CUBLASLT_INVARIANT_4_BYTES, CUBLASLT_BATCH_INVARIANCE_ALIGN_4B, 2)                                             \
    ROW(CUBLASLT_INVARIANT_8_BYTES, CUBLASLT_BATCH_INVARIANCE_ALIGN_8B, 3)                                             \
    ROW(CUBLASLT_INVARIANT_16_BYTES, CUBLASLT_BATCH_INVARIANCE_ALIGN_16B, 4)                                           \
    ROW(CUBLASLT_INVARIANCE_UNSET, CUBLASLT_BATCH_INVARIANCE_UNSET, 0x8000)
enum { CUBLASLT_HAS_INVARIANCE = 131000 };

#define CUBLASLT_ENUMERATOR(name, library_name, value) name = (value),
enum cublaslt_enumerator { CUBLASLT_ENUMERATORS(CUBLASLT_ENUMERATOR) CUBLASLT_LATER_ENUMERATORS(CUBLASLT_ENUMERATOR) };
#undef CUBLASLT_ENUMERATOR

/* ROW(member of the table, result, the library's name, parameters) */
#define CUBLASLT_FUNCTIONS(ROW)                                                                                        \
    ROW(version, size_t, cublasLtGetVersion, (void))                                                                   \
    ROW(status_text, const char *, cublasLtGetStatusString, (unsigned status))                                         \
    ROW(create, unsigned, cublasLtCreate, (struct cublasLtContext * *context))                                         \
    ROW(destroy, unsigned, cublasLtDestroy, (struct cublasLtContext * context))                                        \
    ROW(operation_create, unsigned, cublasLtMatmulDescCreate,                                                          \
        (CUBLASLT_OPERATION * *operation, unsigned compute_type, unsigned scale_type))                                 \
    ROW(operation_destroy, unsigned, cublasLtMatmulDescDestroy, (CUBLASLT_OPERATION * operation))                      \
    ROW(operation_set, unsigned, cublasLtMatmulDescSetAttribute,                                                       \
        (CUBLASLT_OPERATION * operation, unsigned attribute, const void *value, size_t bytes))                         \
    ROW(layout_create, unsigned, cublasLtMatrixLayoutCreate,                                                           \
        (CUBLASLT_LAYOUT * *layout, unsigned type, uint64_t rows, uint64_t columns, int64_t stride))                   \
    ROW(layout_destroy, unsigned, cublasLtMatrixLayoutDestroy, (CUBLASLT_LAYOUT * layout))                             \
    ROW(layout_set, unsigned, cublasLtMatrixLayoutSetAttribute,                                                        \
        (CUBLASLT_LAYOUT * layout, unsigned attribute, const void *value, size_t bytes))                               \
    ROW(preference_create, unsigned, cublasLtMatmulPreferenceCreate, (CUBLASLT_PREFERENCE * *preference))              \
    ROW(preference_destroy, unsigned, cublasLtMatmulPreferenceDestroy, (CUBLASLT_PREFERENCE * preference))             \
    ROW(preference_set, unsigned, cublasLtMatmulPreferenceSetAttribute,                                                \
        (CUBLASLT_PREFERENCE * preference, unsigned attribute, const void *value, size_t bytes))                       \
    ROW(propose, unsigned, cublasLtMatmulAlgoGetHeuristic,                                                             \
        (struct cublasLtContext * context, CUBLASLT_OPERATION * operation, CUBLASLT_LAYOUT * a, CUBLASLT_LAYOUT * b,   \
         CUBLASLT_LAYOUT * c, CUBLASLT_LAYOUT * d, CUBLASLT_PREFERENCE * preference, int most,                         \
         CUBLASLT_RESULT *results, int *count))                                                                        \
    ROW(check, unsigned, cublasLtMatmulAlgoCheck,                                                                      \
        (struct cublasLtContext * context, CUBLASLT_OPERATION * operation, CUBLASLT_LAYOUT * a, CUBLASLT_LAYOUT * b,   \
         CUBLASLT_LAYOUT * c, CUBLASLT_LAYOUT * d, const CUBLASLT_ALGORITHM *algorithm, CUBLASLT_RESULT *result))      \
    ROW(multiply, unsigned, cublasLtMatmul,                                                                            \
        (struct cublasLtContext * context, CUBLASLT_OPERATION * operation, const void *alpha, const void *a,           \
         CUBLASLT_LAYOUT *a_layout, const void *b, CUBLASLT_LAYOUT *b_layout, const void *beta, const void *c,         \
         CUBLASLT_LAYOUT *c_layout, void *d, CUBLASLT_LAYOUT *d_layout, const CUBLASLT_ALGORITHM *algorithm,           \
         void *workspace, size_t workspace_bytes, struct CUstream_st *stream))

#define CUBLASLT_MEMBER(member, result, name, parameters) result(*member) parameters;
struct cublaslt {
    void *library; /* of dlopen */
    CUBLASLT_FUNCTIONS(CUBLASLT_MEMBER)
};
#undef CUBLASLT_MEMBER

/* Opens the library. Fails with STATUS_UNSUPPORTED and one line: no library, another major version than its name says,
 * a library that lacks a function. */
int cublaslt_open(struct cublaslt *library);
/* Writes the name of an open library and its version, such as "cuBLASLt 13.1.0". */
void cublaslt_name(const struct cublaslt *library, char *text, size_t bytes);
/* Closes what was opened; a zeroed table is allowed. */
void cublaslt_close(struct cublaslt *library);
