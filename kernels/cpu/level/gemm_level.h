/* Parts of a level's gemm that several files use. */
#pragma once

#include "cpu/gemm-internal.h"
#include "cpu/level/level.h"

/* ---- as the members of struct gemm_level (gemm-internal.h) ---- */

void LEVEL(gemm_epilogue)(const struct gemm *gemm, const struct gemm_block *block);
size_t LEVEL(gemm_packed_workspace)(struct device *device, const struct gemm *gemm);
void LEVEL(gemm_packed)(const struct exec *exec, const struct gemm *gemm);
void LEVEL(gemm_unpack)(const struct exec *exec, const struct matrix_view *packed, int64_t col, int64_t cols, void *out,
                        int64_t stride);

/* Reads elements [rows, cols] of a packed weight from (row, col) on, as fp32. Rows of `out` are `stride` floats apart.
 * `col` is even. */
void LEVEL(packed_read)(const struct matrix_view *packed, int64_t row, int64_t rows, int64_t col, int64_t cols,
                        float *out, int64_t stride);
