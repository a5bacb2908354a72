/* Arguments of the kernels of sums. */
#pragma once

#include "kernels/ops.h"

enum { SQUARES_BLOCK = 16384 }; /* elements whose squares one block sums */

/* partial[b] = the sum of squares of block b. */
struct block_squares {
    int64_t count;
    const float *x;
    double *partial;
};

/* *sum (+)= the sum of partial[count], or of x[i] * weight[i] where x is set. */
struct sum_to_one {
    int64_t count;
    const double *partial;
    const float *x, *weight;
    bool accumulate;
    double *sum;
};

/* partial[p, j] = the sum of column j over block_rows rows. A block has COLUMN_WARPS warps, and a tile of columns: 32
 * accesses of 16 bytes, or 32 columns where rows are not made of such. */
struct column_sum_call {
    struct column_sum sum;
    int64_t block_rows, tiles;
    bool has_accesses;
    float *partial;
};
enum { COLUMN_WARPS = 8, COLUMN_ROWS = 64 /* of a block, at least */ };
