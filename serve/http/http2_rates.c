/* Token buckets that limit the useless frames and resets of an HTTP/2 client. */
#include "http2-internal.h"

void bucket_fill(struct bucket *bucket, double burst, double per_second, double now) {
    if (bucket->time <= 0)
        bucket->tokens = burst;
    else
        bucket->tokens += (now - bucket->time) * per_second;
    bucket->time = now;
    if (bucket->tokens > burst)
        bucket->tokens = burst;
}

/* The client has spent its budget: sends GOAWAY and ends. */
void http2_calm_down(struct http2 *http, const char *why) {
    http->is_over = true;
    http->goaway_code = NGHTTP2_ENHANCE_YOUR_CALM;
    http->goaway_text = why;
    connection_schedule(http->connection);
}

void http2_spend(struct http2 *http, struct bucket *bucket, double cost) {
    bucket->tokens -= cost;
    if (bucket->tokens < 0 && !http->is_over)
        http2_calm_down(http, bucket == &http->resets ? "too many resets" : "too many useless frames");
}
