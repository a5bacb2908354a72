/* Attention of bf16, and of fp32 in TF32, by tensor cores (Dao, FlashAttention-2, 2023). A block has a tile of query
 * rows of one head, and takes the keys and values that they see tile by tile. While it computes with one tile, the next
 * one arrives. A warp has 16 rows: its scores, softmax and weighted values stay in registers.
 *
 * Keys are numbered from the prefix's first; after the prefix come the batch's rows, from the first that the block
 * sees. */
#pragma once

#include "cuda/attention_dropout.cuh"

/* The work of a warp on its 16 rows. */
template <class TILE> struct warp_rows {
    using T = typename TILE::element;
    static constexpr int SIZE = TILE::FEATURES, KEYS = ATTENTION_TILE_KEYS(SIZE, sizeof(T));

    seen_columns seen;
    left_rows<TILE, sizeof(T) == 2 && SIZE <= 128> queries;
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

    template <bool EDGE>
    __device__ __forceinline__ void take(const struct attention_part &part, bool drops, kept_keys<KEYS> &kept,
                                         uint32_t keys, int first) {
        const struct attention &a = part.a;
        float s[KEYS / 8][4];
        multiply_rows<EDGE>(s, queries, keys, seen, first);
#pragma unroll
        for (int n = 0; n < KEYS / 8 && EDGE; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = seen.sees(e / 2, first + column_of(n, e)) ? s[n][e] : -INFINITY;
        softmax.take<true>(s, out, a.scale * LOG2_E);
        if (drops) {
            kept.take(part, first);
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++)
                s[i / 4][i % 4] = kept.is_kept(i / 4, i % 4) ? s[i / 4][i % 4] : 0;
        }
        add_weighted<EDGE, TILE>(out, s, keys + KEYS * TILE::ROW_BYTES, seen, first);
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
        T *to = (T *)a.out + first * a.out_stride + (int64_t)work.head * a.head_size;
        write_rows<TILE>(out, factor, tile_at, a.head_size,
                         [&](int row) { return first + row < a.rows ? to + row * a.out_stride : NULL; });
    }
};

/* A kernel of bf16 always has dropout, or never. One of TF32 finds out, so that there are fewer kernels. */
enum dropping { DROPS_NEVER, DROPS_ALWAYS, DROPS_SOMETIMES };

template <class TILE, enum dropping DROPPING>
static __device__ __forceinline__ void forward(const struct attention_part &part) {
    using T = typename TILE::element;
    const struct attention &a = part.a;
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int KEYS = warp_rows<TILE>::KEYS, BYTES = KEYS * TILE::ROW_BYTES;
    const bool drops = DROPPING == DROPS_SOMETIMES ? a.dropout.p > 0 : DROPPING == DROPS_ALWAYS;
    uint32_t queries = (uint32_t)__cvta_generic_to_shared(shared);
    taken_tiles<TILE, KEYS> taken = {queries + TILE_ROWS * TILE::ROW_BYTES};
    query_tile work;
    work.open(part);
    int kv_head = work.head / (a.heads / a.kv_heads), rows = (int)min((int64_t)TILE_ROWS, a.rows - work.row);
    keys_of<T> keys = head_keys<T>(a, work.first, kv_head), values = head_values<T>(a, work.first, kv_head);
    const T *q = (const T *)a.q + work.row * a.q_stride + (int64_t)work.head * a.head_size;
    kept_keys<KEYS> kept = {}; /* where there is dropout */
    if (drops)
        kept.open(part, work, taken.places + 4 * BYTES);
    auto copy_tiles = [&](int first) {
        copy_pairs<TILE, KEYS>(taken.first_tile((unsigned)first / KEYS), keys, values, first, work.keys, a.head_size);
        if (drops)
            kept.copy(part, first);
        copies_commit();
    };
    copy_rows<TILE, TILE_ROWS>(
        queries, [&](int row) { return q + row * a.q_stride; }, 0, rows, a.head_size);
    copy_tiles(0);
    warp_rows<TILE> warp;
    warp.open(a, work, queries);
    bool has_rows = warp_row() < rows;
#pragma unroll 1
    for (int first = 0; first < work.keys; first += KEYS) {
        uint32_t at = taken.first_tile((unsigned)first / KEYS);
        copies_wait();
        if (first == 0)
            round_copied<TILE, TILE_ROWS>(queries);
        taken.round(first / KEYS);
        __syncthreads(); /* the tile has landed, and nobody uses the one before */
        if (first + KEYS < work.keys)
            copy_tiles(first + KEYS);
        if (first == 0)
            warp.queries.load();
        bool sees_all = warp.seen.sees_all(first, KEYS);
        if (has_rows && sees_all)
            warp.template take<false>(part, drops, kept, at, first);
        else if (has_rows)
            warp.template take<true>(part, drops, kept, at, first);
    }
    if (has_rows)
        warp.write(a, work, queries);
}

/* A smaller head's block takes fewer registers, so that more blocks hide each other's waits. */
#define FORWARD_KERNEL(name, size, type, dropping)                                                                     \
    extern "C" __global__ void __launch_bounds__(TILE_WARPS *WARP, size <= 64    ? 3                                   \
                                                                   : size <= 128 ? 2                                   \
                                                                                 : 1) name(struct attention_part a) {  \
        forward<tile<size, type>, dropping>(a);                                                                        \
    }
