/* The kernel that finishes a product of the library. */
#include "cuda/activations.cuh"
#include "cuda/gemm_finish.h"

/* A GELU or its gradient. Both sides of a kind begin alike, and the compiler has that part once. */
static __device__ __forceinline__ float gelu(float x, bool is_tanh, bool is_gradient) {
    if (is_tanh)
        return is_gradient ? gelu_tanh_gradient(x) : gelu_tanh(x);
    return is_gradient ? gelu_exact_gradient(x) : gelu_exact(x);
}

/* Neighbouring columns in some rows: those of a thread. */
template <class T, int WIDTH> struct tile { pack<T, WIDTH> row[FINISH_ROWS]; };

/* Reads a tile. Rows that there are not are the first one. */
template <int WIDTH, class T>
static __device__ __forceinline__ void read_tile(const T *from, int64_t stride, int rows, tile<T, WIDTH> &read) {
#pragma unroll
    for (int i = 0; i < FINISH_ROWS; i++)
        read.row[i] = *(const pack<T, WIDTH> *)(from + (i < rows ? i : 0) * stride);
}

/* Neighbours in a row, from their sums to C. `other`: aux that is read. */
template <class T, int WIDTH>
static __device__ __forceinline__ void finish_row(const gemm_finish &a, int64_t at, pack<float, WIDTH> sum,
                                                  pack<T, WIDTH> other, const pack<T, WIDTH> &residual) {
    bool is_tanh = a.epilogue == EPILOGUE_GELU_TANH || a.epilogue == EPILOGUE_DGELU_TANH;
    bool is_gelu = a.epilogue == EPILOGUE_GELU_TANH || a.epilogue == EPILOGUE_GELU_EXACT;
    pack<T, WIDTH> rounded;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        if (is_gelu)
            from_float(sum.at[k], other.at[k]);
        if (a.epilogue != EPILOGUE_NONE) {
            float value = gelu(to_float(other.at[k]), is_tanh, !is_gelu);
            sum.at[k] = is_gelu ? value : sum.at[k] * value;
        }
        if (a.residual)
            sum.at[k] += to_float(residual.at[k]);
        from_float(sum.at[k], rounded.at[k]);
    }
    if (is_gelu && a.aux)
        ((pack<T, WIDTH> *)a.aux)[at / WIDTH] = other;
    if (a.is_c_fp32)
        ((pack<float, WIDTH> *)a.c)[at / WIDTH] = sum;
    else
        ((pack<T, WIDTH> *)a.c)[at / WIDTH] = rounded;
}

/* Adds a delta to the sums of a column, which it has, in `rows` rows from `row` on. */
template <int WIDTH>
static __device__ __forceinline__ void add_column(const gemm_delta &delta, int64_t row, int rows, int64_t col, int k,
                                                  tile<float, WIDTH> &sum) {
    const float *right = delta.right + (col + k - delta.first) * delta.rank, *left = delta.left + row * delta.rank;
#pragma unroll 1
    for (int64_t r = 0; r < delta.rank; r++) {
        float factor = right[r];
#pragma unroll
        for (int i = 0; i < FINISH_ROWS; i++)
            if (i < rows)
                sum.row[i].at[k] = fmaf(left[i * delta.rank + r], factor, sum.row[i].at[k]);
    }
}

/* Adds a delta to all sums of a tile. Its rows are whole accesses of 16 bytes. */
template <int WIDTH>
static __device__ __forceinline__ void add_tile(const gemm_delta &delta, int64_t row, int rows, int64_t col,
                                                tile<float, WIDTH> &sum) {
    const float4 *right = (const float4 *)(delta.right + (col - delta.first) * delta.rank);
    const float4 *left = (const float4 *)(delta.left + row * delta.rank);
    int accesses = (int)delta.rank / 4;
#pragma unroll 1
    for (int r = 0; r < accesses; r++) {
        float4 factor[WIDTH];
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            factor[k] = right[k * accesses + r];
#pragma unroll
        for (int i = 0; i < FINISH_ROWS; i++) {
            float4 x = left[(i < rows ? i : 0) * accesses + r];
#pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                float one = fmaf(x.x, factor[k].x, sum.row[i].at[k]), two = fmaf(x.y, factor[k].y, one);
                sum.row[i].at[k] = fmaf(x.w, factor[k].w, fmaf(x.z, factor[k].z, two));
            }
        }
    }
}

template <int WIDTH>
static __device__ __forceinline__ void add_delta(const gemm_delta &delta, int64_t row, int rows, int64_t col,
                                                 tile<float, WIDTH> &sum) {
    bool has_all = col >= delta.first && col + WIDTH <= delta.first + delta.count;
    if (has_all && delta.rank % 4 == 0 && is_aligned(delta.left) && is_aligned(delta.right)) {
        add_tile(delta, row, rows, col, sum);
        return;
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        if (col + k >= delta.first && col + k < delta.first + delta.count)
            add_column(delta, row, rows, col, k, sum);
}

/* A thread reads everything before it writes anything, so that it waits for memory once. */
template <class T, int WIDTH> static __device__ __forceinline__ void finish(const gemm_finish &a) {
    int64_t across = a.cols / WIDTH, row = grid_thread() / across * FINISH_ROWS, col = grid_thread() % across * WIDTH;
    int64_t at = row * a.stride + col;
    if (row >= a.rows)
        return;
    int rows = (int)(a.rows - row < FINISH_ROWS ? a.rows - row : FINISH_ROWS);
    bool reads_aux = a.epilogue == EPILOGUE_DGELU_TANH || a.epilogue == EPILOGUE_DGELU_EXACT;
    tile<float, WIDTH> sum;
    tile<T, WIDTH> aux = {}, residual = {};
    values<WIDTH> bias = {};
    read_tile(a.sums + row * a.sums_stride + col, a.sums_stride, rows, sum);
#pragma unroll 1
    for (int d = 0; d < a.delta_count; d++)
        add_delta(a.delta[d], row, rows, col, sum);
    if (reads_aux)
        read_tile((const T *)a.aux + at, a.stride, rows, aux);
    if (a.residual)
        read_tile((const T *)a.residual + at, a.stride, rows, residual);
    if (a.bias)
        bias = read_values<WIDTH>((const T *)a.bias + col);
#pragma unroll
    for (int i = 0; i < FINISH_ROWS; i++)
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum.row[i].at[k] += bias.at[k];
#pragma unroll
    for (int i = 0; i < FINISH_ROWS; i++)
        if (i < rows)
            finish_row(a, at + i * a.stride, sum.row[i], aux.row[i], residual.row[i]);
}

template <class T> static __device__ __forceinline__ void any_finish(const gemm_finish &a) {
    if (a.width == FINISH_WIDTH)
        finish<T, FINISH_WIDTH>(a);
    else
        finish<T, 1>(a);
}

extern "C" __global__ void __launch_bounds__(FINISH_THREADS, 6)
    gemm_finish_fp32(const __grid_constant__ gemm_finish a) {
    any_finish<float>(a);
}
extern "C" __global__ void __launch_bounds__(FINISH_THREADS, 6)
    gemm_finish_bf16(const __grid_constant__ gemm_finish a) {
    any_finish<bf16>(a);
}
