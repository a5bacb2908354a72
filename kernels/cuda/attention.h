/* Arguments that the launches and the kernels of attention share. */
#pragma once

#include "kernels/ops.h"

/* Rows, or keys, that a block works on at a time, one warp each; and the maximum number of features of a head that a
 * warp sums at a time. A larger head takes several warps, and each computes the scores again. */
enum { ATTENTION_WARPS = 4, ATTENTION_FEATURES = 256 };

/* Returns the warps that a head of this size takes. */
BASE_INLINE int attention_slabs(int head_size) {
    return (head_size + ATTENTION_FEATURES - 1) / ATTENTION_FEATURES;
}

/* A launch of gradients, or of tiles, for all heads or some of them. */
struct attention_part {
    struct attention a;
    int first_head, heads; /* of tiles: those of this launch, whole groups */
    float *delta; /* [H, N] sum over features of dout * out: written with dq, then read for dk and dv. By tiles it is
                   * [H, N, 2]: lse for base 2, and this sum without dropout's scale */
    /* [heads, N, kept_words], for tiles with dropout. An element of the scores of this launch's heads has a bit, 1 if
     * it is kept. attention_dropout.cuh says where the bit is. */
    uint32_t *kept;
    int64_t kept_words;
};

enum { KEPT_COLUMNS = 64 }; /* keys whose bits are found together */
/* Returns the words of a query row's bits, where no segment has more rows than `longest`. */
BASE_INLINE int64_t attention_kept_words(int64_t prefix, int64_t longest) {
    int64_t prefixes = (prefix + KEPT_COLUMNS - 1) / KEPT_COLUMNS;
    return (prefixes + (longest + KEPT_COLUMNS - 2) / KEPT_COLUMNS + 1) * (KEPT_COLUMNS / 32);
}
