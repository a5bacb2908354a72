/* Arguments of the product of few rows, and the sizes of its blocks. */
#pragma once

#include "base/inline.h"
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

/* KERNEL(warps, halves, tiles, places, blocks): few_rows_WARPS_HALVES, for `halves` times 8 rows. A block has `tiles`
 * times 8 columns, and its warps share the depth. The number of warps follows only from the number of columns. A warp
 * has the weights of up to `places` steps of the depth under way: 1,600 features are 13 steps for each of 4 warps. At
 * least `blocks` blocks fit the registers of a multiprocessor. */
#define FEW_ROWS_KERNELS(KERNEL)                                                                                       \
    KERNEL(4, 1, 2, 13, 4) KERNEL(4, 2, 2, 13, 4) KERNEL(8, 1, 1, 13, 2) KERNEL(8, 2, 2, 8, 2)

/* Products of up to FEW_ROWS_NARROW columns have blocks of 8 warps instead of 4, so that all multiprocessors have work.
 * Up to FEW_ROWS_NARROW_MOST rows these have 8 columns instead of 16; with more rows it would cost too much that each
 * block reads x. */
enum { FEW_ROWS_MOST = 16, FEW_ROWS_NARROW = 2112, FEW_ROWS_NARROW_MOST = 4, FEW_ROWS_STEP = 32 };

/* Bytes of a step that a warp has of 8 columns, and of a block's shared memory for its warps' sums. */
enum { FEW_ROWS_TILE_BYTES = 512 };
#define FEW_ROWS_SUM_BYTES(warps, halves, tiles) ((warps) * (halves) * (tiles)*64 * (int)sizeof(float))

/* Returns the steps of each warp. */
BASE_INLINE int few_rows_steps(int64_t depth, int warps) {
    return (int)((depth + FEW_ROWS_STEP * warps - 1) / (FEW_ROWS_STEP * warps));
}
