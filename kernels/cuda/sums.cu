/* Sums of squares, weighted sums and sums of columns, and the clip factor. Blocks of fixed sizes are summed, and then
 * the blocks in order. */
#include "cuda/sums.h"
#include "cuda/typed.cuh"

#include <math.h>

/* The sum over a block of 256 threads in a fixed order; thread 0 gets it. */
static __device__ double block_sum(double value) {
    __shared__ double warps[8];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_down_sync(~0u, value, distance);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = warps[0];
    for (int i = 1; i < 8; i++)
        sum += warps[i];
    return sum;
}

template <int WIDTH> static __device__ double squares(const float *x, int64_t count) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count / WIDTH; i += blockDim.x) {
        pack<float, WIDTH> values = ((const pack<float, WIDTH> *)x)[i];
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum += (double)values.at[k] * (double)values.at[k];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(256) sum_of_squares(struct block_squares a) {
    int64_t first = (int64_t)blockIdx.x * SQUARES_BLOCK, rest = a.count - first;
    int64_t count = rest < SQUARES_BLOCK ? rest : SQUARES_BLOCK, whole = is_aligned(a.x) ? count / 4 * 4 : 0;
    const float *x = a.x + first;
    double sum = block_sum(squares<4>(x, whole) + squares<1>(x + whole, count - whole));
    if (threadIdx.x == 0)
        a.partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(256) sum_to_one(struct sum_to_one a) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < a.count; i += blockDim.x)
        sum += a.x ? (double)a.x[i] * (double)a.weight[i] : a.partial[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *a.sum = (a.accumulate ? *a.sum : 0) + sum;
}

/* If the norm is not finite, the factor is NaN, so that no later number looks healthy. */
extern "C" __global__ void __launch_bounds__(32) clip_factor(struct clip_factor a) {
    if (threadIdx.x > 0)
        return;
    double norm = sqrt(*a.sum_of_squares), factor = (double)a.max_norm / (norm + 1e-6);
    *a.norm = (float)norm;
    *a.factor = !isfinite((float)norm) ? NAN : a.max_norm == 0 || factor > 1 ? 1.0f : (float)factor;
}

/* ---- columns: a lane sums those of one access, the warps of a block take its rows in turn, and their sums are added
 * in order ---- */

template <class T, int WIDTH> static __device__ __forceinline__ void sum_columns(const struct column_sum_call &call) {
    __shared__ float warps[COLUMN_WARPS][32 * WIDTH];
    const struct column_sum &a = call.sum;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t part = blockIdx.x / call.tiles, tile = blockIdx.x % call.tiles * 32;
    int64_t first = part * call.block_rows, rest = a.rows - first;
    int64_t end = first + (call.block_rows < rest ? call.block_rows : rest);
    float sum[WIDTH] = {};
    if (tile + lane < a.cols / WIDTH)
#pragma unroll 8
        for (int64_t i = first + warp; i < end; i += COLUMN_WARPS) {
            pack<T, WIDTH> x = ((const pack<T, WIDTH> *)((const T *)a.x + i * a.stride))[tile + lane];
#pragma unroll
            for (int k = 0; k < WIDTH; k++)
                sum[k] += to_float(x.at[k]);
        }
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        warps[warp][k * 32 + lane] = sum[k];
    __syncthreads();
    for (int c = threadIdx.x; c < 32 * WIDTH; c += blockDim.x) {
        float all = warps[0][c];
#pragma unroll
        for (int w = 1; w < COLUMN_WARPS; w++)
            all += warps[w][c];
        int64_t j = (tile + c % 32) * WIDTH + c / 32;
        if (j < a.cols)
            call.partial[part * a.cols + j] = all;
    }
}

template <class T> static __device__ void any_columns(const struct column_sum_call &call) {
    if (call.has_accesses)
        sum_columns<T, PACK<T>>(call);
    else
        sum_columns<T, 1>(call);
}

extern "C" __global__ void __launch_bounds__(256) column_sum_fp32(struct column_sum_call a) {
    any_columns<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) column_sum_bf16(struct column_sum_call a) {
    any_columns<bf16>(a);
}
