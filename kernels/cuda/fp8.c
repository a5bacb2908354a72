/* Launches of casts to FP8, and of the scales of the next step. */
#include "cuda/fp8.h"
#include "cuda/kernels.h"

/* Returns the tiles of `size` along a side of `count` elements. */
static int64_t tiles(int64_t count, int64_t size) {
    return (count + size - 1) / size;
}

int cuda_fp8_cast(const struct exec *exec, const struct fp8_cast *a) {
    const struct fp8_cast_call call = {.rows = a->rows,
                                       .cols = a->cols,
                                       .stride = a->stride,
                                       .by_rows_stride = fp8_row_stride(a->cols),
                                       .by_columns_stride = fp8_row_stride(a->rows),
                                       .x = a->x,
                                       .scale = a->scale,
                                       .inverse = a->inverse,
                                       .kept_inverse = fp8_scale(a->y, a->rows, a->cols),
                                       .amax = (uint32_t *)(void *)a->amax,
                                       .by_rows = a->copies == FP8_BY_COLUMNS ? NULL : a->y,
                                       .by_columns =
                                           a->copies == FP8_BY_ROWS ? NULL : fp8_transpose(a->y, a->rows, a->cols)};
    return cuda_launch(
        exec, &(const struct cuda_launch){.kernel = a->type == DTYPE_E4M3 ? CUDA_fp8_cast_e4m3 : CUDA_fp8_cast_e5m2,
                                          .type = DTYPE_F32,
                                          .blocks = tiles(a->rows, FP8_TILE_ROWS) * tiles(a->cols, FP8_TILE_COLS),
                                          .threads = FP8_CAST_THREADS,
                                          .arguments = &call});
}

int cuda_fp8_scales(const struct exec *exec, const struct fp8_scales *a) {
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = CUDA_fp8_scales,
                                                         .type = DTYPE_F32,
                                                         .blocks = a->count,
                                                         .threads = FP8_SCALES_THREADS,
                                                         .arguments = a});
}
