/* Launches of casts to FP8, and of the scales of the next step. */
#include "cuda/fp8.h"
#include "cuda/kernels.h"

/* Returns the tiles of `size` along a side of `count` elements. */
static int64_t tiles(int64_t count, int64_t size) {
    return (count + size - 1) / size;
}

static struct fp8_cast_call cast_call(const struct fp8_output *to, int64_t rows, int64_t cols, const void *x) {
    return (struct fp8_cast_call){.rows = rows,
                                  .cols = cols,
                                  .stride = cols,
                                  .by_rows_stride = fp8_row_stride(cols),
                                  .by_columns_stride = fp8_row_stride(rows),
                                  .x = x,
                                  .scale = to->scale,
                                  .inverse = to->inverse,
                                  .kept_inverse = fp8_scale(to->y, rows, cols),
                                  .amax = (uint32_t *)(void *)to->amax,
                                  .by_rows = to->copies == FP8_BY_COLUMNS ? NULL : to->y,
                                  .by_columns = to->copies == FP8_BY_ROWS ? NULL : fp8_transpose(to->y, rows, cols)};
}

int cuda_fp8_cast(const struct exec *exec, const struct fp8_cast *a) {
    struct fp8_cast_call call = cast_call(&a->to, a->rows, a->cols, a->x);
    call.stride = a->stride;
    return cuda_launch_blocks(exec, a->to.type == DTYPE_E4M3 ? CUDA_fp8_cast_e4m3 : CUDA_fp8_cast_e5m2, DTYPE_F32,
                              tiles(a->rows, FP8_TILE_ROWS) * tiles(a->cols, FP8_TILE_COLS), FP8_CAST_THREADS, &call);
}

/* ---- results of operations, by tiles ---- */

/* Launches a kernel of fp8_results.cu, whose blocks have tiles of `across` columns of `cols`. */
static int launch_result(const struct exec *exec, enum cuda_kernel kernel, const struct fp8_result_call *call,
                         int64_t cols, int64_t across) {
    int64_t blocks = tiles(call->to.rows, FP8_TILE_ROWS) * tiles(cols, across);
    return cuda_launch_blocks(exec, kernel, DTYPE_F32, blocks, FP8_CAST_THREADS, call);
}

int cuda_fp8_gelu(const struct exec *exec, const struct gelu *a, bool is_backward) {
    int64_t rows = a->cols ? a->count / a->cols : 0;
    struct fp8_result_call call = {.to = cast_call(&a->fp8, rows, a->cols, a->x),
                                   .is_e5m2 = a->fp8.type == DTYPE_E5M2,
                                   .is_tanh = a->is_tanh,
                                   .dy = a->dy};
    call.to.result = a->is_fp8_alone ? NULL : is_backward ? a->dx : a->y;
    return launch_result(exec, is_backward ? CUDA_fp8_gelu_gradient : CUDA_fp8_gelu, &call, a->cols, FP8_TILE_COLS);
}

int cuda_fp8_swiglu(const struct exec *exec, const struct swiglu *a, bool is_backward) {
    int64_t cols = is_backward ? 2 * a->cols : a->cols;
    struct fp8_result_call call = {
        .to = cast_call(&a->fp8, a->rows, cols, a->x), .is_e5m2 = a->fp8.type == DTYPE_E5M2, .dy = a->dy};
    call.to.result = a->is_fp8_alone ? NULL : is_backward ? a->dx : a->y;
    if (is_backward && a->cols % 16) /* a store of 16 numbers would reach from the gate's part into that of up */
        return status_fail(STATUS_UNSUPPORTED, "swiglu_backward: FP8 of %lld columns on cuda (multiples of 16 only)",
                           (long long)a->cols);
    return launch_result(exec, is_backward ? CUDA_fp8_swiglu_gradient : CUDA_fp8_swiglu, &call, a->cols,
                         is_backward ? FP8_TILE_COLS / 2 : FP8_TILE_COLS);
}

int cuda_fp8_norm(const struct exec *exec, const struct norm *a) {
    struct fp8_result_call call = {.to = cast_call(&a->fp8, a->rows, a->cols, a->x),
                                   .is_e5m2 = a->fp8.type == DTYPE_E5M2,
                                   .is_rms = a->kind == NORM_RMS,
                                   .gain = a->gain,
                                   .bias = a->bias,
                                   .mean = a->mean,
                                   .rstd = a->rstd};
    call.to.stride = a->x_stride ? a->x_stride : a->cols;
    return launch_result(exec, CUDA_fp8_norm, &call, a->cols, FP8_TILE_COLS);
}

int cuda_fp8_scales(const struct exec *exec, const struct fp8_scales *a) {
    return cuda_launch_blocks(exec, CUDA_fp8_scales, DTYPE_F32, a->count, FP8_SCALES_THREADS, a);
}
