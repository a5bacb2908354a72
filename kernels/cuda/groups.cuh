/* Rows that belong to many adapters: only the device knows which. */
#pragma once

#include "cuda/typed.cuh"

/* Returns the entry of a row of the batch for a call of a grouped operation, or NULL if there is nothing to do. The
 * whole block calls it, for one row. */
template <class CALL> static __device__ const struct group_entry *entry_of(const CALL &a, int64_t row) {
    __shared__ int found;
    __syncthreads(); /* the row before this one has read it */
    if (threadIdx.x == 0)
        found = -1;
    __syncthreads();
    for (int64_t s = threadIdx.x; s < a.count; s += blockDim.x)
        if (row >= a.segments[s].first_row && row < a.segments[s].first_row + a.segments[s].rows)
            found = (int)s; /* segments share no rows */
    __syncthreads();
    const struct group_entry *entries = found < 0 ? nullptr : a.segments[found].entries;
    return entries && entries[a.entry].n > 0 ? entries + a.entry : nullptr;
}

template <int WIDTH>
static __device__ __forceinline__ values<WIDTH> read_any(const void *from, int64_t j, enum dtype type) {
    return type == DTYPE_F32 ? read_values<WIDTH>((const float *)from + j) : read_values<WIDTH>((const bf16 *)from + j);
}
