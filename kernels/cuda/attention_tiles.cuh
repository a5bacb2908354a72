/* Attention by tiles in shared memory: the parts that forward and backward share. A block holds one side of the
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
template <class TILE, int ROWS, class F>
static __device__ __forceinline__ void copy_rows(uint32_t to, F row_at, int first, int count, int size) {
#pragma unroll 2
    for (int i = 0; i < ROWS * TILE::CHUNKS / (TILE_WARPS * WARP); i++) {
        int at = i * TILE_WARPS * WARP + threadIdx.x, row = at / TILE::CHUNKS, chunk = at % TILE::CHUNKS;
        bool is_there = first + row < count && chunk * TILE::CHUNK < size;
        copy_async(to + TILE::at(row, chunk), row_at(is_there ? first + row : 0) + (is_there ? chunk * TILE::CHUNK : 0),
                   is_there);
    }
}

/* Rounds rows of fp32 that have landed to TF32. A thread takes those that it has copied: copy_rows and copy_pairs give
 * it the same ones. So rows are rounded once, and not by each warp that reads them. Tiles that follow one another count
 * as one. */
template <class TILE, int ROWS> static __device__ __forceinline__ void round_copied(uint32_t tile_at) {
    if constexpr (sizeof(typename TILE::element) == 4) {
#pragma unroll 4
        for (int i = 0; i < ROWS * TILE::CHUNKS / (TILE_WARPS * WARP); i++) {
            int at = i * TILE_WARPS * WARP + threadIdx.x;
            uint32_t place = tile_at + TILE::at(at / TILE::CHUNKS, at % TILE::CHUNKS);
            uint4 four = load_chunk(place);
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(to_tf32(__uint_as_float(four.x))),
                         "r"(to_tf32(__uint_as_float(four.y))), "r"(to_tf32(__uint_as_float(four.z))),
                         "r"(to_tf32(__uint_as_float(four.w)))
                         : "memory");
        }
    }
}

/* Copies ROWS rows of two kinds, such as keys and values, from row `first` of `count`, to two tiles one after the
 * other. After the prefix a thread's rows are the same distance apart, so that one addition leads to the next. */
template <class TILE, int ROWS, class T>
static __device__ __forceinline__ void copy_pairs(uint32_t to, const keys_of<T> &keys, const keys_of<T> &values,
                                                  int first, int count, int size) {
    constexpr int CHUNKS = TILE::CHUNKS, THREADS = TILE_WARPS * WARP, STEP = THREADS / CHUNKS;
    constexpr int BYTES = ROWS * TILE::ROW_BYTES;
    if (THREADS % CHUNKS || first < keys.prefixes) {
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            keys_of<T> from = i ? values : keys;
            copy_rows<TILE, ROWS>(
                to + i * BYTES, [&](int key) { return from.at(key); }, first, count, size);
        }
        return;
    }
    int row = (int)threadIdx.x / CHUNKS, chunk = (int)threadIdx.x % CHUNKS, feature = chunk * TILE::CHUNK;
    int rows = feature < size ? count - first - row : 0; /* that are there, from this thread's first */
    int64_t at = first - keys.prefixes + row;
    const T *key = keys.rows + at * keys.stride + feature, *value = values.rows + at * values.stride + feature;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++, key += STEP * keys.stride, value += STEP * values.stride) {
        uint32_t place = to + TILE::at(row + i * STEP, chunk);
        copy_async(place, key, i * STEP < rows);
        copy_async(place + BYTES, value, i * STEP < rows);
    }
}

/* Two tiles of columns that a block takes at a time, in two places in turn. */
template <class TILE, int COLUMNS> struct taken_tiles {
    using T = typename TILE::element;
    static constexpr int BYTES = COLUMNS * TILE::ROW_BYTES;
    uint32_t places;

    __device__ __forceinline__ uint32_t first_tile(unsigned step) const {
        return places + step % 2 * 2 * BYTES;
    }
    __device__ __forceinline__ void copy(int step, const keys_of<T> &one, const keys_of<T> &other, int first, int count,
                                         int size) const {
        copy_pairs<TILE, COLUMNS>(first_tile(step), one, other, first, count, size);
        copies_commit();
    }
    /* Rounds a step's tiles. This thread's copies of them have landed. */
    __device__ __forceinline__ void round(int step) const {
        round_copied<TILE, 2 * COLUMNS>(first_tile(step));
    }
};

/* The 16 rows of a warp as left factors of products. They stay in registers if KEPT, or are read each time. A product
 * takes two chunks of each row. */
template <class TILE, bool KEPT> struct left_rows {
    static constexpr int PAIRS = TILE::CHUNKS / 2;
    uint32_t place, kept[KEPT ? PAIRS : 1][4];

    __device__ __forceinline__ void open(uint32_t tile_at) {
        place = tile_at + TILE::at(warp_row() + lane_number() % 16, lane_number() / 16);
    }
    /* Reads them, once they are there. */
    __device__ __forceinline__ void load() {
#pragma unroll
        for (int k = 0; k < PAIRS && KEPT; k++)
            load_matrices(kept[k], TILE::pair(place, k));
    }
    __device__ __forceinline__ void get(uint32_t (&to)[4], int k) const {
        if (!KEPT)
            load_matrices(to, TILE::pair(place, k));
#pragma unroll
        for (int i = 0; i < 4 && KEPT; i++)
            to[i] = kept[k][i];
    }
};

/* The place of this lane's row and first chunk in a tile of columns. */
template <class TILE> static __device__ __forceinline__ uint32_t columns_place(uint32_t tile_at) {
    int lane = lane_number();
    return tile_at + TILE::at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/* Adds the products of two chunks, from chunk 2 k on, to the scores of 8 N columns. */
template <bool EDGE, class TILE, bool KEPT, int N>
static __device__ __forceinline__ void multiply_features(float (&s)[N][4], const left_rows<TILE, KEPT> &left,
                                                         uint32_t place, int k, const seen_columns &seen, int first) {
    using T = typename TILE::element;
    uint32_t a[4], b[4];
    left.get(a, k);
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        if (EDGE && !seen.sees_some(first + j * 16, 16))
            continue;
        load_matrices(b, TILE::pair(place, k) + j * 16 * TILE::ROW_BYTES);
        if (!EDGE && KEPT && k == 0) {
            multiply_first<T>(s[2 * j], a, b[0], b[1]);
            multiply_first<T>(s[2 * j + 1], a, b[2], b[3]);
            continue;
        }
        multiply<T>(s[2 * j], a, b[0], b[1]);
        multiply<T>(s[2 * j + 1], a, b[2], b[3]);
    }
}

template <int N> static __device__ __forceinline__ void clear(float (&s)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
}

/* Scores of 8 N columns, whose rows are the tile's. A lane has columns 8 n + 2 t and its neighbour: first of row g,
 * then of row g + 8. Columns that no row sees have zeros. */
template <bool EDGE, class TILE, bool KEPT, int N>
static __device__ __forceinline__ void multiply_rows(float (&s)[N][4], const left_rows<TILE, KEPT> &left,
                                                     uint32_t tile_at, const seen_columns &seen, int first) {
    uint32_t place = columns_place<TILE>(tile_at);
    if (EDGE || !KEPT)
        clear(s);
#pragma unroll(KEPT ? TILE::CHUNKS / 2 : 2)
    for (int k = 0; k < TILE::CHUNKS / 2; k++)
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

/* This lane's column of s[n][e], from the tile's first. */
static __device__ __forceinline__ int column_of(int n, int e) {
    return n * 8 + lane_number() % 4 * 2 + e % 2;
}
/* This lane's feature of weighted rows out[n][e]. In TF32, four n have the features of a lane's chunk. */
template <class T> static __device__ __forceinline__ int feature_of(int n, int e) {
    return sizeof(T) == 2 ? column_of(n, e) : n / 4 * 32 + lane_number() % 4 * 8 + e % 2 * 4 + n % 4;
}

/* An exponent of ones carries into the sign of its half, and the permutation fills two bytes with each sign. */
static __device__ __forceinline__ uint32_t zero_if_not_finite(uint32_t &two) {
    uint32_t taken;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(taken) : "r"((two & 0x7f807f80) + 0x00800080), "r"(0), "n"(0xbb99));
    two &= ~taken;
    return taken;
}
/* The same for one element of fp32: a carry into the sign. */
static __device__ __forceinline__ uint32_t zero_if_not_finite_fp32(uint32_t &one) {
    uint32_t taken = (uint32_t)((int)((one & 0x7fffffff) + 0x00800000) >> 31);
    one &= ~taken;
    return taken;
}

/* This lane's two values of a tile's row for out[n], in fp32. */
template <class TILE>
static __device__ __forceinline__ void load_two(float (&two)[2], uint32_t tile_at, int row, int n) {
    if constexpr (sizeof(typename TILE::element) == 4) {
#pragma unroll
        for (int e = 0; e < 2; e++)
            asm volatile("ld.shared.f32 %0, [%1];"
                         : "=f"(two[e])
                         : "r"(tile_at + TILE::at(row, feature_of<float>(n, e) / 4) + n % 4 * 4)
                         : "memory");
    } else {
        uint32_t both;
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(both)
                     : "r"(tile_at + TILE::at(row, n) + lane_number() % 4 * 4)
                     : "memory");
        two[0] = __uint_as_float(both << 16);
        two[1] = __uint_as_float(both & 0xffff0000);
    }
}

static __device__ __forceinline__ bool is_finite(float value) {
    return fabsf(value) < INFINITY;
}

/* Adds the values that zero_if_not_finite took, to rows that see them. */
template <class TILE, int M>
static __device__ __forceinline__ void add_not_finite(float (&out)[M][4], uint32_t tile_at, const seen_columns &seen,
                                                      int first, int count) {
#pragma unroll 1
    for (int column = 0; column < count; column++) {
        const bool sees[2] = {seen.sees(0, first + column), seen.sees(1, first + column)};
#pragma unroll
        for (int n = 0; n < M; n++) {
            float two[2];
            load_two<TILE>(two, tile_at, column, n);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!is_finite(two[e % 2]) && sees[e / 2])
                    out[n][e] += two[e % 2];
        }
    }
}

/* out += weights of 16 columns times their rows in bf16, which begin `after` bytes from this lane's place. Returns bits
 * if values were taken. */
template <bool EDGE, class TILE, int M>
static __device__ __forceinline__ uint32_t add_columns_bf16(float (&out)[M][4], const float (&left)[4],
                                                            const float (&right)[4], uint32_t place, int after) {
    uint32_t p[4] = {pack_two(left[0], left[1]), pack_two(left[2], left[3]), pack_two(right[0], right[1]),
                     pack_two(right[2], right[3])};
    uint32_t found = 0;
#pragma unroll
    for (int n = 0; n < M / 2; n++) {
        uint32_t b[4];
        load_transposed(b, TILE::pair(place, n) + after);
#pragma unroll
        for (int i = 0; i < 4 && EDGE; i++)
            found |= zero_if_not_finite(b[i]);
        multiply(out[2 * n], p, b[0], b[1]);
        multiply(out[2 * n + 1], p, b[2], b[3]);
    }
    return found;
}

/* The same for 8 columns in TF32. A lane's weights are of columns 2t and 2t + 1. They count as t and t + 4 in the
 * product, and so do these rows of the tile. A lane reads chunk g of both, for four products. */
template <bool EDGE, class TILE, int M>
static __device__ __forceinline__ uint32_t add_columns_tf32(float (&out)[M][4], const float (&weights)[4],
                                                            uint32_t place, int after) {
    uint32_t p[4] = {to_tf32(weights[0]), to_tf32(weights[2]), to_tf32(weights[1]), to_tf32(weights[3])}, found = 0;
#pragma unroll
    for (int n = 0; n < M; n += 4) {
        uint4 even = load_chunk(place + after + n * 32);
        uint4 odd = load_chunk((place ^ 16) + TILE::ROW_BYTES + after + n * 32);
        uint32_t b[4][2] = {{even.x, odd.x}, {even.y, odd.y}, {even.z, odd.z}, {even.w, odd.w}};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (EDGE)
                found |= zero_if_not_finite_fp32(b[i][0]) | zero_if_not_finite_fp32(b[i][1]);
            multiply<float>(out[n + i], p, b[i][0], b[i][1]);
        }
    }
    return found;
}

/* out += s t: weights of 8 N columns times these rows of the tile, 8 M features of each. `tile_at` may be the place of
 * a later feature, a multiple of 64. */
template <bool EDGE, class TILE, int M, int N>
static __device__ __forceinline__ void add_weighted(float (&out)[M][4], const float (&s)[N][4], uint32_t tile_at,
                                                    const seen_columns &seen, int first) {
    constexpr bool IS_TF32 = sizeof(typename TILE::element) == 4;
    int lane = lane_number();
    uint32_t place = IS_TF32 ? TILE::at(lane % 4 * 2, lane / 4) : TILE::at(lane / 8 % 2 * 8 + lane % 8, lane / 16);
    uint32_t found = 0;
    place += tile_at;
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        constexpr int EIGHT = 8 * TILE::ROW_BYTES;
        if (EDGE && !seen.sees_some(first + j * 16, 16))
            continue;
        if constexpr (IS_TF32) {
            found |= add_columns_tf32<EDGE, TILE>(out, s[2 * j], place, 2 * j * EIGHT);
            found |= add_columns_tf32<EDGE, TILE>(out, s[2 * j + 1], place, (2 * j + 1) * EIGHT);
        } else {
            found |= add_columns_bf16<EDGE, TILE>(out, s[2 * j], s[2 * j + 1], place, 2 * j * EIGHT);
        }
    }
    if (EDGE && __any_sync(~0u, found != 0))
        add_not_finite<TILE>(out, tile_at, seen, first, 8 * N);
}

/* Writes out * factor of rows g and g + 8 in fp32, of which a lane has whole chunks. */
template <int M, class F>
static __device__ __forceinline__ void write_chunks(const float (&out)[M][4], const float (&factor)[2], int features,
                                                    F row_at) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *to = row_at(lane_number() / 4 + i * 8);
#pragma unroll
        for (int n = 0; n < M; n += 4)
#pragma unroll
            for (int e = 2 * i; e < 2 * i + 2; e++)
                if (to && feature_of<float>(n, e) < features)
                    *(float4 *)(to + feature_of<float>(n, e)) =
                        make_float4(out[n][e] * factor[i], out[n + 1][e] * factor[i], out[n + 2][e] * factor[i],
                                    out[n + 3][e] * factor[i]);
    }
}

/* The same in bf16. Whole chunks go by way of the warp's rows of a tile, which no other warp reads. */
template <class TILE, int M, class F>
static __device__ __forceinline__ void write_by_tile(const float (&out)[M][4], const float (&factor)[2],
                                                     uint32_t tile_at, int features, F row_at) {
    int lane = lane_number(), first = warp_row();
    __syncwarp(); /* every lane has read its fragments of these rows */
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int n = 0; n < M; n++)
            asm volatile(
                "st.shared.u32 [%0], %1;" ::"r"(tile_at + TILE::at(first + lane / 4 + i * 8, n) + lane % 4 * 4),
                "r"(pack_two(out[n][2 * i] * factor[i], out[n][2 * i + 1] * factor[i]))
                : "memory");
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < 16 * M; i += WARP) {
        int row = i / M, chunk = i % M;
        bf16 *to = row_at(row);
        if (to && chunk * 8 < features)
            *(uint4 *)(to + chunk * 8) = load_chunk(tile_at + TILE::at(first + row, chunk));
    }
}

/* row_at gives the place of a row of the warp's 16, or NULL. */
template <class TILE, int M, class F>
static __device__ __forceinline__ void write_rows(const float (&out)[M][4], const float (&factor)[2], uint32_t tile_at,
                                                  int features, F row_at) {
    if constexpr (sizeof(typename TILE::element) == 4)
        write_chunks(out, factor, features, row_at);
    else
        write_by_tile<TILE>(out, factor, tile_at, features, row_at);
}
