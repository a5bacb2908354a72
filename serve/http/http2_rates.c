/* Limits the useless frames of an HTTP/2 connection, and the resets of a client. */
#include "http2-internal.h"

#include "base/base.h"

/* The client has spent its budget: sends GOAWAY and ends. */
void http2_calm_down(struct http2 *http, const char *why) {
    http->is_over = true;
    http->goaway_code = NGHTTP2_ENHANCE_YOUR_CALM;
    http->goaway_text = why;
    connection_schedule(http->connection);
}

void http2_spend(struct http2 *http, double cost) {
    http->glitches.tokens -= cost;
    if (http->glitches.tokens < 0 && !http->is_over)
        http2_calm_down(http, "too many useless frames");
}

void http2_spend_reset(struct http2 *http, uint64_t client) {
    struct rates *resets = &http->connection->transport->http2->resets;
    client = client ? client : http->connection->address;
    if (!rate_take(rates_find(resets, client, clock_seconds())) && !http->is_over)
        http2_calm_down(http, "too many resets");
}

bool http2_may_ask(struct http2 *http, uint64_t client, bool is_refused) {
    struct rates *resets = &http->connection->transport->http2->resets;
    if (is_refused)
        return rate_take(rates_find(resets, http->connection->address, clock_seconds()));
    return !client || rates_find(resets, client, clock_seconds())->bucket.tokens >= 1;
}
