/* The table of routes (route.c), its description (openapi.c) and the answers that all routes give (route_answer.c)
 * share these. */
#pragma once

#include "route.h"

enum route_flag {
    ROUTE_IS_PUBLIC = 1 << 0,
    ROUTE_IS_WORK = 1 << 1,       /* refused while the server drains, or after it has failed */
    ROUTE_HAS_REST = 1 << 2,      /* the path continues with a name */
    ROUTE_IS_PROBE = 1 << 3,      /* requested regularly: successes are not logged */
    ROUTE_MAY_BE_EMPTY = 1 << 4,  /* an empty body is an empty object */
    ROUTE_MAY_BE_STREAM = 1 << 5, /* a body with "stream": true is answered with events */
    ROUTE_IS_MESSAGES = 1 << 6,   /* of Anthropic's API, which has its own form of errors */
    ROUTE_IS_TUNING = 1 << 7,     /* offered with --tuning-root */
    ROUTE_IS_FORM = 1 << 8,       /* its body is multipart/form-data */
    ROUTE_IS_TINKER = 1 << 9,     /* of Tinker's API: offered with --tuning-root, to keys that may tune */
};

/* A route. Names of schemas are those of openapi.json and openapi.c. */
struct route_row {
    const char *method, *path; /* without /v1 */
    unsigned listeners, flags;
    route_begin *begin;
    const char *summary; /* for /openapi.json */
    const char *body;    /* the schema of its body, which is JSON; NULL: it has none */
    const char *answer;  /* the schema of its answer, which is JSON; or another media type */
};

/* A route as a listener offers it. */
struct openapi_route {
    const struct route_row *row;
    bool needs_key;
};
/* Answers with the OpenAPI description of these routes (openapi.c). Routes of one path are adjacent. */
void openapi_answer(struct exchange *exchange, const struct openapi_route *routes, size_t count);

/* The path without /v1. */
const char *route_path(const struct exchange *exchange);
/* Whether a content type is `wanted`, with or without parameters. `type` NULL: there is none. */
bool route_is_type(const char *type, const char *wanted);
bool route_is_grpc(const struct exchange *exchange);
/* As route_fail. `allowed`: the methods that the path takes; NULL: nothing is said of them. */
void route_refuse(struct exchange *exchange, const struct error *error, const char *allowed);
