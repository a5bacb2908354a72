/* A request as a span of OpenTelemetry, in the JSON of OTLP.
 *
 * Names follow OpenTelemetry's semantic conventions for HTTP servers, gRPC and generative AI (gen_ai.*). A span never
 * contains prompts, completions or keys. */
#pragma once

#include "request.h"

#include "base/strbuf.h"

/* Appends the span of an exchange that has ended. `now` is monotonic seconds; `wall` is the same moment in seconds of
 * the epoch. A failed allocation sets out->failed. */
void span_add(struct strbuf *out, const struct exchange *exchange, bool is_whole, double now, double wall);
