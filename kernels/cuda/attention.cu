/* Causal attention in fp32 arithmetic, for every size of a head. A warp has one row: a query in the forward and for dq,
 * a key for dk and dv. It takes what the row sees 32 rows at a time. Each lane computes the score of one of them, then
 * the weights go round and each lane sums some features. So every sum has one owner and one order, and what the row
 * does not see is never read.
 *
 *     P = exp(scale q k - lse)   delta = sum(dout * out)   dP = dout v   dS = P (dP - delta)
 *     dv = P^T dout   dk = scale dS^T q   dq = scale dS k
 *
 * With dropout, P and dP are masked and scaled; delta is not. */
#include "cuda/attention.cuh"

/* A warp's part of the work: a query row or a key, a head, and its features from `feature` on. */
struct item {
    int64_t row;
    int head, feature;
    bool is_packed; /* all rows can be read 16 bytes at a time */
};

/* Returns whether they can. */
template <class T> static __device__ bool is_packed(const struct attention &a, bool is_backward) {
    int64_t strides = a.head_size | a.q_stride | a.k_stride | a.v_stride | (is_backward ? a.out_stride : 0);
    return strides % PACK<T> == 0 && is_aligned(a.q) && is_aligned(a.k) && is_aligned(a.v) && is_aligned(a.prefix_k) &&
           is_aligned(a.prefix_v) && (!is_backward || is_aligned(a.dout));
}

/* A block has neighbouring rows of one head, which see much the same. The row may be past the last. */
template <class T>
static __device__ __forceinline__ item item_of_warp(const struct attention &a, int heads, bool is_backward) {
    unsigned slabs = attention_slabs(a.head_size), together = heads * slabs, rest = blockIdx.x % together;
    return {(int64_t)(blockIdx.x / together) * ATTENTION_WARPS + threadIdx.x / WARP, (int)(rest / slabs),
            (int)(rest % slabs) * ATTENTION_FEATURES, is_packed<T>(a, is_backward)};
}

/* The view of a query row: keys from .. to - 1 of its segment, which starts at row `start`. */
struct seen_keys {
    int64_t start, from, to;
};

static __device__ seen_keys seen_by(const struct attention &a, int64_t row) {
    int64_t start = a.segment_start[segment_of(a, row)], to = a.prefix + row - start + 1;
    return {start, a.window && to > a.window ? to - a.window : 0, to};
}

template <class T, int WIDTH> static __device__ __forceinline__ float dot_packs(const T *x, const T *y, int size) {
    float sum = 0;
#pragma unroll 2
    for (int d = 0; d < size; d += WIDTH) {
        pack<T, WIDTH> a = *(const pack<T, WIDTH> *)(x + d), b = *(const pack<T, WIDTH> *)(y + d);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum = fmaf(to_float(a.at[k]), to_float(b.at[k]), sum);
    }
    return sum;
}

/* The sum has one order, whether rows are read 16 bytes at a time or not. */
template <class T> static __device__ __forceinline__ float dot(const T *x, const T *y, int size, bool is_packed) {
    return is_packed ? dot_packs<T, PACK<T>>(x, y, size) : dot_packs<T, 1>(x, y, size);
}

/* sums[i] += weight * row[feature] for this lane's features. */
template <class T, int FEATURES>
static __device__ __forceinline__ void add_row(float (&sums)[FEATURES], float weight, const T *row, const item &w,
                                               int size) {
#pragma unroll
    for (int i = 0; i < FEATURES; i++) {
        int d = w.feature + i * WARP + lane_number();
        if (d < size)
            sums[i] = fmaf(weight, to_float(row[d]), sums[i]);
    }
}

template <class T, int FEATURES>
static __device__ __forceinline__ void store_row(const float (&sums)[FEATURES], float factor, T *row, const item &w,
                                                 int size) {
#pragma unroll
    for (int i = 0; i < FEATURES; i++) {
        int d = w.feature + i * WARP + lane_number();
        if (d < size)
            from_float(sums[i] * factor, row[d]);
    }
}

/* ---- forward ---- */

template <class T, int FEATURES> static __device__ void forward_row(const struct attention &a, const item &w) {
    int size = a.head_size, kv_head = w.head / (a.heads / a.kv_heads);
    seen_keys seen = seen_by(a, w.row);
    keys_of<T> keys = head_keys<T>(a, seen.start, kv_head), values = head_values<T>(a, seen.start, kv_head);
    const T *q = (const T *)a.q + w.row * a.q_stride + (int64_t)w.head * size;
    softmax row;
    float sums[FEATURES] = {};
    for (int64_t first = seen.from; first < seen.to; first += WARP) {
        int64_t key = first + lane_number();
        int count = seen.to - first < WARP ? (int)(seen.to - first) : WARP;
        float weight = key < seen.to ? dot(q, keys.at(key), size, w.is_packed) : -INFINITY;
        float rescale = row.take(weight, a.scale * LOG2_E);
        if (a.dropout.p > 0 && key < seen.to && !is_kept(a, w.head, w.row, key_element(a, seen.start, key)))
            weight = 0;
#pragma unroll
        for (int i = 0; i < FEATURES; i++)
            sums[i] *= rescale;
        for (int j = 0; j < count; j++)
            add_row(sums, __shfl_sync(~0u, weight, j), values.at(first + j), w, size);
    }
    float total = warp_sum(row.total);
    store_row(sums, 1.0f / (1.0f - a.dropout.p) / total, (T *)a.out + w.row * a.out_stride + (int64_t)w.head * size, w,
              size);
    if (a.lse && w.feature == 0 && lane_number() == 0)
        a.lse[w.head * a.rows + w.row] = row.largest * a.scale + logf(total);
}

/* ---- dq ---- */

template <class T, int FEATURES> static __device__ void query_gradient(const struct attention_part &g, const item &w) {
    const struct attention &a = g.a;
    int size = a.head_size, kv_head = w.head / (a.heads / a.kv_heads);
    int64_t at = w.row * a.q_stride + (int64_t)w.head * size, out_at = w.row * a.out_stride + (int64_t)w.head * size;
    seen_keys seen = seen_by(a, w.row);
    keys_of<T> keys = head_keys<T>(a, seen.start, kv_head), values = head_values<T>(a, seen.start, kv_head);
    const T *q = (const T *)a.q + at, *dout = (const T *)a.dout + out_at, *out = (const T *)a.out + out_at;
    float lse = a.lse[w.head * a.rows + w.row] * LOG2_E, keep_scale = 1.0f / (1.0f - a.dropout.p), delta = 0;
    for (int d = lane_number(); d < size; d += WARP)
        delta = fmaf(to_float(dout[d]), to_float(out[d]), delta);
    delta = warp_sum(delta);
    if (w.feature == 0 && lane_number() == 0)
        g.delta[w.head * a.rows + w.row] = delta;
    float sums[FEATURES] = {};
    for (int64_t first = seen.from; first < seen.to; first += WARP) {
        int64_t key = first + lane_number();
        int count = seen.to - first < WARP ? (int)(seen.to - first) : WARP;
        float ds = 0;
        if (key < seen.to) {
            float dp = dot(dout, values.at(key), size, w.is_packed) * keep_scale;
            if (a.dropout.p > 0 && !is_kept(a, w.head, w.row, key_element(a, seen.start, key)))
                dp = 0;
            ds = exp2f(fmaf(dot(q, keys.at(key), size, w.is_packed), a.scale * LOG2_E, -lse)) * (dp - delta);
        }
        for (int j = 0; j < count; j++)
            add_row(sums, __shfl_sync(~0u, ds, j), keys.at(first + j), w, size);
    }
    store_row(sums, a.scale, (T *)a.dq + at, w, size);
}

/* ---- dk and dv ---- */

/* A key, and the query rows from .. to - 1 that see it. */
struct seen_key {
    int64_t key, row; /* in its segment, prefix first; in the batch, less than 0 for a key of the prefix */
    int64_t start, from, to;
};

/* Key `number` of the prefix and then of all rows. */
static __device__ seen_key key_at(const struct attention &a, int64_t number, int64_t prefix) {
    if (number < prefix)
        return {number, -1, 0, 0, a.rows};
    int64_t row = number - prefix, segment = segment_of(a, row), start = a.segment_start[segment];
    int64_t end = a.segment_start[segment + 1];
    return {a.prefix + row - start, row, start, row, a.window && row + a.window < end ? row + a.window : end};
}

/* Adds what the rows of one query head give to dk (before its scale) and dv. */
template <class T, int FEATURES>
static __device__ __forceinline__ void add_queries(const struct attention_part &g, const seen_key &seen, const item &w,
                                                   int head, const T *k, const T *v, float (&dk)[FEATURES],
                                                   float (&dv)[FEATURES]) {
    const struct attention &a = g.a;
    int size = a.head_size;
    const T *q = (const T *)a.q + (int64_t)head * size, *dout = (const T *)a.dout + (int64_t)head * size;
    const float *lse = a.lse + head * a.rows, *delta = g.delta + head * a.rows;
    float keep_scale = 1.0f / (1.0f - a.dropout.p);
    for (int64_t first = seen.from; first < seen.to; first += WARP) {
        int64_t row = first + lane_number();
        int count = seen.to - first < WARP ? (int)(seen.to - first) : WARP;
        float p = 0, ds = 0;
        if (row < seen.to) {
            float dp = dot(dout + row * a.out_stride, v, size, w.is_packed) * keep_scale;
            p = exp2f(fmaf(dot(q + row * a.q_stride, k, size, w.is_packed), a.scale * LOG2_E, -lse[row] * LOG2_E));
            bool kept = a.dropout.p == 0 || is_kept(a, head, row, key_element(a, seen.start, seen.key));
            ds = p * ((kept ? dp : 0) - delta[row]);
            p = kept ? p * keep_scale : 0;
        }
        for (int j = 0; j < count; j++) {
            add_row(dk, __shfl_sync(~0u, ds, j), q + (first + j) * a.q_stride, w, size);
            add_row(dv, __shfl_sync(~0u, p, j), dout + (first + j) * a.out_stride, w, size);
        }
    }
}

/* sums * factor is added to row `key` of a prefix's gradient; NULL: not wanted. */
template <int FEATURES>
static __device__ __forceinline__ void add_to_prefix(const struct attention &a, const float (&sums)[FEATURES],
                                                     float factor, float *gradient, int64_t key, const item &w) {
#pragma unroll
    for (int i = 0; i < FEATURES; i++) {
        int d = w.feature + i * WARP + lane_number();
        if (gradient && d < a.head_size)
            gradient[(key * a.kv_heads + w.head) * a.head_size + d] += sums[i] * factor;
    }
}

/* `w.row` counts the keys of the prefix, if their gradients are wanted, and then the rows. */
template <class T, int FEATURES>
static __device__ void key_gradient(const struct attention_part &g, const item &w, int64_t prefix) {
    const struct attention &a = g.a;
    int size = a.head_size, group = a.heads / a.kv_heads;
    int64_t at = (int64_t)w.head * size;
    seen_key seen = key_at(a, w.row, prefix);
    const T *k = head_keys<T>(a, seen.start, w.head).at(seen.key);
    const T *v = head_values<T>(a, seen.start, w.head).at(seen.key);
    float dk[FEATURES] = {}, dv[FEATURES] = {};
    for (int i = 0; i < group; i++)
        add_queries(g, seen, w, w.head * group + i, k, v, dk, dv);
    if (seen.row < 0) {
        add_to_prefix(a, dk, a.scale, a.dprefix_k, seen.key, w);
        add_to_prefix(a, dv, 1.0f, a.dprefix_v, seen.key, w);
        return;
    }
    store_row(dk, a.scale, (T *)a.dk + seen.row * a.k_stride + at, w, size);
    store_row(dv, 1.0f, (T *)a.dv + seen.row * a.v_stride + at, w, size);
}

/* ---- kernels ---- */

/* The last rows, which see the most keys, are taken first. */
template <class T> static __device__ void forward(const struct attention &a) {
    item w = item_of_warp<T>(a, a.heads, false);
    w.row = a.rows - 1 - w.row;
    if (w.row >= 0)
        WITH_FEATURES(a.head_size, forward_row, a, w);
}

template <class T> static __device__ void backward_queries(const struct attention_part &g) {
    item w = item_of_warp<T>(g.a, g.a.heads, true);
    w.row = g.a.rows - 1 - w.row;
    if (w.row >= 0)
        WITH_FEATURES(g.a.head_size, query_gradient, g, w);
}

template <class T> static __device__ void backward_keys(const struct attention_part &g) {
    int64_t prefix = g.a.dprefix_k || g.a.dprefix_v ? g.a.prefix : 0;
    item w = item_of_warp<T>(g.a, g.a.kv_heads, true);
    if (w.row < prefix + g.a.rows)
        WITH_FEATURES(g.a.head_size, key_gradient, g, w, prefix);
}

#define KERNEL(name, arguments, function)                                                                              \
    extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS *WARP, 4) name##_fp32(arguments a) {                  \
        function<float>(a);                                                                                            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS *WARP, 4) name##_bf16(arguments a) {                  \
        function<bf16>(a);                                                                                             \
    }
KERNEL(attention_forward, struct attention, forward)
KERNEL(attention_backward_queries, struct attention_part, backward_queries)
KERNEL(attention_backward_keys, struct attention_part, backward_keys)
