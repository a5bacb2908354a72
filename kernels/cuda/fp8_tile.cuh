/* A tile of 128 rows and 128 columns that a block casts to FP8. Its numbers come from a source: a matrix in memory, or
 * the result of an operation that the block computes.
 *
 * A thread has 8 numbers in each half of a row, and stores 16 numbers as 16 bytes: in the copy by rows, and in the
 * block's tile. Then it takes 16 rows of 4 columns from the tile, and stores these as 16 bytes of 4 transposed rows.
 *
 * A source has these members, and a constant AHEAD: the rows that a thread reads before it computes.
 *     read      what a thread has of a row: its numbers begin `lane * QUAD` after the first column of each half
 *     result    the numbers of a half, in bf16
 *     column    the matrix's column of a column of the tile, or -1 if there is none */
#pragma once

#include "cuda/fp8_numbers.cuh"

enum {
    UNIT = 16, /* numbers that a thread stores together */
    UNITS = FP8_TILE_COLS / UNIT,
    PASS_ROWS = FP8_CAST_THREADS / UNITS, /* rows that the block reads together */
    PASSES = FP8_TILE_ROWS / PASS_ROWS,
    GROUPS = FP8_TILE_ROWS / UNIT, /* groups of 16 rows */
    HALF = FP8_TILE_COLS / 2,
};
static_assert(GROUPS * FP8_TILE_COLS / 4 == FP8_CAST_THREADS, "every thread takes one group of rows and columns");

/* Two rows of a tile. A unit's place depends on its group of rows, so that the threads of a warp, which read columns,
 * are in different banks. */
static __device__ __forceinline__ int place_of(int row, int unit) {
    return row * UNITS + (unit ^ (row / UNIT % UNITS));
}

/* A matrix of bf16 in memory. `is_packed`: its rows are accesses of 16 bytes. */
struct fp8_matrix {
    const void *data;
    int64_t rows, cols, stride;
    bool is_packed;

    /* Reads 8 numbers from column `col` of a row; zeros follow its last one. */
    __device__ __forceinline__ quad read(int64_t row, int64_t col) const {
        const uint16_t *x = (const uint16_t *)data + row * stride + col;
        quad read{};
        if (row < rows && is_packed && col + QUAD <= cols)
            return *(const quad *)x;
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            if (row < rows && col + i < cols)
                read.word[i / 2] |= (uint32_t)x[i] << i % 2 * 16;
        return read;
    }

    __device__ __forceinline__ void write(int64_t row, int64_t col, const quad &numbers) const {
        uint16_t *x = (uint16_t *)(uintptr_t)data + row * stride + col;
        if (row < rows && is_packed && col + QUAD <= cols) {
            *(quad *)x = numbers;
            return;
        }
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            if (row < rows && col + i < cols)
                x[i] = (uint16_t)(numbers.word[i / 2] >> i % 2 * 16);
    }
};

static __device__ __forceinline__ fp8_matrix matrix_of(const void *data, int64_t rows, int64_t cols, int64_t stride) {
    return {data, rows, cols, stride, is_aligned(data) && stride % QUAD == 0};
}

/* Two neighbours have cast 8 numbers from the first half of a row, and 8 from the second. The even one gets all 16 of
 * the first half, and the odd one those of the second. */
static __device__ __forceinline__ quad exchange(uint2 first, uint2 second, bool is_odd) {
    uint2 give = is_odd ? first : second, taken;
    taken.x = __shfl_xor_sync(~0u, give.x, 1);
    taken.y = __shfl_xor_sync(~0u, give.y, 1);
    return is_odd ? quad{{taken.x, taken.y, second.x, second.y}} : quad{{first.x, first.y, taken.x, taken.y}};
}

/* Byte `column` of each of four words. */
static __device__ __forceinline__ uint32_t column_of(const uint32_t *word, int column) {
    uint32_t pairs = (uint32_t)column * 0x11 + 0x40;
    return __byte_perm(__byte_perm(word[0], word[1], pairs), __byte_perm(word[2], word[3], pairs), 0x5410);
}

/* Stores 16 rows of 4 columns of the tile, transposed. */
template <class SOURCE>
static __device__ __forceinline__ void store_columns(const fp8_cast_call &a, const SOURCE &source, const quad *tile,
                                                     int64_t row) {
    int group = threadIdx.x % GROUPS, four = threadIdx.x / GROUPS;
    uint32_t word[UNIT];
#pragma unroll
    for (int i = 0; i < UNIT; i++)
        word[i] = tile[place_of(group * UNIT + i, four / 4)].word[four % 4];
    row += group * UNIT;
    if (row >= a.rows)
        return;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        quad column;
#pragma unroll
        for (int i = 0; i < 4; i++)
            column.word[i] = column_of(word + 4 * i, k);
        int64_t col = source.column(four * 4 + k);
        if (col >= 0)
            *(quad *)(a.by_columns + col * a.by_columns_stride + row) = column;
    }
}

/* `a.result`, if given, receives the source's numbers. The block has the rows from `first_row` on. */
template <class SOURCE>
static __device__ __forceinline__ void cast_tile(const fp8_cast_call &a, const SOURCE &source, int64_t first_row,
                                                 bool is_e5m2) {
    __shared__ quad tile[FP8_TILE_ROWS * UNITS];
    __shared__ uint32_t of_warps[FP8_CAST_THREADS / 32];
    int row = threadIdx.x / UNITS, lane = threadIdx.x % UNITS, unit = lane % 2 * (UNITS / 2) + lane / 2;
    int64_t unit_column = source.column(unit * UNIT);
    fp8_matrix result = matrix_of(a.result, a.rows, a.cols, a.cols);
    float scale = *a.scale;
    uint32_t most = 0;
#pragma unroll 1
    for (int first = 0; first < PASSES; first += SOURCE::AHEAD) {
        typename SOURCE::row read[SOURCE::AHEAD];
#pragma unroll
        for (int i = 0; i < SOURCE::AHEAD; i++)
            read[i] = source.read(first_row + (first + i) * PASS_ROWS + row, lane);
#pragma unroll
        for (int i = 0; i < SOURCE::AHEAD; i++) {
            int place = (first + i) * PASS_ROWS + row;
            quad half[2] = {source.result(read[i], 0), source.result(read[i], 1)};
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (int64_t col = source.column(h * HALF + lane * QUAD); SOURCE::HAS_RESULT && a.result && col >= 0)
                    result.write(first_row + place, col, half[h]);
            uint2 low = cast_quad(half[0], scale, is_e5m2, most), high = cast_quad(half[1], scale, is_e5m2, most);
            quad cast = exchange(low, high, lane % 2);
            tile[place_of(place, unit)] = cast;
            if (a.by_rows && first_row + place < a.rows && unit_column >= 0)
                *(quad *)(a.by_rows + (first_row + place) * a.by_rows_stride + unit_column) = cast;
        }
    }
    keep_largest(a.amax, most, of_warps); /* every thread has written to the tile */
    if (threadIdx.x == 0 && blockIdx.x == 0)
        *a.kept_inverse = *a.inverse;
    if (a.by_columns)
        store_columns(a, source, tile, first_row);
}

/* The first row and column of the block's tile in a matrix that is cut into tiles of `width` columns. */
struct tile_place {
    int64_t row, col;
};
static __device__ __forceinline__ tile_place tile_of(int64_t cols, int64_t width) {
    int64_t across = (cols + width - 1) / width;
    return {blockIdx.x / across * FP8_TILE_ROWS, blockIdx.x % across * width};
}

/* A source whose tile is neighbouring columns of a matrix. */
struct plain_columns {
    int64_t first, cols;

    __device__ __forceinline__ int64_t column(int in_tile) const {
        return first + in_tile < cols ? first + in_tile : -1;
    }
};
