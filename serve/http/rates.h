/* Rates of clients: a token bucket for each client that was active lately, over all of its connections.
 *
 * Memory is bounded: when a set of places is taken, the client that used least of its bucket is forgotten. The loop's
 * thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A token bucket. */
struct bucket {
    double tokens, time;
};
/* Adds `per_second` for the time since the last call, up to `burst`. A bucket that was never filled gets `burst`. */
void bucket_fill(struct bucket *bucket, double burst, double per_second, double now);

enum { RATES_SETS = 64, RATES_WAYS = 8, RATES_NAME_BYTES = 65 };

struct rate {
    uint64_t client; /* 0: a free place */
    struct bucket bucket;
    int64_t refused; /* the owner's: what the empty bucket refused, not reported yet */
    char name[RATES_NAME_BYTES];
};

struct rates {
    double burst, per_second;
    struct rate places[RATES_SETS * RATES_WAYS];
};

/* Returns a client's rate, filled up to `now` (seconds); a new one has a full bucket. `client` is a number that others
 * cannot choose, as of a key or an address. */
struct rate *rates_find(struct rates *rates, uint64_t client, double now);
/* Takes a token; false: none is there. */
bool rate_take(struct rate *rate);
