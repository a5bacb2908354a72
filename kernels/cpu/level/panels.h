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

/* Returns the panels of n outputs. */
/* Returns the panels of n outputs. */
static inline int64_t panels_of(int64_t n) {
    return (n + PANEL - 1) / PANEL;
}

/* Transposes SIMD_LANES vectors: in each step, lanes and vectors swap one bit of their numbers. */
static inline __attribute__((always_inline)) void transpose_words(vfloat x[SIMD_LANES]) {
    typedef int lanes __attribute__((vector_size(sizeof(vfloat))));
#pragma GCC unroll 4
    for (int bit = 1; bit < SIMD_LANES; bit *= 2) {
        lanes even = {0}, odd = {0}; /* lane by lane below, which a build without optimisation does not see */
#pragma GCC unroll 16
        for (int i = 0; i < SIMD_LANES; i++) {
            even[i] = i & bit ? SIMD_LANES + i - bit : i;
            odd[i] = i & bit ? SIMD_LANES + i : i + bit;
        }
#pragma GCC unroll 16
        for (int i = 0; i < SIMD_LANES; i++) {
            if (i & bit)
                continue;
            vfloat a = x[i], b = x[i + bit];
            x[i] = __builtin_shuffle(a, b, even);
            x[i + bit] = __builtin_shuffle(a, b, odd);
        }
    }
}

/* The sums of a panel of outputs, before the epilogue. */
struct panel_sums {
    float *sums; /* [rows], `stride` floats apart */
    int64_t stride;
    int64_t row, rows; /* of C */
    int64_t col;       /* C's column of the first output, which is negative where the weight's view begins later */
};

/* Writes to C what it has of a panel. */
static inline void finish_panel(const struct gemm *gemm, const struct panel_sums *panel) {
    int64_t from = panel->col < 0 ? -panel->col : 0, end = panel->col + PANEL;
    struct gemm_block done = {.ab = panel->sums + from,
                              .stride = panel->stride,
                              .row = panel->row,
                              .col = panel->col + from,
                              .rows = panel->rows,
                              .cols = (end < gemm_n(gemm) ? end : gemm_n(gemm)) - panel->col - from,
                              .factor = 1,
                              .needs_bias = gemm->bias};
    LEVEL(gemm_epilogue)(gemm, &done);
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
