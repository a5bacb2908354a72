/* Panels of outputs, in which weights are packed: plain ones by packed.c, encoded ones by encoded.c. */
#pragma once

#include "cpu/level/gemm_level.h"
#include "simd.h"

enum {
    VECTORS = 2,
    PANEL = VECTORS * SIMD_LANES,
    TILE_ROWS = SIMD_LANES == 16  ? 14
                : SIMD_LANES == 8 ? 6
                                  : 5, /* as many as the registers hold */
    A_BYTES = 1 << 20,                 /* of packed rows at a time: at most half of a second-level cache */
    FEW_BLOCKS = 2,                    /* of rows, which each thread packs for itself */
};

#define TILE_INLINE static inline __attribute__((always_inline))

static inline int64_t panels_of(int64_t n) {
    return (n + PANEL - 1) / PANEL;
}

/* Returns the product with outputs [first, first + count), of a plain or packed weight. */
static inline struct gemm outputs_of(const struct gemm *gemm, int64_t first, int64_t count) {
    struct gemm part = *gemm;
    size_t size = dtype_bytes(gemm->a.type);
    part.b = matrix_rows(gemm->b, first, count);
    part.c.data = (const char *)gemm->c.data + (size_t)first * dtype_bytes(gemm->c.type);
    part.c.columns = count;
    part.bias = gemm->bias ? (const char *)gemm->bias + (size_t)first * size : NULL;
    part.aux = gemm->aux ? (char *)gemm->aux + (size_t)first * size : NULL;
    return part;
}
