/* What can go wrong with a request, as both protocols say it: a row for each case has the status of HTTP, `type` and
 * `code` of the body, and the status of gRPC. */
#ifndef CAMBIUM_SERVE_ERROR_H
#define CAMBIUM_SERVE_ERROR_H

#include <stdbool.h>

struct strbuf;

enum error_case {
    ERROR_NONE,
    ERROR_ARGUMENT,       /* 400, with the field's name in `param` */
    ERROR_CONTEXT_LENGTH, /* more tokens than the context has */
    ERROR_KEY,            /* 401 */
    ERROR_PERMISSION,     /* 403 */
    ERROR_MODEL_NOT_FOUND,
    ERROR_ADAPTER_NOT_FOUND,
    ERROR_ROUTE_NOT_FOUND, /* gRPC: UNIMPLEMENTED */
    ERROR_METHOD,          /* 405 */
    ERROR_ADAPTER_EXISTS,
    ERROR_GENERATION_CHANGED,
    ERROR_BODY_SIZE,       /* 413 */
    ERROR_HEADER_SIZE,     /* 431 */
    ERROR_MEDIA_TYPE,      /* 415 */
    ERROR_ADAPTER_INVALID, /* 422, with the loader's line */
    ERROR_HOST,            /* 421: Host is no name of this server */
    ERROR_OVERLOADED,      /* 429, try again */
    ERROR_SLOW_READER,     /* the client does not read its answer */
    ERROR_DRAINING,        /* 503 */
    ERROR_ENGINE_FAILED,   /* 503 */
    ERROR_DEADLINE,        /* 504 */
    ERROR_ADAPTER_MEMORY,  /* 507 */
    ERROR_CANCELLED,       /* the client has left; nobody reads it */
    ERROR_INTERNAL,        /* 500 */
    ERROR_COUNT
};

struct error_row {
    int http;
    const char *type, *code; /* code NULL: null */
    int grpc;                /* status code */
};
const struct error_row *error_row(enum error_case which);

struct error {
    enum error_case which;
    char param[64];     /* the field's name; "" where there is none */
    char text[1024];    /* one line for the client; no names from within */
    int retry_after_ms; /* 0: nothing is said */
};
/* Sets it; printf form. `param` may be NULL. */
void error_set(struct error *error, enum error_case which, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* From the thread's status text. */
void error_of_status(struct error *error, enum error_case which, const char *param);
/* Takes absolute paths out of the text: of those below `root` (NULL: none) what stands below it stays, of others the
 * last name. */
void error_hide_paths(struct error *error, const char *root);
/* Appends {"error":{"message","type","param","code"}}. */
void error_add_json(const struct error *error, struct strbuf *out);

#endif
