/* Attention over the pages of the KV cache in bf16, by tensor cores. paged_attention.cu says how a sequence is cut into
 * parts, and has the other kernels.
 *
 * A block takes up to 16 pairs of a query row and a query head. The pairs share a sequence and a key/value head, so the
 * block reads each page once for all of them. Each of its warps takes 128 tokens of a part, and their results are
 * joined in order. The order inside a page is that of the fragments: a unit of keys is two features of a token, and a
 * unit of values two tokens of a feature. Lanes read them from memory as they are.
 *
 * A pair's bits depend neither on the other pairs nor on the pages that it does not see: these change no sum of it. */
#include "cuda/attention_tiles.cuh"
#include "cuda/kv_page.cuh"
#include "cuda/paged_attention.h"

/* The pairs of a warp: of `rows` rows from `row` on with `heads` query heads from `head` on. They see tokens
 * from .. to - 1; the block computes features from `feature` on. */
struct pairs {
    int64_t row;
    int rows, head, heads, kv_head, feature, from, to;
    const int32_t *pages;

    /* Returns false where the row's pairs are another warp's: a warp has neighbouring rows of one sequence. */
    __device__ __forceinline__ bool open(const struct paged_attention &a, unsigned block, int slabs, int features) {
        int group = a.heads / a.kv_heads, together = min(group, PAGED_PAIRS), most = PAGED_PAIRS / together;
        unsigned tiles = (group + together - 1) / together;
        feature = (int)(block % slabs) * features;
        int tile = (int)(block / slabs % tiles);
        kv_head = (int)(block / slabs / tiles % a.kv_heads);
        row = block / slabs / tiles / a.kv_heads;
        head = kv_head * group + tile * together;
        heads = min(together, group - tile * together);
        int before = (int)(row % most), lane = lane_number();
        bool is_row = lane < most && row - before + lane < a.rows;
        int32_t own = is_row ? a.sequence[row - before + lane] : -1, sequence = __shfl_sync(~0u, own, before);
        uint32_t same = __ballot_sync(~0u, is_row && own == sequence);
        pages = a.page_table + sequence * a.max_pages;
        rows = __ffs((int)~(same >> before)) - 1;
        return before == 0 || !(same >> (before - 1) & 1);
    }
    /* This lane's pairs g and g + 8. */
    __device__ __forceinline__ bool has(int i) const {
        return lane_number() / 4 + i * 8 < rows * heads;
    }
    __device__ __forceinline__ int64_t row_of(int i) const {
        return row + (lane_number() / 4 + i * 8) / heads;
    }
    __device__ __forceinline__ int head_of(int i) const {
        return head + (lane_number() / 4 + i * 8) % heads;
    }
    /* The tokens that they see. A pair that does not exist sees those of the first row. */
    __device__ __forceinline__ seen_columns seen_by_warp(const struct paged_attention &a) {
        seen_columns seen;
        seen.prefix = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int position = a.position[has(i) ? row_of(i) : row];
            seen.high[i] = position;
            seen.low[i] = a.window && position + 1 > a.window ? position + 1 - (int)a.window : 0;
        }
        seen.join_warp();
        from = seen.low_least;
        to = seen.high_most + 1;
        return seen;
    }
};

/* The softmax of the lane's pairs over some tokens, and the sums of weighted values, not yet divided by the totals. */
template <int FEATURES> struct attended {
    row_softmax softmax;
    float sums[FEATURES / 8][4];

    __device__ __forceinline__ void clear() {
        softmax.clear();
#pragma unroll
        for (int n = 0; n < FEATURES / 8; n++)
            sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
    }
};

/* Results of warps on their way to the warps that join them: of all pairs, 32 features at a time. */
struct passed {
    float largest[PAGED_TILE_WARPS][PAGED_PAIRS], total[PAGED_TILE_WARPS][PAGED_PAIRS];
    float sums[PAGED_TILE_WARPS][PAGED_PAIRS][WARP + 8]; /* 8: rows are in different banks */
};

/* As attended, but of pair `warp` and every PAGED_TILE_WARPS-th one, and a lane has every 32nd feature. */
template <int FEATURES> struct joined {
    static constexpr int PAIRS = PAGED_PAIRS / PAGED_TILE_WARPS, PASSES = FEATURES / WARP;
    float largest[PAIRS], total[PAIRS], sums[PAIRS][PASSES];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            largest[i] = -INFINITY;
            total[i] = 0;
#pragma unroll
            for (int n = 0; n < PASSES; n++)
                sums[i][n] = 0;
        }
    }
    /* As merge() of paged_attention.cu; a part that a pair does not see changes nothing. */
    __device__ __forceinline__ void merge(const joined &part, float scale2) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            float highest = fmaxf(largest[i], part.largest[i]), base = highest == -INFINITY ? 0 : highest;
            float before = power_of_two((largest[i] - base) * scale2);
            float now = power_of_two((part.largest[i] - base) * scale2);
            largest[i] = highest;
            total[i] = fmaf(total[i], before, __fmul_rn(part.total[i], now));
#pragma unroll
            for (int n = 0; n < PASSES; n++)
                sums[i][n] = fmaf(sums[i][n], before, __fmul_rn(part.sums[i][n], now));
        }
    }

    /* Adds the warps' results of pair `pair`, in their order. Those of tokens that it does not see change nothing. */
    __device__ __forceinline__ void add_warps(const passed &from, int i, int pair, int pass, float scale2) {
        float highest = -INFINITY, all = 0, sum = 0;
#pragma unroll
        for (int w = 0; w < PAGED_TILE_WARPS; w++)
            highest = fmaxf(highest, from.largest[w][pair]);
        float base = highest == -INFINITY ? 0 : highest;
#pragma unroll
        for (int w = 0; w < PAGED_TILE_WARPS; w++) {
            if (from.total[w][pair] == 0)
                continue;
            float now = power_of_two((from.largest[w][pair] - base) * scale2);
            all = fmaf(from.total[w][pair], now, all);
            sum = fmaf(from.sums[w][pair][lane_number()], now, sum);
        }
        largest[i] = highest;
        total[i] = all;
        sums[i][pass] = sum;
    }

    /* Joins the warps' results. The whole block calls it. */
    __device__ __forceinline__ void join(const attended<FEATURES> &own, passed &shared, int pairs, float scale2) {
        int warp = threadIdx.x / WARP, g = lane_number() / 4, t = lane_number() % 4;
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            __syncthreads(); /* the results before these have been read */
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (pass == 0 && t == 0) {
                    shared.largest[warp][g + 8 * i] = own.softmax.largest[i];
                    shared.total[warp][g + 8 * i] = own.softmax.total[i];
                }
#pragma unroll
                for (int n = 0; n < 4; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        shared.sums[warp][g + 8 * i][n * 8 + t * 2 + e] = own.sums[pass * 4 + n][2 * i + e];
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < PAIRS; i++)
                if (warp + i * PAGED_TILE_WARPS < pairs)
                    add_warps(shared, i, warp + i * PAGED_TILE_WARPS, pass, scale2);
        }
    }
};

/* The unit of two features from `d` on of a pair's query; zero past the head. */
static __device__ __forceinline__ uint32_t query_unit(const struct paged_attention &a, const pairs &w, int i, int d) {
    const bf16 *q = (const bf16 *)a.q + w.row_of(i) * a.q_stride + (int64_t)w.head_of(i) * a.head_size + d;
    if (!w.has(i) || d >= a.head_size)
        return 0;
    return (uintptr_t)q % 4 == 0 ? *(const uint32_t *)q : q[0].bits | (uint32_t)q[1].bits << 16;
}

template <int SIZE> struct warp_pages {
    static constexpr int STEPS = SIZE / 16, FEATURES = PAGED_TILE_FEATURES(SIZE), KEPT = SIZE <= 64 ? STEPS : 1;

    pairs w;
    seen_columns seen;
    uint32_t q[KEPT][4];

    __device__ __forceinline__ void load_query(const struct paged_attention &a, uint32_t (&to)[4], int step) const {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = query_unit(a, w, i % 2, step * 16 + i / 2 * 8 + lane_number() % 4 * 2);
    }
    __device__ __forceinline__ void load_queries(const struct paged_attention &a) {
#pragma unroll
        for (int k = 0; k < STEPS && KEPT > 1; k++)
            load_query(a, q[k], k);
    }

    /* Tokens past the last that a pair sees have no scores, and nobody reads them. */
    template <bool EDGE>
    __device__ __forceinline__ void scores(const struct paged_attention &a, float (&s)[2][4], const bf16 *keys,
                                           int first) {
        int g = lane_number() / 4, t = lane_number() % 4, units = a.head_size / 2;
        const uint32_t *unit = (const uint32_t *)keys + g;
#pragma unroll
        for (int n = 0; n < 2; n++)
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll(KEPT > 1 ? STEPS : 2)
        for (int k = 0; k < STEPS; k++) {
            uint32_t fresh[4];
            if (KEPT == 1)
                load_query(a, fresh, k);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                bool is_there = !EDGE || first + n * 8 + g < w.to;
                int u = k * 8 + t;
                uint32_t low = is_there && u < units ? unit[u * KV_PAGE_TOKENS + n * 8] : 0;
                uint32_t high = is_there && u + 4 < units ? unit[(u + 4) * KV_PAGE_TOKENS + n * 8] : 0;
                multiply(s[n], KEPT == 1 ? fresh : q[KEPT == 1 ? 0 : k], low, high);
            }
        }
        for (int n = 0; n < 2 && EDGE; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = seen.sees(e / 2, first + n * 8 + t * 2 + e % 2) ? s[n][e] : -INFINITY;
    }

    /* Two tokens of a feature of a page's values. A token that no pair sees is zero. */
    template <bool EDGE>
    __device__ __forceinline__ uint32_t value_unit(const bf16 *values, int first, int token, int d, int size) const {
        const bf16 *unit = values + (token / 2 * size + d) * 2;
        if (d >= size || (EDGE && first + token >= w.to))
            return 0;
        return EDGE && first + token + 1 >= w.to ? unit->bits : *(const uint32_t *)unit;
    }

    template <bool EDGE>
    __device__ __forceinline__ void add_values(attended<FEATURES> &part, const float (&s)[2][4], const bf16 *values,
                                               int first, int size) const {
        const uint32_t p[4] = {pack_two(s[0][0], s[0][1]), pack_two(s[0][2], s[0][3]), pack_two(s[1][0], s[1][1]),
                               pack_two(s[1][2], s[1][3])};
        uint32_t found = 0;
#pragma unroll
        for (int n = 0; n < FEATURES / 8; n++) {
            int d = w.feature + n * 8 + lane_number() / 4, token = lane_number() % 4 * 2;
            uint32_t low = value_unit<EDGE>(values, first, token, d, size);
            uint32_t high = value_unit<EDGE>(values, first, token + 8, d, size);
            if (EDGE)
                found |= zero_if_not_finite(low) | zero_if_not_finite(high);
            multiply(part.sums[n], p, low, high);
        }
        if (EDGE && __any_sync(~0u, found != 0))
            add_values_not_finite(part, values, first, size);
    }

    /* Adds the values that zero_if_not_finite took, to pairs that see them. */
    __device__ __forceinline__ void add_values_not_finite(attended<FEATURES> &part, const bf16 *values, int first,
                                                          int size) const {
#pragma unroll 1
        for (int token = 0; token < KV_PAGE_TOKENS && first + token < w.to; token++)
#pragma unroll
            for (int n = 0; n < FEATURES / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int d = w.feature + n * 8 + lane_number() % 4 * 2 + e % 2;
                    uint32_t bits = d < size ? values[value_place<bf16>(token, d, size)].bits : 0;
                    if (!is_finite(bits) && seen.sees(e / 2, first + token))
                        part.sums[n][e] += bf16_to_float((uint16_t)bits);
                }
    }

    template <bool EDGE>
    __device__ __forceinline__ void take(const struct paged_attention &a, attended<FEATURES> &part, int first) {
        const bf16 *keys = (const bf16 *)a.pages + w.pages[first / KV_PAGE_TOKENS] * a.page_stride +
                           (int64_t)w.kv_head * KV_PAGE_TOKENS * a.head_size;
        float s[2][4];
        scores<EDGE>(a, s, keys, first);
        part.softmax.take<false>(s, part.sums, a.scale * LOG2_E);
        add_values<EDGE>(part, s, keys + (int64_t)a.kv_heads * KV_PAGE_TOKENS * a.head_size, first, a.head_size);
    }

    /* This warp's tokens of a part. */
    __device__ __forceinline__ void take_part(const struct paged_attention &a, attended<FEATURES> &own, int number) {
        constexpr int TOKENS = PAGED_PART_TOKENS / PAGED_TILE_WARPS;
        int start = number * PAGED_PART_TOKENS + (int)threadIdx.x / WARP * TOKENS;
        int begin = max(start, w.from), end = min(start + TOKENS, w.to);
        own.clear();
#pragma unroll 1
        for (int first = begin / KV_PAGE_TOKENS * KV_PAGE_TOKENS; first < end; first += KV_PAGE_TOKENS)
            if (seen.sees_all(first, KV_PAGE_TOKENS))
                take<false>(a, own, first);
            else
                take<true>(a, own, first);
        own.softmax.join_total();
    }

    /* Calls put(row, head, i, n, d) for each feature d of this warp's joined pairs. */
    template <class F> __device__ __forceinline__ void each_joined(int size, F put) const {
#pragma unroll
        for (int i = 0; i < joined<FEATURES>::PAIRS; i++) {
            int pair = (int)threadIdx.x / WARP + i * PAGED_TILE_WARPS;
#pragma unroll
            for (int n = 0; n < joined<FEATURES>::PASSES; n++) {
                int d = w.feature + n * WARP + lane_number();
                if (pair < w.rows * w.heads && d < size)
                    put(w.row + pair / w.heads, w.head + pair % w.heads, i, n, d);
            }
        }
    }
    __device__ __forceinline__ void write_part(const struct paged_parts &p, const joined<FEATURES> &part,
                                               int number) const {
        const struct paged_attention &a = p.a;
        each_joined(a.head_size, [&](int64_t row, int head, int i, int n, int d) {
            float *result = p.result + ((row * a.heads + head) * p.count + number) * (a.head_size + 2);
            if (d == 0) {
                result[0] = part.largest[i];
                result[1] = part.total[i];
            }
            result[2 + d] = part.sums[i][n];
        });
    }
    __device__ __forceinline__ void write_out(const struct paged_attention &a, const joined<FEATURES> &all) const {
        each_joined(a.head_size, [&](int64_t row, int head, int i, int n, int d) {
            bf16 *out = (bf16 *)a.out + row * a.out_stride + (int64_t)head * a.head_size;
            from_float(all.sums[i][n] * (1.0f / all.total[i]), out[d]);
        });
    }
};

/* One part where there is memory for results of parts, and else all parts of the sequence. */
template <int SIZE> static __device__ __forceinline__ void paged_tiles(const struct paged_parts &p) {
    constexpr int FEATURES = PAGED_TILE_FEATURES(SIZE);
    __shared__ passed shared;
    const struct paged_attention &a = p.a;
    float scale2 = a.scale * LOG2_E;
    unsigned parts = p.result ? p.count : 1;
    int number = (int)(blockIdx.x % parts);
    warp_pages<SIZE> warp;
    attended<FEATURES> own;
    joined<FEATURES> part, all;
    if (!warp.w.open(a, blockIdx.x / parts, (a.head_size + FEATURES - 1) / FEATURES, FEATURES))
        return;
    int pairs = warp.w.rows * warp.w.heads;
    warp.seen = warp.w.seen_by_warp(a);
    warp.load_queries(a);
    part.clear();
    all.clear();
#pragma unroll
    for (int i = 0; i < joined<FEATURES>::PAIRS; i++)
        all.total[i] = warp.w.to ? 0 : 1; /* 1: rows that see nothing */
    int first = warp.w.from / PAGED_PART_TOKENS, end = (warp.w.to + PAGED_PART_TOKENS - 1) / PAGED_PART_TOKENS;
    if (p.result) { /* both have one loop, which takes the compiler half as long as two */
        first = max(first, number);
        end = min(end, number + 1);
    }
#pragma unroll 1
    for (number = first; number < end; number++) {
        warp.take_part(a, own, number);
        part.join(own, shared, pairs, scale2);
        if (p.result)
            warp.write_part(p, part, number);
        else
            all.merge(part, scale2);
    }
    if (!p.result)
        warp.write_out(a, all);
}

#define KERNEL(size)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(PAGED_TILE_WARPS *WARP, size <= 64 ? 3 : 2)                           \
        paged_attention_tiles_##size(struct paged_parts p) {                                                           \
        wait_for_kernels_before();                                                                                     \
        paged_tiles<size>(p);                                                                                          \
    }
PAGED_TILE_SIZES(KERNEL)
