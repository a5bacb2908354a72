/* Gradients of normalisation, of rows that fit the registers of a warp (norm.cu takes all others). */
#include "cuda/norm_rows.cuh"

/* The compiler would keep the elements of both uses of a row, each in a register. The asm makes it unpack them again.
 */
template <int PARTS> static __device__ __forceinline__ void keep_packed(lane_row<PARTS> &row) {
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        asm volatile("" : "+r"(row.at[p].x), "+r"(row.at[p].y), "+r"(row.at[p].z), "+r"(row.at[p].w)::"memory");
}

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

#define KERNELS(type, T)                                                                                               \
    extern "C" __global__ void __launch_bounds__(128, 4) norm_narrow_backward_##type(struct norm_backward b) {         \
        backward<T, NORM_NARROW_PARTS>(b);                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 2) norm_wide_backward_##type(struct norm_backward b) {           \
        backward<T, NORM_WIDE_PARTS>(b);                                                                               \
    }
KERNELS(fp32, float)
KERNELS(bf16, bf16)
