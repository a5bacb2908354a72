/* How threads divide an operation over a table of ranges (struct flat_range). */
#pragma once

#include "cpu/level/rows.h"

/* A call over the ranges of a table. Ranges are cut into chunks, counted from each range's first element, so that no
 * cut depends on the number of threads. */
struct range_work {
    const struct flat_range *ranges;
    int64_t count;
    const void *call;
    void (*chunk)(const void *call, const struct flat_range *range, int64_t first, int64_t count);
};
enum { RANGE_CHUNK = 1024 };

/* Runs the chunks that begin in elements [begin, end) of all ranges together. */
static inline void share_of_ranges(const struct range_work *w, int64_t begin, int64_t end) {
    int64_t i = 0, high = w->count - 1;
    while (i < high) {
        int64_t middle = (i + high + 1) / 2;
        if (w->ranges[middle].before - w->ranges->before <= begin)
            i = middle;
        else
            high = middle - 1;
    }
    for (; i < w->count && w->ranges[i].before - w->ranges->before < end; i++) {
        const struct flat_range *range = &w->ranges[i];
        int64_t before = range->before - w->ranges->before, stop = end - before;
        int64_t first = begin > before ? (begin - before + RANGE_CHUNK - 1) / RANGE_CHUNK * RANGE_CHUNK : 0;
        for (; first < range->count && first < stop; first += RANGE_CHUNK)
            w->chunk(w->call, range, first, range->count - first < RANGE_CHUNK ? range->count - first : RANGE_CHUNK);
    }
}

/* Runs all chunks. Every thread takes the same number of elements, whatever the sizes of the ranges. Returns STATUS_OK.
 */
static inline int every_range(const struct exec *exec, const struct range_work *w) {
    if (!w->count)
        return STATUS_OK;
    const struct flat_range *last = &w->ranges[w->count - 1];
    int64_t total = last->before + last->count - w->ranges->before;
    int shares = threads_for(exec, total);
#pragma omp parallel for num_threads(shares) schedule(static)
    for (int share = 0; share < shares; share++)
        share_of_ranges(w, total * share / shares, total * (share + 1) / shares);
    return STATUS_OK;
}
