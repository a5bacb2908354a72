/* Results of operations that are cast to FP8 as they are computed: activations, their gradients, and norms whose
 * statistics are known. A result is rounded to bf16 before it is cast, so its bits are those of the operation and a
 * cast after it. On GPUs of __CUDA_ARCH__ 890 and newer, an instruction casts. */
#include "cuda/activations.cuh"
#include "cuda/fp8_tile.cuh"
#include "cuda/norm.cuh"

typedef values<QUAD> numbers;

static __device__ __forceinline__ numbers unpacked(const quad &from) {
    return unpack<bf16>(access_of(from));
}
static __device__ __forceinline__ quad rounded(const numbers &from) {
    return quad_of(packed<bf16>(from));
}

/* ---- activations ---- */

struct gelu_source : plain_columns {
    static constexpr int AHEAD = 1;
    static constexpr bool HAS_RESULT = true;
    struct row {
        quad half[2];
    };
    fp8_matrix x;
    bool is_tanh;

    __device__ __forceinline__ row read(int64_t at, int lane) const {
        return {x.read(at, first + lane * QUAD), x.read(at, first + HALF + lane * QUAD)};
    }
    __device__ __forceinline__ quad result(const row &r, int half) const {
        numbers e = unpacked(r.half[half]);
#pragma unroll
        for (int k = 0; k < QUAD; k++)
            e.at[k] = is_tanh ? gelu_tanh(e.at[k]) : gelu_exact(e.at[k]);
        return rounded(e);
    }
};

struct gelu_gradient_source : plain_columns {
    static constexpr int AHEAD = 1;
    static constexpr bool HAS_RESULT = true;
    struct row {
        quad x[2], dy[2];
    };
    fp8_matrix x, dy;
    bool is_tanh;

    __device__ __forceinline__ row read(int64_t at, int lane) const {
        int64_t low = first + lane * QUAD, high = low + HALF;
        return {{x.read(at, low), x.read(at, high)}, {dy.read(at, low), dy.read(at, high)}};
    }
    __device__ __forceinline__ quad result(const row &r, int half) const {
        numbers e = unpacked(r.x[half]), d = unpacked(r.dy[half]);
#pragma unroll
        for (int k = 0; k < QUAD; k++)
            e.at[k] = d.at[k] * (is_tanh ? gelu_tanh_gradient(e.at[k]) : gelu_exact_gradient(e.at[k]));
        return rounded(e);
    }
};

struct swiglu_source : plain_columns {
    static constexpr int AHEAD = 1;
    static constexpr bool HAS_RESULT = true;
    struct row {
        quad gate[2], up[2];
    };
    fp8_matrix gate, up;

    __device__ __forceinline__ row read(int64_t at, int lane) const {
        int64_t low = first + lane * QUAD, high = low + HALF;
        return {{gate.read(at, low), gate.read(at, high)}, {up.read(at, low), up.read(at, high)}};
    }
    __device__ __forceinline__ quad result(const row &r, int half) const {
        numbers g = unpacked(r.gate[half]), u = unpacked(r.up[half]);
#pragma unroll
        for (int k = 0; k < QUAD; k++)
            g.at[k] = swish(g.at[k]) * u.at[k];
        return rounded(g);
    }
};

/* The first half of a tile is columns of the gate's gradient, and the second the same columns of that of up. */
struct swiglu_gradient_source {
    static constexpr int AHEAD = 1;
    static constexpr bool HAS_RESULT = true;
    struct row {
        quad gate, up, dy;
    };
    int64_t first, cols;
    fp8_matrix gate, up, dy;

    __device__ __forceinline__ int64_t column(int in_tile) const {
        int64_t col = first + in_tile % HALF;
        return col >= cols ? -1 : in_tile < HALF ? col : cols + col;
    }
    __device__ __forceinline__ row read(int64_t at, int lane) const {
        int64_t col = first + lane * QUAD;
        return {gate.read(at, col), up.read(at, col), dy.read(at, col)};
    }
    __device__ __forceinline__ quad result(const row &r, int half) const {
        numbers g = unpacked(r.gate), u = unpacked(r.up), d = unpacked(r.dy);
#pragma unroll
        for (int k = 0; k < QUAD; k++)
            g.at[k] = half ? d.at[k] * swish(g.at[k]) : d.at[k] * u.at[k] * swish_gradient(g.at[k]);
        return rounded(g);
    }
};

static __device__ __forceinline__ fp8_matrix gate_of(const fp8_cast_call &a, int64_t cols) {
    return matrix_of(a.x, a.rows, cols, 2 * cols);
}
static __device__ __forceinline__ fp8_matrix up_of(const fp8_cast_call &a, int64_t cols) {
    return matrix_of((const bf16 *)a.x + cols, a.rows, cols, 2 * cols);
}

extern "C" __global__ void __launch_bounds__(FP8_CAST_THREADS) fp8_gelu(struct fp8_result_call a) {
    const fp8_cast_call &to = a.to;
    tile_place tile = tile_of(to.cols, FP8_TILE_COLS);
    cast_tile(to, gelu_source{{tile.col, to.cols}, matrix_of(to.x, to.rows, to.cols, to.cols), a.is_tanh}, tile.row,
              a.is_e5m2);
}

extern "C" __global__ void __launch_bounds__(FP8_CAST_THREADS) fp8_gelu_gradient(struct fp8_result_call a) {
    const fp8_cast_call &to = a.to;
    tile_place tile = tile_of(to.cols, FP8_TILE_COLS);
    fp8_matrix x = matrix_of(to.x, to.rows, to.cols, to.cols), dy = matrix_of(a.dy, to.rows, to.cols, to.cols);
    cast_tile(to, gelu_gradient_source{{tile.col, to.cols}, x, dy, a.is_tanh}, tile.row, a.is_e5m2);
}

extern "C" __global__ void __launch_bounds__(FP8_CAST_THREADS) fp8_swiglu(struct fp8_result_call a) {
    const fp8_cast_call &to = a.to;
    tile_place tile = tile_of(to.cols, FP8_TILE_COLS);
    cast_tile(to, swiglu_source{{tile.col, to.cols}, gate_of(to, to.cols), up_of(to, to.cols)}, tile.row, a.is_e5m2);
}

extern "C" __global__ void __launch_bounds__(FP8_CAST_THREADS) fp8_swiglu_gradient(struct fp8_result_call a) {
    const fp8_cast_call &to = a.to;
    int64_t cols = to.cols / 2;
    tile_place tile = tile_of(cols, HALF);
    fp8_matrix dy = matrix_of(a.dy, to.rows, cols, cols);
    cast_tile(to, swiglu_gradient_source{tile.col, cols, gate_of(to, cols), up_of(to, cols), dy}, tile.row, a.is_e5m2);
}

/* ---- norms ---- */

struct norm_source : plain_columns {
    static constexpr int AHEAD = 1;
    static constexpr bool HAS_RESULT = false;
    struct row {
        quad half[2];
        float mean, rstd;
        bool is_there; /* zeros follow the last row */
    };
    fp8_matrix x;
    quad gain[2], bias[2]; /* the thread's columns */
    const float *mean, *rstd;
    bool is_rms;

    __device__ __forceinline__ row read(int64_t at, int lane) const {
        row r = {{x.read(at, first + lane * QUAD), x.read(at, first + HALF + lane * QUAD)}, 0, 0, at < x.rows};
        if (r.is_there) {
            r.mean = is_rms ? 0 : mean[at];
            r.rstd = rstd[at];
        }
        return r;
    }
    __device__ __forceinline__ quad result(const row &r, int half) const {
        numbers e = unpacked(r.half[half]), scale = unpacked(gain[half]), shift = unpacked(bias[half]);
#pragma unroll
        for (int k = 0; k < QUAD; k++)
            e.at[k] = norm_value(e.at[k], r.mean, r.rstd, scale.at[k], shift.at[k], is_rms);
        return r.is_there ? rounded(e) : quad{};
    }
};

extern "C" __global__ void __launch_bounds__(FP8_CAST_THREADS) fp8_norm(struct fp8_result_call a) {
    const fp8_cast_call &to = a.to;
    tile_place tile = tile_of(to.cols, FP8_TILE_COLS);
    int64_t low = tile.col + threadIdx.x % UNITS * QUAD, high = low + HALF;
    fp8_matrix gain = matrix_of(a.gain, 1, to.cols, 0), bias = matrix_of(a.bias, a.is_rms ? 0 : 1, to.cols, 0);
    fp8_matrix x = matrix_of(to.x, to.rows, to.cols, to.stride);
    cast_tile(to,
              norm_source{{tile.col, to.cols},
                          x,
                          {gain.read(0, low), gain.read(0, high)},
                          {bias.read(0, low), bias.read(0, high)},
                          a.mean,
                          a.rstd,
                          a.is_rms},
              tile.row, a.is_e5m2);
}
