/* How blocks divide an operation over a table of ranges (struct flat_range), which only the device can read. */
#pragma once

#include "cuda/typed.cuh"

enum { RANGE_CHUNK = 1024 }; /* elements that a block takes at a time, counted from a range's first */

/* Calls f(range, first, count) for the chunks that begin in this block's share of all elements. Every block has the
 * same number of elements, whatever the sizes of the ranges. */
template <class F>
static __device__ __forceinline__ void every_chunk(const struct flat_range *ranges, int64_t range_count, F f) {
    const struct flat_range *last = ranges + range_count - 1;
    int64_t origin = ranges->before, total = last->before + last->count - origin;
    int64_t begin = total * blockIdx.x / gridDim.x, end = total * (blockIdx.x + 1) / gridDim.x;
    int64_t i = 0, high = range_count - 1;
    while (i < high) {
        int64_t middle = (i + high + 1) / 2;
        if (ranges[middle].before - origin <= begin)
            i = middle;
        else
            high = middle - 1;
    }
#pragma unroll 1
    for (; i < range_count && ranges[i].before - origin < end; i++) {
        const struct flat_range &range = ranges[i];
        int64_t before = range.before - origin, stop = end - before;
        int64_t first = begin > before ? (begin - before + RANGE_CHUNK - 1) / RANGE_CHUNK * RANGE_CHUNK : 0;
#pragma unroll 1
        for (; first < range.count && first < stop; first += RANGE_CHUNK)
            f(range, first, range.count - first < RANGE_CHUNK ? range.count - first : RANGE_CHUNK);
    }
}
