/* One POST to a collector, on a thread that may wait: name, connection, request and the beginning of the answer. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct otlp_target {
    char *host; /* without IPv6's brackets */
    char *port, *authority, *path;
};

/* Reads http://HOST[:PORT][/PATH]. STATUS_USAGE says what was expected; STATUS_MEMORY. Call otlp_target_free in any
 * case. */
int otlp_target_read(const char *url, struct otlp_target *target);
void otlp_target_free(struct otlp_target *target);

enum otlp_result {
    OTLP_SENT,
    OTLP_REFUSED, /* the collector will never take this batch */
    OTLP_FAILED   /* a later attempt may succeed */
};
/* Sends a JSON body and reads the answer, within five seconds, or one second once *is_ending. Only resolving the name
 * may take longer. *rejected counts spans that the collector refused while it took the others. */
enum otlp_result otlp_post(const struct otlp_target *target, const char *body, size_t length,
                           const atomic_bool *is_ending, uint64_t *rejected);
