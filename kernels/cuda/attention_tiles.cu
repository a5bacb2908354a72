/* Attention of bf16 by tensor cores (Dao, FlashAttention-2, 2023). A block has a tile of query rows of one head, and
 * takes the keys and values that they see tile by tile. While it computes with one tile, the next one arrives. A warp
 * has 16 rows: its scores, softmax and weighted values stay in registers.
 *
 * Keys are numbered from the prefix's first; after the prefix come the batch's rows, from the first that the block
 * sees. */
#include "cuda/attention_dropout.cuh"

/* The work of a warp on its 16 rows. */
template <int SIZE> struct warp_rows {
    static constexpr int KEYS = ATTENTION_TILE_KEYS(SIZE);

    seen_columns seen;
    left_rows<SIZE, SIZE <= 128> queries;
    float out[SIZE / 8][4];
    row_softmax softmax;

    __device__ __forceinline__ void open(const struct attention &a, const query_tile &work, uint32_t tile_at) {
        seen = work.seen_by_warp(a);
        queries.open(tile_at);
#pragma unroll
        for (int i = 0; i < SIZE / 8; i++)
            out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0;
        softmax.clear();
    }

    template <bool EDGE, bool DROPS>
    __device__ __forceinline__ void take(const struct attention_part &part, kept_keys<KEYS> &kept, uint32_t keys,
                                         uint32_t values, int first) {
        const struct attention &a = part.a;
        float s[KEYS / 8][4];
        multiply_rows<EDGE>(s, queries, keys, seen, first);
#pragma unroll
        for (int n = 0; n < KEYS / 8 && EDGE; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = seen.sees(e / 2, first + n * 8 + lane_number() % 4 * 2 + e % 2) ? s[n][e] : -INFINITY;
        softmax.take<true>(s, out, a.scale * LOG2_E);
        if (DROPS)
            kept.take(part, first);
#pragma unroll
        for (int i = 0; i < KEYS / 2 && DROPS; i++)
            s[i / 4][i % 4] = kept.is_kept(i / 4, i % 4) ? s[i / 4][i % 4] : 0;
        add_weighted<EDGE, SIZE>(out, s, values, seen, first);
    }

    __device__ __forceinline__ void write(const struct attention &a, const query_tile &work, uint32_t tile_at) {
        int64_t first = work.row + warp_row();
        float factor[2];
        softmax.join_total();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int64_t row = first + lane_number() / 4 + i * 8;
            if (a.lse && lane_number() % 4 == 0 && row < a.rows)
                a.lse[work.head * a.rows + row] = softmax.largest[i] * a.scale + logf(softmax.total[i]);
            factor[i] = keep_scale(a) / softmax.total[i];
        }
        bf16 *to = (bf16 *)a.out + first * a.out_stride + (int64_t)work.head * a.head_size;
        write_rows<SIZE>(out, factor, tile_at, a.head_size,
                         [&](int row) { return first + row < a.rows ? to + row * a.out_stride : NULL; });
    }
};

template <int SIZE, bool DROPS> static __device__ __forceinline__ void forward(const struct attention_part &part) {
    const struct attention &a = part.a;
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int KEYS = ATTENTION_TILE_KEYS(SIZE), BYTES = KEYS * SIZE * 2;
    uint32_t queries = (uint32_t)__cvta_generic_to_shared(shared);
    taken_tiles<SIZE, KEYS> taken = {queries + TILE_ROWS * SIZE * 2};
    query_tile work;
    work.open(part);
    int kv_head = work.head / (a.heads / a.kv_heads), rows = (int)min((int64_t)TILE_ROWS, a.rows - work.row);
    keys_of<bf16> keys = head_keys<bf16>(a, work.first, kv_head), values = head_values<bf16>(a, work.first, kv_head);
    const bf16 *q = (const bf16 *)a.q + work.row * a.q_stride + (int64_t)work.head * a.head_size;
    kept_keys<KEYS> kept; /* where there is dropout */
    if (DROPS)
        kept.open(part, work, taken.places + 4 * BYTES);
    auto copy_tiles = [&](int first) {
        copy_pairs<SIZE, KEYS>(taken.first_tile((unsigned)first / KEYS), keys, values, first, work.keys, a.head_size);
        if (DROPS)
            kept.copy(part, first);
        copies_commit();
    };
    copy_rows<SIZE, TILE_ROWS>(
        queries, [&](int row) { return q + row * a.q_stride; }, 0, rows, a.head_size);
    copy_tiles(0);
    warp_rows<SIZE> warp;
    warp.open(a, work, queries);
    bool has_rows = warp_row() < rows;
#pragma unroll 1
    for (int first = 0; first < work.keys; first += KEYS) {
        uint32_t at = taken.first_tile((unsigned)first / KEYS);
        copies_wait();
        __syncthreads(); /* the tile has landed, and nobody uses the one before */
        if (first + KEYS < work.keys)
            copy_tiles(first + KEYS);
        if (first == 0)
            warp.queries.load();
        bool sees_all = warp.seen.sees_all(first, KEYS);
        if (has_rows && sees_all)
            warp.template take<false, DROPS>(part, kept, at, at + BYTES, first);
        else if (has_rows)
            warp.template take<true, DROPS>(part, kept, at, at + BYTES, first);
    }
    if (has_rows)
        warp.write(a, work, queries);
}

#define KERNEL(name, size, drops)                                                                                      \
    extern "C" __global__ void __launch_bounds__(TILE_WARPS *WARP, size <= 64    ? 3                                   \
                                                                   : size <= 128 ? 2                                   \
                                                                                 : 1) name(struct attention_part a) {  \
        forward<size, drops>(a);                                                                                       \
    }
#define KERNELS(size)                                                                                                  \
    KERNEL(attention_forward_tiles_##size, size, false)                                                                \
    KERNEL(attention_forward_dropout_tiles_##size, size, true)
ATTENTION_TILE_SIZES(KERNELS)
