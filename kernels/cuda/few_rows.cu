/* Products of few rows with a weight, as decoding has them. Memory is the limit: each weight is read once, 16 bytes a
 * lane, with many copies under way. The first of them begin before the kernels before this one have ended.
 *
 * Tensor cores multiply, with the weight's rows as columns. A step of the depth is 32 elements. Lane 4 g + t has eight
 * of them, from 8 t on. It has them of weight rows g and g + 8, and of x's. They are fragments of two products: the
 * elements of a step are in another order there, which is the same on both sides. Each warp has neighbouring steps, and
 * the warps' sums are added in their order. So an element of C has the same bits whatever the number of rows. */
#include "cuda/activations.cuh"
#include "cuda/few_rows.h"
#include "cuda/mma.cuh"

enum { STEP = 32, TILES = FEW_ROWS_COLS / 8 };

static __device__ __forceinline__ uint4 load(const bf16 *from, bool is_there) {
    return is_there ? *(const uint4 *)from : uint4{0, 0, 0, 0};
}

/* A lane's elements of the weight, on their way to shared memory. The lane alone reads what it copies. */
template <int WARPS> struct weight_rows {
    static constexpr int PLACES = FEW_ROWS_WARP_BYTES / (32 * TILES * 16); /* of steps under way */
    const bf16 *row[TILES];
    bool is_there[TILES];
    uint4 *place;

    __device__ __forceinline__ void open(const few_rows &a, int64_t col, uint4 *shared) {
        place = shared + threadIdx.x;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            int64_t own = col + n * 8 + threadIdx.x % 32 / 4;
            is_there[n] = own < a.cols;
            row[n] = (const bf16 *)a.w + (is_there[n] ? own : 0) * a.w_stride;
        }
    }
    __device__ __forceinline__ uint4 *at(int step, int n) const {
        return place + (step % PLACES * TILES + n) * WARPS * 32;
    }
    /* Starts the copies of a step, of elements from `d` on if these are before `end`; zeros if not. */
    __device__ __forceinline__ void copy(int step, int d, int end) const {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            bool is_copied = is_there[n] && d < end;
            copy_async((uint32_t)__cvta_generic_to_shared(at(step, n)), is_copied ? row[n] + d : row[n], is_copied);
        }
        copies_commit();
    }
    /* Waits for a step whose copies were the first of those under way. */
    __device__ __forceinline__ void wait() const {
        copies_wait_but<PLACES - 1>();
    }
};

/* This lane's sums over the steps of its warp. HALVES: 2 if x has more than 8 rows. */
template <int WARPS, int HALVES>
static __device__ __forceinline__ void multiply_steps(const few_rows &a, int64_t col, uint4 *shared,
                                                      float (&sum)[TILES][4]) {
    constexpr int PLACES = weight_rows<WARPS>::PLACES;
    int g = threadIdx.x % 32 / 4, depth = (int)a.depth, share = (depth + STEP * WARPS - 1) / (STEP * WARPS) * STEP;
    int begin = (int)threadIdx.x / 32 * share + threadIdx.x % 4 * 8,
        end = min((int)threadIdx.x / 32 * share + share, depth);
    const bf16 *x = (const bf16 *)a.x + g * a.x_stride;
    float odd[TILES][4] = {};
    weight_rows<WARPS> rows;
    rows.open(a, col, shared);
#pragma unroll
    for (int i = 0; i < PLACES; i++)
        rows.copy(i, begin + i * STEP, end);
    wait_for_last(); /* which writes no weights */
#pragma unroll 4
    for (int i = 0; i * STEP < share; i++) {
        int d = begin + i * STEP;
        uint4 low = load(x + d, d < end && g < a.rows), high = {0, 0, 0, 0};
        if (HALVES == 2)
            high = load(x + 8 * a.x_stride + d, d < end && g + 8 < a.rows);
        const uint32_t even_x[4] = {low.x, high.x, low.y, high.y}, odd_x[4] = {low.z, high.z, low.w, high.w};
        rows.wait();
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            uint4 weight = *rows.at(i, n);
            multiply(sum[n], even_x, weight.x, weight.y);
            multiply(odd[n], odd_x, weight.z, weight.w);
        }
        rows.copy(i, d + PLACES * STEP, end);
    }
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[n][e] += odd[n][e];
}

static __device__ __forceinline__ void finish(const few_rows &a, int row, int64_t col, float sum) {
    int64_t at = row * a.c_stride + col;
    if (a.bias)
        sum += to_float(((const bf16 *)a.bias)[col]);
    if (a.residual)
        sum += a.is_c_fp32 ? ((const float *)a.residual)[at] : to_float(((const bf16 *)a.residual)[at]);
    if (a.epilogue != EPILOGUE_NONE) {
        bf16 input;
        from_float(sum, input);
        sum = a.epilogue == EPILOGUE_GELU_TANH ? gelu_tanh(to_float(input)) : gelu_exact(to_float(input));
    }
    if (a.is_c_fp32)
        ((float *)a.c)[at] = sum;
    else
        from_float(sum, ((bf16 *)a.c)[at]);
}

template <int WARPS, int HALVES> static __device__ __forceinline__ void few_rows_of(const few_rows &a) {
    extern __shared__ uint4 shared[];
    float(*sums)[8 * HALVES][FEW_ROWS_COLS] = (float(*)[8 * HALVES][FEW_ROWS_COLS]) shared;
    int64_t col = (int64_t)blockIdx.x * FEW_ROWS_COLS;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32;
    float sum[TILES][4] = {};
    let_next_begin();
    multiply_steps<WARPS, HALVES>(a, col, shared, sum);
    copies_wait();
    __syncthreads(); /* nobody needs weights any more */
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 2 * HALVES; e++)
            sums[warp][e / 2 * 8 + g][n * 8 + 2 * t + e % 2] = sum[n][e];
    __syncthreads();
    for (int i = threadIdx.x; i < a.rows * FEW_ROWS_COLS; i += WARPS * 32) {
        int row = i / FEW_ROWS_COLS, at = i % FEW_ROWS_COLS;
        float all = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            all += sums[w][row][at];
        if (col + at < a.cols)
            finish(a, row, col + at, all);
    }
}

#define KERNEL(warps, halves)                                                                                          \
    extern "C" __global__ void __launch_bounds__(warps * 32, 2)                                                        \
        few_rows_##warps##_##halves(const __grid_constant__ few_rows a) {                                              \
        few_rows_of<warps, halves>(a);                                                                                 \
    }
KERNEL(4, 1)
KERNEL(4, 2)
KERNEL(8, 1)
KERNEL(8, 2)
