/* Arguments of the kernel that joins the parts of ranks. */
#ifndef CAMBIUM_KERNELS_CUDA_CROSS_ENTROPY_H
#define CAMBIUM_KERNELS_CUDA_CROSS_ENTROPY_H

#include "kernels/ops.h"

struct cross_entropy_join {
    struct cross_entropy call;
    int ranks;
    const struct cross_entropy_part *parts; /* [ranks][N] */
};

#endif
