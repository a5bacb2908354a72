/* Attention over the pages of the KV cache, or over a batch's rows in the same order. The lanes of a warp read the
 * units of keys together, a token each, and then those of a value, a feature each.
 *
 * A sequence is cut into parts of 384 tokens at fixed places. A row's softmax over each part is merged with the others
 * in their order. Few rows have a block for each part; many rows have one that takes the parts in turns. Both compute
 * the same sums, so the bits of a row depend only on its query and its tokens. */
#include "cuda/kv_tokens.cuh"
#include "cuda/paged_attention.h"

/* A query row and head, the tokens from .. to - 1 that it sees, and its features from `feature` on. */
template <class A> struct query {
    int64_t row;
    int head, kv_head, feature, from, to;
    tokens_of<A> tokens; /* of its sequence */
};

template <class A>
static __device__ __forceinline__ query<A> query_at(const A &a, int64_t row, int kv_head, int feature) {
    int to = position_of(a, row) + 1, from = a.window && to > a.window ? to - (int)a.window : 0;
    return {row, 0, kv_head, feature, from, to, tokens_at(a, sequence_of(a, row))};
}

/* The softmax over some tokens, and this lane's features of the weighted values, not yet divided by the total. */
template <int FEATURES> struct attended {
    float largest = -INFINITY, total = 0; /* the same in all lanes */
    float sums[FEATURES] = {};
};

/* The beginning of a row's sums. They stay 0 over a total of 1 if the row sees nothing. */
template <int FEATURES, class A> static __device__ __forceinline__ attended<FEATURES> begin(const query<A> &w) {
    attended<FEATURES> all;
    all.total = w.to ? 0 : 1;
    return all;
}

/* Both are multiplied to the same largest score. The products and sums are explicit, so that no compiler joins them in
 * different ways in different kernels. */
template <int FEATURES>
static __device__ __forceinline__ void merge(attended<FEATURES> &all, const attended<FEATURES> &part, float scale2) {
    float highest = fmaxf(all.largest, part.largest);
    float before = power_of_two((all.largest - highest) * scale2),
          now = power_of_two((part.largest - highest) * scale2);
    all.largest = highest;
    all.total = fmaf(all.total, before, __fmul_rn(part.total, now));
#pragma unroll
    for (int i = 0; i < FEATURES; i++)
        all.sums[i] = fmaf(all.sums[i], before, __fmul_rn(part.sums[i], now));
}

/* Computes one part of the row's tokens, 32 at a time. */
template <class T, int FEATURES, class A>
static __device__ __forceinline__ attended<FEATURES> attend_part(const A &a, const query<A> &w, int part) {
    int size = a.head_size, begin = part * PAGED_PART_TOKENS, end = min(begin + PAGED_PART_TOKENS, w.to);
    const T *q = (const T *)a.q + w.row * a.q_stride + (int64_t)w.head * size;
    auto head = head_at<T>(a, w.tokens, w.kv_head);
    softmax row;
    attended<FEATURES> all;
    begin = max(begin, w.from);
    for (int first = begin / WARP * WARP; first < end; first += WARP) {
        int token = first + lane_number(), page = 0;
        float weight = -INFINITY;
        if (token >= begin && token < end) {
            page = head.page(token);
            weight = head.score(q, page, token);
        }
        float rescale = row.take(weight, a.scale * LOG2_E);
#pragma unroll
        for (int i = 0; i < FEATURES; i++)
            all.sums[i] *= rescale;
        for (int t = max(first, begin); t < min(first + WARP, end); t++) {
            float share = __shfl_sync(~0u, weight, t - first);
            const T *value = head.value(__shfl_sync(~0u, page, t - first), t);
#pragma unroll
            for (int i = 0; i < FEATURES; i++) {
                int d = w.feature + i * WARP + lane_number();
                if (d < size)
                    all.sums[i] = fmaf(share, to_float(value[d * head.VALUE_STEP]), all.sums[i]);
            }
        }
    }
    all.largest = row.largest;
    all.total = warp_sum(row.total);
    return all;
}

template <class T, int FEATURES, class A>
static __device__ __forceinline__ void write_out(const A &a, const query<A> &w, const attended<FEATURES> &all) {
    T *out = (T *)a.out + w.row * a.out_stride + (int64_t)w.head * a.head_size;
#pragma unroll
    for (int i = 0; i < FEATURES; i++) {
        int d = w.feature + i * WARP + lane_number();
        if (d < a.head_size)
            from_float(all.sums[i] * (1.0f / all.total), out[d]);
    }
    if (w.feature == 0 && lane_number() == 0)
        write_lse(a, w.row, w.head, all.largest, all.total);
}

/* Calls `each` with the query heads of the block's row and key/value head that this warp takes. */
template <class A, class F> static __device__ __forceinline__ void each_head(const A &a, unsigned block, F each) {
    unsigned slabs = attention_slabs(a.head_size), rest = block % (a.kv_heads * slabs);
    int group = a.heads / a.kv_heads;
    query<A> w =
        query_at(a, block / (a.kv_heads * slabs), (int)(rest / slabs), (int)(rest % slabs) * ATTENTION_FEATURES);
    for (int i = threadIdx.x / WARP; i < group; i += blockDim.x / WARP) {
        w.head = w.kv_head * group + i;
        each(w);
    }
}

/* ---- many rows ---- */

template <class T, int FEATURES, class A> static __device__ void attend(const A &a) {
    each_head(a, blockIdx.x, [&](const query<A> &w) {
        attended<FEATURES> all = begin<FEATURES>(w);
        for (int part = w.from / PAGED_PART_TOKENS; part * PAGED_PART_TOKENS < w.to; part++)
            merge(all, attend_part<T, FEATURES>(a, w, part), a.scale * LOG2_E);
        write_out<T>(a, w, all);
    });
}

/* ---- few rows ---- */

using paged_query = query<struct paged_attention>;

static __device__ __forceinline__ float *part_at(const struct paged_parts &p, const paged_query &w, int part) {
    return p.result + ((w.row * p.a.heads + w.head) * p.count + part) * (p.a.head_size + 2);
}

/* Blocks of parts that the row does not see have no work. */
template <class T, int FEATURES> static __device__ void attend_parts(const struct paged_parts &p) {
    int part = (int)(blockIdx.x % p.count);
    each_head(p.a, blockIdx.x / p.count, [&](const paged_query &w) {
        if (part < w.from / PAGED_PART_TOKENS || part * PAGED_PART_TOKENS >= w.to)
            return;
        attended<FEATURES> one = attend_part<T, FEATURES>(p.a, w, part);
        float *result = part_at(p, w, part);
        if (lane_number() == 0 && w.feature == 0) {
            result[0] = one.largest;
            result[1] = one.total;
        }
#pragma unroll
        for (int i = 0; i < FEATURES; i++) {
            int d = w.feature + i * WARP + lane_number();
            if (d < p.a.head_size)
                result[2 + d] = one.sums[i];
        }
    });
}

template <class T, int FEATURES> static __device__ void merge_parts(const struct paged_parts &p) {
    each_head(p.a, blockIdx.x, [&](const paged_query &w) {
        attended<FEATURES> all = begin<FEATURES>(w), one;
#pragma unroll 4
        for (int part = w.from / PAGED_PART_TOKENS; part * PAGED_PART_TOKENS < w.to; part++) {
            const float *result = part_at(p, w, part);
            one.largest = result[0];
            one.total = result[1];
#pragma unroll
            for (int i = 0; i < FEATURES; i++) {
                int d = w.feature + i * WARP + lane_number();
                one.sums[i] = d < p.a.head_size ? result[2 + d] : 0;
            }
            merge(all, one, p.a.scale * LOG2_E);
        }
        write_out<T>(p.a, w, all);
    });
}

/* ---- kernels ---- */

template <class T, class A> static __device__ void paged(const A &a) {
    WITH_FEATURES(a.head_size, attend, a);
}
template <class T> static __device__ void paged_by_parts(const struct paged_parts &p) {
    WITH_FEATURES(p.a.head_size, attend_parts, p);
}
template <class T> static __device__ void paged_merge(const struct paged_parts &p) {
    WITH_FEATURES(p.a.head_size, merge_parts, p);
}

#define KERNEL(name, arguments, function)                                                                              \
    extern "C" __global__ void __launch_bounds__(PAGED_WARPS *WARP, 2) name##_fp32(arguments a) {                      \
        wait_for_kernels_before();                                                                                     \
        function<float>(a);                                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(PAGED_WARPS *WARP, 2) name##_bf16(arguments a) {                      \
        wait_for_kernels_before();                                                                                     \
        function<bf16>(a);                                                                                             \
    }
KERNEL(attention_forward_pages, struct attention, paged)
KERNEL(paged_attention, struct paged_attention, paged)
KERNEL(paged_attention_parts, struct paged_parts, paged_by_parts)
KERNEL(paged_attention_merge, struct paged_parts, paged_merge)
