/* Residual addition with dropout. The mask is never stored: forward and backward draw the same words (base/rng.h). A
 * counter has the words of four elements that are 16 apart. So a thread takes four accesses, 16 elements apart, and
 * draws each counter once. */
#include "base/rng.h"
#include "cuda/residual_dropout.h"
#include "cuda/typed.cuh"

enum { APART = 16, WORDS = 4 };

/* The words of WIDTH neighbours from element e on, and of those 16, 32 and 48 further on. */
template <int WIDTH> struct words { struct philox of[WIDTH]; };

template <int WIDTH>
static __device__ __forceinline__ words<WIDTH> draw(const struct residual_dropout_kernel &a, int64_t row,
                                                    uint32_t element) {
    words<WIDTH> drawn = {};
    if (a.threshold) {
        uint32_t token = a.keys.token[row], sample = a.keys.sample[row];
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            drawn.of[k] =
                philox(a.seed, rng_element_counter(element) + k, token, sample, (uint32_t)RNG_DROPOUT << 24 | a.site);
    }
    return drawn;
}

template <class T, int WIDTH>
static __device__ __forceinline__ void drop(const struct residual_dropout_kernel &a, int64_t at, int word,
                                            const words<WIDTH> &drawn) {
    typedef pack<T, WIDTH> packed;
    packed x = *(const packed *)((const T *)a.from + at), r = {}, y;
    if (a.residual)
        r = *(const packed *)((const T *)a.residual + at);
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
        float value = to_float(x.at[k]) * (drawn.of[k].word[word] >= a.threshold ? a.scale : 0.0f);
        from_float(a.residual ? to_float(r.at[k]) + value : value, y.at[k]);
    }
    *(packed *)((T *)a.to + at) = y;
}

template <class T, int WIDTH> static __device__ void run(const struct residual_dropout_kernel &a) {
    int64_t before = a.first_col % DROPOUT_BLOCK, in_block = APART / WIDTH;
    int64_t in_row = (before + a.cols + DROPOUT_BLOCK - 1) / DROPOUT_BLOCK * in_block;
    for (int64_t i = grid_thread(); i < a.rows * in_row; i += grid_threads()) {
        int64_t row = i / in_row, part = i % in_row;
        int64_t col = part / in_block * DROPOUT_BLOCK + part % in_block * WIDTH - before;
        words<WIDTH> drawn = draw<WIDTH>(a, row, (uint32_t)(a.first_col + col));
#pragma unroll
        for (int word = 0; word < WORDS; word++) {
            int64_t j = col + word * APART;
            if (j >= 0 && j < a.cols)
                drop<T, WIDTH>(a, row * a.cols + j, word, drawn);
        }
    }
}

template <class T> static __device__ void any_run(const struct residual_dropout_kernel &a) {
    if ((a.cols | a.first_col) % PACK<T> == 0 && is_aligned(a.from) && is_aligned(a.residual) && is_aligned(a.to))
        run<T, PACK<T>>(a);
    else
        run<T, 1>(a);
}

extern "C" __global__ void __launch_bounds__(256) residual_dropout_fp32(struct residual_dropout_kernel a) {
    any_run<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) residual_dropout_bf16(struct residual_dropout_kernel a) {
    any_run<bf16>(a);
}
