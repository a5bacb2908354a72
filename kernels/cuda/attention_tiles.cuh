/* Attention by tiles of bf16 in shared memory: the parts that forward and backward share. A block holds one side of the
 * scores (a tile of queries, or of keys), and takes the other side tile by tile. A warp has 16 rows of its side. What
 * it takes comes in columns.
 *
 * A warp leaves out columns that none of its rows sees, 16 at a time. At the edges of what its rows see, some see a
 * column and others do not. There a value that is NaN or infinite must reach only the rows that see its column. Such
 * values count as zeros in the product, and are added afterwards. */
#pragma once

#include "cuda/attention.cuh"
#include "cuda/attention_tiles.h"
#include "cuda/mma.cuh"

/* The first row of this warp in its block's tile, and this lane's rows g and g + 8. */
static __device__ __forceinline__ int warp_row() {
    return (int)threadIdx.x / WARP * 16;
}
static __device__ __forceinline__ int lane_row(int i) {
    return warp_row() + lane_number() / 4 + i * 8;
}

/* The columns that a warp's rows see: those below `prefix`, and low .. high of each row. A lane has rows g and g + 8.
 * The others are of all 16 rows. */
struct seen_columns {
    int low[2], high[2], prefix;
    int low_most, high_most, low_least, high_least;

    __device__ __forceinline__ void join_warp() {
        low_least = __reduce_min_sync(~0u, min(low[0], low[1]));
        low_most = __reduce_max_sync(~0u, max(low[0], low[1]));
        high_least = __reduce_min_sync(~0u, min(high[0], high[1]));
        high_most = __reduce_max_sync(~0u, max(high[0], high[1]));
    }
    __device__ __forceinline__ bool sees(int i, int column) const {
        return column < prefix || (column >= low[i] && column <= high[i]);
    }
    /* True where every row sees the `count` columns from `first` on. */
    __device__ __forceinline__ bool sees_all(int first, int count) const {
        int end = first + count;
        return end <= prefix || (max(first, prefix) >= low_most && end - 1 <= high_least);
    }
    /* True where a row may see one of the `count` columns from `first` on. */
    __device__ __forceinline__ bool sees_some(int first, int count) const {
        return first < prefix || (first <= high_most && first + count - 1 >= low_least);
    }
};

static __device__ int64_t first_seen(const struct attention &a, int64_t row) {
    int64_t start = a.segment_start[segment_of(a, row)];
    return a.window && row - a.window + 1 > start ? row - a.window + 1 : start;
}

/* A block's tile of queries: the first row, the batch's row of the first key after the prefix, and the keys of prefix
 * and rows that it takes. */
struct query_tile {
    int64_t row, first;
    int head, keys;

    /* The last rows, which see the most keys, are taken first. */
    __device__ __forceinline__ void open(const struct attention_part &part) {
        const struct attention &a = part.a;
        int64_t tiles = (a.rows + TILE_ROWS - 1) / TILE_ROWS;
        row = (tiles - 1 - blockIdx.x / part.heads) * TILE_ROWS;
        first = first_seen(a, row);
        head = part.first_head + (int)(blockIdx.x % part.heads);
        keys = (int)(a.prefix + min(row + TILE_ROWS, a.rows) - first);
    }
    /* Columns that this warp's rows see. A row's own key is `high`. Rows past the last are the last. */
    __device__ __forceinline__ seen_columns seen_by_warp(const struct attention &a) const {
        seen_columns seen;
        seen.prefix = (int)a.prefix;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int64_t own = min(row + lane_row(i), a.rows - 1);
            seen.low[i] = (int)(a.prefix + first_seen(a, own) - first);
            seen.high[i] = (int)(a.prefix + own - first);
        }
        seen.join_warp();
        return seen;
    }
};

/* Copies ROWS rows, from row `first` of `count`. Rows and features that do not exist are zeros. */
template <int SIZE, int ROWS, class F>
static __device__ __forceinline__ void copy_rows(uint32_t to, F row_at, int first, int count, int size) {
#pragma unroll 2
    for (int i = 0; i < ROWS * SIZE / 8 / (TILE_WARPS * WARP); i++) {
        int at = i * TILE_WARPS * WARP + threadIdx.x, row = at / (SIZE / 8), chunk = at % (SIZE / 8);
        bool is_there = first + row < count && chunk * 8 < size;
        copy_async(to + tile<SIZE>::at(row, chunk), row_at(is_there ? first + row : 0) + (is_there ? chunk * 8 : 0),
                   is_there);
    }
}

/* Copies ROWS rows of two kinds, such as keys and values, from row `first` of `count`, to two tiles one after the
 * other. After the prefix a thread's rows are the same distance apart, so that one addition leads to the next. */
template <int SIZE, int ROWS>
static __device__ __forceinline__ void copy_pairs(uint32_t to, const keys_of<bf16> &keys, const keys_of<bf16> &values,
                                                  int first, int count, int size) {
    constexpr int CHUNKS = SIZE / 8, THREADS = TILE_WARPS * WARP, STEP = THREADS / CHUNKS, BYTES = ROWS * SIZE * 2;
    if (THREADS % CHUNKS || first < keys.prefixes) {
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            keys_of<bf16> from = i ? values : keys;
            copy_rows<SIZE, ROWS>(
                to + i * BYTES, [&](int key) { return from.at(key); }, first, count, size);
        }
        return;
    }
    int row = (int)threadIdx.x / CHUNKS, chunk = (int)threadIdx.x % CHUNKS;
    int rows = chunk * 8 < size ? count - first - row : 0; /* that are there, from this thread's first */
    int64_t at = first - keys.prefixes + row;
    const bf16 *key = keys.rows + at * keys.stride + chunk * 8, *value = values.rows + at * values.stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++, key += STEP * keys.stride, value += STEP * values.stride) {
        uint32_t place = to + tile<SIZE>::at(row + i * STEP, chunk);
        copy_async(place, key, i * STEP < rows);
        copy_async(place + BYTES, value, i * STEP < rows);
    }
}

/* Two tiles of columns that a block takes at a time, in two places in turn. */
template <int SIZE, int COLUMNS> struct taken_tiles {
    static constexpr int BYTES = COLUMNS * SIZE * 2;
    uint32_t places;

    __device__ __forceinline__ uint32_t first_tile(unsigned step) const {
        return places + step % 2 * 2 * BYTES;
    }
    __device__ __forceinline__ void copy(int step, const keys_of<bf16> &one, const keys_of<bf16> &other, int first,
                                         int count, int size) const {
        copy_pairs<SIZE, COLUMNS>(first_tile(step), one, other, first, count, size);
        copies_commit();
    }
};

/* The 16 rows of a warp as left factors of products. They stay in registers if KEPT, or are read each time. */
template <int SIZE, bool KEPT> struct left_rows {
    uint32_t place, kept[KEPT ? SIZE / 16 : 1][4];

    __device__ __forceinline__ void open(uint32_t tile_at) {
        place = tile_at + tile<SIZE>::at(warp_row() + lane_number() % 16, lane_number() / 16);
    }
    /* Reads them, once they are there. */
    __device__ __forceinline__ void load() {
#pragma unroll
        for (int k = 0; k < SIZE / 16 && KEPT; k++)
            load_matrices(kept[k], tile<SIZE>::pair(place, k));
    }
    __device__ __forceinline__ void get(uint32_t (&to)[4], int k) const {
        if (!KEPT)
            load_matrices(to, tile<SIZE>::pair(place, k));
#pragma unroll
        for (int i = 0; i < 4 && KEPT; i++)
            to[i] = kept[k][i];
    }
};

/* The place of this lane's row and first chunk in a tile of columns. */
template <int SIZE> static __device__ __forceinline__ uint32_t columns_place(uint32_t tile_at) {
    int lane = lane_number();
    return tile_at + tile<SIZE>::at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/* Adds the products of 16 features, from feature 16 k on, to the scores of 8 N columns. */
template <bool EDGE, int SIZE, bool KEPT, int N>
static __device__ __forceinline__ void multiply_features(float (&s)[N][4], const left_rows<SIZE, KEPT> &left,
                                                         uint32_t place, int k, const seen_columns &seen, int first) {
    uint32_t a[4], b[4];
    left.get(a, k);
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        if (EDGE && !seen.sees_some(first + j * 16, 16))
            continue;
        load_matrices(b, tile<SIZE>::pair(place, k) + j * 16 * tile<SIZE>::ROW_BYTES);
        if (!EDGE && KEPT && k == 0) {
            multiply_first(s[2 * j], a, b[0], b[1]);
            multiply_first(s[2 * j + 1], a, b[2], b[3]);
            continue;
        }
        multiply(s[2 * j], a, b[0], b[1]);
        multiply(s[2 * j + 1], a, b[2], b[3]);
    }
}

template <int N> static __device__ __forceinline__ void clear(float (&s)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
}

/* Scores of 8 N columns, whose rows are the tile's. A lane has columns 8 n + 2 t and its neighbour: first of row g,
 * then of row g + 8. Columns that no row sees have zeros. */
template <bool EDGE, int SIZE, bool KEPT, int N>
static __device__ __forceinline__ void multiply_rows(float (&s)[N][4], const left_rows<SIZE, KEPT> &left,
                                                     uint32_t tile_at, const seen_columns &seen, int first) {
    uint32_t place = columns_place<SIZE>(tile_at);
    if (EDGE || !KEPT)
        clear(s);
#pragma unroll(KEPT ? SIZE / 16 : 2)
    for (int k = 0; k < SIZE / 16; k++)
        multiply_features<EDGE>(s, left, place, k, seen, first);
}

/* The softmax of rows g and g + 8 over the columns so far. A total is this lane's part until it is joined. */
struct row_softmax {
    float largest[2], total[2];

    __device__ __forceinline__ void clear() {
        largest[0] = largest[1] = -INFINITY;
        total[0] = total[1] = 0;
    }
    /* Replaces scores by their exponentials, and scales `sums` of the columns before to the new largest score. VOTE: a
     * warp whose largest scores stay scales nothing, which saves time but costs registers. */
    template <bool VOTE, int N, int M>
    __device__ __forceinline__ void take(float (&s)[N][4], float (&sums)[M][4], float scale2) {
        float rescale[2], base[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float highest = -INFINITY;
#pragma unroll
            for (int n = 0; n < N; n++)
                highest = fmaxf(highest, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
            highest = fmaxf(largest[i], fmaxf(highest, __shfl_xor_sync(~0u, highest, 2)));
            base[i] = highest == -INFINITY ? 0 : highest * scale2; /* the row sees nothing yet */
            rescale[i] = highest == largest[i] ? 1 : exp2_fast((largest[i] - highest) * scale2);
            largest[i] = highest;
            total[i] *= rescale[i];
        }
        if (!VOTE || __any_sync(~0u, rescale[0] != 1 || rescale[1] != 1))
#pragma unroll
            for (int n = 0; n < M; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sums[n][e] *= rescale[e / 2];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[n][e] = exp2_fast(fmaf(s[n][e], scale2, -base[e / 2]));
                total[e / 2] += s[n][e];
            }
    }
    __device__ __forceinline__ void join_total() {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            total[i] += __shfl_xor_sync(~0u, total[i], 1);
            total[i] += __shfl_xor_sync(~0u, total[i], 2);
        }
    }
};

static __device__ __forceinline__ bool is_finite(uint32_t bits) {
    return (bits & 0x7f80) != 0x7f80;
}
/* An exponent of ones carries into the sign of its half, and the permutation fills two bytes with each sign. */
static __device__ __forceinline__ uint32_t zero_if_not_finite(uint32_t &two) {
    uint32_t taken;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(taken) : "r"((two & 0x7f807f80) + 0x00800080), "r"(0), "n"(0xbb99));
    two &= ~taken;
    return taken;
}

/* Adds the values that zero_if_not_finite took, to rows that see them. */
template <int SIZE, int M>
static __device__ __forceinline__ void add_not_finite(float (&out)[M][4], uint32_t tile_at, const seen_columns &seen,
                                                      int first, int count) {
#pragma unroll 1
    for (int column = 0; column < count; column++) {
        const bool sees[2] = {seen.sees(0, first + column), seen.sees(1, first + column)};
#pragma unroll
        for (int n = 0; n < M; n++) {
            uint32_t two;
            asm volatile("ld.shared.u32 %0, [%1];"
                         : "=r"(two)
                         : "r"(tile_at + tile<SIZE>::at(column, n) + lane_number() % 4 * 4)
                         : "memory");
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint32_t bits = e % 2 ? two >> 16 : two;
                if (!is_finite(bits) && sees[e / 2])
                    out[n][e] += bf16_to_float((uint16_t)bits);
            }
        }
    }
}

/* out += s t: weights of 8 N columns times these rows of the tile, 8 M features of each. `tile_at` may be the place of
 * a later feature, a multiple of 64. */
template <bool EDGE, int SIZE, int M, int N>
static __device__ __forceinline__ void add_weighted(float (&out)[M][4], const float (&s)[N][4], uint32_t tile_at,
                                                    const seen_columns &seen, int first) {
    int lane = lane_number();
    uint32_t place = tile_at + tile<SIZE>::at(lane / 8 % 2 * 8 + lane % 8, lane / 16), found = 0;
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        if (EDGE && !seen.sees_some(first + j * 16, 16))
            continue;
        const float *left = s[2 * j], *right = s[2 * j + 1];
        uint32_t p[4] = {pack_two(left[0], left[1]), pack_two(left[2], left[3]), pack_two(right[0], right[1]),
                         pack_two(right[2], right[3])};
#pragma unroll
        for (int n = 0; n < M / 2; n++) {
            uint32_t b[4];
            load_transposed(b, tile<SIZE>::pair(place, n) + j * 16 * tile<SIZE>::ROW_BYTES);
#pragma unroll
            for (int i = 0; i < 4 && EDGE; i++)
                found |= zero_if_not_finite(b[i]);
            multiply(out[2 * n], p, b[0], b[1]);
            multiply(out[2 * n + 1], p, b[2], b[3]);
        }
    }
    if (EDGE && __any_sync(~0u, found != 0))
        add_not_finite<SIZE>(out, tile_at, seen, first, 8 * N);
}

/* Writes out * factor of rows g and g + 8. Whole chunks go by way of the warp's rows of a tile, which no other warp
 * reads. row_at gives the place of a row of its 16, or NULL. */
template <int SIZE, int M, class F>
static __device__ __forceinline__ void write_rows(const float (&out)[M][4], const float (&factor)[2], uint32_t tile_at,
                                                  int features, F row_at) {
    using shape = tile<SIZE>;
    int lane = lane_number(), first = warp_row();
    __syncwarp(); /* every lane has read its fragments of these rows */
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int n = 0; n < M; n++)
            asm volatile(
                "st.shared.u32 [%0], %1;" ::"r"(tile_at + shape::at(first + lane / 4 + i * 8, n) + lane % 4 * 4),
                "r"(pack_two(out[n][2 * i] * factor[i], out[n][2 * i + 1] * factor[i]))
                : "memory");
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < 16 * M; i += WARP) {
        int row = i / M, chunk = i % M;
        bf16 *to = row_at(row);
        uint4 eight;
        if (!to || chunk * 8 >= features)
            continue;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                     : "r"(tile_at + shape::at(first + row, chunk))
                     : "memory");
        *(uint4 *)(to + chunk * 8) = eight;
    }
}
