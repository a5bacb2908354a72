/* Transposes a matrix by tiles in shared memory, so that warps read and write whole runs. The column beside a tile puts
 * the elements of one of its columns into different banks. */
#include "cuda/transpose.h"
#include "cuda/typed.cuh"

template <class T> static __device__ void turn(const struct transpose &a) {
    __shared__ T tile[TRANSPOSE_TILE][TRANSPOSE_TILE + 1];
    int64_t across = (a.cols + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE;
    int64_t row = blockIdx.x / across * TRANSPOSE_TILE, col = blockIdx.x % across * TRANSPOSE_TILE;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const T *x = (const T *)a.x;
    T *y = (T *)a.y;
    for (int i = warp; i < TRANSPOSE_TILE; i += TRANSPOSE_ROWS)
        if (row + i < a.rows && col + lane < a.cols)
            tile[i][lane] = x[(row + i) * a.cols + col + lane];
    __syncthreads();
    for (int j = warp; j < TRANSPOSE_TILE; j += TRANSPOSE_ROWS)
        if (col + j < a.cols && row + lane < a.rows)
            y[(col + j) * a.rows + row + lane] = tile[lane][j];
}

extern "C" __global__ void __launch_bounds__(TRANSPOSE_TILE *TRANSPOSE_ROWS) transpose_fp32(struct transpose a) {
    turn<float>(a);
}
extern "C" __global__ void __launch_bounds__(TRANSPOSE_TILE *TRANSPOSE_ROWS) transpose_bf16(struct transpose a) {
    turn<bf16>(a);
}
