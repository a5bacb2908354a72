/* The largest of a row of logits, and the sum of their exponentials, by a block. Each thread keeps both for its own
 * columns, so one reading of the row is enough. */
#pragma once

#include "cuda/typed.cuh"

#include <float.h>
#include <math.h>

/* Figures of a row: the largest logit, and the sum of exp(logit - max). */
struct figures {
    float max, sum;
};

/* A thread's figures, and how many of its logits are not finite. */
struct own_figures {
    float max, sum, others;
};

template <class T, int WIDTH>
static __device__ __forceinline__ void add_pack(const pack<T, WIDTH> *x, own_figures &own) {
    pack<T, WIDTH> logits = *x;
    float value[WIDTH], largest = own.max;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        value[k] = to_float(logits.at[k]);
        largest = fmaxf(largest, value[k]); /* skips NaN */
        own.others += fabsf(value[k]) <= FLT_MAX ? 0 : 1;
    }
    if (largest > own.max) {
        own.sum *= expf(own.max - largest);
        own.max = largest;
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        own.sum += expf(value[k] - own.max);
}

/* The block's figures of all threads' own. With `checks`, the sum is NaN if a logit is not finite. */
static __device__ figures join_figures(const own_figures &own, bool checks, float2 *warps) {
    float max = block_max(own.max, (float *)warps);
    float2 sums = block_sum({own.sum == 0 ? 0 : own.sum * expf(own.max - max), own.others}, warps);
    return {max, checks && sums.y > 0 ? NAN : sums.x};
}

/* Returns the figures of `count` logits. With `checks`, the sum is NaN if any of them is not finite. */
template <class T, int WIDTH> static __device__ figures measure(const T *x, int64_t count, bool checks, float2 *warps) {
    own_figures own = {-INFINITY, 0, 0};
    for (int64_t j = threadIdx.x; j < count / WIDTH; j += blockDim.x)
        add_pack<T, WIDTH>((const pack<T, WIDTH> *)x + j, own);
#pragma unroll 1
    for (int64_t j = count / WIDTH * WIDTH + threadIdx.x; j < count; j += blockDim.x)
        add_pack<T, 1>((const pack<T, 1> *)x + j, own);
    return join_figures(own, checks, warps);
}
