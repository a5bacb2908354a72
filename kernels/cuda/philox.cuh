/* The generator of base/rng.h for kernels. */
#pragma once

#include "base/rng.h"

#include <cstdint>

/* philox() of base/rng.h. The asm keeps the compiler from computing in 64 bits, which takes half as much again. */
static __device__ __forceinline__ struct philox philox_words(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2,
                                                             uint32_t c3) {
    struct philox c = {{c0, c1, c2, c3}};
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t a, b;
        asm("mul.wide.u32 %0, %1, %2;" : "=l"(a) : "r"(c.word[0]), "r"(0xd2511f53u));
        asm("mul.wide.u32 %0, %1, %2;" : "=l"(b) : "r"(c.word[2]), "r"(0xcd9e8d57u));
        c = {
            {(uint32_t)(b >> 32) ^ c.word[1] ^ key0, (uint32_t)b, (uint32_t)(a >> 32) ^ c.word[3] ^ key1, (uint32_t)a}};
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return c;
}
