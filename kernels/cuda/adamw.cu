/* AdamW (Loshchilov, Hutter 2019; the formula of torch.optim.AdamW) over many parameters in one pass over memory, and
 * zeroing of many ranges. */
#include "cuda/adamw.h"
#include "cuda/ranges.cuh"

/* The numbers that a range's elements share. */
struct rates {
    float decay, step_size, scale;
};

static __device__ __forceinline__ rates rates_of(const struct adamw_step &s, const struct flat_range &range,
                                                 float scale) {
    float factor = range.lr_factor > 0 ? range.lr_factor : 1.0f;
    float lr = fmaf(s.lr.high, factor, s.lr.low * factor);
    return {fmaf(-lr, range.weight_decay, 1.0f), fmaf(lr, s.inverse.high, lr * s.inverse.low), scale};
}

/* Writes WIDTH elements of the weights. The compiler would write four of bf16 one by one here. */
template <class T, int WIDTH> static __device__ __forceinline__ void write_weights(T *to, const pack<T, WIDTH> &from) {
    *(pack<T, WIDTH> *)to = from;
}
static __device__ __forceinline__ void write_weights(bf16 *to, const pack<bf16, 4> &from) {
    uint32_t low = from.at[0].bits | (uint32_t)from.at[1].bits << 16;
    uint32_t high = from.at[2].bits | (uint32_t)from.at[3].bits << 16;
    *(uint64_t *)to = (uint64_t)high << 32 | low;
}

/* Updates WIDTH elements from `at` on of a range. */
template <class T, int WIDTH>
static __device__ __forceinline__ void update(const struct adamw_step &s, const struct flat_range &range,
                                              const rates &r, int64_t at) {
    typedef pack<float, WIDTH> packed;
    const struct adamw &a = s.call;
    packed *to_master = (packed *)(a.master + range.master + at), *to_m = (packed *)(a.m + range.state + at);
    packed *to_v = (packed *)(a.v + range.state + at), *from = (packed *)((float *)a.gradient + range.first + at);
    packed master = *to_master, m = *to_m, v = *to_v, gradient = *from;
    pack<T, WIDTH> weights;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        float g = gradient.at[k] * r.scale;
        m.at[k] += s.rest1 * (g - m.at[k]);
        v.at[k] = a.beta2 * v.at[k] + s.rest2 * g * g;
        master.at[k] = master.at[k] * r.decay - r.step_size * m.at[k] / (sqrtf(v.at[k]) * s.root_factor + a.epsilon);
        from_float(master.at[k], weights.at[k]);
        gradient.at[k] = 0;
    }
    *to_m = m;
    *to_v = v;
    *to_master = master;
    if (a.weights)
        write_weights((T *)a.weights + range.first + at, weights);
    if (a.zero_gradient)
        *from = gradient;
}

/* True if all arrays allow accesses to four elements at a range's start, and so at its every fourth. */
template <class T> static __device__ bool allows_four(const struct adamw &a, const struct flat_range &range) {
    return (range.first | range.master | range.state) % 4 == 0 && is_aligned(a.master) && is_aligned(a.m) &&
           is_aligned(a.v) && is_aligned(a.gradient) && is_aligned(a.weights);
}

template <class T> static __device__ void update_all(const struct adamw_step &s) {
    float scale = s.call.gradient_scale ? *s.call.gradient_scale : 1.0f;
    if (isnan(scale))
        return;
    every_chunk(s.call.ranges, s.call.range_count, [&](const struct flat_range &range, int64_t first, int64_t count) {
        rates r = rates_of(s, range, scale);
        int64_t whole = allows_four<T>(s.call, range) ? count / 4 * 4 : 0;
#pragma unroll 1
        for (int64_t i = 4 * threadIdx.x; i < whole; i += 4 * blockDim.x)
            update<T, 4>(s, range, r, first + i);
#pragma unroll 1
        for (int64_t i = whole + threadIdx.x; i < count; i += blockDim.x)
            update<T, 1>(s, range, r, first + i);
    });
}

extern "C" __global__ void __launch_bounds__(256) adamw_fp32(struct adamw_step s) {
    update_all<float>(s);
}
extern "C" __global__ void __launch_bounds__(256) adamw_bf16(struct adamw_step s) {
    update_all<bf16>(s);
}

extern "C" __global__ void __launch_bounds__(256) zero_ranges(struct zero_ranges a) {
    every_chunk(a.ranges, a.range_count, [&](const struct flat_range &range, int64_t first, int64_t count) {
        float *x = a.x + range.first + first;
        int64_t whole = is_aligned(x) ? count / 4 * 4 : 0;
        for (int64_t i = threadIdx.x; i < whole / 4; i += blockDim.x)
            ((pack<float, 4> *)x)[i] = {};
        for (int64_t i = whole + threadIdx.x; i < count; i += blockDim.x)
            x[i] = 0;
    });
}
