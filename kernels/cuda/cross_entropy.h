/* Arguments of the kernel that joins the parts of ranks. */
#ifndef CAMBIUM_KERNELS_CUDA_CROSS_ENTROPY_H
#define CAMBIUM_KERNELS_CUDA_CROSS_ENTROPY_H

#include "kernels/ops.h"

/* Threads of a block. The second reading of a row finds it in the card's cache if few rows are worked on at a time, so
 * that long rows get large blocks. */
enum { ENTROPY_THREADS_MOST = 512, ENTROPY_LONG_ROW = 16384 };

struct cross_entropy_join {
    struct cross_entropy call;
    int ranks;
    const struct cross_entropy_part *parts; /* [ranks][N] */
};

#endif
