/* The table of routes (route.c) and the answers that all of them give (route_answer.c) share these. */
#ifndef CAMBIUM_SERVE_ROUTE_INTERNAL_H
#define CAMBIUM_SERVE_ROUTE_INTERNAL_H

#include "route.h"

/* The path without /v1. */
const char *route_path(const struct exchange *exchange);
/* Whether a content type is `wanted`, with or without parameters. `type` NULL: there is none. */
bool route_is_type(const char *type, const char *wanted);
bool route_is_grpc(const struct exchange *exchange);
/* As route_fail. `allowed`: the methods that the path takes; NULL: nothing is said of them. */
void route_refuse(struct exchange *exchange, const struct error *error, const char *allowed);

#endif
