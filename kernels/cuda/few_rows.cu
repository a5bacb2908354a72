/* Products of few rows with a weight, as decoding has them. Memory is the limit: each weight is read once, 16 bytes a
 * lane, with many copies under way. The first of them begin before the kernels before this one have ended. After these,
 * only x is read, some steps ahead.
 *
 * Tensor cores multiply, with the weight's rows as columns. A step of the depth is 32 elements. Lane 4 g + t has eight
 * of them, from 8 t on. It has them of weight rows g and g + 8, and of x's. They are fragments of two products: the
 * elements of a step are in another order there, which is the same on both sides. Each warp has neighbouring steps, and
 * the warps' sums are added in their order. So an element of C has the same bits whatever the number of rows. */
#include "cuda/few_rows.cuh"
#include "cuda/mma.cuh"

enum { STEP = FEW_ROWS_STEP };

/* A lane's elements of the weight, on their way to shared memory. Only the lane reads what it copies. */
template <int WARPS, int TILES, int PLACES> struct weight_rows {
    const bf16 *row[TILES];
    bool is_there[TILES];
    uint4 *begin, *end, *read, *write; /* the places of steps, and the next ones to read and to write */

    __device__ __forceinline__ void open(const few_rows &a, int64_t col, uint4 *shared, int places) {
        begin = read = write = shared + threadIdx.x;
        end = begin + places * TILES * WARPS * 32;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            int64_t own = col + n * 8 + threadIdx.x % 32 / 4;
            is_there[n] = own < a.cols;
            row[n] = (const bf16 *)a.w + (is_there[n] ? own : 0) * a.w_stride;
        }
    }
    __device__ __forceinline__ void advance(uint4 *&place) const {
        place += TILES * WARPS * 32;
        if (place == end)
            place = begin;
    }
    /* Starts the copies of a step, of elements from `d` on if these are before `last`; zeros if not. */
    __device__ __forceinline__ void copy(int d, int last, bool is_step) {
        if (is_step) {
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                bool is_copied = is_there[n] && d < last;
                copy_async((uint32_t)__cvta_generic_to_shared(write + n * WARPS * 32), is_copied ? row[n] + d : row[n],
                           is_copied);
            }
            advance(write);
        }
        copies_commit();
    }
    /* Waits for a step whose copies were the first of those under way. */
    __device__ __forceinline__ void take(uint4 (&weight)[TILES]) {
        copies_wait_but<PLACES - 1>();
#pragma unroll
        for (int n = 0; n < TILES; n++)
            weight[n] = read[n * WARPS * 32];
        advance(read);
    }
};

/* A lane's elements of x in some steps. HALVES: 2 if x may have more than 8 rows. */
template <int HALVES> struct x_steps {
    static constexpr int STEPS = 4 / HALVES;
    uint4 at[STEPS][HALVES];

    __device__ __forceinline__ void load(const few_rows &a, int d, int last) {
        int g = threadIdx.x % 32 / 4;
        const bf16 *x = (const bf16 *)a.x + g * a.x_stride;
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                bool is_there = d + i * STEP < last && g + 8 * h < a.rows;
                at[i][h] = is_there ? *(const uint4 *)(x + 8 * h * a.x_stride + d + i * STEP) : uint4{0, 0, 0, 0};
            }
    }
};

/* The elements of C that a thread finishes, and what it adds to them. That is read while the products run. */
template <int WARPS, int HALVES, int TILES> struct elements {
    static constexpr int COLS = 8 * TILES, COUNT = (8 * HALVES * COLS + WARPS * 32 - 1) / (WARPS * 32);
    float bias[COUNT], residual[COUNT];

    template <class F> static __device__ __forceinline__ void each(const few_rows &a, int64_t first, F f) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            int at = i * WARPS * 32 + (int)threadIdx.x, row = at / COLS;
            int64_t col = first + at % COLS;
            if (row < a.rows && col < a.cols)
                f(i, row, col);
        }
    }
    __device__ __forceinline__ void load_bias(const few_rows &a, int64_t first) {
        each(a, first, [&](int i, int, int64_t col) { bias[i] = bias_of(a, col); });
    }
    __device__ __forceinline__ void load_residual(const few_rows &a, int64_t first) {
        each(a, first, [&](int i, int row, int64_t col) { residual[i] = residual_of(a, row * a.c_stride + col); });
    }
};

/* This lane's sums over the steps of its warp. */
template <int WARPS, int HALVES, int TILES, int PLACES>
static __device__ __forceinline__ void multiply_steps(const few_rows &a, int64_t col, uint4 *shared,
                                                      elements<WARPS, HALVES, TILES> &added, float (&sum)[TILES][4]) {
    int depth = (int)a.depth, steps = few_rows_steps(a.depth, WARPS), warp = (int)threadIdx.x / 32;
    int begin = warp * steps * STEP + (int)threadIdx.x % 4 * 8, last = min((warp + 1) * steps * STEP, depth);
    float odd[TILES][4] = {};
    weight_rows<WARPS, TILES, PLACES> rows;
    x_steps<HALVES> now, next;
    rows.open(a, col, shared, min(steps, PLACES));
#pragma unroll
    for (int i = 0; i < PLACES; i++)
        rows.copy(begin + i * STEP, last, i < steps);
    added.load_bias(a, col);
    wait_for_last(); /* which writes neither weights nor biases */
    next.load(a, begin, last);
    added.load_residual(a, col);
#pragma unroll 1
    for (int first = 0; first < steps; first += next.STEPS) {
        now = next;
        next.load(a, begin + (first + next.STEPS) * STEP, last);
#pragma unroll
        for (int i = 0; i < next.STEPS; i++) {
            if (first + i >= steps)
                break;
            uint4 weight[TILES], low = now.at[i][0], high = {0, 0, 0, 0};
            if (HALVES == 2)
                high = now.at[i][HALVES - 1];
            const uint32_t even_x[4] = {low.x, high.x, low.y, high.y}, odd_x[4] = {low.z, high.z, low.w, high.w};
            rows.take(weight);
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                multiply(sum[n], even_x, weight[n].x, weight[n].y);
                multiply(odd[n], odd_x, weight[n].z, weight[n].w);
            }
            rows.copy(begin + (first + i + PLACES) * STEP, last, first + i + PLACES < steps);
        }
    }
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[n][e] += odd[n][e];
}

/* Shared memory has the warps' sums, and then their weights. */
template <int WARPS, int HALVES, int TILES, int PLACES>
static __device__ __forceinline__ void few_rows_of(const few_rows &a) {
    extern __shared__ uint4 shared[];
    constexpr int COLS = 8 * TILES;
    float(*sums)[8 * HALVES][COLS] = (float(*)[8 * HALVES][COLS]) shared;
    int64_t col = (int64_t)blockIdx.x * COLS;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32;
    float sum[TILES][4] = {};
    elements<WARPS, HALVES, TILES> added;
    let_next_begin();
    multiply_steps<WARPS, HALVES, TILES, PLACES>(
        a, col, shared + FEW_ROWS_SUM_BYTES(WARPS, HALVES, TILES) / sizeof *shared, added, sum);
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 2 * HALVES; e++)
            sums[warp][e / 2 * 8 + g][n * 8 + 2 * t + e % 2] = sum[n][e];
    __syncthreads();
    added.each(a, col, [&](int i, int row, int64_t at) {
        float all = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            all += sums[w][row][at - col];
        finish(a, row * a.c_stride + at, all + added.bias[i] + added.residual[i]);
    });
}

#define KERNEL(warps, halves, tiles, places, blocks)                                                                   \
    extern "C" __global__ void __launch_bounds__(warps * 32, blocks)                                                   \
        few_rows_##warps##_##halves(const __grid_constant__ few_rows a) {                                              \
        few_rows_of<warps, halves, tiles, places>(a);                                                                  \
    }
FEW_ROWS_KERNELS(KERNEL)
