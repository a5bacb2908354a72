/* Casts to FP8, with the transpose and the largest size; and the scales of the next step. On GPUs of __CUDA_ARCH__ 890
 * and newer, an instruction casts. */
#include "cuda/fp8_tile.cuh"

#include <float.h>

/* A matrix in memory. */
struct matrix_source : plain_columns {
    static constexpr int AHEAD = PASSES;
    static constexpr bool HAS_RESULT = false;
    struct row {
        quad half[2];
    };
    fp8_matrix x;

    __device__ __forceinline__ row read(int64_t at, int lane) const {
        return {x.read(at, first + lane * QUAD), x.read(at, first + HALF + lane * QUAD)};
    }
    __device__ __forceinline__ quad result(const row &r, int half) const {
        return r.half[half];
    }
};

static __device__ __forceinline__ void cast_matrix(const fp8_cast_call &a, bool is_e5m2) {
    tile_place tile = tile_of(a.cols, FP8_TILE_COLS);
    cast_tile(a, matrix_source{{tile.col, a.cols}, matrix_of(a.x, a.rows, a.cols, a.stride)}, tile.row, is_e5m2);
}

extern "C" __global__ void __launch_bounds__(FP8_CAST_THREADS) fp8_cast_e4m3(struct fp8_cast_call a) {
    cast_matrix(a, false);
}
extern "C" __global__ void __launch_bounds__(FP8_CAST_THREADS) fp8_cast_e5m2(struct fp8_cast_call a) {
    cast_matrix(a, true);
}

/* A block has one tensor. */
extern "C" __global__ void __launch_bounds__(FP8_SCALES_THREADS) fp8_scales(struct fp8_scales a) {
    __shared__ float warps[FP8_SCALES_THREADS / 32];
    int64_t t = blockIdx.x;
    float amax = a.amax[t], largest = amax;
    for (int64_t i = threadIdx.x; i < a.length && !a.is_most_recent; i += FP8_SCALES_THREADS)
        largest = fmaxf(largest, i == a.position ? amax : a.history[i * a.stride + t]);
    largest = block_max(largest, warps); /* every thread has read amax */
    if (threadIdx.x > 0)
        return;
    float scale = largest > 0 && largest <= FLT_MAX ? a.most / largest : a.scale[t];
    scale = scale > FLT_MAX ? FLT_MAX : scale;
    a.history[a.position * a.stride + t] = amax;
    a.scale[t] = scale;
    a.inverse[t] = 1 / scale;
    a.amax[t] = 0;
}
