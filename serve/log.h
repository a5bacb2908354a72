/* The server's log, on standard error: a line for each event, as text or as JSON (--log-format), whole in one write.
 *
 *     2026-03-01T12:00:00.123Z info request id=4f.. method=POST path=/v1/completions status=200 seconds=0.21
 *     {"time":"2026-03-01T12:00:00.123Z","level":"info","event":"request","id":"4f..","method":"POST",...}
 *
 * What the process itself says (base/log.h) comes between these lines, as text or as JSON too, as event "process".
 *
 * Values come from clients and files: bytes that could end a line, move a terminal's cursor or are no UTF-8 are
 * replaced, long ones are cut. Prompts, texts and keys never come here. Where nobody reads, lines are lost, and
 * counted: the server does not wait for its log. The loop's thread. */
#ifndef CAMBIUM_SERVE_LOG_H
#define CAMBIUM_SERVE_LOG_H

#include "call.h"
#include "request.h"
#include "server.h"

#include "base/strbuf.h"

enum log_level { LOG_INFO, LOG_WARNING, LOG_ERROR };

/* An event with text alone: "ready", "drain", "reload", "adapter", "failure". */
void log_event(struct server *server, enum log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Of a request that asks the model: each news of it, and, before the call is freed, the call. */
void log_take_news(struct exchange *exchange, const struct call_news *news);
void log_take_call(struct exchange *exchange, const struct call *call);
/* The line of an exchange, when it is over. */
void log_request(const struct exchange *exchange, bool is_whole);

/* A line by its fields; names are ours. */
struct log_line {
    struct server *server;
    struct strbuf text;
    bool is_json;
};
void log_line_begin(struct log_line *line, struct server *server, enum log_level level, const char *event);
void log_line_text(struct log_line *line, const char *name, const char *value);
void log_line_integer(struct log_line *line, const char *name, int64_t value);
void log_line_seconds(struct log_line *line, const char *name, double seconds);
/* Writes it; a line for which there was no memory is lost, too. */
void log_line_end(struct log_line *line);

#endif
