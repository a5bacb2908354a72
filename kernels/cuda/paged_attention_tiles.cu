/* Attention over the pages of the KV cache in bf16, by tensor cores. paged_attention.cu says how a sequence is cut into
 * parts, and has the other kernels.
 *
 * A warp takes up to 16 pairs of a query row and a query head. The pairs share a sequence and a key/value head, so the
 * warp reads each page once for all of them. The order inside a page is that of the fragments: a unit of keys is two
 * features of a token, and a unit of values two tokens of a feature. Lanes read them from memory as they are.
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
        int32_t sequence = a.sequence[row];
        int before = (int)(row % most);
        pages = a.page_table + sequence * a.max_pages;
        if (before > 0 && a.sequence[row - 1] == sequence)
            return false;
        for (rows = 1; rows < most - before && row + rows < a.rows && a.sequence[row + rows] == sequence;)
            rows++;
        return true;
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
    /* As merge() of paged_attention.cu; a part that a pair does not see changes nothing. */
    __device__ __forceinline__ void merge(const attended &part, float scale2) {
        float before[2], now[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float &largest = softmax.largest[i], &total = softmax.total[i];
            float highest = fmaxf(largest, part.softmax.largest[i]), base = highest == -INFINITY ? 0 : highest;
            before[i] = power_of_two((largest - base) * scale2);
            now[i] = power_of_two((part.softmax.largest[i] - base) * scale2);
            largest = highest;
            total = fmaf(total, before[i], __fmul_rn(part.softmax.total[i], now[i]));
        }
#pragma unroll
        for (int n = 0; n < FEATURES / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[n][e] = fmaf(sums[n][e], before[e / 2], __fmul_rn(part.sums[n][e], now[e / 2]));
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

    __device__ __forceinline__ void take_part(const struct paged_attention &a, attended<FEATURES> &part, int number) {
        int begin = max(number * PAGED_PART_TOKENS, w.from), end = min((number + 1) * PAGED_PART_TOKENS, w.to);
        part.clear();
#pragma unroll 1
        for (int first = begin / KV_PAGE_TOKENS * KV_PAGE_TOKENS; first < end; first += KV_PAGE_TOKENS)
            if (seen.sees_all(first, KV_PAGE_TOKENS))
                take<false>(a, part, first);
            else
                take<true>(a, part, first);
        part.softmax.join_total();
    }

    /* Calls put(i, d, sum) for each sum of this lane's pairs. */
    template <class F> __device__ __forceinline__ void each_sum(const attended<FEATURES> &all, int size, F put) const {
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int n = 0; n < FEATURES / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int d = w.feature + n * 8 + lane_number() % 4 * 2 + e;
                    if (w.has(i) && d < size)
                        put(i, d, all.sums[n][2 * i + e]);
                }
    }
    __device__ __forceinline__ void write_part(const struct paged_parts &p, const attended<FEATURES> &part,
                                               int number) const {
        const struct paged_attention &a = p.a;
        float *result[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            result[i] = p.result + ((w.row_of(i) * a.heads + w.head_of(i)) * p.count + number) * (a.head_size + 2);
            if (w.has(i) && w.feature == 0 && lane_number() % 4 == 0) {
                result[i][0] = part.softmax.largest[i];
                result[i][1] = part.softmax.total[i];
            }
        }
        each_sum(part, a.head_size, [&](int i, int d, float sum) { result[i][2 + d] = sum; });
    }
    __device__ __forceinline__ void write_out(const struct paged_attention &a, const attended<FEATURES> &all) const {
        each_sum(all, a.head_size, [&](int i, int d, float sum) {
            bf16 *out = (bf16 *)a.out + w.row_of(i) * a.out_stride + (int64_t)w.head_of(i) * a.head_size;
            from_float(sum * (1.0f / all.softmax.total[i]), out[d]);
        });
    }
};

/* One part where there is memory for results of parts, and else all parts of the sequence. */
template <int SIZE> static __device__ __forceinline__ void paged_tiles(const struct paged_parts &p) {
    constexpr int FEATURES = PAGED_TILE_FEATURES(SIZE);
    const struct paged_attention &a = p.a;
    unsigned parts = p.result ? p.count : 1;
    int number = (int)(blockIdx.x % parts);
    warp_pages<SIZE> warp;
    attended<FEATURES> part, all;
    if (!warp.w.open(a, blockIdx.x / parts, (a.head_size + FEATURES - 1) / FEATURES, FEATURES))
        return;
    warp.seen = warp.w.seen_by_warp(a);
    warp.load_queries(a);
    if (p.result) {
        if (number < warp.w.from / PAGED_PART_TOKENS || number * PAGED_PART_TOKENS >= warp.w.to)
            return;
        warp.take_part(a, part, number);
        warp.write_part(p, part, number);
        return;
    }
    all.clear();
    if (warp.w.to == 0) /* rows that see nothing */
        all.softmax.total[0] = all.softmax.total[1] = 1;
#pragma unroll 1
    for (number = warp.w.from / PAGED_PART_TOKENS; number * PAGED_PART_TOKENS < warp.w.to; number++) {
        warp.take_part(a, part, number);
        all.merge(part, a.scale * LOG2_E);
    }
    warp.write_out(a, all);
}

#define KERNEL(size)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(WARP) paged_attention_tiles_##size(struct paged_parts p) {            \
        paged_tiles<size>(p);                                                                                          \
    }
PAGED_TILE_SIZES(KERNEL)
