/* Keys and values of a sequence, as paged attention reads them: from pages of the KV cache (struct paged_attention), or
 * from a batch's rows after a prefix (struct attention). Tokens have one order in both, so sums have the same bits. The
 * two structs name what they share alike. */
#pragma once

#include "cuda/attention.cuh"
#include "cuda/kv_page.cuh"

enum { FETCHED = 128 }; /* bytes of a line */

/* The sequence of a row, and its position there. */
static __device__ __forceinline__ int sequence_of(const struct paged_attention &a, int64_t row) {
    return a.sequence[row];
}
static __device__ __forceinline__ int sequence_of(const struct attention &a, int64_t row) {
    return (int)segment_of(a, row);
}
static __device__ __forceinline__ int position_of(const struct paged_attention &a, int64_t row) {
    return a.position[row];
}
static __device__ __forceinline__ int position_of(const struct attention &a, int64_t row) {
    return (int)(a.prefix + row - a.segment_start[segment_of(a, row)]);
}

/* Finds a sequence's tokens: its pages, or its first row. */
static __device__ __forceinline__ const int32_t *tokens_at(const struct paged_attention &a, int sequence) {
    return a.page_table + sequence * a.max_pages;
}
static __device__ __forceinline__ int64_t tokens_at(const struct attention &a, int sequence) {
    return a.segment_start[sequence];
}
template <class A> using tokens_of = decltype(tokens_at(*(const A *)0, 0));

/* Only the forward that trains keeps the log-sum-exp. */
static __device__ __forceinline__ void write_lse(const struct paged_attention &, int64_t, int, float, float) {
}
static __device__ __forceinline__ void write_lse(const struct attention &a, int64_t row, int head, float largest,
                                                 float total) {
    if (a.lse)
        a.lse[head * a.rows + row] = largest * a.scale + logf(total);
}

/* ---- token by token ---- */

/* Both add the products of a score in the order of features. */
template <class T> struct paged_head {
    const T *first; /* of page 0 */
    const int32_t *pages;
    int64_t page_stride, values; /* values: elements after the keys */
    int size;
    static constexpr int VALUE_STEP = KV_UNIT<T>;

    __device__ __forceinline__ int page(int token) const {
        return pages[token / KV_PAGE_TOKENS];
    }
    __device__ __forceinline__ float score(const T *q, int page, int token) const {
        constexpr int WIDTH = KV_UNIT<T>;
        const T *keys = first + page * page_stride;
        const pack<T, WIDTH> *units = (const pack<T, WIDTH> *)keys + token % KV_PAGE_TOKENS;
        float sum = 0;
#pragma unroll 4
        for (int u = 0; u < size / WIDTH; u++) {
            pack<T, WIDTH> unit = units[u * KV_PAGE_TOKENS];
#pragma unroll
            for (int k = 0; k < WIDTH; k++)
                sum = fmaf(to_float(q[u * WIDTH + k]), to_float(unit.at[k]), sum);
        }
        if (size % WIDTH) /* the last feature stands by itself */
            sum =
                fmaf(to_float(q[size - 1]), to_float(keys[key_place<T>(token % KV_PAGE_TOKENS, size - 1, size)]), sum);
        return sum;
    }
    __device__ __forceinline__ const T *value(int page, int token) const {
        return first + page * page_stride + values + value_place<T>(token % KV_PAGE_TOKENS, 0, size);
    }
};
template <class T> struct batch_head {
    keys_of<T> keys, values;
    int size;
    static constexpr int VALUE_STEP = 1;

    __device__ __forceinline__ int page(int) const {
        return 0;
    }
    __device__ __forceinline__ float score(const T *q, int, int token) const {
        const T *key = keys.at(token);
        float sum = 0;
#pragma unroll 4
        for (int d = 0; d < size; d++)
            sum = fmaf(to_float(q[d]), to_float(key[d]), sum);
        return sum;
    }
    __device__ __forceinline__ const T *value(int, int token) const {
        return values.at(token);
    }
};

template <class T>
static __device__ __forceinline__ paged_head<T> head_at(const struct paged_attention &a, const int32_t *pages,
                                                        int kv_head) {
    return {(const T *)a.pages + (int64_t)kv_head * KV_PAGE_TOKENS * a.head_size, pages, a.page_stride,
            (int64_t)a.kv_heads * KV_PAGE_TOKENS * a.head_size, a.head_size};
}
template <class T>
static __device__ __forceinline__ batch_head<T> head_at(const struct attention &a, int64_t start, int kv_head) {
    return {head_keys<T>(a, start, kv_head), head_values<T>(a, start, kv_head), a.head_size};
}

/* ---- a page of bf16 for fragments: units of two features of a key, and of two tokens of a value ---- */

/* Two neighbours, whatever their address. */
static __device__ __forceinline__ uint32_t two_features(const bf16 *x) {
    return (uintptr_t)x % 4 == 0 ? *(const uint32_t *)x : x[0].bits | (uint32_t)x[1].bits << 16;
}

struct cached_page {
    const bf16 *keys;
    int64_t values; /* elements after the keys */
    int size;

    __device__ __forceinline__ uint32_t key_unit(int token, int unit) const {
        return ((const uint32_t *)keys)[unit * KV_PAGE_TOKENS + token];
    }
    __device__ __forceinline__ uint32_t value_unit(int token, int d) const {
        return *(const uint32_t *)(keys + values + value_place<bf16>(token, d, size));
    }
    __device__ __forceinline__ bf16 value(int token, int d) const {
        return keys[values + value_place<bf16>(token, d, size)];
    }
    __device__ __forceinline__ void fetch(int lane) const {
        for (int at = lane * FETCHED; at < KV_PAGE_TOKENS * size * (int)sizeof(bf16); at += WARP * FETCHED) {
            ::fetch((const char *)keys + at);
            ::fetch((const char *)(keys + values) + at);
        }
    }
};
struct batch_page {
    keys_of<bf16> keys, values;
    int first;

    __device__ __forceinline__ uint32_t key_unit(int token, int unit) const {
        return two_features(keys.at(first + token) + unit * 2);
    }
    __device__ __forceinline__ uint32_t value_unit(int token, int d) const {
        return value(token, d).bits | (uint32_t)value(token + 1, d).bits << 16;
    }
    __device__ __forceinline__ bf16 value(int token, int d) const {
        return values.at(first + token)[d];
    }
    __device__ __forceinline__ void fetch(int) const {
    }
};

/* The page of tokens `first` .. `first` + 15. */
static __device__ __forceinline__ cached_page page_at(const struct paged_attention &a, const int32_t *pages,
                                                      int kv_head, int first) {
    return {(const bf16 *)a.pages + pages[first / KV_PAGE_TOKENS] * a.page_stride +
                (int64_t)kv_head * KV_PAGE_TOKENS * a.head_size,
            (int64_t)a.kv_heads * KV_PAGE_TOKENS * a.head_size, a.head_size};
}
static __device__ __forceinline__ batch_page page_at(const struct attention &a, int64_t start, int kv_head, int first) {
    return {head_keys<bf16>(a, start, kv_head), head_values<bf16>(a, start, kv_head), first};
}
template <class A> using page_of = decltype(page_at(*(const A *)0, tokens_of<A>(), 0, 0));
