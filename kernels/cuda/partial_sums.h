/* Sums over rows: blocks write the sums of their rows, and a kernel adds these in order. So the bits depend only on the
 * shape. */
#pragma once

#include "kernels/ops.h"

enum { PARTIAL_COLUMNS = 32, PARTIAL_SLICES = 8 }; /* of a block of the kernel */

/* out[j] += factor * sum over b of partial[b, j] for columns below `cols`; out2[j - cols] for those from `cols` on. */
struct partial_sums {
    int64_t blocks, cols, stride; /* stride: cols, or 2 cols with out2 */
    const float *partial;         /* [blocks, stride] */
    float *out, *out2;            /* [cols]; out2 NULL: none */
    const float *factor;          /* [cols], or NULL: 1 */
};

/* Returns the rows that a block of a first kernel sums, and the number of these blocks. */
static inline int64_t partial_rows(int64_t rows) {
    int64_t share = (rows + 255) / 256;
    return share > 16 ? share : 16;
}
static inline int64_t partial_blocks(int64_t rows) {
    return (rows + partial_rows(rows) - 1) / partial_rows(rows);
}

/* Queues the kernel. Fails as cuda_launch. */
int cuda_partial_sums(const struct exec *exec, const struct partial_sums *a);
