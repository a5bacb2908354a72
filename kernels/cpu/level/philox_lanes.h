/* The random generator for sixteen counters at once: the 64 words of elements 64 b .. 64 b + 63 of a row. The header
 * base/rng.h defines which word belongs to which element. */
#pragma once

#include "base/base.h"

enum { PHILOX_LANES = 16, PHILOX_BLOCK = 64 };

#ifdef __AVX2__
#include <immintrin.h>

/* Even and odd counters are in separate vectors, each number in the low half of 64 bits; the high half is undefined.
 * That is the layout that a 32 x 32 bit product reads and writes, so rounds need no shuffles between them. This is
 * twice as fast as the compiler's version of the plain loop.
 *
 *     philox_all          x in every word
 *     philox_counters     first, first + 1, ... in words
 *     philox_product      64-bit products of the low halves
 *     philox_upper        high halves, moved to the low halves
 *     philox_xor          a ^ b ^ c
 *     philox_store        the low halves, even and odd counters by turns */
#ifdef __AVX512F__
typedef __m512i philox_vector;

/* ---- vectors of 16 words ---- */

static inline philox_vector philox_all(uint32_t x) {
    return _mm512_set1_epi32((int)x);
}
static inline philox_vector philox_counters(uint32_t first) {
    return _mm512_add_epi32(philox_all(first), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
static inline philox_vector philox_product(philox_vector a, philox_vector b) {
    return _mm512_mul_epu32(a, b);
}
static inline philox_vector philox_upper(philox_vector x) {
    return _mm512_srli_epi64(x, 32);
}
static inline philox_vector philox_xor(philox_vector a, philox_vector b, philox_vector c) {
    return _mm512_ternarylogic_epi32(a, b, c, 0x96);
}
static inline void philox_store(uint32_t *word, philox_vector even, philox_vector odd) {
    _mm512_storeu_si512(word, _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)));
}
#else
typedef __m256i philox_vector;

/* ---- vectors of 8 words ---- */

static inline philox_vector philox_all(uint32_t x) {
    return _mm256_set1_epi32((int)x);
}
static inline philox_vector philox_counters(uint32_t first) {
    return _mm256_add_epi32(philox_all(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline philox_vector philox_product(philox_vector a, philox_vector b) {
    return _mm256_mul_epu32(a, b);
}
static inline philox_vector philox_upper(philox_vector x) {
    return _mm256_srli_epi64(x, 32);
}
static inline philox_vector philox_xor(philox_vector a, philox_vector b, philox_vector c) {
    return _mm256_xor_si256(a, _mm256_xor_si256(b, c));
}
static inline void philox_store(uint32_t *word, philox_vector even, philox_vector odd) {
    _mm256_storeu_si256((__m256i *)word, _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa));
}
#endif

enum { PHILOX_VECTOR = sizeof(philox_vector) / 4 };

/* Writes the 64 words of block `block`. The key is `seed`; c1, c2 and c3 are the other words of the counter. */
static inline void philox_block(uint64_t seed, uint32_t block, uint32_t c1, uint32_t c2, uint32_t c3,
                                uint32_t word[64]) {
    const philox_vector by0 = philox_all(0xd2511f53u), by2 = philox_all(0xcd9e8d57u);
    for (uint32_t lane = 0; lane < PHILOX_LANES; lane += PHILOX_VECTOR) {
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        philox_vector even0 = philox_counters(block * PHILOX_LANES + lane), odd0 = philox_upper(even0);
        philox_vector even1 = philox_all(c1), even2 = philox_all(c2), even3 = philox_all(c3);
        philox_vector odd1 = even1, odd2 = even2, odd3 = even3;
        for (int round = 0; round < 10; round++) {
            philox_vector key0 = philox_all(k0), key1 = philox_all(k1);
            philox_vector even_a = philox_product(even0, by0), even_b = philox_product(even2, by2);
            philox_vector odd_a = philox_product(odd0, by0), odd_b = philox_product(odd2, by2);
            even0 = philox_xor(philox_upper(even_b), even1, key0);
            even2 = philox_xor(philox_upper(even_a), even3, key1);
            odd0 = philox_xor(philox_upper(odd_b), odd1, key0);
            odd2 = philox_xor(philox_upper(odd_a), odd3, key1);
            even1 = even_b;
            even3 = even_a;
            odd1 = odd_b;
            odd3 = odd_a;
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        philox_store(word + lane, even0, odd0);
        philox_store(word + 16 + lane, even1, odd1);
        philox_store(word + 32 + lane, even2, odd2);
        philox_store(word + 48 + lane, even3, odd3);
    }
}

#else

/* Writes the 64 words of block `block`. The key is `seed`; c1, c2 and c3 are the other words of the counter. */
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
