/* Token buckets of clients. */
#include "rates.h"

void bucket_fill(struct bucket *bucket, double burst, double per_second, double now) {
    if (bucket->time <= 0)
        bucket->tokens = burst;
    else
        bucket->tokens += (now - bucket->time) * per_second;
    bucket->time = now;
    if (bucket->tokens > burst)
        bucket->tokens = burst;
}

struct rate *rates_find(struct rates *rates, uint64_t client, double now) {
    client += !client; /* 0 is a free place */
    struct rate *set = &rates->places[(client * 0x9e3779b97f4a7c15u >> 32) % RATES_SETS * RATES_WAYS], *found = set;
    for (struct rate *rate = set; rate < set + RATES_WAYS; rate++) {
        if (rate->client)
            bucket_fill(&rate->bucket, rates->burst, rates->per_second, now);
        if (rate->client == client) {
            found = rate;
            break;
        }
        if (!rate->client || (found->client && rate->bucket.tokens > found->bucket.tokens))
            found = rate;
    }
    if (found->client != client) {
        *found = (struct rate){.client = client};
        bucket_fill(&found->bucket, rates->burst, rates->per_second, now);
    }
    return found;
}

bool rate_take(struct rate *rate) {
    bool has = rate->bucket.tokens >= 1;
    rate->bucket.tokens -= has;
    return has;
}
