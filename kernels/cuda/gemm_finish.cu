/* The kernel that finishes a product of the library. */
#include "cuda/activations.cuh"
#include "cuda/gemm_finish.h"

/* A GELU or its gradient. Both sides of a kind begin alike, and the compiler has that part once. */
static __device__ __forceinline__ float gelu(float x, bool is_tanh, bool is_gradient) {
    if (is_tanh)
        return is_gradient ? gelu_tanh_gradient(x) : gelu_tanh(x);
    return is_gradient ? gelu_exact_gradient(x) : gelu_exact(x);
}

/* The sums of neighbouring columns in some rows: those of a thread. */
template <int WIDTH> struct tile { float at[FINISH_ROWS][WIDTH]; };

/* Neighbours in a row, from their sums to C. */
template <class T, int WIDTH>
static __device__ __forceinline__ void finish_row(const gemm_finish &a, int64_t at, float (&sum)[WIDTH]) {
    bool is_tanh = a.epilogue == EPILOGUE_GELU_TANH || a.epilogue == EPILOGUE_DGELU_TANH;
    bool is_gelu = a.epilogue == EPILOGUE_GELU_TANH || a.epilogue == EPILOGUE_GELU_EXACT;
    pack<T, WIDTH> *aux = (pack<T, WIDTH> *)((T *)a.aux + at), inputs = {}, residual = {}, rounded;
    pack<float, WIDTH> whole;
    if (!is_gelu && a.epilogue != EPILOGUE_NONE)
        inputs = *aux;
    if (a.residual)
        residual = *(const pack<T, WIDTH> *)((const T *)a.residual + at);
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        if (is_gelu)
            from_float(sum[k], inputs.at[k]);
        if (a.epilogue != EPILOGUE_NONE) {
            float value = gelu(to_float(inputs.at[k]), is_tanh, !is_gelu);
            sum[k] = is_gelu ? value : sum[k] * value;
        }
        if (a.residual)
            sum[k] += to_float(residual.at[k]);
        whole.at[k] = sum[k];
        from_float(sum[k], rounded.at[k]);
    }
    if (is_gelu && a.aux)
        *aux = inputs;
    if (a.is_c_fp32)
        *(pack<float, WIDTH> *)((float *)a.c + at) = whole;
    else
        *(pack<T, WIDTH> *)((T *)a.c + at) = rounded;
}

/* Adds a delta to the sums of a column, which it has, in `rows` rows from `row` on. */
template <int WIDTH>
static __device__ __forceinline__ void add_column(const gemm_delta &delta, int64_t row, int rows, int64_t col, int k,
                                                  tile<WIDTH> &sum) {
    const float *right = delta.right + (col + k - delta.first) * delta.rank, *left = delta.left + row * delta.rank;
#pragma unroll 1
    for (int64_t r = 0; r < delta.rank; r++) {
        float factor = right[r];
#pragma unroll
        for (int i = 0; i < FINISH_ROWS; i++)
            if (i < rows)
                sum.at[i][k] = fmaf(left[i * delta.rank + r], factor, sum.at[i][k]);
    }
}

/* Adds a delta to all sums of a tile. Its rows are whole accesses of 16 bytes. */
template <int WIDTH>
static __device__ __forceinline__ void add_tile(const gemm_delta &delta, int64_t row, int rows, int64_t col,
                                                tile<WIDTH> &sum) {
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
                float one = fmaf(x.x, factor[k].x, sum.at[i][k]), two = fmaf(x.y, factor[k].y, one);
                sum.at[i][k] = fmaf(x.w, factor[k].w, fmaf(x.z, factor[k].z, two));
            }
        }
    }
}

template <int WIDTH>
static __device__ __forceinline__ void add_delta(const gemm_delta &delta, int64_t row, int rows, int64_t col,
                                                 tile<WIDTH> &sum) {
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

template <class T, int WIDTH> static __device__ __forceinline__ void finish(const gemm_finish &a) {
    int64_t across = a.cols / WIDTH, row = grid_thread() / across * FINISH_ROWS, col = grid_thread() % across * WIDTH;
    if (row >= a.rows)
        return;
    int rows = (int)(a.rows - row < FINISH_ROWS ? a.rows - row : FINISH_ROWS);
    values<WIDTH> bias = {};
    if (a.bias)
        bias = read_values<WIDTH>((const T *)a.bias + col);
    tile<WIDTH> sum;
#pragma unroll
    for (int i = 0; i < FINISH_ROWS; i++) {
        values<WIDTH> read = read_values<WIDTH>(a.sums + (row + (i < rows ? i : 0)) * a.sums_stride + col);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum.at[i][k] = read.at[k] + bias.at[k];
    }
#pragma unroll 1
    for (int d = 0; d < a.delta_count; d++)
        add_delta(a.delta[d], row, rows, col, sum);
#pragma unroll
    for (int i = 0; i < FINISH_ROWS; i++)
        if (i < rows)
            finish_row<T, WIDTH>(a, (row + i) * a.stride + col, sum.at[i]);
}

template <class T> static __device__ __forceinline__ void any_finish(const gemm_finish &a) {
    if (a.width == FINISH_WIDTH)
        finish<T, FINISH_WIDTH>(a);
    else
        finish<T, 1>(a);
}

extern "C" __global__ void __launch_bounds__(FINISH_THREADS, 4)
    gemm_finish_fp32(const __grid_constant__ gemm_finish a) {
    any_finish<float>(a);
}
extern "C" __global__ void __launch_bounds__(FINISH_THREADS, 4)
    gemm_finish_bf16(const __grid_constant__ gemm_finish a) {
    any_finish<bf16>(a);
}
