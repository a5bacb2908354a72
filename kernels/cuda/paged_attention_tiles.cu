/* Attention by tensor cores in bf16: over the pages of the KV cache, or over a batch's rows in the same order. The file
 * paged_attention.cu says how a sequence is cut into parts, and has the other kernels.
 *
 * A block takes up to 16 pairs of a query row and a query head. The pairs share a sequence and a key/value head, so the
 * block reads each page once for all of them. A team of four warps shares a part: each warp takes every fourth page.
 * The warps' results are joined in order, and then those of the parts. Few blocks have several teams, which take parts
 * at the same time. Pages come to the second-level cache while the kernels before this one run. The order inside a page
 * is that of the fragments: a unit of keys is two features of a token, and a unit of values two tokens of a feature.
 * Lanes read them from memory as they are.
 *
 * A pair's bits depend neither on the other pairs nor on the pages that it does not see: these change no sum of it. */
#include "cuda/attention_tiles.cuh"
#include "cuda/kv_tokens.cuh"
#include "cuda/paged_attention.h"

/* Pairs of `rows` rows from `row` on with `heads` query heads from `head` on. They see parts before `end`. */
struct rows_and_heads {
    int row, rows, head, heads, end;
};

/* The pairs of a block. They see tokens from .. to - 1; the block computes features from `feature` on. */
template <class A> struct pairs : rows_and_heads {
    int kv_head, feature, from, to;
    tokens_of<A> tokens;

    /* Returns false where the row's pairs are another warp's: a warp has neighbouring rows of one sequence. */
    __device__ __forceinline__ bool open(const A &a, unsigned block, int slabs, int features) {
        int group = a.heads / a.kv_heads, together = min(group, PAGED_PAIRS), most = PAGED_PAIRS / together;
        unsigned tiles = (group + together - 1) / together;
        feature = (int)(block % slabs) * features;
        int tile = (int)(block / slabs % tiles);
        kv_head = (int)(block / slabs / tiles % a.kv_heads);
        row = (int)(block / slabs / tiles / a.kv_heads);
        head = kv_head * group + tile * together;
        heads = min(together, group - tile * together);
        int before = row % most, lane = lane_number();
        bool is_row = lane < most && row - before + lane < a.rows;
        int own = is_row ? sequence_of(a, row - before + lane) : -1, sequence = __shfl_sync(~0u, own, before);
        uint32_t same = __ballot_sync(~0u, is_row && own == sequence);
        tokens = tokens_at(a, sequence);
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
    __device__ __forceinline__ seen_columns seen_by_warp(const A &a) {
        seen_columns seen;
        seen.prefix = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int position = position_of(a, has(i) ? row_of(i) : row);
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

/* Results of a team's warps on their way to the warps that join them. */
template <int FEATURES> struct passed {
    float largest[PAGED_TILE_WARPS][PAGED_PAIRS], total[PAGED_TILE_WARPS][PAGED_PAIRS];
    float sums[PAGED_TILE_WARPS][PAGED_PAIRS][FEATURES + 8]; /* 8: rows are in different banks */

    __device__ __forceinline__ void put(const attended<FEATURES> &own, int pairs) {
        int warp = (int)threadIdx.x / WARP % PAGED_TILE_WARPS, g = lane_number() / 4, t = lane_number() % 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int pair = g + 8 * i;
            if (pair >= pairs)
                continue;
            if (t == 0) {
                largest[warp][pair] = own.softmax.largest[i];
                total[warp][pair] = own.softmax.total[i];
            }
#pragma unroll
            for (int n = 0; n < FEATURES / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    sums[warp][pair][n * 8 + t * 2 + e] = own.sums[n][2 * i + e];
        }
    }
};

/* As attended, but of one pair, and a lane has every 32nd feature. */
template <int FEATURES> struct joined {
    static constexpr int PASSES = FEATURES / WARP;
    float largest, total, sums[PASSES];

    /* As merge() of paged_attention.cu; a part that a pair does not see changes nothing. */
    __device__ __forceinline__ void merge(const joined &part, float scale2) {
        float highest = fmaxf(largest, part.largest), base = highest == -INFINITY ? 0 : highest;
        float before = power_of_two((largest - base) * scale2), now = power_of_two((part.largest - base) * scale2);
        largest = highest;
        total = fmaf(total, before, __fmul_rn(part.total, now));
#pragma unroll
        for (int n = 0; n < PASSES; n++)
            sums[n] = fmaf(sums[n], before, __fmul_rn(part.sums[n], now));
    }

    /* Adds the results of a team's warps, in their order. Those of tokens that a pair does not see change nothing. */
    __device__ __forceinline__ void join(const passed<FEATURES> &from, int pair, float scale2) {
        largest = -INFINITY;
        total = 0;
#pragma unroll
        for (int w = 0; w < PAGED_TILE_WARPS; w++)
            largest = fmaxf(largest, from.largest[w][pair]);
        float base = largest == -INFINITY ? 0 : largest;
#pragma unroll
        for (int n = 0; n < PASSES; n++)
            sums[n] = 0;
#pragma unroll
        for (int w = 0; w < PAGED_TILE_WARPS; w++) {
            if (from.total[w][pair] == 0)
                continue;
            float now = power_of_two((from.largest[w][pair] - base) * scale2);
            total = fmaf(from.total[w][pair], now, total);
#pragma unroll
            for (int n = 0; n < PASSES; n++)
                sums[n] = fmaf(from.sums[w][pair][n * WARP + lane_number()], now, sums[n]);
        }
    }
};

/* The results of a block's pairs so far. A warp has the same pairs at all times. Registers are scarce, so the
 * numbers that are needed again at the end lie here, too. */
template <int FEATURES> struct kept {
    rows_and_heads pairs;
    float largest[PAGED_PAIRS], total[PAGED_PAIRS], sums[PAGED_PAIRS][FEATURES];

    __device__ __forceinline__ void put(int pair, const joined<FEATURES> &all) {
        if (lane_number() == 0) {
            largest[pair] = all.largest;
            total[pair] = all.total;
        }
#pragma unroll
        for (int n = 0; n < joined<FEATURES>::PASSES; n++)
            sums[pair][n * WARP + lane_number()] = all.sums[n];
        __syncwarp();
    }
    __device__ __forceinline__ joined<FEATURES> of(int pair) const {
        joined<FEATURES> all;
        all.largest = largest[pair];
        all.total = total[pair];
#pragma unroll
        for (int n = 0; n < joined<FEATURES>::PASSES; n++)
            all.sums[n] = sums[pair][n * WARP + lane_number()];
        return all;
    }
};

/* The unit of two features from `d` on of a pair's query; zero past the head. */
template <class A> static __device__ __forceinline__ uint32_t query_unit(const A &a, const pairs<A> &w, int i, int d) {
    const bf16 *q = (const bf16 *)a.q + w.row_of(i) * a.q_stride + (int64_t)w.head_of(i) * a.head_size + d;
    return !w.has(i) || d >= a.head_size ? 0 : two_features(q);
}

template <class A, int SIZE> struct warp_pages {
    static constexpr int STEPS = SIZE / 16, FEATURES = PAGED_TILE_FEATURES(SIZE), KEPT = SIZE <= 64 ? STEPS : 1;

    pairs<A> w;
    seen_columns seen;
    uint32_t q[KEPT][4];

    __device__ __forceinline__ void load_query(const A &a, uint32_t (&to)[4], int step) const {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = query_unit(a, w, i % 2, step * 16 + i / 2 * 8 + lane_number() % 4 * 2);
    }
    __device__ __forceinline__ void load_queries(const A &a) {
#pragma unroll
        for (int k = 0; k < STEPS && KEPT > 1; k++)
            load_query(a, q[k], k);
    }

    /* Tokens past the last that a pair sees have no scores, and nobody reads them. */
    template <bool EDGE>
    __device__ __forceinline__ void scores(const A &a, float (&s)[2][4], const page_of<A> &page, int first) {
        int g = lane_number() / 4, t = lane_number() % 4, units = a.head_size / 2;
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
                uint32_t low = is_there && u < units ? page.key_unit(n * 8 + g, u) : 0;
                uint32_t high = is_there && u + 4 < units ? page.key_unit(n * 8 + g, u + 4) : 0;
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
    __device__ __forceinline__ uint32_t value_unit(const page_of<A> &page, int first, int token, int d,
                                                   int size) const {
        if (d >= size || (EDGE && first + token >= w.to))
            return 0;
        return EDGE && first + token + 1 >= w.to ? page.value(token, d).bits : page.value_unit(token, d);
    }

    template <bool EDGE>
    __device__ __forceinline__ void add_values(attended<FEATURES> &part, const float (&s)[2][4], const page_of<A> &page,
                                               int first, int size) const {
        const uint32_t p[4] = {pack_two(s[0][0], s[0][1]), pack_two(s[0][2], s[0][3]), pack_two(s[1][0], s[1][1]),
                               pack_two(s[1][2], s[1][3])};
        uint32_t found = 0;
#pragma unroll
        for (int n = 0; n < FEATURES / 8; n++) {
            int d = w.feature + n * 8 + lane_number() / 4, token = lane_number() % 4 * 2;
            uint32_t low = value_unit<EDGE>(page, first, token, d, size);
            uint32_t high = value_unit<EDGE>(page, first, token + 8, d, size);
            if (EDGE)
                found |= zero_if_not_finite(low) | zero_if_not_finite(high);
            multiply(part.sums[n], p, low, high);
        }
        if (EDGE && __any_sync(~0u, found != 0))
            add_values_not_finite(part, page, first, size);
    }

    /* Adds the values that zero_if_not_finite took, to pairs that see them. */
    __device__ __forceinline__ void add_values_not_finite(attended<FEATURES> &part, const page_of<A> &page, int first,
                                                          int size) const {
#pragma unroll 1
        for (int token = 0; token < KV_PAGE_TOKENS && first + token < w.to; token++)
#pragma unroll
            for (int n = 0; n < FEATURES / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int d = w.feature + n * 8 + lane_number() % 4 * 2 + e % 2;
                    float value = d < size ? to_float(page.value(token, d)) : 0;
                    if (!is_finite(value) && seen.sees(e / 2, first + token))
                        part.sums[n][e] += value;
                }
    }

    template <bool EDGE> __device__ __forceinline__ void take(const A &a, attended<FEATURES> &part, int first) {
        page_of<A> page = page_at(a, w.tokens, w.kv_head, first);
        float s[2][4];
        scores<EDGE>(a, s, page, first);
        part.softmax.template take<false>(s, part.sums, a.scale * LOG2_E);
        add_values<EDGE>(part, s, page, first, a.head_size);
    }

    /* Calls each(first token) for this warp's pages of a part. */
    template <class F> __device__ __forceinline__ void each_page(int number, F each) const {
        int start = number * PAGED_PART_TOKENS, end = min(start + PAGED_PART_TOKENS, w.to);
        int page = max(start, w.from) / KV_PAGE_TOKENS;
        page += ((int)threadIdx.x / WARP - page) & (PAGED_TILE_WARPS - 1);
#pragma unroll 1
        for (int first = page * KV_PAGE_TOKENS; first < end; first += PAGED_TILE_WARPS * KV_PAGE_TOKENS)
            each(first);
    }

    /* Asks for the keys and values of this warp's pages of a part. */
    __device__ __forceinline__ void fetch_part(const A &a, int number) const {
        each_page(number, [&](int first) { page_at(a, w.tokens, w.kv_head, first).fetch(lane_number()); });
    }

    /* This warp's tokens of a part. */
    __device__ __forceinline__ void take_part(const A &a, attended<FEATURES> &own, int number) {
        own.clear();
        each_page(number, [&](int first) {
            if (seen.sees_all(first, KV_PAGE_TOKENS))
                take<false>(a, own, first);
            else
                take<true>(a, own, first);
        });
        own.softmax.join_total();
    }
};

/* Calls each(pair) for the pairs that this warp joins. */
template <class F> static __device__ __forceinline__ void each_pair(const rows_and_heads &w, F each) {
#pragma unroll 1
    for (int pair = (int)threadIdx.x / WARP; pair < w.rows * w.heads; pair += (int)blockDim.x / WARP)
        each(pair, w.row + pair / w.heads, w.head + pair % w.heads);
}

template <int FEATURES>
static __device__ __forceinline__ void write_part(float *result, int feature, int size, const joined<FEATURES> &part) {
    if (feature == 0 && lane_number() == 0) {
        result[0] = part.largest;
        result[1] = part.total;
    }
#pragma unroll
    for (int n = 0; n < joined<FEATURES>::PASSES; n++)
        if (int d = feature + n * WARP + lane_number(); d < size)
            result[2 + d] = part.sums[n];
}

template <int FEATURES>
static __device__ __forceinline__ void write_out(bf16 *out, int feature, int size, const joined<FEATURES> &all) {
#pragma unroll
    for (int n = 0; n < joined<FEATURES>::PASSES; n++)
        if (int d = feature + n * WARP + lane_number(); d < size)
            from_float(all.sums[n] * (1.0f / all.total), out[d]);
}

/* The parts of a block, which are all where `blocks` is 1. Their results go to result[N, H, count, 2 + D] if there is
 * memory for those. */
template <int SIZE, class A>
static __device__ __forceinline__ void paged_tiles(const A &a, int blocks, int count, float *result) {
    constexpr int FEATURES = PAGED_TILE_FEATURES(SIZE);
    extern __shared__ char shared[];
    static_assert(sizeof(passed<FEATURES>) == PAGED_TEAM_BYTES(FEATURES), "the launch gives this much to a team");
    static_assert(sizeof(kept<FEATURES>) == PAGED_PAIR_BYTES(FEATURES), "and this much to the pairs");
    float scale2 = a.scale * LOG2_E;
    int teams = (int)blockDim.x / (PAGED_TILE_WARPS * WARP), team = (int)threadIdx.x / (PAGED_TILE_WARPS * WARP);
    int block = (int)(blockIdx.x % blocks);
    passed<FEATURES> *results = (passed<FEATURES> *)shared;
    kept<FEATURES> &all = *(kept<FEATURES> *)(results + teams);
    warp_pages<A, SIZE> warp;
    attended<FEATURES> own;
    let_next_begin();
    if (!warp.w.open(a, blockIdx.x / blocks, SIZE == FEATURES ? 1 : (a.head_size + FEATURES - 1) / FEATURES, FEATURES))
        return;
    warp.seen = warp.w.seen_by_warp(a);
    int first = warp.w.from / PAGED_PART_TOKENS + block * teams;
    warp.w.end = (warp.w.to + PAGED_PART_TOKENS - 1) / PAGED_PART_TOKENS;
    if (block > 0 && first >= warp.w.end)
        return;
    warp.fetch_part(a, first + team);
    wait_for_last(); /* which writes neither numbers of pages nor those of rows */
    warp.load_queries(a);
    each_pair(warp.w, [&](int pair, int, int) {
        all.put(pair, {-INFINITY, warp.w.to ? 0.0f : 1.0f}); /* 1: rows that see nothing */
    });
    if (threadIdx.x == 0)
        all.pairs = warp.w;
    __syncthreads();
#pragma unroll 1
    for (; first < all.pairs.end; first += blocks * teams) {
        warp.fetch_part(a, first + blocks * teams + team);
        warp.take_part(a, own, first + team);
        __syncthreads(); /* the results before these have been read */
        results[team].put(own, all.pairs.rows * all.pairs.heads);
        __syncthreads();
        each_pair(all.pairs, [&](int pair, int row, int head) {
            joined<FEATURES> sum = all.of(pair), part;
#pragma unroll 1
            for (int i = 0; i < teams && first + i < all.pairs.end; i++) {
                part.join(results[i], pair, scale2);
                int64_t at = ((int64_t)row * a.heads + head) * count + first + i;
                if (result)
                    write_part(result + at * (a.head_size + 2), warp.w.feature, a.head_size, part);
                else
                    sum.merge(part, scale2);
            }
            all.put(pair, sum);
        });
    }
    if (!result)
        each_pair(all.pairs, [&](int pair, int row, int head) {
            bf16 *out = (bf16 *)a.out + row * a.out_stride + (int64_t)head * a.head_size;
            write_out(out, warp.w.feature, a.head_size, all.of(pair));
            if (warp.w.feature == 0 && lane_number() == 0)
                write_lse(a, row, head, all.largest[pair], all.total[pair]);
        });
}

#define BOUNDS(size) __launch_bounds__(PAGED_TILE_TEAMS(size) * PAGED_TILE_WARPS * WARP, 1)
#define KERNELS(size)                                                                                                  \
    extern "C" __global__ void BOUNDS(size)                                                                            \
        paged_attention_tiles_##size(const __grid_constant__ struct paged_parts p) {                                   \
        paged_tiles<size>(p.a, p.blocks, p.count, p.result);                                                           \
    }                                                                                                                  \
    extern "C" __global__ void BOUNDS(size)                                                                            \
        attention_forward_pages_##size(const __grid_constant__ struct attention a) {                                   \
        paged_tiles<size>(a, 1, 1, NULL);                                                                              \
    }
PAGED_TILE_SIZES(KERNELS)
