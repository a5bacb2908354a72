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
static inline vfloat simd_byte_pairs(vword words, int half) {
    /* As the lowest bits of 2^23 they become floats, whose upper halves are bf16. */
    const __m512i unit = _mm512_set1_epi32(0x4b000000), first = _mm512_set1_epi32(2 * half);
    const __m512i lane = _mm512_set4_epi32(12, 8, 4, 0), upper = _mm512_set4_epi32(0x0f0e, 0x0b0a, 0x0706, 0x0302);
    const __m512 less = _mm512_set1_ps(0x1p23f + 128);
    words = _mm512_xor_si512(words, _mm512_set1_epi32((int)0x80808080));
    __m512i even = _mm512_add_epi32(lane, first), odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    even = _mm512_mask_shuffle_epi8(unit, 0x1111111111111111, words, even);
    odd = _mm512_mask_shuffle_epi8(unit, 0x1111111111111111, words, odd);
    even = (__m512i)_mm512_sub_ps((__m512)even, less);
    odd = (__m512i)_mm512_sub_ps((__m512)odd, less);
    return (vfloat)_mm512_mask_shuffle_epi8(odd, 0x3333333333333333, even, upper);
}
static inline vword simd_widened_bytes(vword words, int half) {
    const __m512i lower = _mm512_set4_epi32(0x0d000c, 0x090008, 0x050004, 0x010000);
    return _mm512_maskz_shuffle_epi8(0x5555555555555555, words,
                                     _mm512_add_epi32(lower, _mm512_set1_epi32(half * 0x020002)));
}
static inline vword simd_chosen_halves(vword table, vword codes) {
    return _mm512_permutexvar_epi16(codes, table);
}
static inline vword simd_chosen_of_two(vword lower, vword upper, vword codes) {
    return _mm512_permutex2var_epi16(lower, codes, upper);
}
