/* Residual addition with dropout. The mask is never stored: forward and backward draw the same words (base/rng.h). 64
 * neighbours have 16 counters, and a counter has the words of four of them, 16 apart. Neighbouring lanes take
 * neighbouring accesses. Each draws its share of the counters, and they pass each other a bit for each element. */
#include "cuda/accesses.cuh"
#include "cuda/philox.cuh"
#include "cuda/residual_dropout.h"

enum { COUNTERS = 16, WORDS = 4 };

/* The lanes that share the 64 neighbours, the counters that each draws, and the lanes from which each gets its bits. */
template <int WIDTH> struct shares {
    static constexpr int LANES = DROPOUT_BLOCK / WIDTH, DRAWN = COUNTERS / LANES, SOURCES = WIDTH / DRAWN;
};

/* Returns a bit for each word that this lane draws: 1 if its element is kept. `element`: the first of the 64. */
template <int WIDTH>
static __device__ __forceinline__ uint32_t draw(const struct residual_dropout_kernel &a, int64_t row, uint32_t element,
                                                int part) {
    uint32_t token = a.keys.token[row], sample = a.keys.sample[row], bits = 0;
#pragma unroll
    for (int i = 0; i < shares<WIDTH>::DRAWN; i++) {
        uint32_t counter = rng_element_counter(element) + part * shares<WIDTH>::DRAWN + i;
        struct philox drawn = philox_words(a.seed, counter, token, sample, (uint32_t)RNG_DROPOUT << 24 | a.site);
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            bits |= (uint32_t)(drawn.word[w] >= a.threshold) << (i * WORDS + w);
    }
    return bits;
}

/* Returns a bit for each of this lane's elements, from the bits that the lanes have drawn. */
template <int WIDTH> static __device__ __forceinline__ uint32_t collect(uint32_t drawn, int part) {
    typedef shares<WIDTH> share;
    int word = part * WIDTH / COUNTERS, source = part * WIDTH % COUNTERS / share::DRAWN;
    uint32_t kept = 0;
#pragma unroll
    for (int s = 0; s < share::SOURCES; s++) {
        uint32_t bits = __shfl_sync(~0u, drawn, source + s, share::LANES) >> word;
#pragma unroll
        for (int i = 0; i < share::DRAWN; i++)
            kept |= (bits >> (i * WORDS) & 1) << (s * share::DRAWN + i);
    }
    return kept;
}

/* Reads or writes the elements of an access that lie in the row, together or one by one. */
template <class T, int WIDTH>
static __device__ __forceinline__ values<WIDTH> read_part(const T *row, int64_t col, int64_t cols, bool is_whole) {
    values<WIDTH> read = {};
    if (is_whole && col >= 0 && col < cols)
        return read_values<WIDTH>(row + col);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        if (!is_whole && col + k >= 0 && col + k < cols)
            read.at[k] = to_float(row[col + k]);
    return read;
}
template <class T, int WIDTH>
static __device__ __forceinline__ void write_part(T *row, int64_t col, int64_t cols, bool is_whole,
                                                  const values<WIDTH> &from) {
    if (is_whole && col >= 0 && col < cols)
        *(uint4 *)(row + col) = packed<T>(from);
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
        if (!is_whole && col + k >= 0 && col + k < cols)
            from_float(from.at[k], row[col + k]);
}

template <class T> static __device__ __forceinline__ void run(const struct residual_dropout_kernel &a, bool is_whole) {
    constexpr int WIDTH = PACK<T>, LANES = shares<WIDTH>::LANES;
    int64_t before = a.first_col % DROPOUT_BLOCK,
            in_row = (before + a.cols + DROPOUT_BLOCK - 1) / DROPOUT_BLOCK * LANES;
    int64_t parts = a.rows * in_row, lane = threadIdx.x % 32;
    for (int64_t i = grid_thread(); i - lane < parts; i += grid_threads()) {
        int64_t row = parts <= UINT32_MAX ? (uint32_t)i / (uint32_t)in_row : i / in_row;
        int64_t within = i - row * in_row, first = within / LANES * DROPOUT_BLOCK - before;
        int part = (int)(within % LANES);
        int64_t col = i < parts ? first + part * WIDTH : a.cols, at = row * a.cols;
        values<WIDTH> x = read_part<T, WIDTH>((const T *)a.from + at, col, a.cols, is_whole), residual = {};
        if (a.residual)
            residual = read_part<T, WIDTH>((const T *)a.residual + at, col, a.cols, is_whole);
        uint32_t kept = ~0u;
        if (a.threshold) {
            uint32_t drawn = i < parts ? draw<WIDTH>(a, row, (uint32_t)(a.first_col + first), part) : 0;
            kept = collect<WIDTH>(drawn, part);
        }
#pragma unroll
        for (int k = 0; k < WIDTH; k++) {
            float value = x.at[k] * (kept >> k & 1 ? a.scale : 0.0f);
            x.at[k] = a.residual ? residual.at[k] + value : value;
        }
        write_part<T, WIDTH>((T *)a.to + at, col, a.cols, is_whole, x);
    }
}

template <class T> static __device__ __forceinline__ void any_run(const struct residual_dropout_kernel &a) {
    run<T>(a,
           (a.cols | a.first_col) % PACK<T> == 0 && is_aligned(a.from) && is_aligned(a.residual) && is_aligned(a.to));
}

extern "C" __global__ void __launch_bounds__(256) residual_dropout_fp32(struct residual_dropout_kernel a) {
    wait_for_kernels_before();
    any_run<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) residual_dropout_bf16(struct residual_dropout_kernel a) {
    wait_for_kernels_before();
    any_run<bf16>(a);
}
