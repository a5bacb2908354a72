/* Normalisation of rows that fit the registers of a warp (norm.cu takes all others). A warp reads its row once and
 * needs no barrier. Two elements of bf16 stay in one register until they are used.
 *
 * The forward of few rows has a block for each row, and a warp for each part of it. Both forms add the same sums in the
 * same order, so the bits of a row do not depend on the number of rows. */
#include "cuda/norm.cuh"

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
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 4) norm_narrow_backward_##type(struct norm_backward b) {         \
        backward<T, NORM_NARROW_PARTS>(b);                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 2) norm_wide_backward_##type(struct norm_backward b) {           \
        backward<T, NORM_WIDE_PARTS>(b);                                                                               \
    }
KERNELS(fp32, float)
KERNELS(bf16, bf16)

extern "C" __global__ void __launch_bounds__(256) norm_rows_fp8(struct norm_cast c) {
    forward_fp8<NORM_WIDE_PARTS>(c);
}
