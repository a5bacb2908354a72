/* Arguments of the kernels of residual dropout, forward and backward. */
#pragma once

#include "kernels/ops.h"

enum { DROPOUT_BLOCK = 64 }; /* elements whose random words belong to sixteen counters (base/rng.h) */

/* to = residual + mask * scale * from */
struct residual_dropout_kernel {
    int64_t rows, cols, first_col;
    const void *from;     /* [N,C] */
    const void *residual; /* [N,C] or NULL */
    void *to;             /* [N,C] */
    uint64_t seed;
    uint32_t site, threshold; /* threshold 0: every element is kept */
    float scale;
    struct row_keys keys; /* not read if every element is kept */
};
