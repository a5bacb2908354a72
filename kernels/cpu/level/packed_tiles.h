/* Products of packed bf16 weights by AMX tiles: of up to 32 rows and a panel of 32 outputs. A tile product adds 16
 * pairs along k at once, in the same order for any number of rows. Levels without tiles never call these functions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { TILES_FEW = 16, TILES_ROWS = 32, TILES_STEPS = 16, TILES_OUTPUTS = 32 };

/* Sums of products of `steps` pairs, a multiple of TILES_STEPS. */
struct tile_sums {
    int rows;
    bool is_first; /* sums start at 0 */
    int64_t steps;
    const float *a;     /* [rows, steps] */
    int64_t row_floats; /* of a, from row to row */
    const float *b;     /* [steps, TILES_OUTPUTS] */
    float *sums;        /* [rows, TILES_OUTPUTS] */
};

#ifdef __AMX_BF16__
#include <immintrin.h>

enum { HAS_TILES = 1 };

/* Shapes this thread's tiles for blocks of `rows` rows: 0 to 3 are sums, 4 and 5 rows, 6 and 7 weights. Up to
 * TILES_FEW rows are in one tile, so that there are sums of two panels. */
static inline void tiles_shape(int rows) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    int upper = rows < TILES_FEW ? rows : TILES_FEW, lower = rows > TILES_FEW ? rows - TILES_FEW : upper;
    const int each[8] = {upper, upper, lower, lower, upper, lower, TILES_STEPS, TILES_STEPS};
    for (int i = 0; i < 8; i++) {
        shape.rows[i] = (uint8_t)each[i];
        shape.row_bytes[i] = 64;
    }
    _tile_loadconfig(&shape);
}

/* Ends this thread's use of tiles. */
static inline void tiles_release(void) {
    _tile_release();
}

/* Computes out[rows][panels * TILES_OUTPUTS] of rows `a`, row_floats units apart, and the panel `b`. With two panels
 * there are at most TILES_FEW rows, and the second panel is `beside` units after the first. `steps` is a multiple of
 * TILES_STEPS, and the thread's tiles have the shape for these rows. */
static inline void tiles_multiply(int rows, int panels, int64_t steps, const float *a, int64_t row_floats,
                                  const float *b, int64_t beside, float *out) {
    enum { TILES_STRIDE = TILES_OUTPUTS * sizeof(float), AHEAD = TILES_STEPS * TILES_OUTPUTS };
    const size_t row_bytes = (size_t)row_floats * sizeof(float), out_bytes = (size_t)panels * TILES_STRIDE;
    const bool is_one_tile = rows <= TILES_FEW;
    const float *lower = a + TILES_FEW * row_floats;
    __asm__ volatile("" ::: "memory"); /* GCC's tile loads do not say that they read memory */
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t s = 0; s < steps; s += TILES_STEPS, b += TILES_STEPS * TILES_OUTPUTS) {
        for (int i = 0; i < TILES_STEPS * TILES_OUTPUTS && is_one_tile; i += 16)
            __builtin_prefetch(b + AHEAD + i, 0, 3);
        for (int i = 0; i < TILES_STEPS * TILES_OUTPUTS && panels > 1; i += 16)
            __builtin_prefetch(b + beside + AHEAD + i, 0, 3);
        _tile_loadd(4, a + s, row_bytes);
        _tile_loadd(6, b, TILES_STRIDE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 16, TILES_STRIDE);
        _tile_dpbf16ps(1, 4, 7);
        if (panels > 1) {
            _tile_loadd(6, b + beside, TILES_STRIDE);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(7, b + beside + 16, TILES_STRIDE);
            _tile_dpbf16ps(3, 4, 7);
        } else if (!is_one_tile) {
            _tile_loadd(5, lower + s, row_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, out, out_bytes);
    _tile_stored(1, out + 16, out_bytes);
    if (panels > 1) {
        _tile_stored(2, out + TILES_OUTPUTS, out_bytes);
        _tile_stored(3, out + TILES_OUTPUTS + 16, out_bytes);
    } else if (!is_one_tile) {
        _tile_stored(2, out + TILES_FEW * TILES_OUTPUTS, out_bytes);
        _tile_stored(3, out + TILES_FEW * TILES_OUTPUTS + 16, out_bytes);
    }
}

/* Adds products of pairs to sums. Tiles have the shape for the rows. */
static inline __attribute__((always_inline)) void tiles_add(const struct tile_sums *t) {
    enum { TILES_STRIDE = TILES_OUTPUTS * sizeof(float) };
    const size_t row_bytes = (size_t)t->row_floats * sizeof(float);
    const bool is_one_tile = t->rows <= TILES_FEW;
    const float *a = t->a, *b = t->b, *lower = a + TILES_FEW * t->row_floats;
    float *sums = t->sums, *lower_sums = sums + TILES_FEW * TILES_OUTPUTS;
    __asm__ volatile("" ::: "memory"); /* GCC's tile loads do not say that they read memory */
    if (t->is_first) {
        _tile_zero(0);
        _tile_zero(1);
        if (!is_one_tile) {
            _tile_zero(2);
            _tile_zero(3);
        }
    } else {
        _tile_loadd(0, sums, TILES_STRIDE);
        _tile_loadd(1, sums + 16, TILES_STRIDE);
        if (!is_one_tile) {
            _tile_loadd(2, lower_sums, TILES_STRIDE);
            _tile_loadd(3, lower_sums + 16, TILES_STRIDE);
        }
    }
    for (int64_t s = 0; s < t->steps; s += TILES_STEPS, b += TILES_STEPS * TILES_OUTPUTS) {
        _tile_loadd(4, a + s, row_bytes);
        _tile_loadd(6, b, TILES_STRIDE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + 16, TILES_STRIDE);
        _tile_dpbf16ps(1, 4, 7);
        if (!is_one_tile) {
            _tile_loadd(5, lower + s, row_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, TILES_STRIDE);
    _tile_stored(1, sums + 16, TILES_STRIDE);
    if (!is_one_tile) {
        _tile_stored(2, lower_sums, TILES_STRIDE);
        _tile_stored(3, lower_sums + 16, TILES_STRIDE);
    }
    __asm__ volatile("" ::: "memory");
}
#else
enum { HAS_TILES = 0 };

/* The same for levels without tiles, which never call them. */
static inline void tiles_shape(int rows) {
}
/* Does nothing. */
static inline void tiles_release(void) {
}
/* Does nothing. */
static inline void tiles_multiply(int rows, int panels, int64_t steps, const float *a, int64_t row_floats,
                                  const float *b, int64_t beside, float *out) {
}
/* Does nothing. */
static inline void tiles_add(const struct tile_sums *t) {
}
#endif
