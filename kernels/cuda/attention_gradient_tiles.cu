/* Gradients of attention of bf16 by tensor cores (Dao, FlashAttention-2, 2023): a pass for those of queries, and one
 * for those of keys and values. So every sum has one owner and one order. attention.cu has the formulas.
 *
 * Both passes have two tiles of their side, and take two of the other side at a time: queries with the gradients of the
 * output, keys with values. A product of each gives the scores and dP. A warp has 16 rows of its side. */
#include "cuda/attention_tiles.cuh"

/* This lane's column of s[n][e], from the tile's first. */
static __device__ __forceinline__ int column_of(int n, int e) {
    return n * 8 + lane_number() % 4 * 2 + e % 2;
}

static __device__ __forceinline__ float keep_scale(const struct attention &a) {
    return 1.0f / (1.0f - a.dropout.p);
}

/* ---- queries ---- */

template <int SIZE> struct query_rows {
    static constexpr int KEYS = GRADIENT_TILE_COLUMNS(SIZE), BYTES = KEYS * SIZE * 2;

    seen_columns seen;
    left_rows<SIZE, SIZE <= 64> queries, douts;
    float dq[SIZE / 8][4];
    float lse2[2], delta[2]; /* lse for base 2 */

    __device__ __forceinline__ void open(const struct attention_gradient &g, const query_tile &work, uint32_t tiles) {
        seen = work.seen_by_warp(g.a);
        queries.open(tiles);
        douts.open(tiles + TILE_ROWS * SIZE * 2);
#pragma unroll
        for (int i = 0; i < SIZE / 8; i++)
            dq[i][0] = dq[i][1] = dq[i][2] = dq[i][3] = 0;
#pragma unroll
        for (int i = 0; i < 2; i++)
            open_row(g, work, i);
    }

    /* The four lanes of a row sum its dout * out, which the pass over keys reads, too. */
    __device__ __forceinline__ void open_row(const struct attention_gradient &g, const query_tile &work, int i) {
        const struct attention &a = g.a;
        int64_t row = work.row + lane_row(i), own = min(row, a.rows - 1);
        int64_t at = own * a.out_stride + (int64_t)work.head * a.head_size;
        float sum = 0;
#pragma unroll 1
        for (int d = lane_number() % 4 * 8; d < a.head_size; d += 32) {
            pack<bf16, 8> x = *(const pack<bf16, 8> *)((const bf16 *)a.dout + at + d);
            pack<bf16, 8> y = *(const pack<bf16, 8> *)((const bf16 *)a.out + at + d);
#pragma unroll
            for (int k = 0; k < 8; k++)
                sum = fmaf(to_float(x.at[k]), to_float(y.at[k]), sum);
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane_number() % 4 == 0 && row < a.rows)
            g.delta[work.head * a.rows + row] = sum;
        delta[i] = sum;
        lse2[i] = a.lse[work.head * a.rows + own] * LOG2_E;
    }

    template <bool EDGE>
    __device__ __forceinline__ void take(const struct attention &a, const query_tile &work, uint32_t keys, int first) {
        float s[KEYS / 8][4], dp[KEYS / 8][4], keep = keep_scale(a);
        uint32_t kept = ~0u;
        if (a.dropout.p > 0)
            kept = kept_bits<KEYS>(seen, first, [&](int i, int key) {
                int own = i ? seen.high[1] : seen.high[0];
                return is_kept(a, work.head, work.first + own - seen.prefix, key_element(a, work.first, key));
            });
        multiply_rows<EDGE>(s, queries, keys, seen, first);
        multiply_rows<EDGE>(dp, douts, keys + BYTES, seen, first);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = exp2_fast(fmaf(s[n][e], a.scale * LOG2_E, -lse2[e / 2]));
                float ds = p * ((kept >> (4 * n + e) & 1 ? dp[n][e] * keep : 0) - delta[e / 2]);
                s[n][e] = !EDGE || seen.sees(e / 2, first + column_of(n, e)) ? ds : 0;
            }
        add_weighted<EDGE, SIZE>(dq, s, keys, seen, first);
    }
};

template <int SIZE> static __device__ __forceinline__ void backward_queries(const struct attention_gradient &g) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int KEYS = GRADIENT_TILE_COLUMNS(SIZE);
    const struct attention &a = g.a;
    uint32_t tiles = (uint32_t)__cvta_generic_to_shared(shared), douts = tiles + TILE_ROWS * SIZE * 2;
    query_tile work;
    work.open(a);
    taken_tiles<SIZE, KEYS> taken = {douts + TILE_ROWS * SIZE * 2};
    int kv_head = work.head / (a.heads / a.kv_heads), rows = (int)min((int64_t)TILE_ROWS, a.rows - work.row);
    keys_of<bf16> keys = head_keys<bf16>(a, work.first, kv_head), values = head_values<bf16>(a, work.first, kv_head);
    int64_t head_at = (int64_t)work.head * a.head_size;
    auto copy_keys = [&](int first) {
        taken.copy(
            first / KEYS, [&](int key) { return keys.at(key); }, [&](int key) { return values.at(key); }, first,
            work.keys, a.head_size);
    };
    copy_rows<SIZE, TILE_ROWS>(
        tiles, [&](int row) { return (const bf16 *)a.q + (work.row + row) * a.q_stride + head_at; }, 0, rows,
        a.head_size);
    copy_rows<SIZE, TILE_ROWS>(
        douts, [&](int row) { return (const bf16 *)a.dout + (work.row + row) * a.out_stride + head_at; }, 0, rows,
        a.head_size);
    copy_keys(0);
    query_rows<SIZE> warp;
    warp.open(g, work, tiles);
    bool has_rows = warp_row() < rows;
#pragma unroll 1
    for (int first = 0; first < work.keys; first += KEYS) {
        copies_wait();
        __syncthreads(); /* the tiles have landed, and nobody uses those before */
        if (first + KEYS < work.keys)
            copy_keys(first + KEYS);
        if (first == 0) {
            warp.queries.load();
            warp.douts.load();
        }
        uint32_t at = taken.first_tile(first / KEYS);
        if (has_rows && warp.seen.sees_all(first, KEYS))
            warp.template take<false>(a, work, at, first);
        else if (has_rows && warp.seen.sees_some(first, KEYS))
            warp.template take<true>(a, work, at, first);
    }
    const float factor[2] = {a.scale, a.scale};
    int64_t first = work.row + warp_row();
    if (has_rows)
        write_rows<SIZE>(warp.dq, factor, tiles, a.head_size, [&](int row) {
            return first + row < a.rows ? (bf16 *)a.dq + (first + row) * a.q_stride + head_at : NULL;
        });
}

/* ---- keys and values ---- */

/* A block's tile of keys, numbered from the prefix's first if its gradients are wanted, and else from the first row;
 * `rows` query rows from `from` on see them. A block computes GRADIENT_TILE_FEATURES features, from `feature` on. */
struct key_tile {
    int key, prefix, from, head, rows, feature;

    __device__ __forceinline__ void open(const struct attention &a, int slabs, int features) {
        unsigned together = a.kv_heads * slabs, rest = blockIdx.x % together;
        prefix = a.dprefix_k || a.dprefix_v ? (int)a.prefix : 0;
        key = (int)(blockIdx.x / together) * TILE_ROWS;
        head = (int)(rest / slabs);
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

template <int SIZE> struct key_rows {
    static constexpr int QUERIES = GRADIENT_TILE_COLUMNS(SIZE), BYTES = QUERIES * SIZE * 2;
    static constexpr int FEATURES = GRADIENT_TILE_FEATURES(SIZE);

    seen_columns seen;
    left_rows<SIZE, SIZE <= 64> keys, values;
    float dk[FEATURES / 8][4], dv[FEATURES / 8][4];

    __device__ __forceinline__ void open(const struct attention &a, const key_tile &work, uint32_t tiles) {
        seen = work.seeing_warp(a);
        keys.open(tiles);
        values.open(tiles + TILE_ROWS * SIZE * 2);
#pragma unroll
        for (int i = 0; i < FEATURES / 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                dk[i][e] = dv[i][e] = 0;
    }

    /* Replaces scores and dP by P, without dropout's scale, and dS. */
    template <bool EDGE>
    __device__ __forceinline__ void probabilities(const struct attention_gradient &g, const key_tile &work, int head,
                                                  int first, uint32_t kept, float (&s)[QUERIES / 8][4],
                                                  float (&dp)[QUERIES / 8][4]) const {
        const struct attention &a = g.a;
        int64_t row = head * a.rows + work.from + first;
        float keep = keep_scale(a);
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int column = column_of(n, e);
                bool is_there = first + column < work.rows;
                float lse2 = is_there ? a.lse[row + column] * LOG2_E : 0;
                float delta = is_there ? g.delta[row + column] : 0;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &score = s[n][2 * i + e], &gradient = dp[n][2 * i + e];
                    bool is_kept = kept >> (4 * n + 2 * i + e) & 1;
                    bool is_seen = !EDGE || seen.sees(i, first + column);
                    float p = exp2_fast(fmaf(score, a.scale * LOG2_E, -lse2));
                    gradient = is_seen ? p * ((is_kept ? gradient * keep : 0) - delta) : 0;
                    score = is_seen && is_kept ? p : 0;
                }
            }
    }

    template <bool EDGE>
    __device__ __forceinline__ void take(const struct attention_gradient &g, const key_tile &work, int head,
                                         uint32_t queries, int first) {
        const struct attention &a = g.a;
        float s[QUERIES / 8][4], dp[QUERIES / 8][4];
        uint32_t kept = ~0u;
        if (a.dropout.p > 0)
            kept = kept_bits<QUERIES>(seen, first, [&](int i, int column) {
                int key = min(work.key + lane_row(i), work.prefix + (int)a.rows - 1);
                /* key_element() numbers keys from the prefix's first */
                uint32_t element = key_element(a, 0, work.prefix ? key : key + a.prefix);
                return is_kept(a, head, work.from + column, element);
            });
        multiply_rows<EDGE>(s, keys, queries, seen, first);
        multiply_rows<EDGE>(dp, values, queries + BYTES, seen, first);
        probabilities<EDGE>(g, work, head, first, kept, s, dp);
        uint32_t feature = work.feature * 2;
        add_weighted<EDGE, SIZE>(dv, s, queries + BYTES + feature, seen, first);
        add_weighted<EDGE, SIZE>(dk, dp, queries + feature, seen, first);
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
                    int d = work.feature + column_of(n, e);
                    if (d < a.head_size)
                        gradient[((int64_t)key * a.kv_heads + work.head) * a.head_size + d] +=
                            sums[n][2 * i + e] * factor;
                }
        }
    }

    /* Writes one gradient: of keys of the prefix in fp32, of rows in bf16 by way of the tile. */
    __device__ __forceinline__ void write(const struct attention &a, const key_tile &work,
                                          const float (&sums)[FEATURES / 8][4], float factor, uint32_t tile_at,
                                          float *prefix, void *rows, int64_t stride) const {
        const float factors[2] = {factor, factor};
        int first = work.key + warp_row() - work.prefix;
        bf16 *to = (bf16 *)rows + (int64_t)work.head * a.head_size + work.feature;
        if (first < 0)
            add_to_prefix(a, work, sums, factor, prefix);
        write_rows<SIZE>(sums, factors, tile_at, a.head_size - work.feature, [&](int row) {
            int at = first + row;
            return at >= 0 && at < a.rows ? to + at * stride : NULL;
        });
    }
};

/* Keys or values, numbered as a tile's: without the prefix if its gradients are not wanted. */
static __device__ __forceinline__ keys_of<bf16> tile_keys(keys_of<bf16> keys, const key_tile &work) {
    keys.prefixes = work.prefix;
    return keys;
}

template <int SIZE> static __device__ __forceinline__ void backward_keys(const struct attention_gradient &g) {
    extern __shared__ __align__(128) unsigned char shared[];
    constexpr int QUERIES = GRADIENT_TILE_COLUMNS(SIZE), FEATURES = GRADIENT_TILE_FEATURES(SIZE);
    const struct attention &a = g.a;
    uint32_t tiles = (uint32_t)__cvta_generic_to_shared(shared), value_tile = tiles + TILE_ROWS * SIZE * 2;
    key_tile work;
    work.open(a, (a.head_size + FEATURES - 1) / FEATURES, FEATURES);
    taken_tiles<SIZE, QUERIES> taken = {value_tile + TILE_ROWS * SIZE * 2};
    int group = a.heads / a.kv_heads, steps = (work.rows + QUERIES - 1) / QUERIES;
    int rows = (int)min((int64_t)TILE_ROWS, work.prefix + a.rows - work.key);
    auto copy_queries = [&](int step) {
        int64_t head_at = (int64_t)(work.head * group + step / steps) * a.head_size;
        taken.copy(
            step, [&](int row) { return (const bf16 *)a.q + (work.from + row) * a.q_stride + head_at; },
            [&](int row) { return (const bf16 *)a.dout + (work.from + row) * a.out_stride + head_at; },
            step % steps * QUERIES, work.rows, a.head_size);
    };
    keys_of<bf16> keys = tile_keys(head_keys<bf16>(a, 0, work.head), work);
    keys_of<bf16> values = tile_keys(head_values<bf16>(a, 0, work.head), work);
    copy_rows<SIZE, TILE_ROWS>(
        tiles, [&](int row) { return keys.at(work.key + row); }, 0, rows, a.head_size);
    copy_rows<SIZE, TILE_ROWS>(
        value_tile, [&](int row) { return values.at(work.key + row); }, 0, rows, a.head_size);
    copy_queries(0);
    key_rows<SIZE> warp;
    warp.open(a, work, tiles);
    bool has_rows = warp_row() < rows;
#pragma unroll 1
    for (int step = 0; step < steps * group; step++) {
        copies_wait();
        __syncthreads(); /* the tiles have landed, and nobody uses those before */
        if (step + 1 < steps * group)
            copy_queries(step + 1);
        if (step == 0) {
            warp.keys.load();
            warp.values.load();
        }
        uint32_t at = taken.first_tile(step);
        int head = work.head * group + step / steps, first = step % steps * QUERIES;
        if (has_rows && warp.seen.sees_all(first, QUERIES))
            warp.template take<false>(g, work, head, at, first);
        else if (has_rows && warp.seen.sees_some(first, QUERIES))
            warp.template take<true>(g, work, head, at, first);
    }
    if (!has_rows)
        return;
    warp.write(a, work, warp.dk, a.scale, tiles, a.dprefix_k, a.dk, a.k_stride);
    warp.write(a, work, warp.dv, keep_scale(a), value_tile, a.dprefix_v, a.dv, a.v_stride);
}

#define KERNEL(size)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(TILE_WARPS *WARP, size <= 64 ? 2 : 1)                                 \
        attention_backward_queries_tiles_##size(struct attention_gradient g) {                                         \
        backward_queries<size>(g);                                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(TILE_WARPS *WARP, size <= 64 ? 2 : 1)                                 \
        attention_backward_keys_tiles_##size(struct attention_gradient g) {                                            \
        backward_keys<size>(g);                                                                                        \
    }
ATTENTION_TILE_SIZES(KERNEL)
