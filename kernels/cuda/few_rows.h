/* Arguments of the product of few rows, and the sizes of its blocks. */
#ifndef CAMBIUM_KERNELS_CUDA_FEW_ROWS_H
#define CAMBIUM_KERNELS_CUDA_FEW_ROWS_H

#include "kernels/ops.h"

/* C[rows, cols] = epilogue(x[rows, depth] w[cols, depth]' + bias + residual) in bf16 with sums in fp32. Strides are
 * elements from row to row. x and w are aligned to 16 bytes, and their strides and depth are divisible by 8. */
struct few_rows {
    int rows; /* at most FEW_ROWS_MOST */
    int64_t cols, depth;
    const void *x, *w;
    int64_t x_stride, w_stride;
    const void *bias, *residual; /* or NULL; residual has C's type and stride */
    enum gemm_epilogue epilogue;
    void *c;
    int64_t c_stride;
    bool is_c_fp32; /* otherwise C is bf16 */
};

/* A block has this many columns, and its warps share the depth. Each has this much of the weight under way. Products of
 * up to FEW_ROWS_NARROW columns have blocks of 8 warps instead of 4, so that all multiprocessors have work. */
enum { FEW_ROWS_MOST = 16, FEW_ROWS_COLS = 16, FEW_ROWS_NARROW = 2112, FEW_ROWS_WARP_BYTES = 8 << 10 };

#endif
