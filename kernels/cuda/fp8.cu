/* Casts to FP8, with the transpose and the largest size; and the scales of the next step.
 *
 * A thread reads 16 bytes of a row at once, and stores 16 numbers as 16 bytes: in the copy by rows, and in the block's
 * tile. Then it takes 16 rows of 4 columns from the tile, and stores these as 16 bytes of 4 transposed rows. */
#include "cuda/fp8.h"
#include "cuda/typed.cuh"

#include <float.h>

enum {
    QUAD = 8,  /* numbers that a thread reads together */
    UNIT = 16, /* numbers that a thread stores together */
    UNITS = FP8_TILE_COLS / UNIT,
    PASS_ROWS = FP8_CAST_THREADS / UNITS, /* rows that the block reads together */
    PASSES = FP8_TILE_ROWS / PASS_ROWS,
    GROUPS = FP8_TILE_ROWS / UNIT, /* groups of 16 rows */
    WARPS = FP8_CAST_THREADS / 32,
};
#if __CUDA_ARCH__ >= 890
constexpr bool HAS_CAST = true;
#else
constexpr bool HAS_CAST = false;
#endif
static_assert(GROUPS * FP8_TILE_COLS / 4 == FP8_CAST_THREADS, "every thread takes one group of rows and columns");

/* Four words: 16 numbers in FP8, or 8 in bf16. */
struct alignas(16) quad {
    uint32_t word[4];
};

/* Two rows of a tile. A unit's place depends on its group of rows, so that the threads of a warp, which read columns,
 * are in different banks. */
static __device__ __forceinline__ int place_of(int row, int unit) {
    return row * UNITS + (unit ^ (row / UNIT % UNITS));
}

/* fp8_from_float of x * scale, in whole numbers but for subnormal ones: the bits of their sum with a power of two whose
 * last bit is the least number. The sign is x's, because a card's products of NaN have none. */
template <bool E5M2> static __device__ __forceinline__ uint32_t cast_one(uint32_t x, float scale) {
    constexpr int DROP = E5M2 ? 21 : 20; /* bits of a float's fraction */
    constexpr uint32_t LEAST = (E5M2 ? 113u : 121u) << 23, MOST = E5M2 ? 0x47600000u : 0x43e00000u;
    constexpr uint32_t NOT_A_NUMBER = E5M2 ? 0x7e : 0x7f, MAGIC = LEAST + ((uint32_t)DROP << 23);
    uint32_t size = __float_as_uint(__uint_as_float(x) * scale) & 0x7fffffffu;
    uint32_t bounded = size < MOST ? size : MOST;
    uint32_t normal = (bounded + ((1u << (DROP - 1)) - 1 - (LEAST - (1u << 23))) + (bounded >> DROP & 1)) >> DROP;
    uint32_t subnormal = __float_as_uint(__uint_as_float(size) + __uint_as_float(MAGIC)) - MAGIC;
    uint32_t result = bounded < LEAST ? subnormal : normal;
    result = size > 0x7f800000u ? NOT_A_NUMBER : result;
    return result | (x >> 24 & 0x80);
}

/* Reads 8 numbers from column `col` of a row; zeros follow its last one. */
static __device__ __forceinline__ quad read_quad(const fp8_cast_call &a, bool is_packed, int64_t row, int64_t col) {
    const uint16_t *x = (const uint16_t *)a.x + row * a.stride + col;
    quad read{};
    if (row < a.rows && is_packed && col + QUAD <= a.cols)
        return *(const quad *)x;
#pragma unroll
    for (int i = 0; i < QUAD; i++)
        if (row < a.rows && col + i < a.cols)
            read.word[i / 2] |= (uint32_t)x[i] << i % 2 * 16;
    return read;
}

/* Returns the bits of a float that is number `index` of 8. */
static __device__ __forceinline__ uint32_t bits_of(const quad &numbers, int index) {
    uint32_t pair = numbers.word[index / 2];
    return index % 2 ? pair & 0xffff0000u : pair << 16;
}

/* Casts two numbers that are not NaN by the card's instruction, which has the same bits. */
template <bool E5M2> static __device__ __forceinline__ uint32_t cast_two(float low, float high) {
    uint16_t two = 0;
#if __CUDA_ARCH__ >= 890
    if (E5M2)
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
#endif
    return two;
}

/* Casts 8 numbers to two words. `most` becomes the bits of the largest size. */
template <bool E5M2>
static __device__ __forceinline__ uint2 cast_quad(const quad &numbers, float scale, uint32_t &most) {
    uint32_t cast[2] = {0, 0};
    bool is_plain = HAS_CAST;
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        uint32_t size = bits_of(numbers, i) & 0x7fffffffu;
        is_plain = is_plain && size <= 0x7f800000u;
        size = size > 0x7f800000u ? 0 : size;
        most = size > most ? size : most;
    }
    if (is_plain) {
#pragma unroll
        for (int i = 0; i < QUAD; i += 2)
            cast[i / 4] |= cast_two<E5M2>(__uint_as_float(bits_of(numbers, i)) * scale,
                                          __uint_as_float(bits_of(numbers, i + 1)) * scale)
                           << i % 4 * 8;
    } else {
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            cast[i / 4] |= cast_one<E5M2>(bits_of(numbers, i), scale) << i % 4 * 8;
    }
    return make_uint2(cast[0], cast[1]);
}

/* Two neighbours have cast 8 numbers from the first half of a row, and 8 from the second. The even one gets all 16 of
 * the first half, and the odd one those of the second. */
static __device__ __forceinline__ quad exchange(uint2 first, uint2 second, bool is_odd) {
    uint2 give = is_odd ? first : second, taken;
    taken.x = __shfl_xor_sync(~0u, give.x, 1);
    taken.y = __shfl_xor_sync(~0u, give.y, 1);
    return is_odd ? quad{{taken.x, taken.y, second.x, second.y}} : quad{{first.x, first.y, taken.x, taken.y}};
}

/* Adds the block's largest size. Sizes compare as their bits do, and the order of blocks does not matter. */
static __device__ __forceinline__ void keep_largest(uint32_t *amax, uint32_t most, uint32_t (&of_warps)[WARPS]) {
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        most = of_warps[i] > most ? of_warps[i] : most;
    if (most)
        atomicMax(amax, most);
}

/* Byte `column` of each of four words. */
static __device__ __forceinline__ uint32_t column_of(const uint32_t *word, int column) {
    uint32_t pairs = (uint32_t)column * 0x11 + 0x40;
    return __byte_perm(__byte_perm(word[0], word[1], pairs), __byte_perm(word[2], word[3], pairs), 0x5410);
}

/* Stores 16 rows of 4 columns of the tile, transposed. */
static __device__ __forceinline__ void store_columns(const fp8_cast_call &a, const quad *tile, int64_t row,
                                                     int64_t col) {
    int group = threadIdx.x % GROUPS, four = threadIdx.x / GROUPS;
    uint32_t word[UNIT];
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        word[i] = tile[place_of(group * UNIT + i, four / 4)].word[four % 4];
    row += group * UNIT;
    col += four * 4;
    if (row >= a.rows)
        return;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        quad column;
#pragma unroll
        for (int i = 0; i < 4; i++)
            column.word[i] = column_of(word + 4 * i, k);
        if (col + k < a.cols)
            *(quad *)(a.by_columns + (col + k) * a.by_columns_stride + row) = column;
    }
}

template <bool E5M2> static __device__ void cast_tile(const fp8_cast_call &a) {
    __shared__ quad tile[FP8_TILE_ROWS * UNITS];
    __shared__ uint32_t of_warps[WARPS];
    int64_t across = (a.cols + FP8_TILE_COLS - 1) / FP8_TILE_COLS;
    int64_t first_row = blockIdx.x / across * FP8_TILE_ROWS, first_col = blockIdx.x % across * FP8_TILE_COLS;
    int row = threadIdx.x / UNITS, lane = threadIdx.x % UNITS, unit = lane % 2 * (UNITS / 2) + lane / 2;
    bool is_packed = is_aligned(a.x) && a.stride % QUAD == 0;
    float scale = *a.scale;
    uint32_t most = 0;
    quad read[PASSES][2];
#pragma unroll
    for (int i = 0; i < 2 * PASSES; i++)
        read[i / 2][i % 2] = read_quad(a, is_packed, first_row + i / 2 * PASS_ROWS + row,
                                       first_col + i % 2 * (FP8_TILE_COLS / 2) + lane * QUAD);
#pragma unroll
    for (int i = 0; i < PASSES; i++) {
        int place = i * PASS_ROWS + row;
        uint2 first = cast_quad<E5M2>(read[i][0], scale, most), second = cast_quad<E5M2>(read[i][1], scale, most);
        quad cast = exchange(first, second, lane % 2);
        int64_t col = first_col + unit * UNIT;
        tile[place_of(place, unit)] = cast;
        if (a.by_rows && first_row + place < a.rows && col < a.cols)
            *(quad *)(a.by_rows + (first_row + place) * a.by_rows_stride + col) = cast;
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        uint32_t other = __shfl_xor_sync(~0u, most, distance);
        most = other > most ? other : most;
    }
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x == 0 && a.amax)
        keep_largest(a.amax, most, of_warps);
    if (threadIdx.x == 0 && blockIdx.x == 0)
        *a.kept_inverse = *a.inverse;
    if (a.by_columns)
        store_columns(a, tile, first_row, first_col);
}

extern "C" __global__ void __launch_bounds__(FP8_CAST_THREADS) fp8_cast_e4m3(struct fp8_cast_call a) {
    cast_tile<false>(a);
}
extern "C" __global__ void __launch_bounds__(FP8_CAST_THREADS) fp8_cast_e5m2(struct fp8_cast_call a) {
    cast_tile<true>(a);
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
