/* An exchange: one request and its answer, over HTTP/1.1 or as a stream of HTTP/2 alike.
 *
 * The transport (listen.h) makes it when a request's head is whole and asks the router for a handler; from then on it
 * calls the handler, and the handler calls the functions below, in any order that HTTP allows and at any time until
 * on_close. Nothing is written to a socket inside these functions: what was given goes out at the end of the loop's
 * turn, many pieces as one write. All of it is the loop's thread. */
#ifndef CAMBIUM_SERVE_EXCHANGE_H
#define CAMBIUM_SERVE_EXCHANGE_H

#include "error.h"
#include "keys.h"
#include "trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct exchange;
struct server;

enum listener_kind { LISTENER_DATA, LISTENER_CONTROL, LISTENER_COUNT };

/* A header or trailer field. Names are in lower case. Both end with a zero byte where the transport gives them. */
struct field {
    const char *name, *value;
    size_t name_length, value_length;
};

/* The request but for its body; it lives as long as the exchange. */
struct exchange_head {
    const char *method, *path, *query; /* path: without the query, as sent; query: "" where there is none */
    const struct field *fields;        /* without HTTP/2's pseudo-fields; :authority is "host" */
    size_t field_count;
    enum listener_kind listener;
    bool is_http2, is_tls;
    const char *peer; /* an address, or "unix" */
    /* The transport has found the head to be wrong: the router answers with this error, and no handler begins.
     * ERROR_NONE: nothing is wrong. */
    enum error_case refusal;
    const char *problem; /* of the refusal */
};

/* What becomes of an exchange. Any of them but on_close may be NULL. */
struct exchange_handler {
    /* Bytes of the request's body, as they come. */
    void (*on_body)(struct exchange *exchange, const unsigned char *bytes, size_t length);
    /* The request is whole. */
    void (*on_end)(struct exchange *exchange);
    /* exchange_pending, which was over the limit of a stream's output, is below half of it. */
    void (*on_room)(struct exchange *exchange);
    /* The last call, once: the answer has gone out whole, or the client has left, or the transport has given up
     * (`is_whole` false). The exchange is freed behind it. */
    void (*on_close)(struct exchange *exchange, bool is_whole);
};

/* What the transport does for handlers; http1.c and http2.c have one each. */
struct exchange_transport {
    int (*begin)(struct exchange *exchange, int status, const struct field *fields, size_t count, int64_t length);
    int (*write)(struct exchange *exchange, const void *bytes, size_t length);
    int (*end)(struct exchange *exchange, const struct field *trailers, size_t count);
    void (*abort)(struct exchange *exchange);
    size_t (*pending)(const struct exchange *exchange);
};

enum { EXCHANGE_ID_BYTES = 129, EXCHANGE_ENDS = 64 };

/* The use that a request made of the model, for its line of the log (log.h) and its span (span.h). */
struct exchange_usage {
    bool is_there;      /* it asked something of the model */
    char adapters[264]; /* names, with commas between */
    int64_t prompt_tokens, cached_tokens, completion_tokens;
    double started, first_token; /* times; 0: it never came to that */
    int64_t max_tokens, choices; /* asked for; max_tokens -1: to the end of the context */
    double temperature, top_p;
    int64_t end_count;    /* texts that ended by themselves */
    uint64_t length_ends; /* a bit for each of the first EXCHANGE_ENDS, in their order: it ended by its length */
};

struct exchange {
    struct exchange_head head;
    const struct exchange_transport *transport;
    struct server *server;
    /* the router's: */
    const struct exchange_handler *handler;
    void *context; /* the handler's */
    /* the router's, behind the handler's on_close; or NULL */
    void (*on_closed)(struct exchange *exchange, bool is_whole);
    char id[EXCHANGE_ID_BYTES]; /* x-request-id: printable */
    const char *route;          /* the path of its row, without /v1; NULL: there is none, or it is gRPC */
    struct trace trace;
    const char *cors_origin; /* of a page that may read the answer; NULL: none */
    enum error_case error;   /* that was answered */
    bool is_accepted;        /* its work has begun: an error is no rejection any more */
    bool is_endless;         /* it ends when its client does: nobody waits for it when the server stops */
    bool is_probe;           /* of health or metrics: no line where all is well */
    struct exchange_usage usage;
    struct key_holder client; /* number 0, name "": without a key */
    double start;             /* seconds of the monotonic clock */
    bool resets_early;        /* gRPC over HTTP/2: an answer that ends before its request stops that */
    int status;               /* of the answer; 0: not begun */
};

/* The value of a field (the first of the name), or NULL. */
const char *exchange_field(const struct exchange *exchange, const char *name);

/* Whose request it is, for queues in which clients take turns: the client of its key, or its connection. Never 0. */
uint64_t exchange_owner(const struct exchange *exchange);

/* Begins the answer. `length` of the body, or -1 for one that is written until exchange_end. x-request-id,
 * traceparent and tracestate are added, and what a page of cors_origin needs.
 * These return 0 or STATUS_MEMORY; after a failure, or when the client has left, they do nothing, and on_close comes.
 */
int exchange_begin(struct exchange *exchange, int status, const struct field *fields, size_t count, int64_t length);
int exchange_write(struct exchange *exchange, const void *bytes, size_t length);
/* The answer is whole. Trailers are for HTTP/2 alone. With no body and trailers, one HEADERS frame has it all
 * (Trailers-Only) where exchange_begin had length 0 and came in the same turn. */
int exchange_end(struct exchange *exchange, const struct field *trailers, size_t count);
/* The three at once. `type`: of the content. */
int exchange_answer(struct exchange *exchange, int status, const char *type, const void *body, size_t length);
/* RST_STREAM (INTERNAL_ERROR), or a connection that is closed without the answer's end; on_close comes. */
void exchange_abort(struct exchange *exchange);
/* The transport's last words to who handles it: on_close and on_closed. The transport frees the exchange behind it.
 * `fault`: why it gave up an answer that is not whole, or ERROR_NONE. */
void exchange_close(struct exchange *exchange, bool is_whole, enum error_case fault);
/* Bytes of the answer that have not gone to the socket. */
size_t exchange_pending(const struct exchange *exchange);

/* A field of two strings. */
static inline struct field field_of(const char *name, const char *value) {
    return (struct field){
        .name = name, .value = value, .name_length = __builtin_strlen(name), .value_length = __builtin_strlen(value)};
}

#endif
