/* Normalisation of rows that fit the registers of a warp (norm.cu takes all others). A warp reads its row once and
 * needs no barrier.
 *
 * The forward of few rows has a block for each row, and a warp for each part of it. Both forms add the same sums in the
 * same order, so the bits of a row do not depend on the number of rows. */
#include "cuda/norm_rows.cuh"

/* Sums of an access: of the elements or their squares, and of the deviations from the mean and their squares. */
template <class T> static __device__ __forceinline__ float2 first_sums(uint4 access, bool is_rms) {
    elements<T> e = unpack<T>(access);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < PACK<T>; k++)
        sum = is_rms ? fmaf(e.at[k], e.at[k], sum) : sum + e.at[k];
    return {sum, 0};
}
template <class T> static __device__ __forceinline__ float2 deviations(uint4 access, float mean) {
    elements<T> e = unpack<T>(access);
    float2 sum = {0, 0};
#pragma unroll
    for (int k = 0; k < PACK<T>; k++) {
        float d = e.at[k] - mean;
        sum = {sum.x + d, fmaf(d, d, sum.y)};
    }
    return sum;
}

/* Computes mean and rstd of a row. sum(of) returns the sums of `of` over its accesses. The mean has a rounding error,
 * whose square is subtracted from the mean square of the deviations. */
template <class T, class SUM> static __device__ __forceinline__ statistics measure(const struct norm &a, SUM sum) {
    bool is_rms = a.kind == NORM_RMS;
    float cols = (float)a.cols, first = sum([&](uint4 access) { return first_sums<T>(access, is_rms); }).x;
    if (is_rms)
        return {0, 1.0f / sqrtf(first / cols + a.epsilon)};
    float mean = first / cols;
    float2 rest = sum([&](uint4 access) { return deviations<T>(access, mean); });
    float off = rest.x / cols, variance = rest.y / cols - off * off;
    return {mean + off, 1.0f / sqrtf((variance > 0 ? variance : 0) + a.epsilon)};
}

/* The sums of a warp's row: a lane's accesses in their order, then the lanes. */
template <class T, int PARTS> struct sum_by_warp {
    const lane_row<PARTS> &x;
    int accesses;

    template <class F> __device__ __forceinline__ float2 operator()(F of) const {
        float2 sum = {0, 0};
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            if (lane_access(p) >= accesses)
                continue;
            float2 one = of(x.at[p]);
            sum = {sum.x + one.x, sum.y + one.y};
        }
        return warp_sum(sum);
    }
};

/* The same sums by a block whose warps have a part each. */
struct sum_by_block {
    uint4 x;
    bool is_there;
    float2 (*parts)[32]; /* shared memory, which each sum uses anew */

    template <class F> __device__ __forceinline__ float2 operator()(F of) {
        int lane = (int)threadIdx.x % 32;
        float2 sum = {0, 0};
        parts[threadIdx.x / 32][lane] = is_there ? of(x) : sum;
        __syncthreads();
#pragma unroll
        for (int p = 0; p < NORM_WIDE_PARTS; p++)
            if (p * 32 < (int)blockDim.x) {
                float2 one = parts[p][lane];
                sum = {sum.x + one.x, sum.y + one.y};
            }
        parts += NORM_WIDE_PARTS;
        return warp_sum(sum);
    }
};

/* gain and bias: this access of theirs. */
template <class T>
static __device__ __forceinline__ uint4 normalised(const struct norm &a, uint4 x, statistics s, uint4 gain,
                                                   uint4 bias) {
    elements<T> e = unpack<T>(x), scale = unpack<T>(gain), shift = unpack<T>(bias);
#pragma unroll
    for (int k = 0; k < PACK<T>; k++)
        e.at[k] = norm_value(e.at[k], s.mean, s.rstd, scale.at[k], shift.at[k], a.kind == NORM_RMS);
    return packed<T>(e);
}

static __device__ __forceinline__ void write_statistics(const struct norm &a, int64_t vector, statistics s) {
    if (a.rstd) {
        a.rstd[vector] = s.rstd;
        if (a.kind == NORM_LAYER)
            a.mean[vector] = s.mean;
    }
}

/* The places of a vector of x and of y. */
struct places {
    int64_t x, y;
};

static __device__ __forceinline__ places places_of(const struct norm &a, int64_t vector) {
    int64_t heads = a.heads > 1 ? a.heads : 1, whole = heads * a.cols;
    int64_t row = heads == 1 ? vector : vector / heads, within = (vector - row * heads) * a.cols;
    return {row * (a.x_stride ? a.x_stride : whole) + within, row * (a.y_stride ? a.y_stride : whole) + within};
}

/* Calls store(vector, access, value) for all accesses of y. */
template <class T, int PARTS, class STORE>
static __device__ __forceinline__ void forward(const struct norm &a, STORE store) {
    int64_t vectors = a.rows * (a.heads > 1 ? a.heads : 1);
    int accesses = accesses_of<T>(a);
    const uint4 *gain = (const uint4 *)a.gain, *bias = (const uint4 *)a.bias;
    for (int64_t i = grid_thread() / 32; i < vectors; i += grid_threads() / 32) {
        places at = places_of(a, i);
        lane_row<PARTS> x = read_row<PARTS>((const T *)a.x + at.x, accesses);
        statistics s = measure<T>(a, sum_by_warp<T, PARTS>{x, accesses});
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            if (int place = lane_access(p); place < accesses)
                store(at.y, i, place,
                      normalised<T>(a, x.at[p], s, gain[place], a.kind == NORM_LAYER ? bias[place] : uint4{}));
        if (threadIdx.x % 32 == 0)
            write_statistics(a, i, s);
    }
}

template <class T, int PARTS> static __device__ __forceinline__ void forward(const struct norm &a) {
    forward<T, PARTS>(
        a, [&](int64_t first, int64_t, int place, uint4 value) { ((uint4 *)((T *)a.y + first))[place] = value; });
}

/* One vector. Gain and bias are read while the kernels before this one run. */
template <class T> static __device__ __forceinline__ void forward_by_block(const struct norm &a) {
    __shared__ float2 parts[2 * NORM_WIDE_PARTS][32];
    int place = (int)threadIdx.x, accesses = accesses_of<T>(a);
    places at = places_of(a, blockIdx.x);
    let_next_begin();
    uint4 gain = read_access(a.gain, place, accesses), bias = {};
    if (a.kind == NORM_LAYER)
        bias = read_access(a.bias, place, accesses);
    wait_for_last();
    uint4 x = read_access((const T *)a.x + at.x, place, accesses);
    statistics s = measure<T>(a, sum_by_block{x, place < accesses, parts});
    if (place < accesses)
        ((uint4 *)((T *)a.y + at.y))[place] = normalised<T>(a, x, s, gain, bias);
    if (threadIdx.x == 0)
        write_statistics(a, blockIdx.x, s);
}

/* The vectors are rows, and are cast to FP8. */
template <int PARTS> static __device__ __forceinline__ void forward_fp8(const struct norm_cast &c) {
    __shared__ uint32_t of_warps[NORM_FORWARD_WARPS];
    fp8_row_writer writer = {c, *c.call.fp8.scale, 0};
    forward<bf16, PARTS>(c.call, [&](int64_t first, int64_t row, int place, uint4 value) {
        if (!c.call.is_fp8_alone)
            ((uint4 *)((bf16 *)c.call.y + first))[place] = value;
        writer.write(row, place, value);
    });
    writer.end(of_warps);
}

/* Narrow rows have at most 96 accesses, and wide ones 224. */
#define KERNELS(type, T)                                                                                               \
    extern "C" __global__ void __launch_bounds__(NORM_WIDE_PARTS * 32) norm_few_forward_##type(struct norm a) {        \
        forward_by_block<T>(a);                                                                                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) norm_narrow_forward_##type(struct norm a) {                      \
        wait_for_kernels_before();                                                                                     \
        forward<T, NORM_NARROW_PARTS>(a);                                                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) norm_wide_forward_##type(struct norm a) {                        \
        wait_for_kernels_before();                                                                                     \
        forward<T, NORM_WIDE_PARTS>(a);                                                                                \
    }
KERNELS(fp32, float)
KERNELS(bf16, bf16)

extern "C" __global__ void __launch_bounds__(256) norm_rows_fp8(struct norm_cast c) {
    forward_fp8<NORM_WIDE_PARTS>(c);
}
