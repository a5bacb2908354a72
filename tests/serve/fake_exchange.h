/* An exchange whose answer is kept: what handlers do, without a socket. A test program has it once. */
#pragma once

#include "support/test.h"

#include "serve/request.h"

#include "base/strbuf.h"

/* Around what is the test's own, for tests whose allocations fail. */
#ifndef FAKE_OUTSIDE
#define FAKE_OUTSIDE(is_outside) ((void)0)
#endif

enum { FAKE_FIELDS = 16 };

struct fake {
    struct exchange exchange; /* the first: the transport finds the rest by it */
    struct request request;
    struct field fields[FAKE_FIELDS];
    int status;
    int64_t length;
    struct strbuf head, body, trailers; /* head and trailers: "name: value\n" a field */
    int begun, ended, aborted, writes;
    size_t pending; /* what exchange_pending says */
};

static inline void fake_keep(struct strbuf *out, const struct field *fields, size_t count) {
    for (size_t i = 0; i < count; i++)
        strbuf_format(out, "%.*s: %.*s\n", (int)fields[i].name_length, fields[i].name, (int)fields[i].value_length,
                      fields[i].value);
}

static inline int fake_begin(struct exchange *exchange, int status, const struct field *fields, size_t count,
                             int64_t length) {
    struct fake *fake = (struct fake *)exchange;
    assert_int_equal(fake->begun++, 0);
    fake->status = status;
    fake->length = length;
    fake_keep(&fake->head, fields, count);
    return 0;
}

static inline int fake_write(struct exchange *exchange, const void *bytes, size_t length) {
    struct fake *fake = (struct fake *)exchange;
    assert_int_equal(fake->begun, 1);
    assert_int_equal(fake->ended, 0);
    fake->writes++;
    FAKE_OUTSIDE(true);
    strbuf_add(&fake->body, bytes, length);
    FAKE_OUTSIDE(false);
    return 0;
}

static inline int fake_end(struct exchange *exchange, const struct field *trailers, size_t count) {
    struct fake *fake = (struct fake *)exchange;
    fake_keep(&fake->trailers, trailers, count);
    assert_int_equal(fake->begun, 1);
    assert_int_equal(fake->ended++, 0);
    assert_true(fake->length < 0 || (size_t)fake->length == fake->body.length);
    return 0;
}

static inline void fake_abort(struct exchange *exchange) {
    ((struct fake *)exchange)->aborted++;
}

static inline size_t fake_pending(const struct exchange *exchange) {
    return ((const struct fake *)exchange)->pending;
}

static const struct exchange_transport fake_transport = {fake_begin, fake_write, fake_end, fake_abort, fake_pending};

static inline void fake_open(struct fake *fake, struct server *server, enum listener_kind listener, const char *method,
                             const char *path) {
    *fake = (struct fake){
        .exchange = {.head = {.method = method, .path = path, .query = "", .listener = listener, .peer = "test"},
                     .transport = &fake_transport,
                     .request = &fake->request},
        .request.server = server};
    fake->exchange.head.fields = fake->fields;
}

static inline void fake_field(struct fake *fake, const char *name, const char *value) {
    assert_true(fake->exchange.head.field_count < FAKE_FIELDS);
    fake->fields[fake->exchange.head.field_count++] = field_of(name, value);
}

/* Sends the request's body, in pieces, and its end. */
static inline void fake_send(struct fake *fake, const char *body, size_t each) {
    struct exchange *exchange = &fake->exchange;
    for (size_t left = strlen(body); left;) {
        size_t length = left < each ? left : each;
        if (exchange->handler->on_body)
            exchange->handler->on_body(exchange, (const unsigned char *)body, length);
        body += length;
        left -= length;
    }
    if (exchange->handler->on_end)
        exchange->handler->on_end(exchange);
}

static inline void fake_close(struct fake *fake) {
    exchange_close(&fake->exchange, fake->ended > 0, EXCHANGE_NO_FAULT);
    strbuf_free(&fake->head);
    strbuf_free(&fake->body);
    strbuf_free(&fake->trailers);
}
