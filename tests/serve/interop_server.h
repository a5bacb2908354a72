/* A program for tests: the transport with its own handlers, and no engine.
 *
 * Each service is a row of the table in interop_server.c. The services are asked in order, and the first whose `claims`
 * accepts an exchange gets it. A service has a file of its own, interop_NAME.c; these files are found by their
 * names. */
#pragma once

#include "serve/request.h"

struct interop_service {
    bool (*claims)(const struct exchange *exchange);
    void (*begin)(struct exchange *exchange); /* sets handler and context, or answers */
};
extern const struct interop_service interop_grpc, interop_plain;

/* Notes the seconds of its thread that a turn of the loop took: GET /counts tells how many, how many were long, and the
 * longest. */
void interop_count_turn(double seconds);
