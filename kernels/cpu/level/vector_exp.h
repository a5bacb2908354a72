/* The base-2 exponential of a vector. */
#pragma once

#include "simd.h"

#define LOG2_E 1.44269504088896341f

/* Returns 2^x, to 1e-7 relative for x <= 127. It is exactly 1 at 0, 0 below about -126, and NaN for NaN. */
static inline __attribute__((always_inline)) vfloat exp2_vector(vfloat x) {
    x = simd_max(simd_set(-200.0f), x);
    vfloat n = simd_round(x);
    vfloat f = x - n;
    vfloat p = simd_set(1.535336189e-04f);
    p = simd_fma(p, f, simd_set(1.339887442e-03f));
    p = simd_fma(p, f, simd_set(9.618437358e-03f));
    p = simd_fma(p, f, simd_set(5.550332471e-02f));
    p = simd_fma(p, f, simd_set(2.402264791e-01f));
    p = simd_fma(p, f, simd_set(6.931472029e-01f));
    p = simd_fma(p, f, simd_set(1.0f));
    return simd_scale(p, n);
}
