/* Arguments of the kernel that gathers rows of any type. */
#pragma once

#include "kernels/ops.h"

/* out[i] = x[index[i]]; zeros where the index is below 0. */
struct gather_bytes {
    int64_t rows, row_bytes;
    const void *x;
    const int32_t *index;
    void *out;
};
