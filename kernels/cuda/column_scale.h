/* Arguments of the kernels of the backward of scaled columns. */
#pragma once

#include "kernels/ops.h"

/* A block takes block_rows rows, and writes its sums to its row of `partial`. */
struct column_scale_backward {
    struct column_scale call;
    int64_t block_rows;
    float *partial; /* [blocks, C], or NULL when frozen */
};
