/* Vectors of 16 floats, and products of pairs of bf16. */
#pragma once

#include "cpu/v4/simd512.h"

enum { SIMD_PAIRS = 1 };

/* ---- as explained in cpu/v2/simd.h ---- */

static inline vfloat simd_dot(bool pairs, vfloat a, vfloat b, vfloat sum) {
    return pairs ? _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b) : simd_fma(a, b, sum);
}
static inline vword simd_round_bf16(vfloat x) {
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
}
static inline vfloat simd_byte_pairs(const uint8_t *p) {
    __m512 lower = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
    __m512 upper = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p + 1)));
    return (vfloat)_mm512_cvtne2ps_pbh(upper, lower);
}
static inline vword simd_widened_bytes(const uint8_t *p) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)p));
}
