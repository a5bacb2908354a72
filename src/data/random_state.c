/* MT19937 (random_state.h), numpy's shuffle and Python's sample. Megatron's order of samples is fixed with the first,
 * and lm_eval's examples with the second. */
#include "random_state.h"

#include <math.h>
#include <stdbool.h>

enum { STATE_WORDS = 624, SHIFT_WORDS = 397 };

void random_state_seed(struct random_state *state, uint32_t seed) {
    for (int i = 0; i < STATE_WORDS; i++) {
        state->word[i] = seed;
        seed = 1812433253u * (seed ^ (seed >> 30)) + (uint32_t)i + 1;
    }
    state->next = STATE_WORDS;
}

/* init_by_array with the seed as its one word. */
void random_state_seed_python(struct random_state *state, uint32_t seed) {
    uint32_t *w = state->word;
    random_state_seed(state, 19650218);
    for (int k = 0; k < 2 * STATE_WORDS - 1; k++) {
        int i = k % (STATE_WORDS - 1) + 1;
        uint32_t last = w[i - 1] ^ (w[i - 1] >> 30);
        w[i] = k < STATE_WORDS ? (w[i] ^ (last * 1664525u)) + seed : (w[i] ^ (last * 1566083941u)) - (uint32_t)i;
        if (i == STATE_WORDS - 1)
            w[0] = w[i];
    }
    w[0] = 0x80000000u;
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

static uint32_t random_state_next(struct random_state *state) {
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

/* random._randbelow: a number below n >= 1. */
static uint32_t draw_below(struct random_state *state, uint32_t n) {
    int bits = 32 - __builtin_clz(n);
    uint32_t drawn;
    while ((drawn = random_state_next(state) >> (32 - bits)) >= n)
        ;
    return drawn;
}

void random_state_sample(struct random_state *state, uint32_t total, uint32_t count, uint32_t *room, uint32_t *out) {
    double set_size = 21 + (count > 5 ? pow(4, ceil(log(count * 3.0) / log(4))) : 0); /* Python's choice of two ways */
    bool takes_away = total <= set_size;
    for (uint32_t i = 0; i < total; i++)
        room[i] = takes_away ? i : 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = draw_below(state, takes_away ? total - i : total);
        while (!takes_away && room[j])
            j = draw_below(state, total);
        out[i] = takes_away ? room[j] : j;
        room[j] = takes_away ? room[total - i - 1] : 1;
    }
}
