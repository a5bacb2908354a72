/* Arguments that the launches and the kernels of attention share. */
#ifndef CAMBIUM_KERNELS_CUDA_ATTENTION_H
#define CAMBIUM_KERNELS_CUDA_ATTENTION_H

#include "kernels/ops.h"

/* Rows, or keys, that a block works on at a time, one warp each; and the most features of a head that a warp sums at a
 * time. A larger head takes several warps, and each computes the scores again. */
enum { ATTENTION_WARPS = 4, ATTENTION_FEATURES = 256 };

/* Returns the warps that a head of this size takes. */
BASE_INLINE int attention_slabs(int head_size) {
    return (head_size + ATTENTION_FEATURES - 1) / ATTENTION_FEATURES;
}

struct attention_gradient {
    struct attention a;
    float *delta; /* [H, N] sum over features of dout * out: written with dq, then read for dk and dv. By tiles it is
                   * [H, N, 2]: lse for base 2, and this sum without dropout's scale */
};

#endif
