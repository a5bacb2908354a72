/* The kernel that finishes a product of the library. */
#include "cuda/activations.cuh"
#include "cuda/gemm_finish.h"

static __device__ __forceinline__ float gelu(float x, bool is_tanh) {
    return is_tanh ? gelu_tanh(x) : gelu_exact(x);
}
static __device__ __forceinline__ float gelu_gradient(float x, bool is_tanh) {
    return is_tanh ? gelu_tanh_gradient(x) : gelu_exact_gradient(x);
}

/* One element, from its sum to C. */
template <class T> static __device__ __forceinline__ void finish_element(const gemm_finish &a, int64_t at, float sum) {
    bool is_tanh = a.epilogue == EPILOGUE_GELU_TANH || a.epilogue == EPILOGUE_DGELU_TANH;
    T *aux = (T *)a.aux;
    if (a.epilogue == EPILOGUE_GELU_TANH || a.epilogue == EPILOGUE_GELU_EXACT) {
        T input;
        from_float(sum, input);
        if (aux)
            aux[at] = input;
        sum = gelu(to_float(input), is_tanh);
    } else if (a.epilogue != EPILOGUE_NONE)
        sum *= gelu_gradient(to_float(aux[at]), is_tanh);
    if (a.is_c_fp32)
        ((float *)a.c)[at] = sum;
    else
        from_float(sum, ((T *)a.c)[at]);
}

/* Adds column `col` of a delta to the sums of some rows from `row` on. */
static __device__ __forceinline__ void add_delta(const gemm_delta &delta, int64_t row, int rows, int64_t col,
                                                 float (&sum)[FINISH_ROWS]) {
    const float *right = delta.right + (col - delta.first) * delta.rank, *left = delta.left + row * delta.rank;
#pragma unroll 1
    for (int64_t r = 0; r < delta.rank; r++) {
        float factor = right[r];
#pragma unroll
        for (int i = 0; i < FINISH_ROWS; i++)
            if (i < rows)
                sum[i] = fmaf(left[i * delta.rank + r], factor, sum[i]);
    }
}

template <class T> static __device__ __forceinline__ void finish(const gemm_finish &a) {
    int64_t across = (a.cols + FINISH_COLS - 1) / FINISH_COLS;
    int64_t row = blockIdx.x / across * FINISH_ROWS, col = blockIdx.x % across * FINISH_COLS + threadIdx.x;
    if (col >= a.cols)
        return;
    int rows = (int)(a.rows - row < FINISH_ROWS ? a.rows - row : FINISH_ROWS);
    float bias = a.bias ? to_float(((const T *)a.bias)[col]) : 0.0f, sum[FINISH_ROWS];
#pragma unroll
    for (int i = 0; i < FINISH_ROWS; i++)
        sum[i] = i < rows ? a.sums[(row + i) * a.sums_stride + col] + bias : 0.0f;
#pragma unroll 1
    for (int d = 0; d < a.delta_count; d++)
        if (col >= a.delta[d].first && col < a.delta[d].first + a.delta[d].count)
            add_delta(a.delta[d], row, rows, col, sum);
#pragma unroll
    for (int i = 0; i < FINISH_ROWS; i++)
        if (i < rows)
            finish_element<T>(a, (row + i) * a.stride + col, sum[i]);
}

extern "C" __global__ void __launch_bounds__(FINISH_COLS) gemm_finish_fp32(const __grid_constant__ gemm_finish a) {
    finish<float>(a);
}
extern "C" __global__ void __launch_bounds__(FINISH_COLS) gemm_finish_bf16(const __grid_constant__ gemm_finish a) {
    finish<bf16>(a);
}
