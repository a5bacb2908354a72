/* numpy.random.RandomState: MT19937 (Matsumoto and Nishimura, 1998) seeded by init_genrand, and its shuffle. numpy
 * promises never to change this stream, so Megatron's order of samples is fixed with it. */
#include "data-internal.h"

enum { STATE_WORDS = 624, SHIFT_WORDS = 397 };

void random_state_seed(struct random_state *state, uint32_t seed) {
    for (int i = 0; i < STATE_WORDS; i++) {
        state->word[i] = seed;
        seed = 1812433253u * (seed ^ (seed >> 30)) + (uint32_t)i + 1;
    }
    state->next = STATE_WORDS;
}

static uint32_t twist(uint32_t upper, uint32_t lower) {
    uint32_t y = (upper & 0x80000000u) | (lower & 0x7fffffffu);
    return (y >> 1) ^ (-(y & 1) & 0x9908b0dfu);
}

static void refill(struct random_state *state) {
    uint32_t *w = state->word;
    int i = 0;
    for (; i < STATE_WORDS - SHIFT_WORDS; i++)
        w[i] = w[i + SHIFT_WORDS] ^ twist(w[i], w[i + 1]);
    for (; i < STATE_WORDS - 1; i++)
        w[i] = w[i + SHIFT_WORDS - STATE_WORDS] ^ twist(w[i], w[i + 1]);
    w[i] = w[SHIFT_WORDS - 1] ^ twist(w[i], w[0]);
    state->next = 0;
}

uint32_t random_state_next(struct random_state *state) {
    if (state->next == STATE_WORDS)
        refill(state);
    uint32_t y = state->word[state->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* The exchanged places do not depend on the values. They are therefore drawn ahead and prefetched; beyond the caches
 * the shuffle would otherwise wait for each one. */
void random_state_shuffle(struct random_state *state, uint32_t *values, int64_t count) {
    enum { AHEAD = 64 };
    uint32_t partners[AHEAD];
    for (int64_t i = count - 1; i > 0;) {
        int64_t n = i < AHEAD ? i : AHEAD;
        for (int64_t k = 0; k < n; k++) {
            uint32_t last = (uint32_t)(i - k), mask = UINT32_MAX >> __builtin_clz(last);
            while ((partners[k] = random_state_next(state) & mask) > last)
                ;
            __builtin_prefetch(&values[partners[k]], 1);
        }
        for (int64_t k = 0; k < n; k++, i--) {
            uint32_t value = values[i];
            values[i] = values[partners[k]];
            values[partners[k]] = value;
        }
    }
}
