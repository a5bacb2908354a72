/* The sum of a product's deltas. The library then adds its product.
 *
 * A block copies its rows of left and right to shared memory, for 8 numbers of the rank at a time. There, numbers of
 * one place in the rank are neighbours, so that a lane reads four at once. */
#include "cuda/accesses.cuh"
#include "cuda/gemm_deltas.h"

enum {
    RANKS = 8,
    LANE_COLS = 8,
    THREADS = 32 * DELTAS_WARPS,
    GAP = 4 /* puts the places of a rank into other banks */
};

struct slices {
    float left[RANKS][DELTAS_ROWS + GAP], right[RANKS][DELTAS_COLS + GAP];
};

/* The place of a column: a lane's first four columns lie beside those of its neighbours, and so do its last four. */
static __device__ __forceinline__ int place_of(int col) {
    return col / 4 % 2 * (DELTAS_COLS / 2) + col / LANE_COLS * 4 + col % 4;
}

/* Copies 8 numbers, from `first_rank` on, of ITEMS rows of a matrix whose rows have `rank` numbers. `from` leads to the
 * first of the ITEMS rows. Zeros stand for rows outside [begin, end), and for numbers after the last one. */
template <int ITEMS, bool IS_RIGHT>
static __device__ __forceinline__ void copy(const float *from, int64_t begin, int64_t end, int64_t rank, int first_rank,
                                            float (*to)[ITEMS + GAP]) {
    constexpr int STEP = THREADS / RANKS;
    int r = threadIdx.x % RANKS, item = threadIdx.x / RANKS, width = (int)rank;
    bool has_rank = first_rank + r < width;
    from += item * width + first_rank + r;
    float read[ITEMS / STEP];
#pragma unroll
    for (int i = 0; i < ITEMS / STEP; i++) {
        bool is_there = has_rank && item + i * STEP >= begin && item + i * STEP < end;
        read[i] = is_there ? from[i * STEP * width] : 0;
    }
#pragma unroll
    for (int i = 0; i < ITEMS / STEP; i++)
        to[r][IS_RIGHT ? place_of(item + i * STEP) : item + i * STEP] = read[i];
}

/* Adds to a lane's rows and columns. */
static __device__ __forceinline__ void add(const slices &slices, float (&sum)[DELTAS_WARP_ROWS][LANE_COLS]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 2
    for (int r = 0; r < RANKS; r++) {
        values<4> left = read_values<4>(&slices.left[r][warp * DELTAS_WARP_ROWS]);
        values<4> right[] = {read_values<4>(&slices.right[r][lane * 4]),
                             read_values<4>(&slices.right[r][DELTAS_COLS / 2 + lane * 4])};
#pragma unroll
        for (int i = 0; i < DELTAS_WARP_ROWS; i++)
#pragma unroll
            for (int k = 0; k < LANE_COLS; k++)
                sum[i][k] = fmaf(left.at[i], right[k / 4].at[k % 4], sum[i][k]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) gemm_deltas(const __grid_constant__ struct gemm_deltas a) {
    __shared__ slices slices;
    unsigned across = (unsigned)((a.cols + DELTAS_COLS - 1) / DELTAS_COLS);
    int64_t row = (int64_t)(blockIdx.x / across) * DELTAS_ROWS, col = (int64_t)(blockIdx.x % across) * DELTAS_COLS;
    float sum[DELTAS_WARP_ROWS][LANE_COLS] = {};
#pragma unroll 1
    for (int d = 0; d < a.delta_count; d++) {
        const gemm_delta &delta = a.delta[d];
        if (delta.first >= col + DELTAS_COLS || delta.first + delta.count <= col)
            continue;
#pragma unroll 1
        for (int rank = 0; rank < delta.rank; rank += RANKS) {
            __syncthreads(); /* the slices before these have been read */
            copy<DELTAS_ROWS, false>(delta.left + row * delta.rank, 0, a.rows - row, delta.rank, rank, slices.left);
            copy<DELTAS_COLS, true>(delta.right + (col - delta.first) * delta.rank, delta.first - col,
                                    delta.first + delta.count - col, delta.rank, rank, slices.right);
            __syncthreads();
            add(slices, sum);
        }
    }
    row += threadIdx.x / 32 * DELTAS_WARP_ROWS;
    col += threadIdx.x % 32 * LANE_COLS;
#pragma unroll
    for (int i = 0; i < DELTAS_WARP_ROWS; i++) {
        values<LANE_COLS> rounded;
#pragma unroll
        for (int k = 0; k < LANE_COLS; k++)
            rounded.at[k] = sum[i][k];
        if (row + i < a.rows && col < a.cols)
            ((uint4 *)((bf16 *)a.c + (row + i) * a.stride))[col / LANE_COLS] = packed<bf16>(rounded);
    }
}
