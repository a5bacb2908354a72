/* Arguments of the kernel that draws tokens. */
#pragma once

#include "kernels/ops.h"

enum {
    SAMPLE_THREADS_MOST = 512,   /* of a block; a power of two */
    SAMPLE_VOCAB_MOST = 1 << 21, /* the sum of all weights fits into 64 bits */
};

struct sample_call {
    struct sample call;
    float *distance; /* [N, distance_stride] first the scores, then their distances from the largest one */
    int64_t distance_stride;
};
