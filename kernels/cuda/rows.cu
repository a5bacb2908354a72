/* Operations on rows and columns that only the memory's speed bounds: sums, casts, gathers, scatters and scales. A
 * block works on one row, or the grid on all elements. */
#include "cuda/rows.h"
#include "cuda/typed.cuh"

/* ---- elements ---- */

extern "C" __global__ void __launch_bounds__(256) add_fp32(struct add_call a) {
    map<float>(a.count, a.y, a.x, a.y, [](float y, float x) { return y + x; });
}
extern "C" __global__ void __launch_bounds__(256) add_bf16(struct add_call a) {
    map<bf16>(a.count, a.y, a.x, a.y, [](float y, float x) { return y + x; });
}

/* ---- rows, one a block ---- */

template <class X, class Y, int WIDTH, class F>
static __device__ __forceinline__ void map_row(int64_t cols, const X *x, Y *y, bool reads_y, F f) {
    for (int64_t j = threadIdx.x; j < cols / WIDTH; j += blockDim.x) {
        pack<X, WIDTH> from = ((const pack<X, WIDTH> *)x)[j];
        pack<Y, WIDTH> to = {};
        if (reads_y)
            to = ((const pack<Y, WIDTH> *)y)[j];
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            from_float(f(j * WIDTH + k, to_float(from.at[k]), to_float(to.at[k])), to.at[k]);
        ((pack<Y, WIDTH> *)y)[j] = to;
    }
}

/* Four elements at a time where strides and addresses allow that. */
static __device__ bool allows_four(int64_t cols, const void *x, const void *y) {
    return cols % 4 == 0 && is_aligned(x) && is_aligned(y);
}

template <class T> static __device__ void scale_rows(const struct scale_add &a) {
    int64_t x_stride = a.x_stride ? a.x_stride : a.cols, y_stride = a.y_stride ? a.y_stride : a.cols;
    bool is_packed = (a.cols | x_stride | y_stride) % PACK<T> == 0 && is_aligned(a.x) && is_aligned(a.y);
    auto f = [&](int64_t, float x, float y) { return a.accumulate ? y + a.scale * x : a.scale * x; };
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const T *x = (const T *)a.x + i * x_stride;
        T *y = (T *)a.y + i * y_stride;
        if (is_packed)
            map_row<T, T, PACK<T>>(a.cols, x, y, a.accumulate, f);
        else
            map_row<T, T, 1>(a.cols, x, y, a.accumulate, f);
    }
}

extern "C" __global__ void __launch_bounds__(256) scale_add_fp32(struct scale_add a) {
    scale_rows<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) scale_add_bf16(struct scale_add a) {
    scale_rows<bf16>(a);
}

/* Rows are bytes here: zeros, or a copy, in the largest accesses that fit. */
template <class W> static __device__ void gather(const struct gather_bytes &a) {
    int64_t words = a.row_bytes / (int64_t)sizeof(W);
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        int64_t index = a.index[i];
        const W *x = (const W *)a.x + index * words;
        for (int64_t j = threadIdx.x; j < words; j += blockDim.x)
            ((W *)a.out)[i * words + j] = index < 0 ? W{} : x[j];
    }
}

extern "C" __global__ void __launch_bounds__(256) gather_rows(struct gather_bytes a) {
    wait_for_kernels_before();
    if (a.row_bytes % 16 == 0 && is_aligned(a.x) && is_aligned(a.out))
        gather<uint4>(a);
    else if (a.row_bytes % 4 == 0 && is_aligned(a.x) && is_aligned(a.out))
        gather<uint32_t>(a);
    else if (a.row_bytes % 2 == 0)
        gather<uint16_t>(a);
    else
        gather<uint8_t>(a);
}

template <class X, class Y> static __device__ void scatter(const struct scatter_add_rows &a) {
    int64_t x_stride = a.x_stride ? a.x_stride : a.cols, y_stride = a.y_stride ? a.y_stride : a.cols;
    bool is_packed = allows_four(a.cols | x_stride | y_stride, a.x, a.y);
    auto f = [](int64_t, float x, float y) { return y + x; };
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        int64_t index = a.index[i];
        const X *x = (const X *)a.x + i * x_stride;
        Y *y = (Y *)a.y + index * y_stride;
        if (index >= 0 && is_packed)
            map_row<X, Y, 4>(a.cols, x, y, true, f);
        else if (index >= 0)
            map_row<X, Y, 1>(a.cols, x, y, true, f);
    }
}

template <class X> static __device__ void scatter_to(const struct scatter_add_rows &a) {
    if (a.y_type == DTYPE_F32)
        scatter<X, float>(a);
    else
        scatter<X, bf16>(a);
}

extern "C" __global__ void __launch_bounds__(256) scatter_add_rows_fp32(struct scatter_add_rows a) {
    scatter_to<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) scatter_add_rows_bf16(struct scatter_add_rows a) {
    scatter_to<bf16>(a);
}

/* ---- ids ---- */

extern "C" __global__ void __launch_bounds__(256) change_ids(struct change_ids a) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < a.count; i += gridDim.x * (int64_t)blockDim.x)
        if (a.changes[i].place >= 0)
            a.table[a.changes[i].place] = a.changes[i].id;
}
