/* Numbers and arguments that the launches and the kernels of paged attention share. */
#ifndef CAMBIUM_KERNELS_CUDA_PAGED_ATTENTION_H
#define CAMBIUM_KERNELS_CUDA_PAGED_ATTENTION_H

#include "kernels/ops.h"

/* Tokens of a part of a sequence, and the most warps of a block, which take the query heads of a key/value head in
 * turns. */
enum { PAGED_PART_TOKENS = 512, PAGED_WARPS = 8 };

/* A row's softmax over each part of its sequence. */
struct paged_parts {
    struct paged_attention a;
    int count;     /* parts of a sequence of all its pages */
    float *result; /* [N, H, count, 2 + D] largest score, sum of exponentials, sum of weighted values */
};

#endif
