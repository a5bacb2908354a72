/* Shared by the kernels of attention: the keys that a row may see, dropout, and what a warp does with a row of scores,
 * one in each lane. */
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

/* The segment of a row. Of segments that start at the same row, the last one has it. */
static __device__ inline int64_t segment_of(const struct attention &a, int64_t row) {
    int64_t low = 0, high = a.segments;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (a.segment_start[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Keys or values of a head, numbered from the prefix's first. */
template <class T> struct keys_of {
    const T *prefix, *rows; /* key 0, and the first key after the prefix */
    int64_t prefix_stride, stride, prefixes;

    __device__ __forceinline__ const T *at(int64_t key) const {
        return key < prefixes ? prefix + key * prefix_stride : rows + (key - prefixes) * stride;
    }
};

template <class T>
static __device__ __forceinline__ keys_of<T> head_keys(const struct attention &a, int64_t start, int head) {
    int64_t at = (int64_t)head * a.head_size;
    return {(const T *)a.prefix_k + at, (const T *)a.k + start * a.k_stride + at, (int64_t)a.kv_heads * a.head_size,
            a.k_stride, a.prefix};
}
template <class T>
static __device__ __forceinline__ keys_of<T> head_values(const struct attention &a, int64_t start, int head) {
    int64_t at = (int64_t)head * a.head_size;
    return {(const T *)a.prefix_v + at, (const T *)a.v + start * a.v_stride + at, (int64_t)a.kv_heads * a.head_size,
            a.v_stride, a.prefix};
}

/* The number of a key for dropout, in the segment that starts at row `start`. */
static __device__ __forceinline__ uint32_t key_element(const struct attention &a, int64_t start, int64_t key) {
    return key < a.prefix ? (uint32_t)(0x80000000 - a.prefix + key) : a.dropout.keys.token[start + key - a.prefix];
}

/* True if dropout keeps the probability of a query row and a key. */
static __device__ __forceinline__ bool is_kept(const struct attention &a, int head, int64_t row, uint32_t element) {
    const struct dropout &dropout = a.dropout;
    return rng_dropout_word(dropout.seed, RNG_ATTENTION_DROPOUT, dropout.site + (uint32_t)(a.first_head + head),
                            dropout.keys.sample[row], dropout.keys.token[row],
                            element) >= rng_dropout_threshold(dropout.p);
}

/* Calls f<features of a lane> for a head of this size. */
#define WITH_FEATURES(size, f, ...)                                                                                    \
    do {                                                                                                               \
        if ((size) <= 64)                                                                                              \
            f<T, 2>(__VA_ARGS__);                                                                                      \
        else if ((size) <= 128)                                                                                        \
            f<T, 4>(__VA_ARGS__);                                                                                      \
        else                                                                                                           \
            f<T, ATTENTION_FEATURES / WARP>(__VA_ARGS__);                                                              \
    } while (0)
