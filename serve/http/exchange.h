/* An exchange: one request and its answer, over HTTP/1.1 or as a stream of HTTP/2 alike.
 *
 * The room has sockets, TLS and the two protocols, and knows nothing that requests are about: the router (struct
 * request and the functions of transport_options) belongs to whoever opens the transport.
 *
 * The transport (listen.h) makes it when a request's head is whole and asks the router for a handler; from then on it
 * calls the handler, and the handler calls the functions below, in any order that HTTP allows and at any time until
 * on_close. Nothing is written to a socket inside these functions: what was given goes out at the end of the loop's
 * turn, many pieces as one write. All of it is the loop's thread. */
#ifndef CAMBIUM_HTTP_EXCHANGE_H
#define CAMBIUM_HTTP_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct exchange;
struct request;

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
    /* The transport has found the head to be wrong: the router answers with this status, 400 or 431, and no handler
     * begins. 0: nothing is wrong. */
    int refusal;
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

/* Why the transport gave up an answer that is not whole. */
enum exchange_fault { EXCHANGE_NO_FAULT, EXCHANGE_SLOW_READER /* the client does not read its answer */ };

struct exchange {
    struct exchange_head head;
    const struct exchange_transport *transport;
    struct request *request; /* the router's part: transport_options.request_bytes, zeroed; it lives as long */
    double start;            /* seconds of the monotonic clock */
    int status;              /* of the answer; 0: not begun */
    enum exchange_fault fault;
    /* the router's: */
    const struct exchange_handler *handler;
    void *context; /* the handler's */
    /* Begins an answer in the transport's place, to add fields that all answers have; or NULL. */
    int (*begin)(struct exchange *exchange, int status, const struct field *fields, size_t count, int64_t length);
    /* after the handler's on_close; or NULL */
    void (*on_closed)(struct exchange *exchange, bool is_whole);
    bool resets_early; /* gRPC over HTTP/2: an answer that ends before its request stops that */
};

/* The value of a field (the first of the name), or NULL. */
const char *exchange_field(const struct exchange *exchange, const char *name);

/* Begins the answer. `length` of the body, or -1 for one that is written until exchange_end. The router may add fields.
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
/* Calls on_close and on_closed; then the transport frees the exchange. `fault` is why it gave up an answer. */
void exchange_close(struct exchange *exchange, bool is_whole, enum exchange_fault fault);
/* Bytes of the answer that have not gone to the socket. */
size_t exchange_pending(const struct exchange *exchange);

/* A field of two strings. */
static inline struct field field_of(const char *name, const char *value) {
    return (struct field){
        .name = name, .value = value, .name_length = __builtin_strlen(name), .value_length = __builtin_strlen(value)};
}

#endif
