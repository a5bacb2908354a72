/* Vectors of 4 floats (SSE4.2). Every level has a simd.h with the same names; this one explains them.
 *
 * A vfloat holds SIMD_LANES floats, and a vword holds SIMD_LANES 32-bit words. + - * and the bitwise operators work on
 * both. A product is computed in blocks of SIMD_ROWS rows by SIMD_WIDE vectors, whose sums fit in the registers.
 *
 * A unit is 32 bits of an operand of a product. It is a float, or at a level with SIMD_PAIRS optionally a pair of bf16;
 * then the even element is in the lower half. Units are stored in memory as floats, and are only moved as bits. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

enum { SIMD_LANES = 4, SIMD_ROWS = 4, SIMD_WIDE = 2, SIMD_PAIRS = 0 };

typedef __m128 vfloat;
typedef __m128i vword;

/* Returns the vector at p, which needs no alignment. */
static inline vfloat simd_load(const float *p) {
    return _mm_loadu_ps(p);
}

/* Writes the vector to p, which needs no alignment. */
static inline void simd_store(float *p, vfloat x) {
    _mm_storeu_ps(p, x);
}

/* Returns x in every lane. */
static inline vfloat simd_set(float x) {
    return _mm_set1_ps(x);
}

/* Returns a * b + c, rounded once if the level can do that. */
static inline vfloat simd_fma(vfloat a, vfloat b, vfloat c) {
    return _mm_add_ps(_mm_mul_ps(a, b), c);
}

/* Returns sum plus the product of the units a and b: one product of floats, or the two products of a pair. */
static inline vfloat simd_dot(bool pairs, vfloat a, vfloat b, vfloat sum) {
    return simd_fma(a, b, sum);
}

/* Returns the larger one of each lane; b's if either is NaN. */
static inline vfloat simd_max(vfloat a, vfloat b) {
    return _mm_max_ps(a, b);
}

/* Returns the sum of the lanes. */
static inline float simd_sum(vfloat x) {
    __m128 two = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Returns the largest lane. */
static inline float simd_largest(vfloat x) {
    __m128 two = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Rounds each lane to an integer; ties go to the even one. */
static inline vfloat simd_round(vfloat x) {
    return _mm_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Returns x * 2^n for integral n <= 127 and x in [0.5, 2), or 0 if that is subnormal. */
static inline vfloat simd_scale(vfloat x, vfloat n) {
    __m128i scaled = _mm_add_epi32((__m128i)x, _mm_slli_epi32(_mm_cvtps_epi32(n), 23));
    return _mm_and_ps((__m128)scaled, _mm_cmpnlt_ps(n, _mm_set1_ps(-126.0f)));
}

/* Returns a's lane i if bit i is set, else b's. */
static inline vfloat simd_select(uint32_t bits, vfloat a, vfloat b) {
    __m128i lane = _mm_setr_epi32(1, 2, 4, 8);
    __m128i mine = _mm_cmpeq_epi32(_mm_and_si128(_mm_set1_epi32((int)bits), lane), lane);
    return _mm_blendv_ps(b, a, (__m128)mine);
}

/* Returns SIMD_LANES elements of bf16 as floats. */
static inline vfloat simd_load_bf16(const uint16_t *p) {
    return (vfloat)_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p)), 16);
}

/* Returns the bits of x rounded to bf16, in the lower half of each word. */
static inline vword simd_round_bf16(vfloat x) {
    __m128i bits = (__m128i)x;
    __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
    __m128i up = _mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7fff)), odd);
    __m128i quiet = _mm_or_si128(bits, _mm_set1_epi32(0x400000));
    __m128 nan = _mm_cmpunord_ps(x, x);
    return _mm_srli_epi32((__m128i)_mm_blendv_ps((__m128)up, (__m128)quiet, nan), 16);
}

/* Writes the lower half of each word, SIMD_LANES numbers of 16 bits. */
static inline void simd_store_halves(uint16_t *p, vword x) {
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi32(x, x));
}

/* Returns x in every word. */
static inline vword simd_words(uint32_t x) {
    return _mm_set1_epi32((int)x);
}

/* Returns x, x + 1, ... */
static inline vword simd_words_from(uint32_t x) {
    return _mm_add_epi32(_mm_set1_epi32((int)x), _mm_setr_epi32(0, 1, 2, 3));
}

/* Moves the lower half of each word to its upper half, and clears the lower one. */
static inline vword simd_upper_halves(vword x) {
    return _mm_slli_epi32(x, 16);
}

/* Returns the 64-bit products of the even words, each in the place of two words. */
static inline vword simd_product(vword a, vword b) {
    return _mm_mul_epu32(a, b);
}

/* Returns the odd words in the even places. */
static inline vword simd_odd_words(vword x) {
    return _mm_srli_epi64(x, 32);
}

/* Returns the even words of both, those of `odd` in the odd places. */
static inline vword simd_weave(vword even, vword odd) {
    return _mm_blend_epi16(even, _mm_slli_epi64(odd, 32), 0xcc);
}

/* Returns bits: bit i is set if a's word i >= b's, unsigned. */
static inline uint32_t simd_at_least(vword a, vword b) {
    return (uint32_t)_mm_movemask_ps((__m128)_mm_cmpeq_epi32(_mm_max_epu32(a, b), a));
}

/* Return SIMD_LANES elements, converted to words or to floats: bytes, numbers of 16 bits, fp16. */
static inline vword simd_load_bytes(const uint8_t *p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return _mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
}
static inline vword simd_load_halves(const uint16_t *p) {
    return _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p));
}
static inline vfloat simd_load_f16(const uint16_t *p) {
    return _mm_setr_ps(f16_to_float(p[0]), f16_to_float(p[1]), f16_to_float(p[2]), f16_to_float(p[3]));
}

/* Only for levels with SIMD_PAIRS. The first two return the two lower (half 0) or upper bytes of each lane: as bf16 of
 * signed numbers, and as 16-bit words. The others return entries of a table, by the lowest 5 bits of each 16-bit code,
 * or by 6 bits with two tables. */
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
