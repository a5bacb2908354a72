/* The server's log, on standard error: one line per event, as text or as JSON (--log-format), each in one write.
 *
 *     2026-03-01T12:00:00.123Z info request id=4f.. method=POST path=/v1/completions status=200 seconds=0.21
 *     {"time":"2026-03-01T12:00:00.123Z","level":"info","event":"request","id":"4f..","method":"POST",...}
 *
 * Messages of the process itself (base/log.h) appear between these lines, also as text or JSON, as event "process".
 *
 * Values come from clients and files. Bytes that could end a line, move a terminal's cursor or are not UTF-8 are
 * replaced; long values are cut. Prompts, completions and keys are never logged. When nobody reads, lines are dropped
 * and counted: the server never waits for its log. The loop's thread. */
#pragma once

#include "call.h"
#include "request.h"
#include "server.h"

#include "base/strbuf.h"

enum log_level { LOG_INFO, LOG_WARNING, LOG_ERROR };

/* Logs an event with a text: "ready", "drain", "reload", "adapter", "failure". */
void log_event(struct server *server, enum log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Collect the usage of a request to the model, from each of its updates and, before the call is freed, from the
 * call. */
void log_take_update(struct exchange *exchange, const struct call_update *update);
void log_take_call(struct exchange *exchange, const struct call *call);
/* Logs an exchange that has ended. Requests that the model answered whole are always logged. Of each client's other
 * requests a bounded number are; log_tick, called regularly, reports how many were left out. */
void log_request(const struct exchange *exchange, bool is_whole);
void log_tick(struct server *server);
/* True when a further line about this client fits; counts it. */
bool log_may(const struct exchange *exchange);

/* A line made of fields; the names are ours. */
struct log_line {
    struct server *server;
    struct strbuf text;
    bool is_json;
};
/* Begins a line; the others add its fields. */
void log_line_begin(struct log_line *line, struct server *server, enum log_level level, const char *event);
void log_line_text(struct log_line *line, const char *name, const char *value);
void log_line_integer(struct log_line *line, const char *name, int64_t value);
/* Writes the line; without memory for it, it is dropped too. */
void log_line_end(struct log_line *line);
