/* What a warp does with a row of scores: 32 keys, or 32 queries, at a time, one in each lane. */
#pragma once

#include "cuda/attention.h"
#include "cuda/typed.cuh"

enum { WARP = 32 };

static __device__ __forceinline__ int lane_number() {
    return threadIdx.x % WARP;
}

/* The largest value of a warp, and the sum; every lane gets it. A NaN is not the largest. */
static __device__ __forceinline__ float warp_largest(float value) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
    return value;
}
static __device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(~0u, value, distance);
    return value;
}

/* 2^x, and exactly 1 for 0: the instruction may err there, too. */
static __device__ __forceinline__ float power_of_two(float x) {
    return x == 0 ? 1 : exp2f(x);
}

/* The softmax of a row whose scores come 32 at a time (Milakov, Gimelshein 2018). */
struct softmax {
    float largest = -INFINITY; /* score, the same in all lanes */
    float total = 0;           /* this lane's part of the sum of the exponentials */

    /* Replaces the next scores by their exponentials; -INFINITY is no score. The scale is for base 2. Returns the
     * factor of all sums before them. */
    __device__ __forceinline__ float take(float &score, float scale2) {
        float highest = fmaxf(largest, warp_largest(score));
        float rescale = power_of_two((largest - highest) * scale2);
        score = power_of_two((score - highest) * scale2);
        total = fmaf(total, rescale, score);
        largest = highest;
        return rescale;
    }
};

constexpr float LOG2_E = 1.4426950408889634f;

/* Calls f<features of a lane> for a head of this size. */
#define WITH_FEATURES(size, f, ...)                                                                                    \
    do {                                                                                                               \
        if ((size) <= 64)                                                                                              \
            f<T, WIDTH, 2>(__VA_ARGS__);                                                                               \
        else if ((size) <= 128)                                                                                        \
            f<T, WIDTH, 4>(__VA_ARGS__);                                                                               \
        else                                                                                                           \
            f<T, WIDTH, ATTENTION_FEATURES / WARP>(__VA_ARGS__);                                                       \
    } while (0)
