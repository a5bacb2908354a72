/* Numbers and arguments that the launches and the kernels of paged attention share. */
#pragma once

#include "kernels/ops.h"

/* Tokens of a part of a sequence, and the maximum number of warps of a block, which take the query heads of a key/value
 * head in turns. */
enum { PAGED_PART_TOKENS = 384, PAGED_WARPS = 8 };

/* Tensor cores. SIZE(n): the sizes to which heads are padded. A team of warps shares the tokens of a part, and takes up
 * to PAGED_PAIRS pairs of a query row and a query head. It computes this number of features. A block has up to
 * PAGED_TILE_TEAMS teams, which take parts at the same time. It has shared memory for the results of each team's warps,
 * and for those of its pairs. */
#define PAGED_TILE_SIZES(SIZE)     SIZE(64) SIZE(128) SIZE(256)
#define PAGED_TILE_FEATURES(size)  ((size) <= 128 ? (size) : 128)
#define PAGED_TILE_TEAMS(size)     ((size) <= 64 ? 3 : 2)
#define PAGED_TEAM_BYTES(features) (PAGED_TILE_WARPS * PAGED_PAIRS * ((features) + 10) * (int)sizeof(float))
#define PAGED_PAIR_BYTES(features) (20 + PAGED_PAIRS * ((features) + 2) * (int)sizeof(float))
enum { PAGED_PAIRS = 16, PAGED_TILE_WARPS = 4 };

/* A row's softmax over each part of its sequence. */
struct paged_parts {
    struct paged_attention a;
    int count;     /* parts of a sequence of all its pages */
    int blocks;    /* that share the parts of a row; used by tensor cores */
    float *result; /* [N, H, count, 2 + D] largest score, sum of exponentials, sum of weighted values; or NULL: a block
                      takes all parts */
};

/* Attention's forward with a row's sums in the order of paged attention, so that both have the same bits. Without
 * dropout. The errors of cuda_launch. */
int cuda_attention_forward_pages(const struct exec *exec, const struct attention *a);
