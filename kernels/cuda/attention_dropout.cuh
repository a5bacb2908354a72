/* Dropout of attention by tiles: which elements of the scores are kept. base/rng.h decides that by an element's word.
 * A separate kernel writes a bit for each element (attention_kept.cu), and those by tiles read the bits. To find them
 * takes as many instructions as the rest of a tile, and backward would do so twice.
 *
 * The bits of a query row are in columns: first the prefix's, which end at a multiple of 64; then those of its
 * segment's rows. There the first column is the first row's token modulo 64. So a column and its key's element are the
 * same modulo 64. */
#pragma once

#include "cuda/attention_tiles.cuh"

static __device__ __forceinline__ float keep_scale(const struct attention &a) {
    return 1.0f / (1.0f - a.dropout.p);
}

/* The first column after those of the prefix. */
static __device__ __forceinline__ int columns_of_prefix(const struct attention &a) {
    return ((int)a.prefix + KEPT_COLUMNS - 1) / KEPT_COLUMNS * KEPT_COLUMNS;
}

/* The columns of a query row. Row j of its segment has column j + offset. */
struct kept_row {
    int64_t start; /* of its segment */
    int offset;
    int low, high; /* words that have been written: low .. high */

    __device__ __forceinline__ void open(const struct attention &a, int64_t row) {
        start = a.segment_start[segment_of(a, row)];
        open_in(a, row);
    }
    /* As open, for a row whose segment's start is known. */
    __device__ __forceinline__ void open_in(const struct attention &a, int64_t row) {
        int64_t first = a.window && row - a.window + 1 > start ? row - a.window + 1 : start;
        offset = columns_of_prefix(a) + (int)(a.dropout.keys.token[start] % KEPT_COLUMNS) - (int)start;
        low = (a.prefix ? columns_of_prefix(a) - (int)a.prefix : (int)first + offset) / KEPT_COLUMNS * 2;
        high = ((int)row + offset) / KEPT_COLUMNS * 2 + 1;
    }
};

/* Returns the number of this row's first word of a head. */
static __device__ __forceinline__ uint32_t first_kept_word(const struct attention_part &part, int head, int64_t row) {
    return (uint32_t)(((head - part.first_head) * part.a.rows + row) * part.kept_words);
}

/* Words of shared memory. */
static __device__ __forceinline__ void store_word(uint32_t at, uint32_t word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(word) : "memory");
}
static __device__ __forceinline__ uint32_t load_word(uint32_t at) {
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
    return word;
}

/* Returns 32 bits from a column on. Words that have not been written count as zeros. */
static __device__ __forceinline__ uint32_t read_some(const kept_row &row, const uint32_t *bits, int column) {
    int word = column >> 5;
    uint32_t one = word >= row.low && word <= row.high ? bits[word] : 0;
    uint32_t other = word + 1 >= row.low && word + 1 <= row.high ? bits[word + 1] : 0;
    return __funnelshift_r(one, other, column & 31);
}

/* Returns the bits of 32 keys numbered from the prefix's first, from `key` on. Key k is in column k + row.offset if it
 * is a row, and else in k + of_prefix. */
static __device__ __forceinline__ uint32_t read_keys(const struct attention &a, const kept_row &row,
                                                     const uint32_t *bits, int key) {
    int prefix = (int)a.prefix, of_prefix = columns_of_prefix(a) - prefix, inside = max(0, min(32, prefix - key));
    uint32_t below = (uint32_t)(((uint64_t)1 << inside) - 1);
    uint32_t of_rows = inside < 32 ? read_some(row, bits, key + row.offset) : 0;
    return inside > 0 ? (read_some(row, bits, key + of_prefix) & below) | (of_rows & ~below) : of_rows;
}

/* The bits of query rows and tiles of KEYS keys. A warp brings words of its 16 rows to shared memory, with the tile's
 * keys: those from the tile's first key's bit on. Two tiles have places in turn. */
template <int KEYS> struct kept_keys {
    static constexpr int COUNT = (KEYS + 31) / 32, PLACES = KEPT_PLACES(KEYS);

    uint32_t places; /* [2, TILE_ROWS, PLACES] in shared memory */
    /* This lane brings words of one row: its first word, those that have been written, and a key's column less its
     * number after the prefix. */
    uint32_t first_word;
    int low, high, offset;
    uint32_t word[2][COUNT]; /* of rows g and g + 8, from bit 2 t on */

    static __device__ __forceinline__ int own_row() {
        return warp_row() + lane_number() % 16;
    }
    __device__ __forceinline__ void open(const struct attention_part &part, const query_tile &work, uint32_t at) {
        int64_t own = min(work.row + own_row(), part.a.rows - 1);
        kept_row row;
        row.open(part.a, own);
        places = at;
        first_word = first_kept_word(part, work.head, own);
        low = row.low;
        high = row.high;
        offset = row.offset + (int)work.first - (int)part.a.prefix;
    }
    __device__ __forceinline__ uint32_t place_of(int first, int row) const {
        return places + ((unsigned)first / KEYS % 2 * TILE_ROWS + row) * (PLACES * 4);
    }
    /* Begins to bring the words of a tile, from key `first` on. If some keys are the prefix's, it brings the bits. */
    __device__ __forceinline__ void copy(const struct attention_part &part, int first) const {
        const uint32_t *bits = part.kept + first_word;
        uint32_t to = place_of(first, own_row());
        if (first < part.a.prefix) {
            kept_row row = {0, offset, low, high};
            for (int i = lane_number() / 16; i <= COUNT; i += 2)
                store_word(to + i * 4, i < COUNT ? read_keys(part.a, row, bits, first + 32 * i) : 0);
            return;
        }
#pragma unroll
        for (int i = 0; i <= COUNT; i += 2) {
            int number = i + lane_number() / 16, at = ((first + offset) >> 5) + number;
            bool is_there = at >= low && at <= high;
            if (number <= COUNT)
                copy_async_4(to + number * 4, bits + (is_there ? at : low), is_there);
        }
    }
    /* Takes the bits of a tile that has arrived. */
    __device__ __forceinline__ void take(const struct attention_part &part, int first) {
        int own_shift = first < part.a.prefix ? 0 : (first + offset) & 31;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = lane_number() / 4 + i * 8, shift = __shfl_sync(~0u, own_shift, row);
            uint32_t at = place_of(first, warp_row() + row);
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                word[i][j] =
                    __funnelshift_r(load_word(at + j * 4), load_word(at + j * 4 + 4), shift) >> lane_number() % 4 * 2;
        }
    }
    /* True if the lane's element s[n][e] is kept. */
    __device__ __forceinline__ bool is_kept(int n, int e) const {
        return word[e / 2][n / 4] >> (n % 4 * 8 + e % 2) & 1;
    }
};
