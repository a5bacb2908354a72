/* Vectors of 8 floats (AVX2, FMA). cpu/v2/simd.h explains the names. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

enum { SIMD_LANES = 8, SIMD_ROWS = 4, SIMD_WIDE = 2, SIMD_PAIRS = 0 };

typedef __m256 vfloat;
typedef __m256i vword;

/* ---- as explained in cpu/v2/simd.h ---- */

static inline vfloat simd_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void simd_store(float *p, vfloat x) {
    _mm256_storeu_ps(p, x);
}
static inline vfloat simd_set(float x) {
    return _mm256_set1_ps(x);
}
static inline vfloat simd_fma(vfloat a, vfloat b, vfloat c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vfloat simd_dot(bool pairs, vfloat a, vfloat b, vfloat sum) {
    return simd_fma(a, b, sum);
}
static inline vfloat simd_max(vfloat a, vfloat b) {
    return _mm256_max_ps(a, b);
}
static inline float simd_sum(vfloat x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float simd_largest(vfloat x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
static inline vfloat simd_round(vfloat x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vfloat simd_scale(vfloat x, vfloat n) {
    __m256i scaled = _mm256_add_epi32((__m256i)x, _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    return _mm256_and_ps((__m256)scaled, _mm256_cmp_ps(n, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ));
}
static inline vfloat simd_select(uint32_t bits, vfloat a, vfloat b) {
    __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i mine = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), lane), lane);
    return _mm256_blendv_ps(b, a, (__m256)mine);
}
static inline vfloat simd_load_bf16(const uint16_t *p) {
    return (vfloat)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}
static inline vword simd_round_bf16(vfloat x) {
    __m256i bits = (__m256i)x;
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_srli_epi32((__m256i)_mm256_blendv_ps((__m256)up, (__m256)quiet, nan), 16);
}
static inline void simd_store_halves(uint16_t *p, vword x) {
    __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storeu_si128((__m128i *)p, halves);
}
static inline vword simd_words(uint32_t x) {
    return _mm256_set1_epi32((int)x);
}
static inline vword simd_words_from(uint32_t x) {
    return _mm256_add_epi32(_mm256_set1_epi32((int)x), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vword simd_upper_halves(vword x) {
    return _mm256_slli_epi32(x, 16);
}
static inline vword simd_product(vword a, vword b) {
    return _mm256_mul_epu32(a, b);
}
static inline vword simd_odd_words(vword x) {
    return _mm256_srli_epi64(x, 32);
}
static inline vword simd_weave(vword even, vword odd) {
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
static inline uint32_t simd_at_least(vword a, vword b) {
    __m256i larger = _mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a);
    return (uint32_t)_mm256_movemask_ps((__m256)larger);
}
static inline vword simd_load_bytes(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
static inline vword simd_load_halves(const uint16_t *p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline vfloat simd_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline vfloat simd_byte_pairs(vword words, int half) {
    return simd_set(0);
}
static inline vword simd_widened_bytes(vword words, int half) {
    return simd_words(0);
}
static inline vword simd_chosen_halves(vword table, vword codes) {
    return simd_words(0);
}
static inline vword simd_chosen_of_two(vword lower, vword upper, vword codes) {
    return simd_words(0);
}
