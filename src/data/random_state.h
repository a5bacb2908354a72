/* MT19937 (Matsumoto and Nishimura, 1998) as numpy.random.RandomState and Python's random.Random use it. Both promise
 * never to change these streams. */
#pragma once

#include <stdint.h>

struct random_state {
    uint32_t word[624];
    int next;
};
/* Seeds as RandomState(seed) does. */
void random_state_seed(struct random_state *state, uint32_t seed);
/* Seeds as random.Random(seed) does. */
void random_state_seed_python(struct random_state *state, uint32_t seed);
/* RandomState.shuffle of a one-dimensional array of at most 2^32 values. */
void random_state_shuffle(struct random_state *state, uint32_t *values, int64_t count);
/* Random.sample(range(total), count): `count` of the numbers below total < 2^32, without repetition. Takes `room`
 * [total] as scratch. */
void random_state_sample(struct random_state *state, uint32_t total, uint32_t count, uint32_t *room, uint32_t *out);
