/* Normalisation of rows: LayerNorm (Ba, Kiros, Hinton 2016) and RMSNorm (Zhang, Sennrich 2019). A block works on one
 * vector and keeps it in shared memory where it fits, so that global memory is read once. A thread reads there no more
 * than what it wrote. */
#include "cuda/groups.cuh"
#include "cuda/norm.cuh"

/* One vector of cols elements. */
template <class T, int WIDTH> struct vector {
    const pack<T, WIDTH> *global;
    pack<T, WIDTH> *kept; /* NULL: it does not fit */
    float2 *warps;        /* for the block's sums */
    int64_t packs;
};

struct statistics {
    float mean, rstd;
};

template <class T, int WIDTH> static __device__ float2 sum_first(const vector<T, WIDTH> &v, bool is_rms) {
    float2 sum = {0, 0};
    for (int64_t j = threadIdx.x; j < v.packs; j += blockDim.x) {
        pack<T, WIDTH> x = v.global[j];
        if (v.kept)
            v.kept[j] = x;
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float value = to_float(x.at[k]);
            sum.x += is_rms ? value * value : value;
        }
    }
    return block_sum(sum, v.warps);
}

template <class T, int WIDTH> static __device__ pack<T, WIDTH> again(const vector<T, WIDTH> &v, int64_t j) {
    return v.kept ? v.kept[j] : v.global[j];
}

template <class T, int WIDTH> static __device__ float2 sum_deviations(const vector<T, WIDTH> &v, float mean) {
    float2 sum = {0, 0};
    for (int64_t j = threadIdx.x; j < v.packs; j += blockDim.x) {
        pack<T, WIDTH> x = again(v, j);
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float d = to_float(x.at[k]) - mean;
            sum.x += d;
            sum.y += d * d;
        }
    }
    return block_sum(sum, v.warps);
}

/* The mean has a rounding error, whose square is subtracted from the mean square of the deviations. */
template <class T, int WIDTH> static __device__ statistics measure(const vector<T, WIDTH> &v, const struct norm &a) {
    float cols = (float)a.cols, first = sum_first(v, a.kind == NORM_RMS).x;
    if (a.kind == NORM_RMS)
        return {0, 1.0f / sqrtf(first / cols + a.epsilon)};
    float mean = first / cols;
    float2 rest = sum_deviations(v, mean);
    float off = rest.x / cols, variance = rest.y / cols - off * off;
    return {mean + off, 1.0f / sqrtf((variance > 0 ? variance : 0) + a.epsilon)};
}

/* Calls store(pack's number, value) for all packs of y. */
template <class T, int WIDTH, class STORE>
static __device__ void write(const vector<T, WIDTH> &v, const struct norm &a, statistics s, STORE store) {
    const pack<T, WIDTH> *gain = (const pack<T, WIDTH> *)a.gain, *bias = (const pack<T, WIDTH> *)a.bias;
    for (int64_t j = threadIdx.x; j < v.packs; j += blockDim.x) {
        pack<T, WIDTH> x = again(v, j), g = gain[j], b = {}, out;
        if (a.kind == NORM_LAYER)
            b = bias[j];
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            from_float(
                norm_value(to_float(x.at[k]), s.mean, s.rstd, to_float(g.at[k]), to_float(b.at[k]), a.kind == NORM_RMS),
                out.at[k]);
        store(j, out);
    }
}

/* Calls store(first element of the vector in y, vector, pack's number, value) for all packs of y. */
template <class T, int WIDTH, class STORE>
static __device__ void forward(const struct norm &a, int64_t x_stride, int64_t y_stride, STORE store) {
    extern __shared__ uint4 shared[];
    bool fits = a.cols * (int64_t)sizeof(T) <= NORM_KEPT_BYTES;
    pack<T, WIDTH> *kept = fits ? (pack<T, WIDTH> *)(shared + NORM_SUM_BYTES / sizeof *shared) : nullptr;
    int64_t heads = a.heads > 1 ? a.heads : 1;
    for (int64_t i = blockIdx.x; i < a.rows * heads; i += gridDim.x) {
        int64_t row = i / heads, within = i % heads * a.cols;
        vector<T, WIDTH> v = {(const pack<T, WIDTH> *)((const T *)a.x + row * x_stride + within), kept,
                              (float2 *)shared, a.cols / WIDTH};
        statistics s = measure(v, a);
        write(v, a, s, [&](int64_t j, const pack<T, WIDTH> &value) { store(row * y_stride + within, i, j, value); });
        if (threadIdx.x == 0 && a.rstd) {
            a.rstd[i] = s.rstd;
            if (a.kind == NORM_LAYER)
                a.mean[i] = s.mean;
        }
    }
}

template <class T, int WIDTH> static __device__ void forward(const struct norm &a, int64_t x_stride, int64_t y_stride) {
    forward<T, WIDTH>(a, x_stride, y_stride, [&](int64_t first, int64_t, int64_t j, const pack<T, WIDTH> &value) {
        ((pack<T, WIDTH> *)((T *)a.y + first))[j] = value;
    });
}

template <class T> static __device__ void any_forward(const struct norm &a) {
    int64_t whole = (a.heads > 1 ? a.heads : 1) * a.cols;
    int64_t x_stride = a.x_stride ? a.x_stride : whole, y_stride = a.y_stride ? a.y_stride : whole;
    bool is_packed = (a.cols | x_stride | y_stride) % PACK<T> == 0 && is_aligned(a.x) && is_aligned(a.y) &&
                     is_aligned(a.gain) && (a.kind == NORM_RMS || is_aligned(a.bias));
    if (is_packed)
        forward<T, PACK<T>>(a, x_stride, y_stride);
    else
        forward<T, 1>(a, x_stride, y_stride);
}

/* Gain and bias come to the second-level cache while the kernels before this one run. */
template <class T> static __device__ void fetch_weights(const struct norm &a) {
    for (int64_t j = threadIdx.x * (128 / sizeof(T)); j < a.cols; j += blockDim.x * (128 / sizeof(T))) {
        fetch((const T *)a.gain + j);
        if (a.kind == NORM_LAYER)
            fetch((const T *)a.bias + j);
    }
}

extern "C" __global__ void __launch_bounds__(256) norm_forward_fp32(struct norm a) {
    let_next_begin();
    fetch_weights<float>(a);
    wait_for_last();
    any_forward<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) norm_forward_bf16(struct norm a) {
    let_next_begin();
    fetch_weights<bf16>(a);
    wait_for_last();
    any_forward<bf16>(a);
}

/* ---- rows of many adapters ---- */

/* Decoding has few rows, which stay in the first-level cache, so they are not kept. */
template <class T, int WIDTH> static __device__ void replace_row(const struct norm &one, float2 *warps) {
    vector<T, WIDTH> v = {(const pack<T, WIDTH> *)one.x, nullptr, warps, one.cols / WIDTH};
    write(v, one, measure(v, one),
          [&](int64_t j, const pack<T, WIDTH> &value) { ((pack<T, WIDTH> *)one.y)[j] = value; });
}

/* Accesses are as wide for all rows of a matrix, so a row's sums do not depend on its number. */
template <class T> static __device__ void replace_rows(const struct grouped_norm &a) {
    __shared__ float2 warps[256 / 32];
    for (int64_t i = a.first_row + blockIdx.x; i < a.first_row + a.rows; i += gridDim.x) {
        const struct group_entry *e = entry_of(a, i);
        if (!e)
            continue;
        T *x = (T *)a.x + (i - a.x_row) * a.ldx + e->first_column;
        struct norm one = {};
        one.kind = NORM_LAYER;
        one.cols = e->n;
        one.x = one.y = x;
        one.gain = e->data;
        one.bias = e->bias;
        one.epsilon = a.epsilon;
        if ((e->n | e->first_column | a.ldx) % PACK<T> == 0 && is_aligned(a.x) && is_aligned(e->data) &&
            is_aligned(e->bias))
            replace_row<T, PACK<T>>(one, warps);
        else
            replace_row<T, 1>(one, warps);
    }
}

extern "C" __global__ void __launch_bounds__(256) grouped_norm_fp32(struct grouped_norm a) {
    replace_rows<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) grouped_norm_bf16(struct grouped_norm a) {
    replace_rows<bf16>(a);
}

/* Rows of whole accesses of 16 bytes, which are cast to FP8. */
static __device__ __forceinline__ void forward_fp8(const struct norm_cast &c) {
    const struct norm &a = c.call;
    extern __shared__ uint4 shared[];
    fp8_row_writer writer = {c, *a.fp8.scale, 0};
    int64_t x_stride = a.x_stride ? a.x_stride : a.cols, y_stride = a.y_stride ? a.y_stride : a.cols;
    forward<bf16, QUAD>(a, x_stride, y_stride,
                        [&](int64_t first, int64_t row, int64_t j, const pack<bf16, QUAD> &value) {
                            if (!a.is_fp8_alone)
                                ((pack<bf16, QUAD> *)((bf16 *)a.y + first))[j] = value;
                            writer.write(row, (int)j, *(const uint4 *)&value);
                        });
    writer.end((uint32_t *)(shared + NORM_SUM_BYTES / sizeof *shared / 2)); /* after the sums of warps */
}

extern "C" __global__ void __launch_bounds__(256) norm_long_fp8(struct norm_cast c) {
    forward_fp8(c);
}

/* ---- backward: with h = (x - mean) rstd and g = dy gain, dx = rstd (g - mean(g) - h mean(g h)); RMSNorm's has no
 * mean(g) ---- */

/* A block's memory, and the vector that it works on. */
template <class T, int WIDTH> struct backward_vector {
    const pack<T, WIDTH> *x, *dy, *dx_add; /* dx_add: NULL if nothing is added */
    pack<T, WIDTH> *dx;
    pack<T, WIDTH> *kept_x, *kept_dy; /* NULL: they do not fit */
    float *dgain, *dbias;             /* this block's sums; NULL when frozen */
    float2 *warps;
    float mean, rstd;
};

/* Computes the sums of g and g h over the vector, and adds to the block's sums. A thread has its own columns. */
template <class T, int WIDTH>
static __device__ float2 sum_products(const struct norm &a, const backward_vector<T, WIDTH> &v) {
    const pack<T, WIDTH> *gain = (const pack<T, WIDTH> *)a.gain;
    float2 sum = {0, 0};
    for (int64_t j = threadIdx.x; j < a.cols / WIDTH; j += blockDim.x) {
        pack<T, WIDTH> x = v.x[j], dy = v.dy[j], scale = gain[j];
        if (v.kept_x) {
            v.kept_x[j] = x;
            v.kept_dy[j] = dy;
        }
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float d = to_float(dy.at[k]), h = (to_float(x.at[k]) - v.mean) * v.rstd, g = d * to_float(scale.at[k]);
            if (v.dgain)
                v.dgain[j * WIDTH + k] += d * h;
            if (v.dbias)
                v.dbias[j * WIDTH + k] += d;
            sum.x += g;
            sum.y += g * h;
        }
    }
    return block_sum(sum, v.warps);
}

template <class T, int WIDTH>
static __device__ void write_gradient(const struct norm &a, const backward_vector<T, WIDTH> &v, float2 mean) {
    const pack<T, WIDTH> *gain = (const pack<T, WIDTH> *)a.gain;
    for (int64_t j = threadIdx.x; j < a.cols / WIDTH; j += blockDim.x) {
        pack<T, WIDTH> x = v.kept_x ? v.kept_x[j] : v.x[j], dy = v.kept_dy ? v.kept_dy[j] : v.dy[j], scale = gain[j];
        pack<T, WIDTH> more = {}, dx;
        if (v.dx_add)
            more = v.dx_add[j];
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float h = (to_float(x.at[k]) - v.mean) * v.rstd, g = to_float(dy.at[k]) * to_float(scale.at[k]);
            float gradient = v.rstd * (g - mean.x - h * mean.y);
            from_float(v.dx_add ? gradient + to_float(more.at[k]) : gradient, dx.at[k]);
        }
        v.dx[j] = dx;
    }
}

template <class T, int WIDTH>
static __device__ void backward_head(const struct norm &a, backward_vector<T, WIDTH> &v, int64_t row, int64_t head,
                                     int64_t heads) {
    typedef pack<T, WIDTH> packed;
    int64_t whole = heads * a.cols, within = head * a.cols;
    int64_t at_x = row * (a.x_stride ? a.x_stride : whole) + within;
    int64_t at_dy = row * (a.y_stride ? a.y_stride : whole) + within;
    int64_t at_dx = row * (a.dx_stride ? a.dx_stride : whole) + within;
    v.x = (const packed *)((const T *)a.x + at_x);
    v.dy = (const packed *)((const T *)a.dy + at_dy);
    v.dx = (packed *)((T *)a.dx + at_dx);
    v.dx_add = a.dx_add ? (const packed *)((const T *)a.dx_add + at_dx) : nullptr;
    v.mean = a.kind == NORM_RMS ? 0 : a.mean[row * heads + head];
    v.rstd = a.rstd[row * heads + head];
    float2 sum = sum_products(a, v);
    float cols = (float)a.cols;
    write_gradient(a, v, {a.kind == NORM_RMS ? 0 : sum.x / cols, sum.y / cols});
}

template <class T, int WIDTH> static __device__ void backward(const struct norm_backward &b) {
    extern __shared__ uint4 shared[];
    const struct norm &a = b.call;
    char *rest = (char *)shared + NORM_SUM_BYTES;
    backward_vector<T, WIDTH> v = {};
    v.warps = (float2 *)shared;
    if (b.keeps_rows) {
        v.kept_x = (pack<T, WIDTH> *)rest;
        v.kept_dy = (pack<T, WIDTH> *)(rest + b.kept_row);
    }
    float *partial = b.partial ? b.partial + blockIdx.x * b.sums : nullptr;
    float *sums = b.keeps_sums ? (float *)(rest + 2 * b.kept_row) : partial;
    v.dgain = sums;
    v.dbias = sums && a.kind == NORM_LAYER ? sums + a.cols : nullptr;
    for (int64_t j = threadIdx.x; sums && j < b.sums; j += blockDim.x)
        sums[j] = 0;
    __syncthreads();
    int64_t heads = a.heads > 1 ? a.heads : 1, first = blockIdx.x * b.block_rows;
    for (int64_t row = first; row < first + b.block_rows && row < a.rows; row++)
        for (int64_t head = 0; head < heads; head++)
            backward_head<T, WIDTH>(a, v, row, head, heads);
    if (!b.keeps_sums)
        return;
    __syncthreads();
    for (int64_t j = threadIdx.x; j < b.sums; j += blockDim.x)
        partial[j] = sums[j];
}

template <class T> static __device__ void any_backward(const struct norm_backward &b) {
    const struct norm &a = b.call;
    bool is_packed = (a.cols | a.x_stride | a.y_stride | a.dx_stride) % PACK<T> == 0 && is_aligned(a.x) &&
                     is_aligned(a.dy) && is_aligned(a.dx) && is_aligned(a.dx_add) && is_aligned(a.gain);
    if (is_packed)
        backward<T, PACK<T>>(b);
    else
        backward<T, 1>(b);
}

extern "C" __global__ void __launch_bounds__(256) norm_backward_fp32(struct norm_backward b) {
    any_backward<float>(b);
}
extern "C" __global__ void __launch_bounds__(256) norm_backward_bf16(struct norm_backward b) {
    any_backward<bf16>(b);
}
