/* One POST to a collector, by a thread that may wait: name, connection, request and the beginning of the answer. */
#ifndef CAMBIUM_SERVE_OTLP_POST_H
#define CAMBIUM_SERVE_OTLP_POST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct otlp_target {
    char *host; /* without the brackets of IPv6 */
    char *port, *authority, *path;
};

/* Reads http://HOST[:PORT][/PATH]. STATUS_USAGE says what was expected; STATUS_MEMORY. otlp_target_free ends it, also
 * after a failure. */
int otlp_target_read(const char *url, struct otlp_target *target);
void otlp_target_free(struct otlp_target *target);

enum otlp_result {
    OTLP_SENT,
    OTLP_REFUSED, /* the collector will not take this batch later either */
    OTLP_FAILED   /* a later try may succeed */
};
/* Sends a body of JSON and reads the answer, within five seconds, or one once *is_ending. The look-up of the name alone
 * may take longer. *rejected: spans that the collector refuses while it takes the others. */
enum otlp_result otlp_post(const struct otlp_target *target, const char *body, size_t length,
                           const atomic_bool *is_ending, uint64_t *rejected);

#endif
