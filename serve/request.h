/* A request as the router sees it: the part of an exchange that the transport stores for us and never reads
 * (exchange.h). The loop's thread. */
#pragma once

#include "keys.h"
#include "openai/error.h"
#include "trace.h"

#include "http/exchange.h"

struct server;

enum { REQUEST_ID_BYTES = 129, REQUEST_ENDS = 64 };

/* A request's use of the model, for its log line (log.h) and its span (span.h). */
struct request_usage {
    bool is_there;      /* the request asked the model */
    char adapters[264]; /* names, separated by commas */
    int64_t prompt_tokens, cached_tokens, completion_tokens;
    double started, first_token; /* times; 0: did not happen */
    int64_t max_tokens, choices; /* requested; max_tokens -1: to the end of the context */
    double temperature, top_p;
    int64_t end_count;    /* completions that ended by themselves */
    uint64_t length_ends; /* a bit for each of the first REQUEST_ENDS, in order: it ended by its length */
};

struct request {
    struct server *server;
    char id[REQUEST_ID_BYTES]; /* x-request-id: printable */
    const char *route;         /* the path of its row, without /v1; NULL: no row, or gRPC */
    struct trace trace;
    const char *cors_origin; /* a page that may read the answer; NULL: none */
    enum error_case error;   /* the error that was sent; request_error also reports the transport's faults */
    bool is_accepted;        /* its work has begun: a later error does not count as a rejection */
    bool is_endless;         /* ends only when its client does; a stopping server does not wait for it */
    bool is_probe;           /* a request for health or metrics: not logged if it succeeds */
    struct request_usage usage;
    struct key_holder client; /* without a key: number 0, name "" */
};

/* For exchange->begin: adds x-request-id, traceparent and tracestate, and the fields that a page of cors_origin needs.
 * The errors of exchange_begin. */
int request_begin_answer(struct exchange *exchange, int status, const struct field *fields, size_t count,
                         int64_t length);
/* For transport_options.refuse: writes {"error":{...}}, as for our own errors. */
void request_refuse(struct strbuf *body, int status, const char *problem);
/* Returns the error for a status that the transport chose: 400, 408, 413 or 431. */
enum error_case request_error_of(int status);
/* Returns the reason why the answer is not the requested one: the error that was sent, or the transport's fault. */
enum error_case request_error(const struct exchange *exchange);
/* Returns an identity for queues in which clients take turns: the client of its key, or its connection. Never 0. */
uint64_t request_owner(const struct exchange *exchange);
