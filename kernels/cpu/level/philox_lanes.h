/* Sixteen counters of the generator at once: the 64 random words of elements 64 b .. 64 b + 63 of a row (base/rng.h
 * says which word belongs to which element). */
#ifndef CAMBIUM_KERNELS_CPU_PHILOX_LANES_H
#define CAMBIUM_KERNELS_CPU_PHILOX_LANES_H

#include "base/base.h"

enum { PHILOX_LANES = 16, PHILOX_BLOCK = 64 };

#ifdef __AVX512F__
#include <immintrin.h>

/* The even and the odd lanes live in registers of their own, each number in the low half of 64 bits (the high half is
 * whatever the last product left): what a 32 x 32 bit product reads and writes, so that nothing is shuffled between
 * rounds. Twice as fast as the compiler's version of the plain loop. */
static inline void philox_block(uint64_t seed, uint32_t block, uint32_t c1, uint32_t c2, uint32_t c3,
                                uint32_t word[64]) {
    const __m512i by0 = _mm512_set1_epi32((int)0xd2511f53u), by2 = _mm512_set1_epi32((int)0xcd9e8d57u);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    __m512i even0 = _mm512_add_epi32(_mm512_set1_epi32((int)(block * PHILOX_LANES)),
                                     _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __m512i even1 = _mm512_set1_epi32((int)c1), even2 = _mm512_set1_epi32((int)c2), even3 = _mm512_set1_epi32((int)c3);
    __m512i odd0 = _mm512_srli_epi64(even0, 32), odd1 = even1, odd2 = even2, odd3 = even3;
    for (int round = 0; round < 10; round++) {
        __m512i key0 = _mm512_set1_epi32((int)k0), key1 = _mm512_set1_epi32((int)k1);
        __m512i even_a = _mm512_mul_epu32(even0, by0), even_b = _mm512_mul_epu32(even2, by2);
        __m512i odd_a = _mm512_mul_epu32(odd0, by0), odd_b = _mm512_mul_epu32(odd2, by2);
        /* 0x96: the exclusive or of three */
        even0 = _mm512_ternarylogic_epi32(_mm512_srli_epi64(even_b, 32), even1, key0, 0x96);
        even2 = _mm512_ternarylogic_epi32(_mm512_srli_epi64(even_a, 32), even3, key1, 0x96);
        odd0 = _mm512_ternarylogic_epi32(_mm512_srli_epi64(odd_b, 32), odd1, key0, 0x96);
        odd2 = _mm512_ternarylogic_epi32(_mm512_srli_epi64(odd_a, 32), odd3, key1, 0x96);
        even1 = even_b;
        even3 = even_a;
        odd1 = odd_b;
        odd3 = odd_a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    _mm512_storeu_si512(word, _mm512_mask_blend_epi32(0xaaaa, even0, _mm512_slli_epi64(odd0, 32)));
    _mm512_storeu_si512(word + 16, _mm512_mask_blend_epi32(0xaaaa, even1, _mm512_slli_epi64(odd1, 32)));
    _mm512_storeu_si512(word + 32, _mm512_mask_blend_epi32(0xaaaa, even2, _mm512_slli_epi64(odd2, 32)));
    _mm512_storeu_si512(word + 48, _mm512_mask_blend_epi32(0xaaaa, even3, _mm512_slli_epi64(odd3, 32)));
}

#else

static inline void philox_block(uint64_t seed, uint32_t block, uint32_t c1, uint32_t c2, uint32_t c3,
                                uint32_t word[64]) {
#pragma omp simd
    for (uint32_t lane = 0; lane < PHILOX_LANES; lane++) {
        struct philox r = philox(seed, block * PHILOX_LANES + lane, c1, c2, c3);
        word[lane] = r.word[0];
        word[16 + lane] = r.word[1];
        word[32 + lane] = r.word[2];
        word[48 + lane] = r.word[3];
    }
}

#endif

#endif
