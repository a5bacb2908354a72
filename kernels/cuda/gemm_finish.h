/* Arguments of the kernel that finishes products, and the sizes of its blocks. */
#pragma once

#include "kernels/ops.h"

/* Rows of sums [rows, cols] in fp32, which become C: bias, GELU or its backward, and one rounding. Pointers
 * lead to the first row; strides are elements from row to row. C or aux may be the sums' place. */
struct gemm_finish {
    int64_t rows, cols;
    const float *sums;
    int64_t sums_stride;
    const void *bias;     /* or NULL */
    const void *residual; /* of C's type and stride; or NULL */
    enum gemm_epilogue epilogue;
    void *aux; /* or NULL; written by a GELU unless it is the sums' place, read by a backward */
    void *c;
    int64_t stride; /* of c and aux */
    bool is_c_fp32; /* otherwise C has A's type */
    int width;      /* columns of a thread: FINISH_WIDTH if all rows are whole accesses of that many elements, else 1 */
};
/* A thread has this many rows. */
enum { FINISH_ROWS = 4, FINISH_WIDTH = 4, FINISH_THREADS = 128 };
