/* Softmax cross-entropy over rows of logits, forward and backward, in place: there is never a second copy of them. A
 * block works on one row. */
#include "cuda/softmax.cuh"

/* The parts of a row's gradient: exp(logit - reference) * scale, less `weight` at the label. */
struct gradient {
    float reference, scale, weight;
    int64_t label; /* -1: another rank has it */
};

static __device__ __forceinline__ float gradient_of(float logit, int64_t column, const gradient &g) {
    float value = expf(logit - g.reference) * g.scale;
    return column == g.label ? value - g.weight : value;
}

template <class T, int WIDTH>
static __device__ __forceinline__ void write_pack(T *x, int64_t first, const gradient &g) {
    pack<T, WIDTH> logits = *(const pack<T, WIDTH> *)(x + first);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        from_float(gradient_of(to_float(logits.at[k]), first + k, g), logits.at[k]);
    *(pack<T, WIDTH> *)(x + first) = logits;
}

template <class T> static __device__ void clear(T *x, int64_t first, int64_t end) {
    for (int64_t j = first + threadIdx.x; j < end; j += blockDim.x)
        from_float(0.0f, x[j]);
}

/* A gradient in bf16 lies in the first half of its fp32 logits: the block reads logits before it writes over them. */
template <class T> static __device__ void write_rounded(const struct cross_entropy &a, T *x, const gradient &g) {
    bf16 *to = (bf16 *)x;
    for (int64_t first = 0; first < a.vocab && g.weight != 0; first += blockDim.x) {
        int64_t j = first + threadIdx.x;
        float value = j < a.vocab ? gradient_of(to_float(x[j]), j, g) : 0;
        __syncthreads();
        if (j < a.vocab)
            from_float(value, to[j]);
    }
    clear(to, g.weight != 0 ? a.vocab : 0, a.stride);
}

/* Overwrites a row by its gradient, and the padding by 0. A weight of 0 makes all of it 0, whatever the logits are. */
template <class T, int WIDTH>
static __device__ void write_gradient(const struct cross_entropy &a, T *x, const gradient &g) {
    if (sizeof(T) == sizeof(float) && a.gradient_is_bf16) {
        write_rounded(a, x, g);
        return;
    }
    if (g.weight == 0) {
        clear(x, 0, a.stride);
        return;
    }
    for (int64_t j = threadIdx.x; j < a.vocab / WIDTH; j += blockDim.x)
        write_pack<T, WIDTH>(x, j * WIDTH, g);
    for (int64_t j = a.vocab / WIDTH * WIDTH + threadIdx.x; j < a.vocab; j += blockDim.x)
        write_pack<T, 1>(x, j, g);
    clear(x, a.vocab, a.stride);
}

static __device__ __forceinline__ void write_loss(const struct cross_entropy &a, int64_t i, figures f, float at_label) {
    float log_sum = logf(f.sum);
    if (threadIdx.x > 0)
        return;
    if (a.loss)
        a.loss[i] = log_sum + (f.max - at_label);
    if (a.lse)
        a.lse[i] = f.max + log_sum;
}

static __device__ __forceinline__ int64_t own_label(const struct cross_entropy &a, int64_t i) {
    int64_t label = a.labels[i] - a.first_label;
    return label >= 0 && label < a.vocab ? label : -1;
}

/* Returns 1 to each thread if the label's logit is the row's largest, and no earlier one equals it; else 0. */
template <class T> static __device__ int is_first_largest(const T *x, int64_t label, float largest, float2 *warps) {
    float earlier = 0;
    if (to_float(x[label]) != largest)
        return 0;
    for (int64_t j = threadIdx.x; j < label; j += blockDim.x)
        earlier += to_float(x[j]) == largest ? 1 : 0;
    return block_sum({earlier, 0}, warps).x == 0;
}

/* ---- one row of each call ---- */

enum call { FORWARD, BACKWARD, FUSED, PART, PART_BACKWARD };

template <class T, int WIDTH, call CALL>
static __device__ void one_row(const struct cross_entropy &a, int64_t i, T *x, float2 *warps) {
    if (CALL == FORWARD) {
        figures f = measure<T, WIDTH>(x, a.vocab, true, warps);
        write_loss(a, i, f, to_float(x[a.labels[i]]));
        if (a.is_greedy) {
            int is_greedy = is_first_largest(x, a.labels[i], f.max, warps);
            if (threadIdx.x == 0)
                a.is_greedy[i] = is_greedy;
        }
    } else if (CALL == BACKWARD) {
        write_gradient<T, WIDTH>(a, x, {a.lse[i], a.dloss[i], a.dloss[i], a.labels[i]});
    } else if (CALL == FUSED) {
        float weight = a.dloss[i];
        figures f = measure<T, WIDTH>(x, a.vocab, weight == 0, warps);
        write_loss(a, i, f, to_float(x[a.labels[i]]));
        __syncthreads(); /* the label's logit has been read */
        write_gradient<T, WIDTH>(a, x, {f.max, weight / f.sum, weight, a.labels[i]});
    } else if (CALL == PART) {
        figures f = measure<T, WIDTH>(x, a.vocab, true, warps);
        int64_t label = own_label(a, i);
        int is_first = a.is_greedy && label >= 0 ? is_first_largest(x, label, f.max, warps) : 0;
        if (threadIdx.x == 0)
            a.part[i] = {f.max, f.sum, label < 0 ? 0.0f : to_float(x[label]), (double)is_first};
    } else {
        write_gradient<T, WIDTH>(
            a, x, {(float)a.part[i].max, a.dloss[i] / (float)a.part[i].sum, a.dloss[i], own_label(a, i)});
    }
}

template <class T, call CALL> static __device__ void every_row(const struct cross_entropy &a) {
    __shared__ float2 warps[8];
    bool is_packed = a.stride % PACK<T> == 0 && is_aligned(a.logits);
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        T *x = (T *)a.logits + i * a.stride;
        if (is_packed)
            one_row<T, PACK<T>, CALL>(a, i, x, warps);
        else
            one_row<T, 1, CALL>(a, i, x, warps);
    }
}

#define KERNELS(name, CALL)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256) name##_fp32(struct cross_entropy a) {                            \
        every_row<float, CALL>(a);                                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) name##_bf16(struct cross_entropy a) {                            \
        every_row<bf16, CALL>(a);                                                                                      \
    }
KERNELS(cross_entropy_forward, FORWARD)
KERNELS(cross_entropy_backward, BACKWARD)
KERNELS(cross_entropy_fused, FUSED)
KERNELS(cross_entropy_part, PART)
KERNELS(cross_entropy_part_backward, PART_BACKWARD)

/* A thread joins the parts of one row, in the order of the ranks. */
extern "C" __global__ void __launch_bounds__(128) cross_entropy_join(struct cross_entropy_join join) {
    const struct cross_entropy &a = join.call;
    for (int64_t i = grid_thread(); i < a.rows; i += grid_threads()) {
        struct cross_entropy_part whole = {-INFINITY, 0, 0, 0};
        for (int r = 0; r < join.ranks; r++) {
            struct cross_entropy_part part = join.parts[r * a.rows + i];
            if (part.max > whole.max) {
                whole.max = part.max;
                whole.is_first = part.is_first;
            }
        }
#pragma unroll 1
        for (int r = 0; r < join.ranks; r++) { /* unrolled, exp would spill registers */
            struct cross_entropy_part part = join.parts[r * a.rows + i];
            whole.sum += part.sum * exp(part.max - whole.max);
            whole.at_label += part.at_label;
        }
        a.part[i] = whole;
        a.loss[i] = (float)(log(whole.sum) + (whole.max - whole.at_label));
        if (a.is_greedy)
            a.is_greedy[i] = whole.is_first > 0;
    }
}
