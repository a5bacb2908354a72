/* Products of packed bf16 weights by AMX tiles: of up to 32 rows and a panel of 32 outputs. A tile product adds 16
 * pairs along k at once, in the same order for any number of rows. Levels without tiles never call these functions. */
#ifndef CAMBIUM_KERNELS_CPU_LEVEL_PACKED_TILES_H
#define CAMBIUM_KERNELS_CPU_LEVEL_PACKED_TILES_H

#include <stdint.h>

enum { TILES_ROWS = 32, TILES_STEPS = 16, TILES_OUTPUTS = 32 };

#ifdef __AMX_BF16__
#include <immintrin.h>

enum { HAS_TILES = 1 };

/* Shapes this thread's tiles for blocks of `rows` rows: 0 to 3 are sums, 4 and 5 rows, 6 and 7 weights. */
static inline void tiles_shape(int rows) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    int upper = rows < 16 ? rows : 16, lower = rows - upper;
    const int each[8] = {upper, upper, lower, lower, upper, lower, TILES_STEPS, TILES_STEPS};
    for (int i = 0; i < 8; i++) {
        shape.rows[i] = (uint8_t)each[i];
        shape.row_bytes[i] = each[i] ? 64 : 0;
    }
    _tile_loadconfig(&shape);
}

/* Ends this thread's use of tiles. */
static inline void tiles_release(void) {
    _tile_release();
}

/* Computes out[rows][TILES_OUTPUTS] of rows `a`, row_floats units apart, and the panel `b`. steps is a multiple of
 * TILES_STEPS, and the thread's tiles have the shape for these rows. `ahead`: units to prefetch ahead in the panel; 0:
 * none. */
static inline void tiles_multiply(int rows, int64_t steps, const float *a, int64_t row_floats, const float *b,
                                  int64_t ahead, float *out) {
    const int stride = TILES_OUTPUTS * (int)sizeof(float);
    const size_t row_bytes = (size_t)row_floats * sizeof(float);
    _tile_zero(0);
    _tile_zero(1);
    if (rows <= 16) {
        for (int64_t s = 0; s < steps; s += TILES_STEPS, b += TILES_STEPS * TILES_OUTPUTS) {
            for (int i = 0; i < TILES_STEPS * TILES_OUTPUTS && ahead; i += 16)
                __builtin_prefetch(b + ahead + i, 0, 2);
            _tile_loadd(4, a + s, row_bytes);
            _tile_loadd(6, b, stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + 16, stride);
            _tile_dpbf16ps(1, 4, 7);
        }
    } else {
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t s = 0; s < steps; s += TILES_STEPS, b += TILES_STEPS * TILES_OUTPUTS) {
            _tile_loadd(4, a + s, row_bytes);
            _tile_loadd(6, b, stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + 16, stride);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, a + 16 * row_floats + s, row_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, out + 16 * TILES_OUTPUTS, stride);
        _tile_stored(3, out + 16 * TILES_OUTPUTS + 16, stride);
    }
    _tile_stored(0, out, stride);
    _tile_stored(1, out + 16, stride);
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
static inline void tiles_multiply(int rows, int64_t steps, const float *a, int64_t row_floats, const float *b,
                                  int64_t ahead, float *out) {
}
#endif

#endif
