/* The counter-based generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
 *
 * A random word is a pure function of (seed, counter): it has no state, order or layout. Everything random in the model
 * is keyed by its identity, never by where or when it is computed. CPU and CUDA share this file, so everything is
 * inline. */
#pragma once

#include "inline.h"

#include <stdint.h>

struct philox {
    uint32_t word[4];
};

/* Returns the four random words of a seed and a counter c0 .. c3. */
BASE_INLINE struct philox philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    struct philox words = {{c0, c1, c2, c3}};
    return words;
}

/* Element e of a row of random words is word (e % 64) / 16 of counter c0 = e / 64 * 16 + e % 16. Sixteen neighbours are
 * then sixteen lanes of one vector of counters, and no shuffle is needed. */
BASE_INLINE uint32_t rng_element_counter(uint32_t e) {
    return e / 64 * 16 + e % 16;
}
BASE_INLINE uint32_t rng_element_word(uint32_t e) {
    return e % 64 / 16;
}

/* Kinds of randomness, the upper byte of counter c3. Two kinds never share a counter. */
enum rng_kind {
    RNG_DROPOUT = 1,
    RNG_ATTENTION_DROPOUT = 2,
    RNG_INIT = 3,
    RNG_SAMPLE = 4,
    RNG_TEST = 5,
    RNG_SHUFFLE = 6,
    RNG_PROMPT = 7,
};

/* Dropout of element e (a feature, or a key position for attention) of a token of a sample. `site` is unique in the
 * model (layer and place, and head for attention) and below 2^24. The element is kept when its word is >= p * 2^32. */
BASE_INLINE uint32_t rng_dropout_word(uint64_t seed, enum rng_kind kind, uint32_t site, uint32_t sample, uint32_t token,
                                      uint32_t e) {
    struct philox r = philox(seed, rng_element_counter(e), token, sample, (uint32_t)kind << 24 | site);
    uint32_t word = rng_element_word(e); /* a chosen word stays in a register where an index would need memory */
    return word & 2 ? (word & 1 ? r.word[3] : r.word[2]) : word & 1 ? r.word[1] : r.word[0];
}

/* Converts p in [0, 1) to the threshold that the word of a kept element reaches. */
BASE_INLINE uint32_t rng_dropout_threshold(float p) {
    return (uint32_t)((double)p * 4294967296.0);
}

/* The draw of the token at `position` of the `choice`-th sample of a prompt. */
BASE_INLINE uint32_t rng_sample_word(uint64_t seed, uint32_t choice, uint32_t position) {
    return philox(seed, choice, position, 0, (uint32_t)RNG_SAMPLE << 24).word[0];
}

/* A word as a number in (0, 1), never 0 or 1. */
BASE_INLINE double rng_unit(uint32_t word) {
    return ((double)word + 0.5) * 0x1p-32;
}
