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
