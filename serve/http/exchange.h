/* An exchange: one request and its answer, the same for HTTP/1.1 and for a stream of HTTP/2.
 *
 * The room has sockets, TLS and both protocols. It knows nothing about the meaning of requests. The code that opens the
 * transport brings the router: struct request and the callbacks of transport_options.
 *
 * The transport (listen.h) makes an exchange when a request's header is complete, and asks the router for a handler.
 * Then it calls the handler. The handler calls the functions below, in any order that HTTP allows, at any time until
 * on_close. These functions never write to a socket. Output is sent at the end of the loop's turn, many pieces in one
 * write. Everything runs on the loop's thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct exchange;
struct request;

enum listener_kind { LISTENER_DATA, LISTENER_CONTROL, LISTENER_COUNT };

/* A header or trailer field. Names are in lower case. Strings from the transport end with a zero byte. */
struct field {
    const char *name, *value;
    size_t name_length, value_length;
};

/* The request without its body; valid as long as the exchange. */
struct exchange_head {
    const char *method, *path, *query; /* path: as sent, without the query; query: "" if there is none */
    const struct field *fields;        /* without HTTP/2's pseudo-fields; :authority appears as "host" */
    size_t field_count;
    enum listener_kind listener;
    bool is_http2, is_tls;
    const char *peer; /* an address, or "unix" */
    uint64_t address; /* the same as a number, not 0; of IPv6 the first 64 bits, which may all be one client's */
    /* 400 or 431 when the transport found a fault in the header: the router answers with this status and starts no
     * handler. 0: no fault. */
    int refusal;
    const char *problem; /* message for the refusal */
};

/* Callbacks of an exchange. Any except on_close may be NULL. */
struct exchange_handler {
    /* Bytes of the request's body, as they arrive. */
    void (*on_body)(struct exchange *exchange, const unsigned char *bytes, size_t length);
    /* The request is complete. */
    void (*on_end)(struct exchange *exchange);
    /* exchange_pending was above the limit of a stream's output and is now below half of it. */
    void (*on_room)(struct exchange *exchange);
    /* The last callback, called once. The exchange is freed afterwards. */
    void (*on_close)(struct exchange *exchange);
};

/* The transport's functions for handlers: HTTP/1 has one table, HTTP/2 another. Errors as in exchange_begin. */
struct exchange_transport {
    int (*begin)(struct exchange *exchange, int status, const struct field *fields, size_t count, int64_t length);
    int (*write)(struct exchange *exchange, const void *bytes, size_t length);
    int (*end)(struct exchange *exchange, const struct field *trailers, size_t count);
    void (*abort)(struct exchange *exchange);
    size_t (*pending)(const struct exchange *exchange);
};

/* The reason why the transport gave up an incomplete answer. */
enum exchange_fault { EXCHANGE_NO_FAULT, EXCHANGE_SLOW_READER /* the client does not read its answer */ };

struct exchange {
    struct exchange_head head;
    const struct exchange_transport *transport;
    struct request *request; /* the router's data: transport_options.request_bytes, zeroed; freed with the exchange */
    double start;            /* monotonic seconds */
    int status;              /* of the answer; 0: not begun */
    enum exchange_fault fault;
    /* Set by the router: */
    const struct exchange_handler *handler;
    void *context;   /* for the handler */
    uint64_t client; /* whom the request belongs to, on all connections; 0: only its address is known */
    /* Called instead of the transport's begin, to add the fields that all answers have; or NULL. */
    int (*begin)(struct exchange *exchange, int status, const struct field *fields, size_t count, int64_t length);
    /* Called after the handler's on_close; or NULL. `is_whole`: the complete answer was sent; otherwise the client
     * disconnected or the transport gave up. */
    void (*on_closed)(struct exchange *exchange, bool is_whole);
    int64_t body_bytes; /* limit of a body that the handler does not gather; 0: transport_limits.body_bytes */
    bool resets_early;  /* gRPC over HTTP/2: reset the stream when the answer ends before the request */
};

/* Returns the value of the first field with this name, or NULL. */
const char *exchange_field(const struct exchange *exchange, const char *name);

/* Begins the answer. `length` is the length of the body in bytes, or -1 when it is known only at exchange_end. The
 * router may add fields.
 *
 * exchange_begin, _write, _end and _answer return 0 or STATUS_MEMORY. After a failure, or after the client
 * disconnected, they do nothing, and on_close follows. */
int exchange_begin(struct exchange *exchange, int status, const struct field *fields, size_t count, int64_t length);
/* Appends bytes to the answer's body. */
int exchange_write(struct exchange *exchange, const void *bytes, size_t length);
/* Completes the answer. Only HTTP/2 sends trailers. If exchange_begin had length 0 in the same turn, a single HEADERS
 * frame carries everything (Trailers-Only). */
int exchange_end(struct exchange *exchange, const struct field *trailers, size_t count);
/* Begins, writes and completes an answer with this body. `type` is the content type. */
int exchange_answer(struct exchange *exchange, int status, const char *type, const void *body, size_t length);
/* Breaks the answer off, by RST_STREAM (INTERNAL_ERROR) or by closing the connection early. on_close follows. */
void exchange_abort(struct exchange *exchange);
/* For the transport: calls on_close and on_closed; the transport frees the exchange afterwards. `fault` is the reason
 * for giving up an incomplete answer. */
void exchange_close(struct exchange *exchange, bool is_whole, enum exchange_fault fault);
/* Returns how many bytes of the answer have not been written to the socket. */
size_t exchange_pending(const struct exchange *exchange);

/* Makes a field of two strings. */
static inline struct field field_of(const char *name, const char *value) {
    return (struct field){
        .name = name, .value = value, .name_length = __builtin_strlen(name), .value_length = __builtin_strlen(value)};
}
