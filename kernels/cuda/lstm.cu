/* One direction of an LSTM layer, by one block. A step ends with a barrier: the next one reads what all threads wrote.
 */
#include "cuda/activations.cuh"
#include "cuda/lstm.h"

#include <math.h>

/* Step `number` of the recurrence. */
static __device__ __forceinline__ int64_t step_at(const struct lstm &a, int64_t number) {
    return a.is_reverse ? a.steps - 1 - number : number;
}

/* True where rows of the weight take 16-byte accesses. */
static __device__ __forceinline__ bool is_packed(const struct lstm &a) {
    return a.hidden % PACK<float> == 0 && is_aligned(a.weight);
}

/* ---- forward: a warp computes the four gates of one feature, and then its state ---- */

struct gates {
    float at[4];
};

/* The products of four rows of the weight with a state. Every lane gets them. */
template <int WIDTH> static __device__ gates products(const struct lstm &a, int64_t j, const float *state) {
    gates sum = {};
#pragma unroll 2
    for (int64_t k = WIDTH * (threadIdx.x % 32); k < a.hidden; k += WIDTH * 32) {
        values<WIDTH> x = read_values<WIDTH>(state + k);
#pragma unroll
        for (int g = 0; g < 4; g++) {
            values<WIDTH> weight = read_values<WIDTH>(a.weight + (g * a.hidden + j) * a.hidden + k);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                sum.at[g] += weight.at[i] * x.at[i];
        }
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
#pragma unroll
        for (int g = 0; g < 4; g++)
            sum.at[g] += __shfl_xor_sync(~0u, sum.at[g], distance);
    return sum;
}

/* Replaces the sums of one feature by its gates. cell_before is 0 at the first step. */
static __device__ void write_feature(const struct lstm &a, int64_t step, int64_t j, gates sum, float cell_before) {
    float *gate = a.gates + step * 4 * a.hidden + j;
#pragma unroll
    for (int g = 0; g < 4; g++) {
        float total = gate[g * a.hidden] + (a.bias[g * a.hidden + j] + sum.at[g]);
        sum.at[g] = g == 2 ? tanhf(total) : logistic_of(total).value;
        gate[g * a.hidden] = sum.at[g];
    }
    float cell = sum.at[0] * sum.at[2] + sum.at[1] * cell_before;
    a.cells[step * a.hidden + j] = cell;
    a.y[step * a.y_stride + j] = sum.at[3] * tanhf(cell);
}

template <int WIDTH> static __device__ void forward(const struct lstm &a) {
    for (int64_t number = 0; number < a.steps; number++) {
        int64_t step = step_at(a, number), before = step_at(a, number - 1);
#pragma unroll 1
        for (int64_t j = threadIdx.x / 32; j < a.hidden; j += blockDim.x / 32) {
            gates sum = {};
            if (number)
                sum = products<WIDTH>(a, j, a.y + before * a.y_stride);
            if (threadIdx.x % 32 == 0)
                write_feature(a, step, j, sum, number ? a.cells[before * a.hidden + j] : 0.0f);
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(32 * LSTM_WARPS) lstm_forward(struct lstm a) {
    if (is_packed(a) && is_aligned(a.y) && a.y_stride % PACK<float> == 0)
        forward<PACK<float>>(a);
    else
        forward<1>(a);
}

/* ---- backward: a warp takes every 16th row of the weight, and 32 accesses of its columns at a time. A thread then
 * adds the sums of the warps for one column, in order, and computes that feature ---- */

template <int WIDTH>
static __device__ void write_products(const struct lstm &a, int64_t after, int64_t first, float *partial) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t column = first + WIDTH * lane;
    pack<float, WIDTH> sum = {};
    if (column < a.hidden)
#pragma unroll 4
        for (int64_t r = warp; r < 4 * a.hidden; r += blockDim.x / 32) {
            values<WIDTH> weight = read_values<WIDTH>(a.weight + r * a.hidden + column);
            float gradient = a.gates[after * 4 * a.hidden + r];
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                sum.at[i] += weight.at[i] * gradient;
        }
    *(pack<float, WIDTH> *)(partial + (warp * 32 + lane) * WIDTH) = sum;
}

/* Replaces the gates of one feature by the gradient of their sums. dstate is the gradient that comes from the step
 * after this one, as is b.dcell. */
static __device__ void feature_gradient(const struct lstm_backward &b, int64_t number, int64_t j, float dstate) {
    const struct lstm &a = b.call;
    int64_t step = step_at(a, number), before = step_at(a, number - 1), H = a.hidden;
    float *gate = a.gates + step * 4 * H + j;
    float in = gate[0], forget = gate[H], candidate = gate[2 * H], out = gate[3 * H];
    float t = tanhf(a.cells[step * H + j]), dh = a.dy[step * a.y_stride + j] + dstate;
    float later = number + 1 < a.steps ? b.dcell[j] : 0.0f, earlier = number ? a.cells[before * H + j] : 0.0f;
    float dc = later + dh * out * (1.0f - t) * (1.0f + t);
    b.dcell[j] = dc * forget;
    gate[0] = dc * candidate * in * (1.0f - in);
    gate[H] = dc * earlier * forget * (1.0f - forget);
    gate[2 * H] = dc * in * (1.0f - candidate) * (1.0f + candidate);
    gate[3 * H] = dh * t * out * (1.0f - out);
}

template <int WIDTH> static __device__ void backward(const struct lstm_backward &b, float *partial) {
    const struct lstm &a = b.call;
    for (int64_t number = a.steps - 1; number >= 0; number--)
        for (int64_t first = 0; first < a.hidden; first += 32 * WIDTH) {
            bool has_after = number + 1 < a.steps;
            if (has_after)
                write_products<WIDTH>(a, step_at(a, number + 1), first, partial);
            __syncthreads();
            for (int c = threadIdx.x; c < 32 * WIDTH && first + c < a.hidden; c += blockDim.x) {
                float dstate = 0;
                for (int warp = 0; has_after && warp < blockDim.x / 32; warp++)
                    dstate += partial[warp * 32 * WIDTH + c];
                feature_gradient(b, number, first + c, dstate);
            }
            __syncthreads();
        }
}

extern "C" __global__ void __launch_bounds__(32 * LSTM_WARPS) lstm_backward(struct lstm_backward b) {
    __shared__ __align__(16) float partial[LSTM_WARPS * 32 * PACK<float>];
    if (is_packed(b.call))
        backward<PACK<float>>(b, partial);
    else
        backward<1>(b, partial);
}
