/* A request as the router has it: the part of an exchange that the transport keeps for us and never reads (exchange.h).
 * The loop's thread. */
#ifndef CAMBIUM_SERVE_REQUEST_H
#define CAMBIUM_SERVE_REQUEST_H

#include "error.h"
#include "keys.h"
#include "trace.h"

#include "http/exchange.h"

struct server;

enum { REQUEST_ID_BYTES = 129, REQUEST_ENDS = 64 };

/* The use that a request made of the model, for its line of the log (log.h) and its span (span.h). */
struct request_usage {
    bool is_there;      /* it asked something of the model */
    char adapters[264]; /* names, with commas between */
    int64_t prompt_tokens, cached_tokens, completion_tokens;
    double started, first_token; /* times; 0: it never came to that */
    int64_t max_tokens, choices; /* asked for; max_tokens -1: to the end of the context */
    double temperature, top_p;
    int64_t end_count;    /* texts that ended by themselves */
    uint64_t length_ends; /* a bit for each of the first REQUEST_ENDS, in their order: it ended by its length */
};

struct request {
    struct server *server;
    char id[REQUEST_ID_BYTES]; /* x-request-id: printable */
    const char *route;         /* the path of its row, without /v1; NULL: there is none, or it is gRPC */
    struct trace trace;
    const char *cors_origin; /* of a page that may read the answer; NULL: none */
    enum error_case error;   /* that was answered; request_error also knows the transport's faults */
    bool is_accepted;        /* its work has begun: an error is no rejection any more */
    bool is_endless;         /* it ends when its client does: nobody waits for it when the server stops */
    bool is_probe;           /* of health or metrics: no line where all is well */
    struct request_usage usage;
    struct key_holder client; /* number 0, name "": without a key */
};

/* For exchange->begin: adds x-request-id, traceparent and tracestate, and what a page of cors_origin needs. */
int request_begin_answer(struct exchange *exchange, int status, const struct field *fields, size_t count,
                         int64_t length);
/* For transport_options.refuse: {"error":{...}}, as for errors of our own. */
void request_refuse(struct strbuf *body, int status, const char *problem);
/* The error of a status that the transport chose: 400, 408, 413 or 431. */
enum error_case request_error_of(int status);
/* Why its answer is not what was asked for: the error that was answered, or the transport's fault. */
enum error_case request_error(const struct exchange *exchange);
/* Whose request it is, for queues in which clients take turns: the client of its key, or its connection. Never 0. */
uint64_t request_owner(const struct exchange *exchange);

#endif
