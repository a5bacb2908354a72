/* FP8: casts, and the scales of the next step. The CPU has FP8 numbers as bf16. */
#include "cpu/level/rows.h"

#include <float.h>
#include <math.h>

/* Casts a row, and returns the bits of the largest size in it. Sizes compare as their bits do. */
TYPED_BODY uint32_t cast_row(const uint16_t *x, uint16_t *y, int64_t cols, float scale, enum dtype type) {
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < cols; j++) {
        uint32_t size = (uint32_t)(x[j] & 0x7fff) << 16;
        size = size > 0x7f800000u ? 0 : size;
        most = size > most ? size : most;
        y[j] = (uint16_t)(vfloat_to_bits(fp8_round(type, bf16_to_float(x[j]) * scale)) >> 16);
    }
    return most;
}

int LEVEL(cpu_fp8_cast)(const struct exec *exec, const struct fp8_cast *a) {
    const uint16_t *x = a->x;
    uint16_t *y = a->to.y;
    float scale = *a->to.scale;
    uint32_t most = 0;
#pragma omp parallel for num_threads(threads_for(exec, a->rows * a->cols)) schedule(static) reduction(max : most)
    for (int64_t i = 0; i < a->rows; i++) {
        uint32_t of_row = a->to.type == DTYPE_E4M3
                              ? cast_row(x + i * a->stride, y + i * a->cols, a->cols, scale, DTYPE_E4M3)
                              : cast_row(x + i * a->stride, y + i * a->cols, a->cols, scale, DTYPE_E5M2);
        most = of_row > most ? of_row : most;
    }
    float size = vbits_to_float(most);
    if (a->to.amax && size > *a->to.amax)
        *a->to.amax = size;
    return STATUS_OK;
}

int LEVEL(cpu_fp8_result)(const struct exec *exec, const struct fp8_result *a) {
    if (!fp8_is_wanted(a->to))
        return STATUS_OK;
    return LEVEL(cpu_fp8_cast)(
        exec, &(const struct fp8_cast){.rows = a->rows, .cols = a->cols, .stride = a->cols, .x = a->x, .to = *a->to});
}

int LEVEL(cpu_fp8_scales)(const struct exec *exec, const struct fp8_scales *a) {
    for (int64_t t = 0; t < a->count; t++) {
        float largest = a->history[a->position * a->stride + t] = a->amax[t];
        for (int64_t i = 0; i < a->length && !a->is_most_recent; i++) {
            float entry = a->history[i * a->stride + t];
            largest = entry > largest ? entry : largest;
        }
        float scale = largest > 0 && isfinite(largest) ? a->most / largest : a->scale[t];
        a->scale[t] = isinf(scale) ? FLT_MAX : scale;
        a->inverse[t] = 1 / a->scale[t];
        a->amax[t] = 0;
    }
    return STATUS_OK;
}
