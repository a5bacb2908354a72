/* Spans for a collector of OpenTelemetry: OTLP over HTTP with JSON (https://opentelemetry.io/docs/specs/otlp).
 *
 * The loop adds spans to a bounded queue. A separate thread takes them in batches, resolves the collector's name, and
 * sends each batch with one POST. Nothing ever waits for that thread: while the collector is slow, absent or has no
 * address, spans are dropped and counted. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct otlp;

enum {
    OTLP_QUEUE_SPANS = 2048, /* that may wait; more are dropped */
    OTLP_QUEUE_BYTES = 4 << 20
};

/* Starts the thread. `endpoint` is http://HOST[:PORT][/PATH]; /v1/traces is appended unless it ends with that.
 * STATUS_USAGE says what is wrong with it; STATUS_MEMORY. */
int otlp_open(const char *endpoint, const char *version, struct otlp **otlp);
/* Adds a span, a JSON text that is copied, or counts it as dropped. Any thread. */
void otlp_add(struct otlp *otlp, const char *span, size_t length);
/* Counts a span that could not be made. */
void otlp_drop(struct otlp *otlp);
/* Returns the spans that the collector has taken, and those that are lost. */
void otlp_counts(struct otlp *otlp, uint64_t *sent, uint64_t *dropped);
/* Sends the waiting spans, for at most three seconds, and ends the thread. NULL is allowed. */
void otlp_close(struct otlp *otlp);
