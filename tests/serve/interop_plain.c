/* Plain HTTP for interop_server.c: what tests need to ask of a transport.
 *
 *     GET /            "hello"
 *     POST /echo       the body, once it is whole
 *     POST /early      401 before the body is read
 *     GET /stream?N    N pieces of 1,024 bytes, as fast as they are read, at most the limit of output ahead
 *     GET /wait        nothing, until the client leaves or another asks for /wake
 *     GET /wake        the last /wait gets "hello", and this gets the same
 *     GET /broken      a piece, and then the answer is broken off
 *     GET /counts      JSON: exchanges begun, closed whole, closed otherwise, the most that waited at once, the loop's
 * longest turn */
#include "interop_server.h"

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1024, MOST_AHEAD = 256 << 10 };

/* A program for tests may keep state: it has one transport. */
static struct {
    long long begun, whole, broken;
    size_t most_pending;
    long long turns, long_turns;
    double longest_turn; /* seconds */
} counts;

void interop_count_turn(double seconds) {
    counts.turns++;
    counts.long_turns += seconds > 0.05; /* longer than a health check may wait */
    if (seconds > counts.longest_turn)
        counts.longest_turn = seconds;
}

static struct exchange *last_wait; /* NULL: it is over */

struct plain {
    struct strbuf body;
    long long left; /* pieces of /stream */
};

static void on_closed(struct exchange *exchange, bool is_whole) {
    (void)exchange;
    is_whole ? counts.whole++ : counts.broken++;
}

static void on_close(struct exchange *exchange) {
    struct plain *plain = exchange->context;
    if (exchange == last_wait)
        last_wait = NULL;
    strbuf_free(&plain->body);
    free(plain);
}

static void on_body(struct exchange *exchange, const unsigned char *bytes, size_t length) {
    struct plain *plain = exchange->context;
    strbuf_add(&plain->body, bytes, length);
}

static void echo_end(struct exchange *exchange) {
    struct plain *plain = exchange->context;
    exchange_answer(exchange, 200, "application/octet-stream", strbuf_text(&plain->body), plain->body.length);
}

static void stream_write(struct exchange *exchange) {
    struct plain *plain = exchange->context;
    char piece[PIECE_BYTES];
    memset(piece, 'x', sizeof piece);
    while (plain->left > 0 && exchange_pending(exchange) <= MOST_AHEAD) {
        plain->left--;
        exchange_write(exchange, piece, sizeof piece);
    }
    if (exchange_pending(exchange) > counts.most_pending)
        counts.most_pending = exchange_pending(exchange);
    if (!plain->left)
        exchange_end(exchange, NULL, 0);
}

static void stream_begin(struct exchange *exchange) {
    struct plain *plain = exchange->context;
    struct field type = field_of("content-type", "text/plain");
    plain->left = atoll(exchange->head.query);
    exchange_begin(exchange, 200, &type, 1, -1);
    stream_write(exchange);
}

static void broken_begin(struct exchange *exchange) {
    struct field type = field_of("content-type", "text/plain");
    exchange_begin(exchange, 200, &type, 1, -1);
    exchange_write(exchange, "so far", 6);
    exchange_abort(exchange);
}

static void counts_answer(struct exchange *exchange) {
    char text[300];
    int length = snprintf(text, sizeof text,
                          "{\"begun\":%lld,\"whole\":%lld,\"broken\":%lld,\"most_pending\":%zu,\"turns\":%lld,"
                          "\"long_turns\":%lld,\"longest_turn\":%.6f}",
                          counts.begun, counts.whole, counts.broken, counts.most_pending, counts.turns,
                          counts.long_turns, counts.longest_turn);
    exchange_answer(exchange, 200, "application/json", text, (size_t)length);
}

static void hello_answer(struct exchange *exchange) {
    exchange_answer(exchange, 200, "text/plain", "hello", 5);
}

static void wake_answer(struct exchange *exchange) {
    if (last_wait)
        hello_answer(last_wait);
    hello_answer(exchange);
}

static const struct exchange_handler echo = {.on_body = on_body, .on_end = echo_end, .on_close = on_close};
static const struct exchange_handler stream = {.on_end = stream_begin, .on_room = stream_write, .on_close = on_close};
static const struct exchange_handler only_close = {.on_close = on_close};

static bool plain_claims(const struct exchange *exchange) {
    (void)exchange;
    return true;
}

static void plain_begin(struct exchange *exchange) {
    const char *path = exchange->head.path;
    struct plain *plain = calloc(1, sizeof *plain);
    if (!plain) {
        exchange_abort(exchange);
        return;
    }
    counts.begun++;
    exchange->context = plain;
    exchange->handler = &only_close;
    exchange->on_closed = on_closed;
    if (!strcmp(path, "/echo")) {
        exchange->handler = &echo;
    } else if (!strcmp(path, "/stream")) {
        exchange->handler = &stream;
    } else if (!strcmp(path, "/early")) {
        exchange_answer(exchange, 401, "text/plain", "no\n", 3);
    } else if (!strcmp(path, "/broken")) {
        broken_begin(exchange);
    } else if (!strcmp(path, "/counts")) {
        counts_answer(exchange);
    } else if (!strcmp(path, "/")) {
        hello_answer(exchange);
    } else if (!strcmp(path, "/wake")) {
        wake_answer(exchange);
    } else if (!strcmp(path, "/wait")) {
        last_wait = exchange;
    } else {
        exchange_answer(exchange, 404, "text/plain", "no such path\n", 13);
    }
}

const struct interop_service interop_plain = {plain_claims, plain_begin};
