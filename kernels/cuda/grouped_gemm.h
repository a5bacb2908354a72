/* Argument of the kernel of grouped products, and the sizes of its blocks. */
#pragma once

#include "kernels/ops.h"

/* The rows are `tiles` tiles of `tile_rows` rows: 1, GROUP_ROWS, or GROUP_TILE_ROWS for tensor cores. A block takes a
 * tile and one of 2^split_bits shares of the columns, in ranges of GROUP_COLS columns, which is one for each thread. */
struct grouped_gemm_call {
    struct grouped_gemm product;
    int64_t tiles;
    int tile_rows, split_bits;
};
enum { GROUP_ROWS = 8, GROUP_TILE_ROWS = 16, GROUP_COLS = 128 };
