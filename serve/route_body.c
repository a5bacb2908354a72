/* Bodies that are one text, and the exchanges that go on behind them. */
#include "route.h"

#include "base/base.h"

#include <stdlib.h>

struct collected {
    const struct route_body *body;
    struct strbuf bytes;
};

static void drop(struct collected *collected) {
    strbuf_free(&collected->bytes);
    free(collected);
}

/* Behind an answer that came early: the rest of the body goes nowhere. */
static const struct exchange_handler nobody = {.on_close = NULL};

static void refuse(struct exchange *exchange, enum error_case which, const char *text) {
    struct error error;
    drop(exchange->context);
    exchange->context = NULL;
    exchange->handler = &nobody;
    error_set(&error, which, NULL, "%s", text);
    route_fail(exchange, &error);
}

static void on_body(struct exchange *exchange, const unsigned char *bytes, size_t length) {
    struct collected *collected = exchange->context;
    if (collected->bytes.length + length > (size_t)exchange->server->options->limits.body_bytes) {
        refuse(exchange, ERROR_BODY_SIZE, "the body is larger than the server takes");
        return;
    }
    strbuf_add(&collected->bytes, bytes, length);
    if (collected->bytes.failed)
        refuse(exchange, ERROR_OVERLOADED, "out of memory");
}

static void on_end(struct exchange *exchange) {
    struct collected *collected = exchange->context;
    exchange->context = NULL;
    exchange->handler = &nobody;
    collected->body->on_whole(exchange, strbuf_text(&collected->bytes), collected->bytes.length);
    drop(collected);
}

static void on_close(struct exchange *exchange, bool is_whole) {
    (void)is_whole;
    drop(exchange->context);
}

static const struct exchange_handler collecting = {.on_body = on_body, .on_end = on_end, .on_close = on_close};

/* Such a request is answered before its body comes; the rest is thrown away as it comes. */
static bool promises_too_much(const struct exchange *exchange) {
    const char *promised = exchange_field(exchange, "content-length");
    return promised && strtoull(promised, NULL, 10) > (unsigned long long)exchange->server->options->limits.body_bytes;
}

void route_collect(struct exchange *exchange, const struct route_body *body) {
    struct error error;
    struct collected *collected = NULL;
    if (promises_too_much(exchange))
        error_set(&error, ERROR_BODY_SIZE, NULL, "the body is larger than the server takes");
    else if (!(collected = calloc(1, sizeof *collected)))
        error_set(&error, ERROR_OVERLOADED, NULL, "out of memory");
    if (!collected) {
        route_fail(exchange, &error);
        return;
    }
    collected->body = body;
    exchange->handler = &collecting;
    exchange->context = collected;
}

void route_continue(struct exchange *exchange, const struct exchange_handler *handler, void *context) {
    exchange->handler = handler;
    exchange->context = context;
}
