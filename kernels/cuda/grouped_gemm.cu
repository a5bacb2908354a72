/* Products of rows that belong to many adapters.
 *
 * A block works on a few rows of the batch. Rows that follow each other and have one entry are a run, which shares each
 * element of the matrix. Where both sides are bf16, tensor cores sum 32 inputs after the other. All else is in fp32
 * arithmetic. For a matrix [n, k], a warp computes an output: each lane sums four inputs of every 128, and the lanes
 * are added at the end. For a matrix [k, n], a thread computes an output along k. So a sum's order depends neither on
 * the run nor on alignment. */
#include "cuda/activations.cuh"
#include "cuda/grouped_gemm.h"
#include "cuda/groups.cuh"
#include "cuda/mma.cuh"

enum { INPUTS = 64 /* of a row, in shared memory at once */, GROUP_WARPS = GROUP_COLS / 32 };

/* The rows of a run, and a range of their columns. */
struct run {
    const struct grouped_gemm *product;
    const struct group_entry *entry;
    int64_t first_row;
    int rows;
    int64_t col;
};
struct scratch {
    float sum[GROUP_TILE_ROWS][GROUP_COLS];
    float input[GROUP_ROWS][INPUTS];
};

/* Reads four elements, or those before the end of a row and zeros after it. */
template <class T> static __device__ __forceinline__ values<4> read_four(const T *from, int64_t count, bool is_whole) {
    if (is_whole && count >= 4)
        return read_values<4>(from);
    values<4> part;
#pragma unroll
    for (int i = 0; i < 4; i++)
        part.at[i] = i < count ? to_float(from[i]) : 0.0f;
    return part;
}

template <class A> static __device__ __forceinline__ const A *row_of(const run &r, int row) {
    const grouped_gemm &g = *r.product;
    return (const A *)g.a + (r.first_row + row - g.a_row) * g.lda;
}

/* ---- a matrix [n, k] ---- */

template <class A, class M> static __device__ __forceinline__ void dot(const run &r, scratch &shared) {
    const group_entry &e = *r.entry;
    int lane = threadIdx.x % 32;
    const A *a = row_of<A>(r, 0);
    bool is_whole_a = is_aligned(r.product->a) && r.product->lda % PACK<A> == 0;
    bool is_whole = is_aligned(e.data) && e.k % PACK<M> == 0;
    int cols = (int)(e.n - r.col < GROUP_COLS ? e.n - r.col : GROUP_COLS);
#pragma unroll 1
    for (int col = threadIdx.x / 32; col < cols; col += GROUP_WARPS) {
        const M *matrix = (const M *)e.data + (r.col + col) * e.k;
        float sum[GROUP_ROWS] = {};
#pragma unroll 1
        for (int64_t k = 4 * lane; k < e.k; k += 128) {
            values<4> w = read_four(matrix + k, e.k - k, is_whole);
#pragma unroll
            for (int i = 0; i < GROUP_ROWS; i++) {
                if (i >= r.rows)
                    continue;
                values<4> x = read_four(a + i * r.product->lda + k, e.k - k, is_whole_a);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i] = fmaf(x.at[j], w.at[j], sum[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < GROUP_ROWS; i++) {
            if (i >= r.rows)
                continue;
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                sum[i] += __shfl_xor_sync(~0u, sum[i], distance);
            if (lane == 0)
                shared.sum[i][col] = sum[i];
        }
    }
}

/* ---- a matrix [k, n] ---- */

/* Brings `count` inputs from number k on to shared memory, and zeros up to a multiple of four. */
template <class A> static __device__ __forceinline__ void fetch(const run &r, scratch &shared, int64_t k, int count) {
    __syncthreads(); /* the inputs before these have been read */
    for (int i = threadIdx.x; i < r.rows * INPUTS; i += GROUP_COLS) {
        int row = i / INPUTS, at = i % INPUTS;
        shared.input[row][at] = at < count ? to_float(row_of<A>(r, row)[k + at]) : 0.0f;
    }
    __syncthreads();
}

template <class A, class M> static __device__ __forceinline__ void chain(const run &r, scratch &shared) {
    const group_entry &e = *r.entry;
    int64_t col = r.col + threadIdx.x < e.n ? r.col + threadIdx.x : e.n - 1;
    float sum[GROUP_ROWS] = {};
#pragma unroll 1
    for (int64_t first = 0; first < e.k; first += INPUTS) {
        int count = (int)(e.k - first < INPUTS ? e.k - first : INPUTS);
        const M *matrix = (const M *)e.data + first * e.n + col;
        fetch<A>(r, shared, first, count);
#pragma unroll 1
        for (int k = 0; k < count; k += 4) {
            float w[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                w[j] = k + j < count ? to_float(matrix[(k + j) * e.n]) : 0.0f;
#pragma unroll
            for (int i = 0; i < GROUP_ROWS; i++) {
                if (i >= r.rows)
                    continue;
                float4 x = *(const float4 *)&shared.input[i][k];
                sum[i] = fmaf(x.w, w[3], fmaf(x.z, w[2], fmaf(x.y, w[1], fmaf(x.x, w[0], sum[i]))));
            }
        }
    }
#pragma unroll
    for (int i = 0; i < GROUP_ROWS; i++)
        if (i < r.rows)
            shared.sum[i][threadIdx.x] = sum[i];
}

/* ---- both sides in bf16 ---- */

/* `N` pairs of neighbours, the first one in the low half. Past the end of a row come zeros. */
template <int N>
static __device__ __forceinline__ void read_pairs(uint32_t (&pairs)[N], const bf16 *from, int64_t count,
                                                  bool is_whole) {
    struct alignas(4 * N) whole {
        uint32_t at[N];
    };
    whole read;
    if (is_whole && count >= 2 * N)
        read = *(const whole *)from;
    else
#pragma unroll
        for (int i = 0; i < N; i++)
            read.at[i] = (2 * i < count ? from[2 * i].bits : 0) | (2 * i + 1 < count ? from[2 * i + 1].bits << 16 : 0);
#pragma unroll
    for (int i = 0; i < N; i++)
        pairs[i] = read.at[i];
}

/* The weights of four columns from `col` on and of eight inputs from k on, in pairs of inputs. */
static __device__ __forceinline__ void read_weights(uint32_t (&pairs)[4][4], const group_entry &e, int64_t col,
                                                    int64_t k, bool is_whole) {
    const bf16 *matrix = (const bf16 *)e.data;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (!e.is_by_input) {
            read_pairs(pairs[i], matrix + (col + i) * e.k + k, col + i < e.n ? e.k - k : 0, is_whole);
        } else {
            uint32_t even[2], odd[2];
            const bf16 *row = matrix + (k + 2 * i) * e.n + col;
            read_pairs(even, row, k + 2 * i < e.k ? e.n - col : 0, is_whole);
            read_pairs(odd, row + e.n, k + 2 * i + 1 < e.k ? e.n - col : 0, is_whole);
#pragma unroll
            for (int j = 0; j < 4; j++)
                pairs[j][i] = __byte_perm(even[j / 2], odd[j / 2], j % 2 ? 0x7632 : 0x5410);
        }
}

/* Up to GROUP_TILE_ROWS rows. A warp has 32 columns, of which column 4 c + j is the c-th of its product j. Lane 4 g + t
 * reads eight neighbours of every 32 inputs, for rows g and g + 8 and for four columns. The inputs of one product are
 * then no neighbours, which its sum does not need. */
static __device__ __forceinline__ void multiply_tiles(const run &r, scratch &shared) {
    const group_entry &e = *r.entry;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp_col = threadIdx.x / 32 * 32;
    bool is_whole_a = is_aligned(r.product->a) && r.product->lda % 8 == 0;
    bool is_whole = is_aligned(e.data) && (e.is_by_input ? e.n % 4 : e.k % 8) == 0;
    float sum[4][4] = {};
    if (r.col + warp_col >= e.n)
        return;
#pragma unroll 1
    for (int64_t first = 0; first < e.k; first += 32) {
        int64_t k = first + 8 * t;
        uint32_t low[4], high[4], b[4][4];
        read_pairs(low, row_of<bf16>(r, g) + k, g < r.rows ? e.k - k : 0, is_whole_a);
        read_pairs(high, row_of<bf16>(r, g + 8) + k, g + 8 < r.rows ? e.k - k : 0, is_whole_a);
        read_weights(b, e, r.col + warp_col + 4 * g, k, is_whole);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 4; half += 2) {
                const uint32_t a[4] = {low[half], high[half], low[half + 1], high[half + 1]};
                multiply(sum[j], a, b[j][half], b[j][half + 1]);
            }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            shared.sum[g + i / 2 * 8][warp_col + 8 * t + i % 2 * 4 + j] = sum[j][i];
}

/* ---- after the sums ---- */

static __device__ __forceinline__ float apply_unit(float x, enum group_unit unit) {
    switch (unit) {
    case GROUP_UNIT_GELU_TANH:
        return gelu_tanh(x);
    case GROUP_UNIT_GELU_EXACT:
        return gelu_exact(x);
    case GROUP_UNIT_RELU:
        return x > 0.0f ? x : 0.0f;
    case GROUP_UNIT_SWISH:
        return swish(x);
    case GROUP_UNIT_TANH:
        return tanhf(x);
    default:
        return x;
    }
}

/* A sum of zero, which is added as -0, changes no bit of `to`. */
template <class C> static __device__ __forceinline__ void put(float value, C &to, bool accumulate) {
    from_float(accumulate ? to_float(to) + (value == 0.0f ? -0.0f : value) : value, to);
}

static __device__ void finish(const run &r, const scratch &shared) {
    const grouped_gemm &g = *r.product;
    const group_entry &e = *r.entry;
    int64_t col = r.col + threadIdx.x;
    __syncthreads();
    float bias = e.bias && col < e.n ? read_any<1>(e.bias, col, e.bias_type).at[0] : 0.0f;
#pragma unroll 1
    for (int i = 0; i < r.rows && col < e.n; i++) {
        float value = e.scale * apply_unit(shared.sum[i][threadIdx.x] + bias, e.unit);
        int64_t at = (r.first_row + i - g.c_row) * g.ldc + e.first_column + col;
        if (g.c_type == DTYPE_F32)
            put(value, ((float *)g.c)[at], g.accumulate);
        else
            put(value, ((bf16 *)g.c)[at], g.accumulate);
    }
    __syncthreads(); /* the sums have been read */
}

/* ---- runs ---- */

template <class A, class M> static __device__ void multiply(const run &r, scratch &shared) {
    if constexpr (sizeof(A) == 2 && sizeof(M) == 2)
        multiply_tiles(r, shared);
    else if (r.entry->is_by_input)
        chain<A, M>(r, shared);
    else
        dot<A, M>(r, shared);
}

template <class A> static __device__ void every_column(run r, scratch &shared, int64_t split, int split_bits) {
    for (r.col = split * GROUP_COLS; r.col < r.entry->n; r.col += (int64_t)GROUP_COLS << split_bits) {
        if (r.entry->type == DTYPE_F32)
            multiply<A, float>(r, shared);
        else
            multiply<A, bf16>(r, shared);
        finish(r, shared);
    }
}

template <class A> static __device__ __forceinline__ void every_run(const grouped_gemm_call &call) {
    __shared__ alignas(16) scratch shared;
    const grouped_gemm &g = call.product;
    int64_t last = g.first_row + g.rows;
    for (int64_t block = blockIdx.x; block < call.tiles << call.split_bits; block += gridDim.x) {
        int64_t row = g.first_row + (block >> call.split_bits) * call.tile_rows;
        int64_t end = row + call.tile_rows < last ? row + call.tile_rows : last;
        const group_entry *entry = entry_of(g, row), *next = nullptr;
        for (int64_t first = row; first < end; first = row, entry = next) {
            for (row = first + 1; row < end && (next = entry_of(g, row)) == entry; row++) {
            }
            int most = sizeof(A) == 2 && entry && entry->type == DTYPE_BF16 ? GROUP_TILE_ROWS : GROUP_ROWS;
            for (; entry && first < row; first += most)
                every_column<A>(run{&g, entry, first, (int)min((int64_t)most, row - first), 0}, shared,
                                block & ((1 << call.split_bits) - 1), call.split_bits);
        }
    }
}

extern "C" __global__ void __launch_bounds__(GROUP_COLS, 4)
    grouped_gemm_fp32(const __grid_constant__ grouped_gemm_call a) {
    every_run<float>(a);
}
extern "C" __global__ void __launch_bounds__(GROUP_COLS, 4)
    grouped_gemm_bf16(const __grid_constant__ grouped_gemm_call a) {
    every_run<bf16>(a);
}
