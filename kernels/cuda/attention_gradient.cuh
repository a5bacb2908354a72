/* Gradients of attention of bf16, and of fp32 in TF32, by tensor cores (Dao, FlashAttention-2, 2023): a pass for those
 * of queries, and one for those of keys and values. So every sum has one owner and one order. attention.cu has the
 * formulas.
 *
 * Both passes have two tiles of their side, and take two of the other side at a time: queries with the gradients of the
 * output, keys with values. A product of each gives the scores and dP. A warp has 16 rows of its side. */
#pragma once

#include "cuda/attention_dropout.cuh"

/* Scores and dP of a pair of tiles one after the other: of each the product with its rows. Twice as many products in
 * flight hide more of their latency. */
template <bool EDGE, class TILE, bool KEPT, int N>
static __device__ __forceinline__ void
multiply_both(float (&s)[N][4], float (&dp)[N][4], const left_rows<TILE, KEPT> &one, const left_rows<TILE, KEPT> &other,
              uint32_t tile_at, const seen_columns &seen, int first) {
    uint32_t place = columns_place<TILE>(tile_at);
    if (EDGE || !KEPT) {
        clear(s);
        clear(dp);
    }
#pragma unroll(KEPT ? TILE::CHUNKS / 2 : 2)
    for (int k = 0; k < TILE::CHUNKS / 2; k++) {
        multiply_features<EDGE>(s, one, place, k, seen, first);
        multiply_features<EDGE>(dp, other, place + 8 * N * TILE::ROW_BYTES, k, seen, first);
    }
}

/* Tiles of bf16 that a warp sees whole have a loop without dropout. Those of TF32 have one loop, so that kernels are
 * smaller. */
template <class T> constexpr bool FINDS_DROPOUT = sizeof(T) == 4;

/* Query rows of a head, or the gradients of its output, from `row` on. */
template <class T>
static __device__ __forceinline__ keys_of<T> rows_of(const void *rows, int64_t stride, int64_t row, int head,
                                                     const struct attention &a) {
    return {NULL, (const T *)rows + row * stride + (int64_t)head * a.head_size, 0, stride, 0};
}

/* ---- queries ---- */

template <class TILE> struct query_rows {
    using T = typename TILE::element;
    static constexpr int SIZE = TILE::FEATURES, KEYS = GRADIENT_TILE_COLUMNS(SIZE);

    seen_columns seen;
    left_rows<TILE, false> queries, douts;
    float dq[SIZE / 8][4];
    float lse2[2], delta[2]; /* lse for base 2, and delta without dropout's scale */

    __device__ __forceinline__ void open(const struct attention_part &g, const query_tile &work, uint32_t tiles) {
        seen = work.seen_by_warp(g.a);
        queries.open(tiles);
        douts.open(tiles + TILE_ROWS * TILE::ROW_BYTES);
#pragma unroll
        for (int i = 0; i < SIZE / 8; i++)
            dq[i][0] = dq[i][1] = dq[i][2] = dq[i][3] = 0;
#pragma unroll
        for (int i = 0; i < 2; i++)
            open_row(g, work, i);
    }

    /* The four lanes of a row sum its dout * out, which the pass over keys reads, too. */
    __device__ __forceinline__ void open_row(const struct attention_part &g, const query_tile &work, int i) {
        const struct attention &a = g.a;
        int64_t row = work.row + lane_row(i), own = min(row, a.rows - 1);
        int64_t at = own * a.out_stride + (int64_t)work.head * a.head_size;
        float sum = 0;
#pragma unroll 1
        for (int d = lane_number() % 4 * TILE::CHUNK; d < a.head_size; d += 4 * TILE::CHUNK) {
            using chunk = pack<T, TILE::CHUNK>;
            chunk x = *(const chunk *)((const T *)a.dout + at + d), y = *(const chunk *)((const T *)a.out + at + d);
#pragma unroll
            for (int k = 0; k < TILE::CHUNK; k++)
                sum = fmaf(to_float(x.at[k]), to_float(y.at[k]), sum);
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        sum /= keep_scale(a);
        delta[i] = sum;
        lse2[i] = a.lse[work.head * a.rows + own] * LOG2_E;
        if (lane_number() % 4 == 0 && row < a.rows)
            ((float2 *)g.delta)[work.head * a.rows + row] = make_float2(lse2[i], sum);
    }

    template <bool EDGE, bool DROPS>
    __device__ __forceinline__ void take(const struct attention_part &part, kept_keys<KEYS> &kept, uint32_t keys,
                                         int first) {
        const struct attention &a = part.a;
        float s[KEYS / 8][4], dp[KEYS / 8][4];
        bool drops = DROPS && a.dropout.p > 0;
        multiply_both<EDGE>(s, dp, queries, douts, keys, seen, first);
        if (drops)
            kept.take(part, first);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = exp2_fast(fmaf(s[n][e], a.scale * LOG2_E, -lse2[e / 2]));
                float ds = p * ((!drops || kept.is_kept(n, e) ? dp[n][e] : 0) - delta[e / 2]);
                s[n][e] = !EDGE || seen.sees(e / 2, first + column_of(n, e)) ? ds : 0;
            }
        add_weighted<EDGE, TILE>(dq, s, keys, seen, first);
    }
};

template <class TILE> static __device__ __forceinline__ void backward_queries(const struct attention_part &g) {
    using T = typename TILE::element;
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int KEYS = query_rows<TILE>::KEYS;
    const struct attention &a = g.a;
    uint32_t tiles = (uint32_t)__cvta_generic_to_shared(shared), douts = tiles + TILE_ROWS * TILE::ROW_BYTES;
    query_tile work;
    work.open(g);
    taken_tiles<TILE, KEYS> taken = {douts + TILE_ROWS * TILE::ROW_BYTES};
    int kv_head = work.head / (a.heads / a.kv_heads), rows = (int)min((int64_t)TILE_ROWS, a.rows - work.row);
    keys_of<T> keys = head_keys<T>(a, work.first, kv_head), values = head_values<T>(a, work.first, kv_head);
    kept_keys<KEYS> kept = {}; /* where there is dropout */
    if (a.dropout.p > 0)
        kept.open(g, work, taken.places + 4 * taken.BYTES);
    auto copy_keys = [&](int first) {
        if (a.dropout.p > 0)
            kept.copy(g, first);
        taken.copy(first / KEYS, keys, values, first, work.keys, a.head_size);
    };
    copy_pairs<TILE, TILE_ROWS>(tiles, rows_of<T>(a.q, a.q_stride, work.row, work.head, a),
                                rows_of<T>(a.dout, a.out_stride, work.row, work.head, a), 0, rows, a.head_size);
    copy_keys(0);
    query_rows<TILE> warp;
    warp.open(g, work, tiles);
    bool has_rows = warp_row() < rows;
#pragma unroll 1
    for (int first = 0; first < work.keys; first += KEYS) {
        copies_wait();
        if (first == 0)
            round_copied<TILE, 2 * TILE_ROWS>(tiles);
        taken.round(first / KEYS);
        __syncthreads(); /* the tiles have landed, and nobody uses those before */
        if (first + KEYS < work.keys)
            copy_keys(first + KEYS);
        uint32_t at = taken.first_tile((unsigned)first / KEYS);
        bool sees_all = warp.seen.sees_all(first, KEYS);
        if (!has_rows || !warp.seen.sees_some(first, KEYS))
            continue;
        if (!sees_all)
            warp.template take<true, true>(g, kept, at, first);
        else if (FINDS_DROPOUT<T> || a.dropout.p > 0)
            warp.template take<false, true>(g, kept, at, first);
        else
            warp.template take<false, false>(g, kept, at, first);
    }
    const float factor[2] = {a.scale * keep_scale(a), a.scale * keep_scale(a)};
    int64_t first = work.row + warp_row();
    if (has_rows)
        write_rows<TILE>(warp.dq, factor, tiles, a.head_size, [&](int row) {
            return first + row < a.rows ? (T *)a.dq + (first + row) * a.q_stride + (int64_t)work.head * a.head_size
                                        : NULL;
        });
}

/* ---- keys and values ---- */

/* A block's tile of keys, numbered from the prefix's first if its gradients are wanted, and else from the first row;
 * `rows` query rows from `from` on see them. A block computes GRADIENT_TILE_FEATURES features, from `feature` on. */
struct key_tile {
    int key, prefix, from, head, rows, feature;

    __device__ __forceinline__ void open(const struct attention_part &part, int slabs, int features) {
        const struct attention &a = part.a;
        int group = a.heads / a.kv_heads;
        unsigned together = part.heads / group * slabs, rest = blockIdx.x % together;
        prefix = a.dprefix_k || a.dprefix_v ? (int)a.prefix : 0;
        key = (int)(blockIdx.x / together) * TILE_ROWS;
        head = part.first_head / group + (int)(rest / slabs);
        feature = (int)(rest % slabs) * features;
        from = key < prefix ? 0 : key - prefix;
        rows =
            (int)((key < prefix ? a.rows : end_of(a, min((int64_t)key + TILE_ROWS - 1 - prefix, a.rows - 1))) - from);
    }
    /* One more than the last row that sees a row's key. */
    static __device__ int64_t end_of(const struct attention &a, int64_t row) {
        int64_t end = a.segment_start[segment_of(a, row) + 1];
        return a.window && row + a.window < end ? row + a.window : end;
    }
    /* Keys g and g + 8 of this warp as rows: the query rows, from `from` on, that see them. */
    __device__ __forceinline__ seen_columns seeing_warp(const struct attention &a) const {
        seen_columns seen;
        seen.prefix = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int own = min(key + lane_row(i) - prefix, (int)a.rows - 1);
            seen.low[i] = own < 0 ? 0 : (int)(own - from);
            seen.high[i] = own < 0 ? (int)a.rows - 1 : (int)(end_of(a, own) - 1 - from);
        }
        seen.join_warp();
        return seen;
    }
};

/* The bits of a warp's 16 keys and a tile of QUERIES queries. A lane reads those of one query: two words, which there
 * is no time to wait for. */
template <int QUERIES> struct kept_queries {
    int64_t start; /* of the segment of all keys, if they are rows of one; otherwise below 0 */
    uint32_t word, next, shift;

    __device__ __forceinline__ void open(const struct attention &a, const key_tile &work) {
        int64_t first = work.key + warp_row() - work.prefix;
        int64_t segment = segment_of(a, max((int64_t)0, min(first, a.rows - 1)));
        bool is_one = first >= 0 && min(first + 15, a.rows - 1) < a.segment_start[segment + 1];
        start = is_one ? a.segment_start[segment] : -1;
    }
    /* Begins to read the bits of a tile, from query `first` of those that see the keys on. */
    __device__ __forceinline__ void read(const struct attention_part &part, const key_tile &work,
                                         const seen_columns &seen, int head, int first) {
        const struct attention &a = part.a;
        int own = first + lane_number() % QUERIES, key = work.key + warp_row() - work.prefix;
        int64_t row = work.from + own;
        const uint32_t *bits = part.kept + first_kept_word(part, head, row);
        word = next = shift = 0;
        if (own < seen.low_least || own > seen.high_most || own >= work.rows)
            return;
        kept_row columns = {start, 0, 0, 0};
        if (start < 0) {
            columns.open(a, row);
            columns.offset -= (int)a.prefix;
            word = read_keys(a, columns, bits, key + (int)a.prefix);
            return;
        }
        columns.open_in(a, row);
        shift = (key + columns.offset) & 31;
        bits += (key + columns.offset) >> 5;
        int at = (key + columns.offset) >> 5;
        word = at >= columns.low ? bits[0] : 0;
        next = at < columns.high ? bits[1] : 0;
    }
    __device__ __forceinline__ void take() {
        word = __funnelshift_r(word, next, shift);
    }
    /* The bits of query `column` of the tile for keys g and g + 8: bits 0 and 8. */
    __device__ __forceinline__ uint32_t of_query(int column) const {
        return __shfl_sync(~0u, word, column) >> lane_number() / 4;
    }
};

template <class TILE> struct key_rows {
    using T = typename TILE::element;
    static constexpr int SIZE = TILE::FEATURES, QUERIES = GRADIENT_TILE_COLUMNS(SIZE);
    static constexpr int FEATURES = GRADIENT_TILE_FEATURES(SIZE);

    seen_columns seen;
    left_rows<TILE, TILE::ROW_BYTES <= 128> keys, values;
    float dk[FEATURES / 8][4], dv[FEATURES / 8][4];
    kept_queries<QUERIES> kept; /* where there is dropout */

    __device__ __forceinline__ void open(const struct attention &a, const key_tile &work, uint32_t tiles) {
        seen = work.seeing_warp(a);
        keys.open(tiles);
        values.open(tiles + TILE_ROWS * TILE::ROW_BYTES);
#pragma unroll
        for (int i = 0; i < FEATURES / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                dk[i][e] = dv[i][e] = 0;
        kept = {};
        if (a.dropout.p > 0)
            kept.open(a, work);
    }

    /* Replaces scores and dP by P and dS, both without dropout's scale. */
    template <bool EDGE, bool DROPS>
    __device__ __forceinline__ void probabilities(const struct attention &a, const float2 *taken, int first,
                                                  float (&s)[QUERIES / 8][4], float (&dp)[QUERIES / 8][4]) const {
        bool drops = DROPS && a.dropout.p > 0;
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++) {
            float4 two = *(const float4 *)&taken[column_of(n, 0)];
            uint32_t bits[2] = {~0u, ~0u};
            if (drops)
                bits[0] = kept.of_query(column_of(n, 0)), bits[1] = kept.of_query(column_of(n, 1));
            float lse2[2] = {two.x, two.z}, delta[2] = {two.y, two.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &score = s[n][i], &gradient = dp[n][i];
                bool is_kept = !drops || bits[i % 2] >> i / 2 * 8 & 1;
                bool is_seen = !EDGE || seen.sees(i / 2, first + column_of(n, i));
                float p = exp2_fast(fmaf(score, a.scale * LOG2_E, -lse2[i % 2]));
                float ds = p * ((is_kept ? gradient : 0) - delta[i % 2]);
                gradient = is_seen ? ds : 0;
                score = is_seen && is_kept ? p : 0;
            }
        }
    }

    template <bool EDGE, bool DROPS>
    __device__ __forceinline__ void take(const struct attention_part &part, const key_tile &work, int head,
                                         const float2 *taken, uint32_t queries, int first) {
        const struct attention &a = part.a;
        float s[QUERIES / 8][4], dp[QUERIES / 8][4];
        if (DROPS && a.dropout.p > 0)
            kept.read(part, work, seen, head, first);
        multiply_both<EDGE>(s, dp, keys, values, queries, seen, first);
        if (DROPS && a.dropout.p > 0)
            kept.take();
        probabilities<EDGE, DROPS>(a, taken, first, s, dp);
        queries += work.feature * sizeof(T);
        add_weighted<EDGE, TILE>(dv, s, queries + QUERIES * TILE::ROW_BYTES, seen, first);
        add_weighted<EDGE, TILE>(dk, dp, queries, seen, first);
    }

    /* Adds keys of the prefix to its gradient; NULL: not wanted. */
    __device__ __forceinline__ void add_to_prefix(const struct attention &a, const key_tile &work,
                                                  const float (&sums)[FEATURES / 8][4], float factor,
                                                  float *gradient) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int key = work.key + lane_row(i);
            if (!gradient || key >= work.prefix)
                continue;
#pragma unroll
            for (int n = 0; n < FEATURES / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int d = work.feature + feature_of<T>(n, e);
                    if (d < a.head_size)
                        gradient[((int64_t)key * a.kv_heads + work.head) * a.head_size + d] +=
                            sums[n][2 * i + e] * factor;
                }
        }
    }

    /* Writes one gradient: of keys of the prefix in fp32, of rows as write_rows. */
    __device__ __forceinline__ void write(const struct attention &a, const key_tile &work,
                                          const float (&sums)[FEATURES / 8][4], float factor, uint32_t tile_at,
                                          float *prefix, void *rows, int64_t stride) const {
        const float factors[2] = {factor, factor};
        int first = work.key + warp_row() - work.prefix;
        T *to = (T *)rows + (int64_t)work.head * a.head_size + work.feature;
        if (first < 0)
            add_to_prefix(a, work, sums, factor, prefix);
        write_rows<TILE>(sums, factors, tile_at, a.head_size - work.feature, [&](int row) {
            int at = first + row;
            return at >= 0 && at < a.rows ? to + at * stride : NULL;
        });
    }
};

/* Keys or values, numbered as a tile's: without the prefix if its gradients are not wanted. */
template <class T> static __device__ __forceinline__ keys_of<T> tile_keys(keys_of<T> keys, const key_tile &work) {
    keys.prefixes = work.prefix;
    return keys;
}

/* The steps of a block with its keys: it takes the tiles of queries of each of their heads, one after the other. */
template <class TILE> struct query_steps {
    using T = typename TILE::element;
    static constexpr int QUERIES = GRADIENT_TILE_COLUMNS(TILE::FEATURES);

    const struct attention_part &g;
    const key_tile &work;
    taken_tiles<TILE, QUERIES> tiles;
    int steps, group; /* for a head, and heads */

    __device__ __forceinline__ int count() const {
        return steps * group;
    }
    __device__ __forceinline__ int head(int step) const {
        return work.head * group + step / steps;
    }
    __device__ __forceinline__ int first(int step) const {
        return step % steps * QUERIES;
    }
    /* Begins to bring a step's queries, and their lse2 and delta. */
    __device__ __forceinline__ void begin(int step, float2 *taken) {
        const struct attention &a = g.a;
        int64_t row = work.from + first(step);
        if (threadIdx.x < QUERIES) {
            bool is_there = first(step) + (int)threadIdx.x < work.rows;
            copy_async_8((uint32_t)__cvta_generic_to_shared(&taken[threadIdx.x]),
                         (const float2 *)g.delta + head(step) * a.rows + row + (is_there ? threadIdx.x : 0), is_there);
        }
        tiles.copy(step, rows_of<T>(a.q, a.q_stride, work.from, head(step), a),
                   rows_of<T>(a.dout, a.out_stride, work.from, head(step), a), first(step), work.rows, a.head_size);
    }
};

template <class TILE> static __device__ __forceinline__ void backward_keys(const struct attention_part &g) {
    using T = typename TILE::element;
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int QUERIES = key_rows<TILE>::QUERIES, FEATURES = key_rows<TILE>::FEATURES;
    float2(*taken)[QUERIES] = (float2(*)[QUERIES])(shared + (2 * TILE_ROWS + 4 * QUERIES) * TILE::ROW_BYTES);
    const struct attention &a = g.a;
    uint32_t tiles = (uint32_t)__cvta_generic_to_shared(shared), value_tile = tiles + TILE_ROWS * TILE::ROW_BYTES;
    key_tile work;
    work.open(g, (a.head_size + FEATURES - 1) / FEATURES, FEATURES);
    query_steps<TILE> queries = {g, work, {value_tile + TILE_ROWS * TILE::ROW_BYTES}};
    queries.steps = (work.rows + QUERIES - 1) / QUERIES;
    queries.group = a.heads / a.kv_heads;
    int rows = (int)min((int64_t)TILE_ROWS, work.prefix + a.rows - work.key);
    keys_of<T> keys = tile_keys(head_keys<T>(a, 0, work.head), work);
    keys_of<T> values = tile_keys(head_values<T>(a, 0, work.head), work);
    copy_pairs<TILE, TILE_ROWS>(tiles, keys, values, work.key, work.key + rows, a.head_size);
    queries.begin(0, taken[0]);
    key_rows<TILE> warp;
    warp.open(a, work, tiles);
#pragma unroll 1
    for (int step = 0; step < queries.count(); step++) {
        copies_wait();
        if (step == 0)
            round_copied<TILE, 2 * TILE_ROWS>(tiles);
        queries.tiles.round(step);
        __syncthreads(); /* the tiles have landed, and nobody uses those before */
        if (step + 1 < queries.count())
            queries.begin(step + 1, taken[(step + 1) % 2]);
        if (step == 0) {
            warp.keys.load();
            warp.values.load();
        }
        uint32_t at = queries.tiles.first_tile(step);
        int first = queries.first(step);
        bool sees_all = warp.seen.sees_all(first, QUERIES);
        if (warp_row() < rows && warp.seen.sees_some(first, QUERIES)) {
            if (!sees_all)
                warp.template take<true, true>(g, work, queries.head(step), taken[step % 2], at, first);
            else if (FINDS_DROPOUT<T> || a.dropout.p > 0)
                warp.template take<false, true>(g, work, queries.head(step), taken[step % 2], at, first);
            else
                warp.template take<false, false>(g, work, queries.head(step), taken[step % 2], at, first);
        }
    }
    if (warp_row() >= rows)
        return;
    warp.write(a, work, warp.dk, a.scale * keep_scale(a), tiles, a.dprefix_k, a.dk, a.k_stride);
    warp.write(a, work, warp.dv, keep_scale(a), value_tile, a.dprefix_v, a.dv, a.v_stride);
}

/* A smaller head's block takes fewer registers, so that more blocks hide each other's waits. */
#define GRADIENT_KERNELS(queries_name, keys_name, size, type)                                                          \
    extern "C" __global__ void __launch_bounds__(TILE_WARPS *WARP, size * sizeof(type) <= 256 ? 3 : 1)                 \
        queries_name(struct attention_part g) {                                                                        \
        backward_queries<tile<size, type>>(g);                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(TILE_WARPS *WARP, size <= 64 ? 2 : 1)                                 \
        keys_name(struct attention_part g) {                                                                           \
        backward_keys<tile<size, type>>(g);                                                                            \
    }
