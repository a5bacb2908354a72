/* W3C Trace Context: the trace that a request belongs to (https://www.w3.org/TR/trace-context).
 *
 * A request may name its trace by the fields `traceparent` and `tracestate`. The server adds its own span to that
 * trace. It starts a new trace when the request names none, or an invalid one. Answers and logs carry the server's
 * span. span.h describes it for a collector, and otlp.h sends it there. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct exchange_head;

enum {
    TRACE_ID_BYTES = 16,
    TRACE_SPAN_BYTES = 8,
    TRACE_ID_TEXT = 2 * TRACE_ID_BYTES + 1, /* as hex digits with a zero byte */
    TRACE_SPAN_TEXT = 2 * TRACE_SPAN_BYTES + 1,
    TRACE_PARENT_TEXT = 56,
    TRACE_STATE_TEXT = 513, /* the length that the specification asks everybody to pass on */
    TRACE_SAMPLED = 1       /* a bit of `flags` */
};

struct trace {
    unsigned char id[TRACE_ID_BYTES];
    unsigned char parent[TRACE_SPAN_BYTES]; /* the client's span, with has_parent */
    unsigned char span[TRACE_SPAN_BYTES];   /* the server's */
    unsigned char flags;                    /* of version 00 */
    bool is_there, has_parent;
};

/* Reads the value of a traceparent field into id, parent and flags. Returns false, and leaves the trace unchanged, when
 * the value breaks a rule. */
bool trace_read_parent(const char *text, struct trace *trace);
/* Begins the server's span of a request. Without a valid traceparent field it starts a trace, sampled if
 * `is_sampled`. */
void trace_begin(const struct exchange_head *head, bool is_sampled, struct trace *trace);
/* Writes the traceparent that names the server's span. */
void trace_parent_text(const struct trace *trace, char text[TRACE_PARENT_TEXT]);
/* Writes the request's tracestate, combined from all of its fields, and returns its length. It is empty when the trace
 * is new or a member is invalid. Members that do not fit are dropped from the end. */
size_t trace_state_text(const struct exchange_head *head, const struct trace *trace, char text[TRACE_STATE_TEXT]);
/* Writes bytes as lower-case hex digits and a zero byte. */
void trace_hex(const unsigned char *bytes, size_t count, char *text);
