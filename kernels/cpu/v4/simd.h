/* Vectors of 16 floats without bf16 arithmetic: bf16 is converted to fp32. */
#pragma once

#include "cpu/v4/simd512.h"

enum { SIMD_PAIRS = 0 };

/* ---- as explained in cpu/v2/simd.h ---- */

static inline vfloat simd_dot(bool pairs, vfloat a, vfloat b, vfloat sum) {
    return simd_fma(a, b, sum);
}
static inline vword simd_round_bf16(vfloat x) {
    __m512i bits = (__m512i)x;
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_srli_epi32(_mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000)), 16);
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
