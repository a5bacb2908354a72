/* Maximum and sum of exponentials of one row of logits. The row is read from memory once: it is taken a chunk at a
 * time, and the second reading of a chunk comes from the first-level cache. */
#pragma once

#include "cpu/level/rows.h"

#include <float.h>
#include <math.h>

enum { SOFTMAX_CHUNKS_MAX = 64, SOFTMAX_CHUNK_MIN = 1024 };

/* Returns the elements of a chunk of a row of `count` elements, such that there are at most SOFTMAX_CHUNKS_MAX chunks.
 */
static inline int64_t softmax_chunk(int64_t count) {
    int64_t share = (count + SOFTMAX_CHUNKS_MAX - 1) / SOFTMAX_CHUNKS_MAX;
    return share > SOFTMAX_CHUNK_MIN ? (share + 63) / 64 * 64 : SOFTMAX_CHUNK_MIN;
}

/* Returns the largest of `count` numbers. It skips NaN, and returns -infinity if there is no other number. */
TYPED_BODY float row_max(const void *x, int64_t count, enum dtype type) {
    enum { LANES = 64, QUARTER = LANES / 4 };
    float lane[LANES], largest = -INFINITY;
    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            float value = load(x, i + l, type);
            lane[l] = value > lane[l] ? value : lane[l];
        }
    }
    for (int64_t i = whole; i < count; i++)
        lane[i - whole] = load(x, i, type) > lane[i - whole] ? load(x, i, type) : lane[i - whole];
#pragma omp simd
    for (int l = 0; l < QUARTER; l++) {
        float a = lane[l] > lane[l + QUARTER] ? lane[l] : lane[l + QUARTER];
        float b = lane[l + 2 * QUARTER] > lane[l + 3 * QUARTER] ? lane[l + 2 * QUARTER] : lane[l + 3 * QUARTER];
        lane[l] = a > b ? a : b;
    }
    for (int l = 0; l < QUARTER; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    return largest;
}

struct softmax_sum {
    float max;
    double sum; /* of exp(x - max) */
};

/* Adds a chunk of `count` elements to the sum. Unless `exps` is NULL, writes exp(x - reference) of the chunk there; it
 * may be x. Returns the reference. */
TYPED_BODY float softmax_add(struct softmax_sum *s, const void *x, int64_t count, float *exps, enum dtype type) {
    float largest = row_max(x, count, type);
    if (largest > s->max) {
        s->sum *= exp((double)s->max - (double)largest);
        s->max = largest;
    }
    float reference = s->max, sum = 0;
    if (exps) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++) {
            float e = vexp(load(x, i, type) - reference);
            exps[i] = e;
            sum += e;
        }
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++)
            sum += vexp(load(x, i, type) - reference);
    }
    s->sum += (double)sum;
    return reference;
}

/* Returns maximum and sum of a row of `count` elements. */
TYPED_BODY struct softmax_sum softmax_row(const void *x, int64_t count, enum dtype type) {
    struct softmax_sum s = {.max = -INFINITY};
    int64_t chunk = softmax_chunk(count);
    for (int64_t i = 0; i < count; i += chunk)
        softmax_add(&s, at_const(x, i, type), count - i < chunk ? count - i : chunk, NULL, type);
    return s;
}

/* Returns true if all `count` numbers are finite. */
TYPED_BODY bool row_is_finite(const void *x, int64_t count, enum dtype type) {
    int others = 0;
#pragma omp simd reduction(| : others)
    for (int64_t i = 0; i < count; i++)
        others |= !(fabsf(load(x, i, type)) <= FLT_MAX);
    return !others;
}

/* Like softmax_row, but the sum is NaN if any number of the row is not finite. (The exponential of -infinity is 0,
 * which would not show in the sum.) */
TYPED_BODY struct softmax_sum softmax_finite_row(const void *x, int64_t count, enum dtype type) {
    struct softmax_sum s = softmax_row(x, count, type);
    s.sum = row_is_finite(x, count, type) ? s.sum : NAN;
    return s;
}
