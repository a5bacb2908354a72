/* Zeroes many ranges of an array, such as the gradients of all parameters that are only ever added to. */
#include "cpu/level/ranges.h"

static void zero_chunk(const void *call, const struct flat_range *range, int64_t first, int64_t count) {
    memset(((const struct zero_ranges *)call)->x + range->first + first, 0, (size_t)count * sizeof(float));
}

int LEVEL(cpu_zero_ranges)(const struct exec *exec, const struct zero_ranges *a) {
    return every_range(
        exec, &(const struct range_work){.ranges = a->ranges, .count = a->range_count, .call = a, .chunk = zero_chunk});
}
