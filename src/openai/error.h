/* Everything that can go wrong with a request, for both protocols. One row per case gives the HTTP status, `type` and
 * `code` of the body, and the gRPC status. */
#pragma once

#include "grammar/grammar.h"

#include <stdbool.h>

struct strbuf;

enum error_case {
    ERROR_NONE,
    ERROR_ARGUMENT,           /* 400, with the field's name in `param` */
    ERROR_CONTEXT_LENGTH,     /* the context has fewer tokens */
    ERROR_CONSTRAINT_INVALID, /* 400: malformed, or it allows no text */
    ERROR_CONSTRAINT_UNSUPPORTED,
    ERROR_CONSTRAINT_TOO_LARGE, /* it takes too much time or memory */
    ERROR_KEY,                  /* 401 */
    ERROR_PERMISSION,           /* 403 */
    ERROR_MODEL_NOT_FOUND,
    ERROR_ADAPTER_NOT_FOUND,
    ERROR_OBJECT_NOT_FOUND, /* a file or a job */
    ERROR_ROUTE_NOT_FOUND,  /* gRPC: UNIMPLEMENTED */
    ERROR_METHOD,           /* 405 */
    ERROR_ADAPTER_EXISTS,
    ERROR_GENERATION_CHANGED,
    ERROR_BODY_SIZE,       /* 413 */
    ERROR_HEADER_SIZE,     /* 431 */
    ERROR_MEDIA_TYPE,      /* 415 */
    ERROR_ADAPTER_INVALID, /* 422, with the loader's message */
    ERROR_HOST,            /* 421: Host is not a name of this server */
    ERROR_OVERLOADED,      /* 429: retry later */
    ERROR_SLOW_READER,     /* the client does not read the answer */
    ERROR_DRAINING,        /* 503 */
    ERROR_ENGINE_FAILED,   /* 503 */
    ERROR_DEADLINE,        /* 504 */
    ERROR_ADAPTER_MEMORY,  /* 507 */
    ERROR_TUNING_DISK,     /* 507 */
    ERROR_CANCELLED,       /* the client disconnected; nobody reads this */
    ERROR_INTERNAL,        /* 500 */
    ERROR_COUNT
};

/* Returns the case of a constraint that was refused; ERROR_INTERNAL for one that was not. */
enum error_case error_of_refusal(enum grammar_refusal refusal);

struct error_row {
    int http;
    const char *type, *code; /* code NULL: null */
    int grpc;                /* gRPC's status code */
};
/* Returns the row of a case. */
const struct error_row *error_row(enum error_case which);

struct error {
    enum error_case which;
    char param[64];     /* the field's name; "": none */
    char text[1024];    /* one line for the client, without internal names */
    int retry_after_ms; /* 0: not sent */
};
/* Sets the error and returns false, for a reader that fails; printf form. `param` may be NULL. */
bool error_set(struct error *error, enum error_case which, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same, with the thread's status text. */
bool error_of_status(struct error *error, enum error_case which, const char *param);
/* An error made as by error_set for a single call: route_fail(exchange, AN_ERROR(ERROR_KEY, NULL, "no key")). */
#define AN_ERROR(...) error_make(&(struct error){0}, __VA_ARGS__)
const struct error *error_make(struct error *error, enum error_case which, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Removes absolute paths from the text. A path below `root` (NULL: none) keeps the part below it; any other path keeps
 * its last name. */
void error_hide_paths(struct error *error, const char *root);
/* Appends {"error":{"message","type","param","code"}}. */
void error_add_json(const struct error *error, struct strbuf *out);
/* Appends the same in Anthropic's form: {"type":"error","error":{"type","message"}}. */
void error_add_message(const struct error *error, struct strbuf *out);
