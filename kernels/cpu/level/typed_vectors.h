/* SIMD_LANES elements of an array of `type`, fp32 or bf16, as a vector. `type` is a constant after inlining. */
#ifndef CAMBIUM_KERNELS_CPU_TYPED_VECTORS_H
#define CAMBIUM_KERNELS_CPU_TYPED_VECTORS_H

#include "cpu/level/rows.h"
#include "simd.h"

TYPED_BODY vfloat load_vector(const void *x, int64_t i, enum dtype type) {
    return type == DTYPE_F32 ? simd_load((const float *)x + i) : simd_load_bf16((const uint16_t *)x + i);
}

TYPED_BODY void store_vector(void *x, int64_t i, enum dtype type, vfloat value) {
    if (type == DTYPE_F32)
        simd_store((float *)x + i, value);
    else
        simd_store_halves((uint16_t *)x + i, simd_round_bf16(value));
}

#endif
