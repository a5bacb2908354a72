/* Loads and stores of vectors of SIMD_LANES elements, from element i of an array of `type` on, fp32 or bf16. `type` is
 * a constant after inlining. */
#pragma once

#include "cpu/level/rows.h"
#include "simd.h"

/* Returns a whole vector. */
TYPED_BODY vfloat load_vector(const void *x, int64_t i, enum dtype type) {
    return type == DTYPE_F32 ? simd_load((const float *)x + i) : simd_load_bf16((const uint16_t *)x + i);
}

/* Writes a whole vector, rounded to the type. */
TYPED_BODY void store_vector(void *x, int64_t i, enum dtype type, vfloat value) {
    if (type == DTYPE_F32)
        simd_store((float *)x + i, value);
    else
        simd_store_halves((uint16_t *)x + i, simd_round_bf16(value));
}

/* Returns the first `count` elements of a vector, and zeros after them. */
TYPED_BODY vfloat load_part(const void *x, int64_t i, int64_t count, enum dtype type) {
    float part[SIMD_LANES] = {0};
    for (int64_t j = 0; j < count; j++)
        part[j] = load(x, i + j, type);
    return simd_load(part);
}

/* Writes the first `count` elements of a vector, rounded to the type. */
TYPED_BODY void store_part(void *x, int64_t i, int64_t count, enum dtype type, vfloat value) {
    float part[SIMD_LANES];
    simd_store(part, value);
    for (int64_t j = 0; j < count; j++)
        store(x, i + j, type, part[j]);
}
