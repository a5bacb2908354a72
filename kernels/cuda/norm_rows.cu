/* Normalisation of rows that fit the registers of a warp (norm.cu takes all others). A warp reads its row once and
 * needs no barrier. Two elements of bf16 stay in one register until they are used. */
#include "cuda/accesses.cuh"
#include "cuda/norm.h"

/* A lane's part of a row: every 32nd access of 16 bytes. Beyond the row's end it is 0. */
template <int PARTS> struct lane_row { uint4 at[PARTS]; };
/* The elements of one access. */
template <class T> using elements = values<PACK<T>>;

struct statistics {
    float mean, rstd;
};

static __device__ __forceinline__ int lane_access(int part) {
    return (int)threadIdx.x % 32 + 32 * part;
}

template <class T> static __device__ __forceinline__ int accesses_of(const struct norm &a) {
    return (int)a.cols / PACK<T>;
}

static __device__ __forceinline__ uint4 read_access(const void *row, int at, int accesses) {
    return at < accesses ? ((const uint4 *)row)[at] : uint4{};
}

template <int PARTS> static __device__ __forceinline__ lane_row<PARTS> read_row(const void *row, int accesses) {
    lane_row<PARTS> read;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        read.at[p] = read_access(row, lane_access(p), accesses);
    return read;
}

/* The compiler would keep the elements of both uses of a row, each in a register. The asm makes it unpack them again.
 */
template <int PARTS> static __device__ __forceinline__ void keep_packed(lane_row<PARTS> &row) {
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        asm volatile("" : "+r"(row.at[p].x), "+r"(row.at[p].y), "+r"(row.at[p].z), "+r"(row.at[p].w)::"memory");
}

/* ---- forward ---- */

template <class T, int PARTS> static __device__ __forceinline__ float sum_first(const lane_row<PARTS> &x, bool is_rms) {
    float sum = 0;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        elements<T> e = unpack<T>(x.at[p]);
#pragma unroll
        for (int k = 0; k < PACK<T>; k++)
            sum += is_rms ? e.at[k] * e.at[k] : e.at[k];
    }
    return warp_sum({sum, 0}).x;
}

template <class T, int PARTS>
static __device__ __forceinline__ float2 sum_deviations(const lane_row<PARTS> &x, float mean, int accesses) {
    float2 sum = {0, 0};
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        if (lane_access(p) >= accesses)
            continue;
        elements<T> e = unpack<T>(x.at[p]);
#pragma unroll
        for (int k = 0; k < PACK<T>; k++) {
            float d = e.at[k] - mean;
            sum.x += d;
            sum.y += d * d;
        }
    }
    return warp_sum(sum);
}

/* The mean has a rounding error, whose square is subtracted from the mean square of the deviations. */
template <class T, int PARTS>
static __device__ __forceinline__ statistics measure(const lane_row<PARTS> &x, const struct norm &a) {
    float cols = (float)a.cols, first = sum_first<T>(x, a.kind == NORM_RMS);
    if (a.kind == NORM_RMS)
        return {0, 1.0f / sqrtf(first / cols + a.epsilon)};
    float mean = first / cols;
    float2 rest = sum_deviations<T>(x, mean, accesses_of<T>(a));
    float off = rest.x / cols, variance = rest.y / cols - off * off;
    return {mean + off, 1.0f / sqrtf((variance > 0 ? variance : 0) + a.epsilon)};
}

template <class T, int PARTS>
static __device__ __forceinline__ void write(const lane_row<PARTS> &x, const struct norm &a, statistics s, void *y) {
    int accesses = accesses_of<T>(a);
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        if (lane_access(p) >= accesses)
            continue;
        elements<T> e = unpack<T>(x.at[p]), gain = unpack<T>(((const uint4 *)a.gain)[lane_access(p)]), bias = {};
        if (a.kind == NORM_LAYER)
            bias = unpack<T>(((const uint4 *)a.bias)[lane_access(p)]);
#pragma unroll
        for (int k = 0; k < PACK<T>; k++) {
            float value = (e.at[k] - s.mean) * s.rstd * gain.at[k];
            e.at[k] = a.kind == NORM_LAYER ? value + bias.at[k] : value;
        }
        ((uint4 *)y)[lane_access(p)] = packed<T>(e);
    }
}

template <class T, int PARTS> static __device__ __forceinline__ void forward(const struct norm &a) {
    int64_t heads = a.heads > 1 ? a.heads : 1, whole = heads * a.cols;
    int64_t x_stride = a.x_stride ? a.x_stride : whole, y_stride = a.y_stride ? a.y_stride : whole;
    for (int64_t i = grid_thread() / 32; i < a.rows * heads; i += grid_threads() / 32) {
        int64_t row = heads == 1 ? i : i / heads, within = (i - row * heads) * a.cols;
        lane_row<PARTS> x = read_row<PARTS>((const T *)a.x + row * x_stride + within, accesses_of<T>(a));
        statistics s = measure<T>(x, a);
        write<T>(x, a, s, (T *)a.y + row * y_stride + within);
        if (threadIdx.x % 32 == 0 && a.rstd) {
            a.rstd[i] = s.rstd;
            if (a.kind == NORM_LAYER)
                a.mean[i] = s.mean;
        }
    }
}

/* ---- backward ---- */

/* The lane's part of the sums of a warp's rows. */
template <class T, int PARTS> struct lane_sums { elements<T> gain[PARTS], bias[PARTS]; };

/* All that one vector's gradient needs. It is read at once: waiting for dx_add at the end took half as long again. */
template <int PARTS> struct backward_row {
    lane_row<PARTS> x, dy, dx_add; /* dx_add: 0 where nothing is added */
    int64_t statistics;            /* the place of mean and rstd, which are read twice: registers are scarce */
};

template <class T, int PARTS>
static __device__ __forceinline__ backward_row<PARTS> read_backward(const struct norm &a, int64_t row, int64_t head,
                                                                    int64_t heads, int64_t at_dx) {
    backward_row<PARTS> r = {};
    int64_t whole = heads * a.cols, within = head * a.cols;
    int accesses = accesses_of<T>(a);
    r.x = read_row<PARTS>((const T *)a.x + row * (a.x_stride ? a.x_stride : whole) + within, accesses);
    r.dy = read_row<PARTS>((const T *)a.dy + row * (a.y_stride ? a.y_stride : whole) + within, accesses);
    if (a.dx_add)
        r.dx_add = read_row<PARTS>((const T *)a.dx_add + at_dx, accesses);
    r.statistics = row * heads + head;
    return r;
}

static __device__ __forceinline__ statistics statistics_of(const struct norm &a, int64_t at) {
    return {a.kind == NORM_RMS ? 0 : a.mean[at], a.rstd[at]};
}

/* Computes the means of g and g h over the vector, and adds to the lane's sums. */
template <class T, int PARTS>
static __device__ __forceinline__ float2 add_products(const struct norm &a, const backward_row<PARTS> &r,
                                                      lane_sums<T, PARTS> &sums) {
    statistics s = statistics_of(a, r.statistics);
    float2 sum = {0, 0};
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        elements<T> x = unpack<T>(r.x.at[p]), dy = unpack<T>(r.dy.at[p]);
        elements<T> gain = unpack<T>(read_access(a.gain, lane_access(p), accesses_of<T>(a)));
#pragma unroll
        for (int k = 0; k < PACK<T>; k++) {
            float h = (x.at[k] - s.mean) * s.rstd, g = dy.at[k] * gain.at[k];
            sums.gain[p].at[k] += dy.at[k] * h;
            sums.bias[p].at[k] += dy.at[k];
            sum.x += g;
            sum.y += g * h;
        }
    }
    sum = warp_sum(sum);
    return {a.kind == NORM_RMS ? 0 : sum.x / (float)a.cols, sum.y / (float)a.cols};
}

template <class T, int PARTS>
static __device__ __forceinline__ void write_gradient(const struct norm &a, const backward_row<PARTS> &r, float2 mean,
                                                      int64_t at_dx) {
    int accesses = accesses_of<T>(a);
    statistics s = statistics_of(a, r.statistics);
    uint4 *dx = (uint4 *)((T *)a.dx + at_dx);
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        elements<T> x = unpack<T>(r.x.at[p]), dy = unpack<T>(r.dy.at[p]), more = unpack<T>(r.dx_add.at[p]);
        elements<T> gain = unpack<T>(read_access(a.gain, lane_access(p), accesses));
#pragma unroll
        for (int k = 0; k < PACK<T>; k++) {
            float h = (x.at[k] - s.mean) * s.rstd, g = dy.at[k] * gain.at[k];
            float gradient = s.rstd * (g - mean.x - h * mean.y);
            x.at[k] = a.dx_add ? gradient + more.at[k] : gradient;
        }
        if (lane_access(p) < accesses)
            dx[lane_access(p)] = packed<T>(x);
    }
}

/* Returns the place of a sum in shared memory. A lane's sums are neighbours, so that without this change of the last
 * bits the lanes of a warp would meet in few banks. */
static __device__ __forceinline__ int joined_place(int sum) {
    return sum ^ (sum >> 5 & (NORM_JOINED - 1));
}

/* Adds the sums of the block's warps in their order, and writes them to the block's row of `partial`. */
template <class T, int PARTS>
static __device__ __forceinline__ void join_sums(const struct norm_backward &b, const lane_sums<T, PARTS> &sums) {
    extern __shared__ float joined[];
    int cols = (int)b.call.cols;
    bool has_bias = b.call.kind == NORM_LAYER;
#pragma unroll 1
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            int first = lane_access(p) * PACK<T>;
            if (warp != (int)threadIdx.x / 32 || first >= cols)
                continue;
#pragma unroll
            for (int k = 0; k < PACK<T>; k++) {
                float *gain = joined + joined_place(first + k), *bias = joined + joined_place(cols + first + k);
                *gain = (warp ? *gain : 0) + sums.gain[p].at[k];
                if (has_bias)
                    *bias = (warp ? *bias : 0) + sums.bias[p].at[k];
            }
        }
        __syncthreads();
    }
    for (int j = threadIdx.x; j < (int)b.sums; j += blockDim.x)
        b.partial[blockIdx.x * b.sums + j] = joined[joined_place(j)];
}

template <class T, int PARTS> static __device__ __forceinline__ void backward(const struct norm_backward &b) {
    const struct norm &a = b.call;
    int heads = a.heads > 1 ? a.heads : 1;
    int64_t first = blockIdx.x * b.block_rows, rest = a.rows - first;
    int vectors = (int)(b.block_rows < rest ? b.block_rows : rest) * heads;
    lane_sums<T, PARTS> sums = {};
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < vectors; i += blockDim.x / 32) {
        int64_t row = first + i / heads;
        int head = i % heads;
        int64_t at_dx = row * (a.dx_stride ? a.dx_stride : heads * a.cols) + head * a.cols;
        backward_row<PARTS> r = read_backward<T, PARTS>(a, row, head, heads, at_dx);
        keep_packed(r.x), keep_packed(r.dy), keep_packed(r.dx_add);
        float2 mean = add_products<T>(a, r, sums);
        keep_packed(r.x), keep_packed(r.dy), keep_packed(r.dx_add);
        write_gradient<T>(a, r, mean, at_dx);
    }
    if (b.partial)
        join_sums(b, sums);
}

/* Narrow rows have at most 96 accesses, and wide ones 224. */
#define KERNELS(type, T)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256) norm_narrow_forward_##type(struct norm a) {                      \
        wait_for_kernels_before();                                                                                     \
        forward<T, NORM_NARROW_PARTS>(a);                                                                              \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) norm_wide_forward_##type(struct norm a) {                        \
        wait_for_kernels_before();                                                                                     \
        forward<T, NORM_WIDE_PARTS>(a);                                                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 4) norm_narrow_backward_##type(struct norm_backward b) {         \
        backward<T, NORM_NARROW_PARTS>(b);                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 2) norm_wide_backward_##type(struct norm_backward b) {           \
        backward<T, NORM_WIDE_PARTS>(b);                                                                               \
    }
KERNELS(fp32, float)
KERNELS(bf16, bf16)
