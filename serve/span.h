/* A request as a span of OpenTelemetry, in the JSON of OTLP.
 *
 * Names are those of OpenTelemetry's semantic conventions for HTTP servers, gRPC and generative AI (gen_ai.*). Prompts,
 * texts and keys are in no span. */
#ifndef CAMBIUM_SERVE_SPAN_H
#define CAMBIUM_SERVE_SPAN_H

#include "request.h"

#include "base/strbuf.h"

/* Appends the span of an exchange that is over. `now`: monotonic seconds; `wall`: the same moment in seconds of the
 * epoch. A failed allocation shows in out->failed. */
void span_add(struct strbuf *out, const struct exchange *exchange, bool is_whole, double now, double wall);

#endif
