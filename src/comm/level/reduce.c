/* Sums and maxima over ranks, in the order of ranks. A block is combined in a buffer that stays in the first-level
 * cache, and then copied to the targets, so that a target may be a source. This file is compiled once per
 * instruction-set level. Every level combines elements one by one, so the bits are the same. */
#include "comm-internal.h"

/* REDUCE_LEVEL: the instruction set of this compilation, part of the function's name. */
#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#define reduce_here JOIN(comm_reduce_, REDUCE_LEVEL)

enum { BLOCK_BYTES = 8192 };

/* A NaN on either side wins: it must not be hidden by another rank's number. */
#define SUM(a, b)      ((a) + (b))
#define MAX_REAL(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define MAX_INT(a, b)  ((a) > (b) ? (a) : (b))

#define DEFINE_COMBINE(name, type, combine)                                                                            \
    static void name(const struct comm_reduction *r, size_t offset, int64_t n, type *restrict block) {                 \
        const type *a = (const type *)((const char *)r->from[0] + offset);                                             \
        const type *b = (const type *)((const char *)r->from[1] + offset);                                             \
        for (int64_t i = 0; i < n; i++)                                                                                \
            block[i] = combine(a[i], b[i]);                                                                            \
        for (int source = 2; source < r->sources; source++) {                                                          \
            b = (const type *)((const char *)r->from[source] + offset);                                                \
            for (int64_t i = 0; i < n; i++)                                                                            \
                block[i] = combine(block[i], b[i]);                                                                    \
        }                                                                                                              \
    }
DEFINE_COMBINE(sum_f32, float, SUM)
DEFINE_COMBINE(sum_f64, double, SUM)
DEFINE_COMBINE(max_f32, float, MAX_REAL)
DEFINE_COMBINE(max_f64, double, MAX_REAL)
DEFINE_COMBINE(max_i64, int64_t, MAX_INT)
/* Added as unsigned numbers, for which wrapping is defined. */
DEFINE_COMBINE(sum_i64, uint64_t, SUM)

/* bf16 is combined as fp32 and rounded once. */
#define DEFINE_COMBINE_BF16(name, combine)                                                                             \
    static void name(const struct comm_reduction *r, size_t offset, int64_t n, uint16_t *restrict block) {             \
        float fp32[BLOCK_BYTES / sizeof(uint16_t)];                                                                    \
        const uint16_t *a = (const uint16_t *)((const char *)r->from[0] + offset);                                     \
        for (int64_t i = 0; i < n; i++)                                                                                \
            fp32[i] = bf16_to_float(a[i]);                                                                             \
        for (int source = 1; source < r->sources; source++) {                                                          \
            const uint16_t *b = (const uint16_t *)((const char *)r->from[source] + offset);                            \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                float value = bf16_to_float(b[i]);                                                                     \
                fp32[i] = combine(fp32[i], value);                                                                     \
            }                                                                                                          \
        }                                                                                                              \
        for (int64_t i = 0; i < n; i++)                                                                                \
            block[i] = bf16_from_float(fp32[i]);                                                                       \
    }
DEFINE_COMBINE_BF16(sum_bf16, SUM)
DEFINE_COMBINE_BF16(max_bf16, MAX_REAL)

static void combine(const struct comm_reduction *r, size_t offset, int64_t n, void *block) {
    bool is_sum = r->op == COMM_SUM;
    switch (r->dtype) {
    case DTYPE_F32:
        (is_sum ? sum_f32 : max_f32)(r, offset, n, block);
        break;
    case DTYPE_BF16:
        (is_sum ? sum_bf16 : max_bf16)(r, offset, n, block);
        break;
    case DTYPE_F64:
        (is_sum ? sum_f64 : max_f64)(r, offset, n, block);
        break;
    default: /* the call was checked: int64 */
        if (is_sum)
            sum_i64(r, offset, n, block);
        else
            max_i64(r, offset, n, block);
    }
}

void reduce_here(const struct comm_reduction *r) {
    _Alignas(64) unsigned char block[BLOCK_BYTES];
    size_t element = dtype_bytes(r->dtype);
    int64_t step = (int64_t)(BLOCK_BYTES / element);
    for (int64_t start = 0; start < r->count; start += step) {
        int64_t n = r->count - start < step ? r->count - start : step;
        size_t offset = (size_t)start * element;
        combine(r, r->from_offset + offset, n, block);
        for (int target = 0; target < r->targets; target++)
            memcpy((char *)r->to[target] + r->to_offset + offset, block, (size_t)n * element);
    }
}
