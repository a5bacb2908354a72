/* Arguments of the kernel that writes a product's deltas, and the sizes of its blocks. */
#ifndef CAMBIUM_KERNELS_CUDA_GEMM_DELTAS_H
#define CAMBIUM_KERNELS_CUDA_GEMM_DELTAS_H

#include "kernels/ops.h"

/* C [rows, cols] in bf16 = the sum of the deltas, rounded once; zeros where there is none. Rows of C begin and end at
 * accesses of 16 bytes. */
struct gemm_deltas {
    int64_t rows, cols;
    void *c;
    int64_t stride;
    int delta_count;
    struct gemm_delta delta[GEMM_DELTAS_MOST];
};
/* A block has a tile of C. Each of its warps has some rows of it, and a lane has 8 columns of these. */
enum { DELTAS_WARPS = 8, DELTAS_WARP_ROWS = 4, DELTAS_ROWS = DELTAS_WARPS * DELTAS_WARP_ROWS, DELTAS_COLS = 32 * 8 };

#endif
