/* Adds the sums of blocks of rows. A warp takes every eighth block, and the eight sums of a column are added in order.
 */
#include "cuda/partial_sums.h"
#include "cuda/typed.cuh"

extern "C" __global__ void __launch_bounds__(256) partial_sums(struct partial_sums a) {
    __shared__ float slices[PARTIAL_SLICES][PARTIAL_COLUMNS];
    int column = threadIdx.x % PARTIAL_COLUMNS, slice = threadIdx.x / PARTIAL_COLUMNS;
    int64_t j = (int64_t)blockIdx.x * PARTIAL_COLUMNS + column;
    float sum = 0;
    if (j < a.stride)
#pragma unroll 8
        for (int64_t b = slice; b < a.blocks; b += PARTIAL_SLICES)
            sum += a.partial[b * a.stride + j];
    slices[slice][column] = sum;
    __syncthreads();
    if (slice > 0 || j >= a.stride)
        return;
    for (int s = 1; s < PARTIAL_SLICES; s++)
        sum += slices[s][column];
    int64_t to = j < a.cols ? j : j - a.cols;
    float *out = j < a.cols ? a.out : a.out2;
    out[to] += a.factor ? sum * a.factor[to] : sum;
}
