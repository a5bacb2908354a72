/* Columns scaled by a vector, forward and backward, and the norms of rows from which DoRA computes its vector. */
#include "cuda/column_scale.h"
#include "cuda/typed.cuh"

static __device__ __forceinline__ int64_t stride_of(const struct column_scale &a, int64_t stride) {
    return stride ? stride : a.cols;
}

/* ---- forward: a block works on one row ---- */

template <class T, class S, int WIDTH>
static __device__ __forceinline__ void scale_pack(const struct column_scale &a, int64_t i, int64_t j) {
    typedef pack<T, WIDTH> packed;
    packed x = *(const packed *)((const T *)a.x + i * stride_of(a, a.x_stride) + j);
    packed *to = (packed *)((T *)a.y + i * stride_of(a, a.y_stride) + j), y = *to;
    values<WIDTH> scale = read_values<WIDTH>((const S *)a.scale + j);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        from_float(to_float(y.at[k]) + to_float(x.at[k]) * (scale.at[k] - 1.0f), y.at[k]);
    *to = y;
}

template <class T, class S, int WIDTH> static __device__ void forward(const struct column_scale &a) {
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x)
        for (int64_t j = WIDTH * (int64_t)threadIdx.x; j < a.cols; j += WIDTH * (int64_t)blockDim.x)
            scale_pack<T, S, WIDTH>(a, i, j);
}

template <class T, class S> static __device__ void any_forward(const struct column_scale &a) {
    if ((a.cols | a.x_stride | a.y_stride) % PACK<T> == 0 && is_aligned(a.x) && is_aligned(a.y) && is_aligned(a.scale))
        forward<T, S, PACK<T>>(a);
    else
        forward<T, S, 1>(a);
}

extern "C" __global__ void __launch_bounds__(256) column_scale_forward_fp32(struct column_scale a) {
    any_forward<float, float>(a);
}
extern "C" __global__ void __launch_bounds__(256) column_scale_forward_bf16(struct column_scale a) {
    if (a.scale_type == DTYPE_F32)
        any_forward<bf16, float>(a);
    else
        any_forward<bf16, bf16>(a);
}

/* ---- backward: a thread takes the columns of one access in all rows of its block. A row's x and dy are read before dx
 * is written, because dx may be either ---- */

template <class T, class S, int WIDTH>
static __device__ void backward_columns(const struct column_scale_backward &b, int64_t j) {
    typedef pack<T, WIDTH> packed;
    const struct column_scale &a = b.call;
    values<WIDTH> scale = read_values<WIDTH>((const S *)a.scale + j), fixed = {}, sum = {};
    if (b.partial && a.fixed)
        fixed = read_values<WIDTH>((const T *)a.fixed + j);
    int64_t first = blockIdx.x * b.block_rows;
#pragma unroll 1
    for (int64_t i = first; i < first + b.block_rows && i < a.rows; i++) {
        packed dy = *(const packed *)((const T *)a.dy + i * stride_of(a, a.dy_stride) + j), x = {}, dx;
        if (b.partial)
            x = *(const packed *)((const T *)a.x + i * stride_of(a, a.x_stride) + j);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            sum.at[k] += to_float(dy.at[k]) * (to_float(x.at[k]) - fixed.at[k]);
            from_float(to_float(dy.at[k]) * scale.at[k], dx.at[k]);
        }
        *(packed *)((T *)a.dx + i * stride_of(a, a.dx_stride) + j) = dx;
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        if (b.partial)
            b.partial[blockIdx.x * a.cols + j + k] = sum.at[k];
}

template <class T, class S, int WIDTH> static __device__ void backward(const struct column_scale_backward &b) {
    for (int64_t j = WIDTH * (int64_t)threadIdx.x; j < b.call.cols; j += WIDTH * (int64_t)blockDim.x)
        backward_columns<T, S, WIDTH>(b, j);
}

template <class T, class S> static __device__ void any_backward(const struct column_scale_backward &b) {
    const struct column_scale &a = b.call;
    if ((a.cols | a.x_stride | a.dy_stride | a.dx_stride) % PACK<T> == 0 && is_aligned(a.x) && is_aligned(a.dy) &&
        is_aligned(a.dx) && is_aligned(a.scale) && is_aligned(a.fixed))
        backward<T, S, PACK<T>>(b);
    else
        backward<T, S, 1>(b);
}

extern "C" __global__ void __launch_bounds__(256) column_scale_backward_fp32(struct column_scale_backward b) {
    any_backward<float, float>(b);
}
extern "C" __global__ void __launch_bounds__(256) column_scale_backward_bf16(struct column_scale_backward b) {
    if (b.call.scale_type == DTYPE_F32)
        any_backward<bf16, float>(b);
    else
        any_backward<bf16, bf16>(b);
}

/* ---- norms of rows: a block works on one row of the weight ---- */

template <class T, int WIDTH>
static __device__ __forceinline__ float pack_squares(const struct row_squares &a, int64_t i, int64_t j) {
    values<WIDTH> value = read_values<WIDTH>((const T *)a.weight.data + (a.first_row + i) * a.weight.stride + j);
    for (int64_t r = 0; a.up && r < a.rank; r++) {
        float times = a.scale * to_float(((const T *)a.up)[i * a.rank + r]);
        values<WIDTH> down = read_values<WIDTH>((const T *)a.down + r * a.weight.columns + j);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            value.at[k] += times * down.at[k];
    }
    float sum = 0;
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        sum += value.at[k] * value.at[k];
    return sum;
}

template <class T, int WIDTH> static __device__ void squares(const struct row_squares &a) {
    __shared__ float2 warps[8];
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        float sum = 0;
        for (int64_t j = WIDTH * (int64_t)threadIdx.x; j < a.weight.columns; j += WIDTH * (int64_t)blockDim.x)
            sum += pack_squares<T, WIDTH>(a, i, j);
        sum = block_sum({sum, 0}, warps).x;
        if (threadIdx.x == 0)
            a.squares[i] = sum;
    }
}

template <class T> static __device__ void any_squares(const struct row_squares &a) {
    if ((a.weight.columns | a.weight.stride) % PACK<T> == 0 && is_aligned(a.weight.data) && is_aligned(a.down))
        squares<T, PACK<T>>(a);
    else
        squares<T, 1>(a);
}

extern "C" __global__ void __launch_bounds__(256) row_squares_fp32(struct row_squares a) {
    any_squares<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) row_squares_bf16(struct row_squares a) {
    any_squares<bf16>(a);
}

/* ---- ratios ---- */

template <class T> static __device__ void ratios(const struct magnitude_ratio &a) {
    for (int64_t i = grid_thread(); i < a.count; i += grid_threads()) {
        T norm;
        from_float(sqrtf(a.squares[i]), norm);
        if (a.ratio)
            a.ratio[i] = to_float(((const T *)a.magnitude)[i]) / to_float(norm);
        if (a.inverse)
            a.inverse[i] = 1.0f / to_float(norm);
        if (a.norm)
            ((T *)a.norm)[i] = norm;
    }
}

extern "C" __global__ void __launch_bounds__(256) magnitude_ratio_fp32(struct magnitude_ratio a) {
    ratios<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) magnitude_ratio_bf16(struct magnitude_ratio a) {
    ratios<bf16>(a);
}
