/* Vectors of 16 floats (AVX-512 F, BW, DQ, VL): the part that both AVX-512 levels share.
 * cpu/v2/simd.h explains the names. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

enum { SIMD_LANES = 16, SIMD_ROWS = 8, SIMD_WIDE = 2 };

typedef __m512 vfloat;
typedef __m512i vword;

/* ---- as explained in cpu/v2/simd.h ---- */

static inline vfloat simd_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void simd_store(float *p, vfloat x) {
    _mm512_storeu_ps(p, x);
}
static inline vfloat simd_set(float x) {
    return _mm512_set1_ps(x);
}
static inline vfloat simd_fma(vfloat a, vfloat b, vfloat c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vfloat simd_max(vfloat a, vfloat b) {
    return _mm512_max_ps(a, b);
}
static inline float simd_sum(vfloat x) {
    return _mm512_reduce_add_ps(x);
}
static inline float simd_largest(vfloat x) {
    return _mm512_reduce_max_ps(x);
}
static inline vfloat simd_round(vfloat x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vfloat simd_scale(vfloat x, vfloat n) {
    return _mm512_scalef_ps(x, n);
}
static inline vfloat simd_select(uint32_t bits, vfloat a, vfloat b) {
    return _mm512_mask_blend_ps((__mmask16)bits, b, a);
}
static inline vfloat simd_load_bf16(const uint16_t *p) {
    return (vfloat)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}
static inline void simd_store_halves(uint16_t *p, vword x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(x));
}
static inline vword simd_words(uint32_t x) {
    return _mm512_set1_epi32((int)x);
}
static inline vword simd_words_from(uint32_t x) {
    return _mm512_add_epi32(_mm512_set1_epi32((int)x),
                            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
static inline vword simd_upper_halves(vword x) {
    return _mm512_slli_epi32(x, 16);
}
static inline vword simd_product(vword a, vword b) {
    return _mm512_mul_epu32(a, b);
}
static inline vword simd_odd_words(vword x) {
    return _mm512_srli_epi64(x, 32);
}
static inline vword simd_weave(vword even, vword odd) {
    return _mm512_mask_shuffle_epi32(even, 0xaaaa, odd, (_MM_PERM_ENUM)_MM_SHUFFLE(2, 2, 0, 0));
}
static inline uint32_t simd_at_least(vword a, vword b) {
    return _mm512_cmpge_epu32_mask(a, b);
}
static inline vword simd_load_bytes(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline vword simd_load_halves(const uint16_t *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}
static inline vfloat simd_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
