/* Embedding: forward gathers and adds rows of the tables, one a block. Backward scatters: a block adds the rows of one
 * token or position. */
#include "cuda/embedding.h"
#include "cuda/typed.cuh"

/* The row of a token or a virtual token; NULL if another rank has it. */
template <class T> static __device__ const T *token_row(const struct embedding &a, int64_t i) {
    int64_t token = a.tokens[i];
    if (a.virtual_tokens && token >= a.first_virtual) {
        int64_t row = token - a.first_virtual;
        return a.virtual_table && row < a.virtual_tokens ? (const T *)a.virtual_table + row * a.cols : nullptr;
    }
    int64_t entry = token - a.first_token;
    bool is_here = !a.token_count || (entry >= 0 && entry < a.token_count);
    return is_here ? (const T *)a.token_table.data + entry * a.cols : nullptr;
}

template <class T, int WIDTH> static __device__ void gather(const struct embedding &a) {
    typedef pack<T, WIDTH> packed;
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const packed *token = (const packed *)token_row<T>(a, i);
        const T *table = (const T *)a.position_table;
        const packed *position = table ? (const packed *)(table + a.positions[i] * a.cols) : nullptr;
        packed *x = (packed *)((T *)a.x + i * a.cols);
        for (int64_t j = threadIdx.x; j < a.cols / WIDTH; j += blockDim.x) {
            packed sum = {};
            if (token)
                sum = token[j];
            if (token && position) {
                packed p = position[j];
#pragma unroll
                for (int k = 0; k < WIDTH; k++)
                    from_float(to_float(sum.at[k]) + to_float(p.at[k]), sum.at[k]);
            }
            x[j] = sum;
        }
    }
}

template <class T> static __device__ void any_gather(const struct embedding &a) {
    if (a.cols % PACK<T> == 0 && is_aligned(a.token_table.data) && is_aligned(a.position_table) &&
        is_aligned(a.virtual_table) && is_aligned(a.x))
        gather<T, PACK<T>>(a);
    else
        gather<T, 1>(a);
}

extern "C" __global__ void __launch_bounds__(256) embedding_forward_fp32(struct embedding a) {
    wait_for_kernels_before();
    any_gather<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) embedding_forward_bf16(struct embedding a) {
    wait_for_kernels_before();
    any_gather<bf16>(a);
}

/* ---- backward ---- */

/* A row's key compared with others. */
struct key_counts {
    int32_t key, smaller, others; /* keys that are smaller, and those that are not larger */

    __device__ __forceinline__ void add(int32_t other) {
        smaller += other < key;
        others += other <= key;
    }
    __device__ __forceinline__ int32_t same() const {
        return others - smaller;
    }
};

/* A thread compares the key of its row with all others: the place of a row is the number of rows before it. */
extern "C" __global__ void __launch_bounds__(EMBEDDING_THREADS) embedding_backward_order(struct embedding_order a) {
    __shared__ int4 keys[EMBEDDING_THREADS];
    int64_t i = grid_thread(), own_tile = i / EMBEDDING_TILE * EMBEDDING_TILE;
    key_counts counts = {i < a.rows ? a.keys[i] : 0, 0, 0};
    int32_t same_before = 0;
    for (int64_t first = 0; first < a.rows; first += EMBEDDING_TILE) {
        __syncthreads(); /* the tile before this one has been read */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int64_t row = first + k * EMBEDDING_THREADS + threadIdx.x;
            ((int32_t *)keys)[k * EMBEDDING_THREADS + threadIdx.x] = row < a.rows ? a.keys[row] : INT32_MAX;
        }
        __syncthreads();
        if (first == own_tile) {
            same_before = counts.same();
            for (int k = 0; k < i - first; k++)
                same_before += ((const int32_t *)keys)[k] == counts.key;
        }
#pragma unroll 8
        for (int k = 0; k < EMBEDDING_THREADS; k++) {
            int4 four = keys[k];
            counts.add(four.x);
            counts.add(four.y);
            counts.add(four.z);
            counts.add(four.w);
        }
    }
    if (i >= a.rows)
        return;
    a.order[counts.smaller + same_before] = (int32_t)i;
    a.run[counts.smaller + same_before] = same_before ? 0 : counts.same();
}

/* Adds the rows of a run to one pack of a table's row. */
template <class T, int WIDTH>
static __device__ __forceinline__ void add_run(const embedding_scatter &a, const int32_t *rows, int32_t count,
                                               float *to, int64_t col) {
    constexpr int EACH = WIDTH < 4 ? WIDTH : 4;
    pack<float, EACH> sum[WIDTH / EACH];
#pragma unroll
    for (int p = 0; p < WIDTH / EACH; p++)
        sum[p] = ((const pack<float, EACH> *)to)[p];
#pragma unroll 4
    for (int32_t n = 0; n < count; n++) {
        pack<T, WIDTH> dx = *(const pack<T, WIDTH> *)((const T *)a.dx + rows[n] * a.cols + col);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum[k / EACH].at[k % EACH] += to_float(dx.at[k]);
    }
#pragma unroll
    for (int p = 0; p < WIDTH / EACH; p++)
        ((pack<float, EACH> *)to)[p] = sum[p];
}

template <class T, int WIDTH> static __device__ void scatter(const embedding_scatter &a) {
    for (int64_t place = blockIdx.x; place < a.sorted.rows; place += gridDim.x) {
        int32_t count = a.sorted.run[place];
        const int32_t *rows = a.sorted.order + place;
        if (!count)
            continue;
        int64_t entry = a.sorted.keys[rows[0]] - a.first_entry;
        if (a.entries && (entry < 0 || entry >= a.entries))
            continue;
        for (int64_t j = threadIdx.x; j < a.cols / WIDTH; j += blockDim.x)
            add_run<T, WIDTH>(a, rows, count, a.table + entry * a.cols + j * WIDTH, j * WIDTH);
    }
}

template <class T> static __device__ void any_scatter(const embedding_scatter &a) {
    if (a.cols % PACK<T> == 0 && is_aligned(a.dx) && is_aligned(a.table))
        scatter<T, PACK<T>>(a);
    else
        scatter<T, 1>(a);
}

extern "C" __global__ void __launch_bounds__(256) embedding_backward_fp32(struct embedding_scatter a) {
    any_scatter<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) embedding_backward_bf16(struct embedding_scatter a) {
    any_scatter<bf16>(a);
}
