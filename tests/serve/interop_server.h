/* A program for tests: the transport with handlers of its own, and no engine behind it.
 *
 * Each service is a row of the table in interop_server.c, asked in its order: the first whose `claims` says yes to an
 * exchange has it. A service stands in a file of its own, interop_NAME.c; those are found by their name. */
#ifndef CAMBIUM_TESTS_SERVE_INTEROP_SERVER_H
#define CAMBIUM_TESTS_SERVE_INTEROP_SERVER_H

#include "serve/request.h"

struct interop_service {
    bool (*claims)(const struct exchange *exchange);
    void (*begin)(struct exchange *exchange); /* sets handler and context, or answers */
};
extern const struct interop_service interop_grpc, interop_plain;

/* Notes the seconds of its thread that a turn of the loop took: GET /counts tells of the longest. */
void interop_count_turn(double seconds);

#endif
