/* Normalisation of rows: LayerNorm (Ba, Kiros, Hinton 2016) and RMSNorm (Zhang, Sennrich 2019). A block works on one
 * vector and keeps it in shared memory where it fits, so that global memory is read once. A thread reads there no more
 * than what it wrote. */
#include "cuda/norm.h"
#include "cuda/typed.cuh"

/* One vector of cols elements. */
template <class T, int WIDTH> struct vector {
    const pack<T, WIDTH> *global;
    pack<T, WIDTH> *kept; /* NULL: it does not fit */
    float2 *warps;        /* for the block's sums */
    int64_t packs;
};

struct statistics {
    float mean, rstd;
};

template <class T, int WIDTH> static __device__ float2 sum_first(const vector<T, WIDTH> &v, bool is_rms) {
    float2 sum = {0, 0};
    for (int64_t j = threadIdx.x; j < v.packs; j += blockDim.x) {
        pack<T, WIDTH> x = v.global[j];
        if (v.kept)
            v.kept[j] = x;
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float value = to_float(x.at[k]);
            sum.x += is_rms ? value * value : value;
        }
    }
    return block_sum(sum, v.warps);
}

template <class T, int WIDTH> static __device__ pack<T, WIDTH> again(const vector<T, WIDTH> &v, int64_t j) {
    return v.kept ? v.kept[j] : v.global[j];
}

template <class T, int WIDTH> static __device__ float2 sum_deviations(const vector<T, WIDTH> &v, float mean) {
    float2 sum = {0, 0};
    for (int64_t j = threadIdx.x; j < v.packs; j += blockDim.x) {
        pack<T, WIDTH> x = again(v, j);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float d = to_float(x.at[k]) - mean;
            sum.x += d;
            sum.y += d * d;
        }
    }
    return block_sum(sum, v.warps);
}

/* The mean has a rounding error, whose square is subtracted from the mean square of the deviations. */
template <class T, int WIDTH> static __device__ statistics measure(const vector<T, WIDTH> &v, const struct norm &a) {
    float cols = (float)a.cols, first = sum_first(v, a.kind == NORM_RMS).x;
    if (a.kind == NORM_RMS)
        return {0, 1.0f / sqrtf(first / cols + a.epsilon)};
    float mean = first / cols;
    float2 rest = sum_deviations(v, mean);
    float off = rest.x / cols, variance = rest.y / cols - off * off;
    return {mean + off, 1.0f / sqrtf((variance > 0 ? variance : 0) + a.epsilon)};
}

template <class T, int WIDTH>
static __device__ void write(const vector<T, WIDTH> &v, const struct norm &a, statistics s, pack<T, WIDTH> *y) {
    const pack<T, WIDTH> *gain = (const pack<T, WIDTH> *)a.gain, *bias = (const pack<T, WIDTH> *)a.bias;
    for (int64_t j = threadIdx.x; j < v.packs; j += blockDim.x) {
        pack<T, WIDTH> x = again(v, j), g = gain[j], b = {}, out;
        if (a.kind == NORM_LAYER)
            b = bias[j];
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float value = (to_float(x.at[k]) - s.mean) * s.rstd * to_float(g.at[k]);
            from_float(a.kind == NORM_LAYER ? value + to_float(b.at[k]) : value, out.at[k]);
        }
        y[j] = out;
    }
}

template <class T, int WIDTH> static __device__ void forward(const struct norm &a, int64_t x_stride, int64_t y_stride) {
    extern __shared__ uint4 shared[];
    bool fits = a.cols * (int64_t)sizeof(T) <= NORM_KEPT_BYTES;
    pack<T, WIDTH> *kept = fits ? (pack<T, WIDTH> *)(shared + NORM_SUM_BYTES / sizeof *shared) : nullptr;
    int64_t heads = a.heads > 1 ? a.heads : 1;
    for (int64_t i = blockIdx.x; i < a.rows * heads; i += gridDim.x) {
        int64_t row = i / heads, within = i % heads * a.cols;
        vector<T, WIDTH> v = {(const pack<T, WIDTH> *)((const T *)a.x + row * x_stride + within), kept,
                              (float2 *)shared, a.cols / WIDTH};
        statistics s = measure(v, a);
        write(v, a, s, (pack<T, WIDTH> *)((T *)a.y + row * y_stride + within));
        if (threadIdx.x == 0 && a.rstd) {
            a.rstd[i] = s.rstd;
            if (a.kind == NORM_LAYER)
                a.mean[i] = s.mean;
        }
    }
}

template <class T> static __device__ void any_forward(const struct norm &a) {
    int64_t whole = (a.heads > 1 ? a.heads : 1) * a.cols;
    int64_t x_stride = a.x_stride ? a.x_stride : whole, y_stride = a.y_stride ? a.y_stride : whole;
    bool is_packed = (a.cols | x_stride | y_stride) % PACK<T> == 0 && is_aligned(a.x) && is_aligned(a.y) &&
                     is_aligned(a.gain) && (a.kind == NORM_RMS || is_aligned(a.bias));
    if (is_packed)
        forward<T, PACK<T>>(a, x_stride, y_stride);
    else
        forward<T, 1>(a, x_stride, y_stride);
}

extern "C" __global__ void __launch_bounds__(256) norm_forward_fp32(struct norm a) {
    any_forward<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) norm_forward_bf16(struct norm a) {
    any_forward<bf16>(a);
}
