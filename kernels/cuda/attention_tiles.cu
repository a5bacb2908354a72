/* Attention of bf16 by tensor cores (Dao, FlashAttention-2, 2023). A block has a tile of query rows of one head, and
 * takes the keys and values that they see tile by tile. While it computes with one tile, the next one arrives. A warp
 * has 16 rows: its scores, softmax and weighted values stay in registers.
 *
 * Keys are numbered from the prefix's first; after the prefix come the batch's rows, from the first that the block
 * sees. A warp leaves out keys that none of its rows sees, 16 at a time. At the edges of what its rows see, some see a
 * key and others do not. There a value that is NaN or infinite must reach only the rows that see its key. Such values
 * count as zeros in the product, and are added afterwards. */
#include "cuda/attention.cuh"
#include "cuda/attention_tiles.h"
#include "cuda/mma.cuh"

/* A block's part of the work. */
struct tile_work {
    int64_t row, first; /* the first query row, and the batch's row of the first key after the prefix */
    int head, keys;
};

static __device__ int64_t first_seen(const struct attention &a, int64_t row) {
    int64_t start = a.segment_start[segment_of(a, row)];
    return a.window && row - a.window + 1 > start ? row - a.window + 1 : start;
}

/* The last rows, which see the most keys, are taken first. */
static __device__ tile_work work_of_block(const struct attention &a) {
    int64_t tiles = (a.rows + TILE_ROWS - 1) / TILE_ROWS, row = (tiles - 1 - blockIdx.x / a.heads) * TILE_ROWS;
    int64_t first = first_seen(a, row), end = row + TILE_ROWS < a.rows ? row + TILE_ROWS : a.rows;
    return {row, first, (int)(blockIdx.x % a.heads), (int)(a.prefix + end - first)};
}

/* Rows g and g + 8 of a warp's 16: the keys low .. high that each sees after the prefix. A row's own key is `high`.
 * Rows past the last are the last. */
struct two_rows {
    int low[2], high[2], prefix;

    __device__ __forceinline__ bool sees(int i, int key) const {
        return key < prefix || (key >= low[i] && key <= high[i]);
    }
};

static __device__ __forceinline__ two_rows rows_at(const struct attention &a, const tile_work &work, int64_t row) {
    two_rows rows;
    rows.prefix = (int)a.prefix;
    for (int i = 0; i < 2; i++) {
        int64_t own = row + i * 8 < a.rows ? row + i * 8 : a.rows - 1;
        rows.low[i] = (int)(a.prefix + first_seen(a, own) - work.first);
        rows.high[i] = (int)(a.prefix + own - work.first);
    }
    return rows;
}

/* The work of a warp on its 16 rows. */
template <int SIZE> struct warp_rows {
    static constexpr int KEYS = ATTENTION_TILE_KEYS(SIZE), STEPS = SIZE / 16, KEPT = SIZE <= 128 ? STEPS : 1;
    using shape = tile<SIZE>;

    two_rows rows;
    int low_most, high_most, low_least, high_least; /* of all its rows */
    uint32_t queries;                               /* the place of this lane's row in shared memory */
    uint32_t q[KEPT][4];
    float out[SIZE / 8][4];
    float largest[2], total[2];

    __device__ __forceinline__ void open(const struct attention &a, const tile_work &work, uint32_t tile) {
        int lane = lane_number(), first = threadIdx.x / WARP * 16;
        rows = rows_at(a, work, work.row + first + lane / 4);
        low_least = __shfl_sync(~0u, rows.low[0], 0);
        high_least = __shfl_sync(~0u, rows.high[0], 0);
        low_most = __shfl_sync(~0u, rows.low[1], WARP - 1);
        high_most = __shfl_sync(~0u, rows.high[1], WARP - 1);
        queries = tile + shape::at(first + lane % 16, lane / 16);
#pragma unroll
        for (int i = 0; i < SIZE / 8; i++)
            out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0;
        largest[0] = largest[1] = -INFINITY;
        total[0] = total[1] = 0;
    }

    __device__ __forceinline__ void load_queries() {
#pragma unroll
        for (int k = 0; k < KEPT && KEPT > 1; k++)
            load_matrices(q[k], shape::pair(queries, k));
    }

    /* True where every row sees all keys first .. first + KEYS - 1. */
    __device__ __forceinline__ bool sees_all(int first) const {
        int end = first + KEYS;
        return end <= rows.prefix || (max(first, rows.prefix) >= low_most && end - 1 <= high_least);
    }
    /* The 16 keys `pair` of the tile: true where a row may see one. */
    __device__ __forceinline__ bool sees_some(int first, int pair) const {
        int key = first + pair * 16;
        return key < rows.prefix || (key <= high_most && key + 15 >= low_least);
    }

    /* Scores of KEYS keys: of columns 8 n + 2 t and its neighbour, row g and then row g + 8. */
    template <bool EDGE> __device__ __forceinline__ void scores(float (&s)[KEYS / 8][4], uint32_t keys, int first) {
        int lane = lane_number();
        uint32_t place = keys + shape::at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            if (KEPT == 1)
                load_matrices(q[0], shape::pair(queries, k));
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) {
                uint32_t b[4];
                if (EDGE && !sees_some(first, j))
                    continue;
                load_matrices(b, shape::pair(place, k) + j * 16 * shape::ROW_BYTES);
                multiply(s[2 * j], q[KEPT == 1 ? 0 : k], b[0], b[1]);
                multiply(s[2 * j + 1], q[KEPT == 1 ? 0 : k], b[2], b[3]);
            }
        }
        for (int n = 0; n < KEYS / 8 && EDGE; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = rows.sees(e / 2, first + n * 8 + lane % 4 * 2 + e % 2) ? s[n][e] : -INFINITY;
    }

    /* Replaces scores by their exponentials, and scales what was summed before to the new largest score. */
    __device__ __forceinline__ void softmax(float (&s)[KEYS / 8][4], float scale2) {
        float rescale[2], base[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float highest = largest[i];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                highest = fmaxf(highest, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
            base[i] = highest == -INFINITY ? 0 : highest * scale2; /* the row sees nothing yet */
            rescale[i] = highest == largest[i] ? 1 : exp2_fast((largest[i] - highest) * scale2);
            largest[i] = highest;
            total[i] *= rescale[i];
        }
        if (__any_sync(~0u, rescale[0] != 1 || rescale[1] != 1))
#pragma unroll
            for (int n = 0; n < SIZE / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    out[n][e] *= rescale[e / 2];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[n][e] = exp2_fast(fmaf(s[n][e], scale2, -base[e / 2]));
                total[e / 2] += s[n][e];
            }
    }

    /* Bit 4 n + e: dropout keeps s[n][e], or its row does not see the key. */
    __device__ __forceinline__ uint32_t kept(const struct attention &a, const tile_work &work, int first) const {
        uint32_t bits = 0;
#pragma unroll 1
        for (int i = 0; i < KEYS / 2; i++) {
            int key = first + i / 4 * 8 + lane_number() % 4 * 2 + i % 2;
            int low = i & 2 ? rows.low[1] : rows.low[0], high = i & 2 ? rows.high[1] : rows.high[0];
            bool is_seen = key < rows.prefix || (key >= low && key <= high);
            bool keeps =
                !is_seen || is_kept(a, work.head, work.first + high - rows.prefix, key_element(a, work.first, key));
            bits |= (uint32_t)keeps << i;
        }
        return bits;
    }

    /* Adds the exponentials times the values. */
    template <bool EDGE>
    __device__ __forceinline__ void add_values(const float (&s)[KEYS / 8][4], uint32_t values, int first) {
        int lane = lane_number();
        uint32_t place = values + shape::at(lane / 8 % 2 * 8 + lane % 8, lane / 16), found = 0;
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            if (EDGE && !sees_some(first, j))
                continue;
            const float *left = s[2 * j], *right = s[2 * j + 1];
            uint32_t p[4] = {pack_two(left[0], left[1]), pack_two(left[2], left[3]), pack_two(right[0], right[1]),
                             pack_two(right[2], right[3])};
#pragma unroll
            for (int n = 0; n < STEPS; n++) {
                uint32_t b[4];
                load_transposed(b, shape::pair(place, n) + j * 16 * shape::ROW_BYTES);
                for (int i = 0; i < 4 && EDGE; i++)
                    found |= zero_if_not_finite(b[i]);
                multiply(out[2 * n], p, b[0], b[1]);
                multiply(out[2 * n + 1], p, b[2], b[3]);
            }
        }
        if (EDGE && __any_sync(~0u, found != 0))
            add_not_finite(values, first);
    }

    static __device__ __forceinline__ bool is_finite(uint32_t bits) {
        return (bits & 0x7f80) != 0x7f80;
    }
    static __device__ __forceinline__ uint32_t zero_if_not_finite(uint32_t &two) {
        uint32_t keep = (is_finite(two) ? 0xffff : 0) | (is_finite(two >> 16) ? 0xffff0000 : 0);
        two &= keep;
        return ~keep;
    }

    /* Adds the values that zero_if_not_finite took, to rows that see them. */
    __device__ void add_not_finite(uint32_t values, int first) {
#pragma unroll 1
        for (int key = 0; key < KEYS; key++)
#pragma unroll
            for (int n = 0; n < SIZE / 8; n++) {
                uint32_t two;
                asm volatile("ld.shared.u32 %0, [%1];"
                             : "=r"(two)
                             : "r"(values + shape::at(key, n) + lane_number() % 4 * 4)
                             : "memory");
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    uint32_t bits = e % 2 ? two >> 16 : two;
                    if (!is_finite(bits) && rows.sees(e / 2, first + key))
                        out[n][e] += bf16_to_float((uint16_t)bits);
                }
            }
    }

    template <bool EDGE>
    __device__ __forceinline__ void take(const struct attention &a, const tile_work &work, uint32_t keys,
                                         uint32_t values, int first) {
        float s[KEYS / 8][4];
        scores<EDGE>(s, keys, first);
        softmax(s, a.scale * LOG2_E);
        if (a.dropout.p > 0) {
            uint32_t bits = kept(a, work, first);
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++)
                s[i / 4][i % 4] = bits >> i & 1 ? s[i / 4][i % 4] : 0;
        }
        add_values<EDGE>(s, values, first);
    }

    /* Writes the rows, in whole chunks by way of the place of their queries. */
    __device__ __forceinline__ void write(const struct attention &a, const tile_work &work, uint32_t tile) {
        int lane = lane_number(), first = threadIdx.x / WARP * 16;
        for (int i = 0; i < 2; i++) {
            total[i] += __shfl_xor_sync(~0u, total[i], 1);
            total[i] += __shfl_xor_sync(~0u, total[i], 2);
            int64_t row = work.row + first + lane / 4 + i * 8;
            if (a.lse && lane % 4 == 0 && row < a.rows)
                a.lse[work.head * a.rows + row] = largest[i] * a.scale + logf(total[i]);
            float factor = 1.0f / (1.0f - a.dropout.p) / total[i];
#pragma unroll
            for (int n = 0; n < SIZE / 8; n++)
                asm volatile(
                    "st.shared.u32 [%0], %1;" ::"r"(tile + shape::at(first + lane / 4 + i * 8, n) + lane % 4 * 4),
                    "r"(pack_two(out[n][2 * i] * factor, out[n][2 * i + 1] * factor))
                    : "memory");
        }
        __syncwarp();
        bf16 *to = (bf16 *)a.out + (work.row + first) * a.out_stride + (int64_t)work.head * a.head_size;
#pragma unroll 1
        for (int i = lane; i < 16 * shape::CHUNKS; i += WARP) {
            int row = i / shape::CHUNKS, chunk = i % shape::CHUNKS;
            uint4 eight;
            if (work.row + first + row >= a.rows || chunk * 8 >= a.head_size)
                continue;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                         : "r"(tile + shape::at(first + row, chunk))
                         : "memory");
            *(uint4 *)(to + row * a.out_stride + chunk * 8) = eight;
        }
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

template <int SIZE> static __device__ __forceinline__ void forward(const struct attention &a) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int KEYS = ATTENTION_TILE_KEYS(SIZE), BYTES = KEYS * SIZE * 2;
    uint32_t queries = (uint32_t)__cvta_generic_to_shared(shared), tiles = queries + TILE_ROWS * SIZE * 2;
    tile_work work = work_of_block(a);
    int kv_head = work.head / (a.heads / a.kv_heads), rows = (int)min((int64_t)TILE_ROWS, a.rows - work.row);
    keys_of<bf16> keys = head_keys<bf16>(a, work.first, kv_head), values = head_values<bf16>(a, work.first, kv_head);
    const bf16 *q = (const bf16 *)a.q + work.row * a.q_stride + (int64_t)work.head * a.head_size;
    auto copy_keys = [&](int first) {
        uint32_t to = tiles + first / KEYS % 2 * 2 * BYTES;
        copy_rows<SIZE, KEYS>(
            to, [&](int key) { return keys.at(key); }, first, work.keys, a.head_size);
        copy_rows<SIZE, KEYS>(
            to + BYTES, [&](int key) { return values.at(key); }, first, work.keys, a.head_size);
        copies_commit();
    };
    copy_rows<SIZE, TILE_ROWS>(
        queries, [&](int row) { return q + row * a.q_stride; }, 0, rows, a.head_size);
    copy_keys(0);
    warp_rows<SIZE> warp;
    warp.open(a, work, queries);
    bool has_rows = threadIdx.x / WARP * 16 < rows;
#pragma unroll 1
    for (int first = 0; first < work.keys; first += KEYS) {
        uint32_t at = tiles + first / KEYS % 2 * 2 * BYTES;
        copies_wait();
        __syncthreads(); /* the tile has landed, and nobody uses the one before */
        if (first + KEYS < work.keys)
            copy_keys(first + KEYS);
        if (first == 0)
            warp.load_queries();
        if (has_rows && warp.sees_all(first))
            warp.template take<false>(a, work, at, at + BYTES, first);
        else if (has_rows)
            warp.template take<true>(a, work, at, at + BYTES, first);
    }
    if (has_rows)
        warp.write(a, work, queries);
}

#define KERNEL(size)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(TILE_WARPS *WARP, size <= 32    ? 3                                   \
                                                                   : size <= 128 ? 2                                   \
                                                                                 : 1)                                  \
        attention_forward_tiles_##size(struct attention a) {                                                           \
        forward<size>(a);                                                                                              \
    }
ATTENTION_TILE_SIZES(KERNEL)
