/* Values of encoded weights: for the library's products, for embeddings, and sums of their squares. Each step of a
 * value is rounded, as encoding.h says. */
#include "cuda/encoded.cuh"

enum { CHUNK = 8 };

/* Copies a table to shared memory, by the first threads of a block. */
static __device__ __forceinline__ void share_table(const encoded_form &w, float *table) {
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (threadIdx.x == i)
            table[i] = w.table[i];
    __syncthreads();
}

static __device__ __forceinline__ float number_of(const encoded_form &w, const float *table, uint32_t code) {
    switch (w.encoding.codes) {
    case CODES_INTEGERS:
        return (w.bits == 4 ? (float)((int)code - 8) : (float)(int8_t)code) + w.base;
    case CODES_E4M3:
        return __uint_as_float((code & 0x7f) << 20 | (code & 0x80) << 24) * 0x1p120f;
    default:
        return table[code];
    }
}

/* CHUNK neighbouring positions of a row. Of plain rows, those after the last column are 0. */
template <class T>
static __device__ __forceinline__ void values_at(const encoded_form &w, const float *table, int64_t row,
                                                 int64_t position, float (&value)[CHUNK]) {
    if (w.encoding.codes == CODES_NONE) {
        const T *plain = (const T *)w.codes + row * w.columns;
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            value[i] = position + i < w.columns ? to_float(plain[position + i]) : 0;
        return;
    }
    group_terms terms = terms_of(w, row, position / w.group);
    int64_t tile = row / ENCODED_PANEL * w.tiles + position / w.tile;
    int in_tile = (int)(position % w.tile), step = in_tile / ENCODED_STEP, lane = row % 8 * 4 + in_tile % 16 / 4;
    int half = row % ENCODED_PANEL / 8;
    const uint32_t *words = (const uint32_t *)w.codes + (tile * ENCODED_LANES + lane) * 4;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        int pair = i % 4 / 2, word = i / 4 * 4 + (w.bits == 4 ? step : 2 * step + pair);
        int shift = (w.bits == 4 ? 4 * (half + 2 * pair) : 8 * half) + i % 2 * 16;
        uint32_t code = words[word] >> shift & (w.bits == 4 ? 15 : 255);
        float number = __fsub_rn(number_of(w, table, code), terms.zero);
        value[i] = __fsub_rn(__fmul_rn(terms.scale, number), terms.offset);
    }
}

/* Calls f(column, value) for all columns of a row that are in [col, col + cols), by the threads of the block. */
template <class T, class F>
static __device__ __forceinline__ void each_value(const encoded_form &w, const float *table, int64_t row, int64_t col,
                                                  int64_t cols, F f) {
    int64_t first = w.order ? 0 : col / CHUNK, end = w.order ? w.positions : col + cols;
    for (int64_t chunk = first + threadIdx.x; chunk * CHUNK < end; chunk += blockDim.x) {
        float value[CHUNK];
        values_at<T>(w, table, row, chunk * CHUNK, value);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            int64_t position = chunk * CHUNK + i, column = position;
            if (w.order)
                column = position < w.positions ? w.order[position] : -1;
            if (column >= col && column < col + cols)
                f(column, value[i]);
        }
    }
}

template <class T> static __device__ __forceinline__ float rounded(float value) {
    T stored;
    from_float(value, stored);
    return to_float(stored);
}

/* ---- values of a window: a block works on one row ---- */

template <class T> static __device__ void write_values(const encoded_values &a) {
    __shared__ float table[16];
    share_table(a.w, table);
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        T *out = (T *)a.out + i * a.stride - a.col;
        each_value<T>(a.w, table, a.first_row + i, a.col, a.cols,
                      [&](int64_t column, float value) { from_float(value, out[column]); });
    }
}

extern "C" __global__ void __launch_bounds__(256) encoded_values_fp32(const __grid_constant__ encoded_values a) {
    write_values<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) encoded_values_bf16(const __grid_constant__ encoded_values a) {
    write_values<bf16>(a);
}

/* ---- rows of an embedding ---- */

template <class T> static __device__ void gather(const encoded_gather &g) {
    __shared__ float table[16];
    const embedding &a = g.call;
    share_table(g.w, table);
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        T *x = (T *)a.x + i * a.cols;
        int64_t token = a.tokens[i], entry = token - a.first_token, row = token - a.first_virtual;
        bool is_virtual = a.virtual_tokens && row >= 0;
        const T *virtual_row = is_virtual && a.virtual_table && row < a.virtual_tokens
                                   ? (const T *)a.virtual_table + row * a.cols
                                   : nullptr;
        bool is_here = !is_virtual && (!a.token_count || (entry >= 0 && entry < a.token_count));
        const T *position = a.position_table && (is_here || virtual_row)
                                ? (const T *)a.position_table + a.positions[i] * a.cols
                                : nullptr;
        entry -= g.first;
        if (is_here && entry >= 0 && entry < g.w.rows)
            each_value<T>(g.w, table, entry, 0, a.cols, [&](int64_t j, float value) {
                value = rounded<T>(value);
                from_float(position ? value + to_float(position[j]) : value, x[j]);
            });
        else if (!is_here && g.has_others)
            for (int64_t j = threadIdx.x; j < a.cols; j += blockDim.x) {
                float value = virtual_row ? to_float(virtual_row[j]) : 0;
                from_float(position ? value + to_float(position[j]) : value, x[j]);
            }
    }
}

extern "C" __global__ void __launch_bounds__(256) encoded_gather_fp32(const __grid_constant__ encoded_gather a) {
    wait_for_kernels_before();
    gather<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) encoded_gather_bf16(const __grid_constant__ encoded_gather a) {
    wait_for_kernels_before();
    gather<bf16>(a);
}

/* ---- squares of rows, as row_squares ---- */

template <class T> static __device__ void squares(const encoded_squares &s) {
    __shared__ float table[16];
    __shared__ float2 warps[8];
    const row_squares &a = s.call;
    share_table(s.w, table);
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        float sum = 0;
        each_value<T>(s.w, table, s.first_row + i, 0, s.w.columns, [&](int64_t j, float value) {
            value = rounded<T>(value);
            for (int64_t r = 0; a.up && r < a.rank; r++)
                value += a.scale * to_float(((const T *)a.up)[i * a.rank + r]) *
                         to_float(((const T *)a.down)[r * s.w.columns + j]);
            sum += value * value;
        });
        sum = block_sum({sum, 0}, warps).x;
        if (threadIdx.x == 0)
            a.squares[i] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) encoded_squares_fp32(const __grid_constant__ encoded_squares a) {
    squares<float>(a);
}
extern "C" __global__ void __launch_bounds__(256) encoded_squares_bf16(const __grid_constant__ encoded_squares a) {
    squares<bf16>(a);
}

/* ---- inputs in the order of positions: a block works on one row ---- */

extern "C" __global__ void __launch_bounds__(256) encoded_inputs(struct encoded_inputs a) {
    int64_t whole = (a.positions + ENCODED_STEP - 1) / ENCODED_STEP * ENCODED_STEP;
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x)
        for (int64_t p = threadIdx.x; p < whole; p += blockDim.x) {
            int64_t column = p < a.positions ? (a.order ? a.order[p] : p) : -1;
            ((uint16_t *)a.out)[i * whole + p] = column >= 0 ? ((const uint16_t *)a.x)[i * a.stride + column] : 0;
        }
}
