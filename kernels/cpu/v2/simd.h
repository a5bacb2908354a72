/* Vectors of 4 floats (SSE4.2), and the names that every level's simd.h has.
 *
 * vfloat holds SIMD_LANES floats, vword as many 32-bit words; + - * and the bitwise operators work on them. A product
 * is blocked in SIMD_ROWS rows by SIMD_WIDE vectors of sums, which is what the registers hold.
 *
 * A unit is 32 bits of an operand of a product: a float, or, where SIMD_PAIRS is 1, optionally a pair of bf16 (the even
 * element in the lower half). Units are kept in memory as floats and are only ever moved as bits. */
#ifndef CAMBIUM_KERNELS_CPU_SIMD_H
#define CAMBIUM_KERNELS_CPU_SIMD_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

enum { SIMD_LANES = 4, SIMD_ROWS = 4, SIMD_WIDE = 2, SIMD_PAIRS = 0 };

typedef __m128 vfloat;
typedef __m128i vword;

static inline vfloat simd_load(const float *p) {
    return _mm_loadu_ps(p);
}

static inline void simd_store(float *p, vfloat x) {
    _mm_storeu_ps(p, x);
}

static inline vfloat simd_set(float x) {
    return _mm_set1_ps(x);
}

/* a * b + c, rounded once where the level can. */
static inline vfloat simd_fma(vfloat a, vfloat b, vfloat c) {
    return _mm_add_ps(_mm_mul_ps(a, b), c);
}

/* sum + the product of the units a and b: of two floats, or the two products of a pair. */
static inline vfloat simd_dot(bool pairs, vfloat a, vfloat b, vfloat sum) {
    (void)pairs;
    return simd_fma(a, b, sum);
}

/* b when either is NaN. */
static inline vfloat simd_max(vfloat a, vfloat b) {
    return _mm_max_ps(a, b);
}

static inline float simd_sum(vfloat x) {
    __m128 two = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float simd_largest(vfloat x) {
    __m128 two = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

static inline vfloat simd_round(vfloat x) {
    return _mm_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x * 2^n for integral n <= 127 and x in [0.5, 2); 0 where that is subnormal. */
static inline vfloat simd_scale(vfloat x, vfloat n) {
    __m128i scaled = _mm_add_epi32((__m128i)x, _mm_slli_epi32(_mm_cvtps_epi32(n), 23));
    return _mm_and_ps((__m128)scaled, _mm_cmpnlt_ps(n, _mm_set1_ps(-126.0f)));
}

/* Lane i is a's where bit i is set and b's elsewhere. */
static inline vfloat simd_select(uint32_t bits, vfloat a, vfloat b) {
    __m128i lane = _mm_setr_epi32(1, 2, 4, 8);
    __m128i mine = _mm_cmpeq_epi32(_mm_and_si128(_mm_set1_epi32((int)bits), lane), lane);
    return _mm_blendv_ps(b, a, (__m128)mine);
}

static inline vfloat simd_load_bf16(const uint16_t *p) {
    return (vfloat)_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p)), 16);
}

/* The bits of x rounded to bf16, in the lower half of each word. */
static inline vword simd_round_bf16(vfloat x) {
    __m128i bits = (__m128i)x;
    __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
    __m128i up = _mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7fff)), odd);
    __m128i quiet = _mm_or_si128(bits, _mm_set1_epi32(0x400000));
    __m128 nan = _mm_cmpunord_ps(x, x);
    return _mm_srli_epi32((__m128i)_mm_blendv_ps((__m128)up, (__m128)quiet, nan), 16);
}

/* The lower half of each word, SIMD_LANES in a row. */
static inline void simd_store_halves(uint16_t *p, vword x) {
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi32(x, x));
}

static inline vword simd_words(uint32_t x) {
    return _mm_set1_epi32((int)x);
}

/* x, x + 1, ... */
static inline vword simd_words_from(uint32_t x) {
    return _mm_add_epi32(_mm_set1_epi32((int)x), _mm_setr_epi32(0, 1, 2, 3));
}

static inline vword simd_upper_halves(vword x) {
    return _mm_slli_epi32(x, 16);
}

/* The 64-bit products of the even words, each in the place of two words. */
static inline vword simd_product(vword a, vword b) {
    return _mm_mul_epu32(a, b);
}

/* The odd words in the even places. */
static inline vword simd_odd_words(vword x) {
    return _mm_srli_epi64(x, 32);
}

/* The even words of both, those of `odd` in the odd places. */
static inline vword simd_weave(vword even, vword odd) {
    return _mm_blend_epi16(even, _mm_slli_epi64(odd, 32), 0xcc);
}

/* Bit i: a's word i >= b's, unsigned. */
static inline uint32_t simd_at_least(vword a, vword b) {
    return (uint32_t)_mm_movemask_ps((__m128)_mm_cmpeq_epi32(_mm_max_epu32(a, b), a));
}

#endif
