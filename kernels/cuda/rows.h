/* Arguments of kernels whose operations take no struct. */
#ifndef CAMBIUM_KERNELS_CUDA_ROWS_H
#define CAMBIUM_KERNELS_CUDA_ROWS_H

#include "kernels/ops.h"

/* y += x */
struct add_call {
    int64_t count;
    const void *x;
    void *y;
};

/* out[i] = x[index[i]]; zeros where the index is below 0. */
struct gather_rows {
    int64_t rows, row_bytes;
    const void *x;
    const int32_t *index;
    void *out;
};

struct cast_call {
    int64_t count;
    enum dtype from_type, to_type; /* fp32, bf16 or fp16 */
    const void *from;
    void *to;
};

#endif
