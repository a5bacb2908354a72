/* CRC-32 by carry-less multiplication, after V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ Instruction" (Intel 2009). A product with a power of x moves 16 bytes to a later place. So all bytes become
 * the last 16, whose CRC zlib computes. */
#include "crc.h"

#include <immintrin.h>
#include <stdbool.h>
#include <zlib.h>

enum { LANE = 16, LANES = 4, FOLDED = LANE * LANES };

/* Moves 16 bytes on, by the powers that `by` holds, and adds those that are there. */
__attribute__((target("pclmul"))) static inline __m128i fold(__m128i from, __m128i by, __m128i to) {
    return to ^ _mm_clmulepi64_si128(from, by, 0x00) ^ _mm_clmulepi64_si128(from, by, 0x11);
}

/* Returns the CRC of a multiple of 64 bytes, at least that many. */
__attribute__((target("pclmul"))) static uint32_t add_lanes(uint32_t crc, const unsigned char *bytes, size_t length) {
    const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_16 = _mm_set_epi64x(0xccaa009e, 0x1751997d0);
    __m128i lane[LANES];
    unsigned char last[LANE];
    for (int i = 0; i < LANES; i++)
        lane[i] = _mm_loadu_si128((const __m128i *)(bytes + i * LANE));
    lane[0] ^= _mm_cvtsi32_si128((int)~crc);
    for (size_t at = FOLDED; at < length; at += FOLDED)
        for (int i = 0; i < LANES; i++)
            lane[i] = fold(lane[i], by_64, _mm_loadu_si128((const __m128i *)(bytes + at + i * LANE)));
    for (int i = 1; i < LANES; i++)
        lane[i] = fold(lane[i - 1], by_16, lane[i]);
    _mm_storeu_si128((__m128i *)last, lane[LANES - 1]);
    return (uint32_t)crc32_z(UINT32_MAX, last, LANE); /* which begins with a register of zero */
}

uint32_t crc_add(uint32_t crc, const void *bytes, size_t length) {
    const unsigned char *at = bytes;
    size_t folded = length / FOLDED * FOLDED;
    __builtin_cpu_init();
    bool is_fast = folded && __builtin_cpu_supports("pclmul");
    if (is_fast)
        crc = add_lanes(crc, at, folded);
    else
        folded = 0;
    return (uint32_t)crc32_z(crc, at + folded, length - folded);
}
