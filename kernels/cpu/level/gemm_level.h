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

/* A block of a packed weight, which is written as fp32. */
struct read_block {
    int64_t row, rows, col, cols; /* col is even */
    float *out;
    int64_t stride; /* floats from row to row */
};
/* Reads a block of the values of a packed weight. */
void LEVEL(packed_read)(const struct matrix_view *packed, const struct read_block *to);

/* The same members and function, cpu_packed_bytes and cpu_pack, for weights without encodings (packed.c). */
size_t LEVEL(plain_bytes)(struct device *device, const struct matrix_view *plain);
int LEVEL(plain_pack)(const struct exec *exec, const struct pack_call *a);
size_t LEVEL(plain_workspace)(struct device *device, const struct gemm *gemm);
void LEVEL(plain_gemm)(const struct exec *exec, const struct gemm *gemm);
void LEVEL(plain_unpack)(const struct exec *exec, const struct matrix_view *packed, int64_t col, int64_t cols,
                         void *out, int64_t stride);
void LEVEL(plain_read)(const struct matrix_view *packed, const struct read_block *to);
