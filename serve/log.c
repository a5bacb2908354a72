/* Log lines: made in a string, cleaned value by value, written once. */
#include "log.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <unistd.h>

enum { LINES_BURST = 500, LINES_PER_SECOND = 50 }; /* about one client's requests that the model did not answer */
enum { VALUE_BYTES = 1024 };                       /* keeps a line below PIPE_BUF, so pipes keep it whole */

/* Adds `value` as characters that stay on their line. */
static void add_mended(struct strbuf *out, const char *value) {
    struct strbuf mended = STRBUF_INIT;
    utf8_add_repaired(&mended, value, strnlen(value, VALUE_BYTES));
    const unsigned char *at = (const unsigned char *)strbuf_text(&mended), *end = at + mended.length;
    while (at < end) {
        uint32_t point = *at;
        size_t length = *at < 0x80 ? 1 : utf8_decode(at, end, &point);
        /* C0 and C1 controls, DEL, and Unicode's line ends. */
        if (point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x2028 || point == 0x2029)
            strbuf_add_char(out, '?');
        else
            strbuf_add(out, at, length);
        at += length;
    }
    out->failed |= mended.failed;
    strbuf_free(&mended);
}

static bool is_plain(const char *text) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/:@+,-[]";
    return *text && !text[strspn(text, plain)];
}

static void add_name(struct log_line *line, const char *name) {
    strbuf_format(&line->text, line->is_json ? ",\"%s\":" : " %s=", name);
}

void log_line_begin(struct log_line *line, struct server *server, enum log_level level, const char *event) {
    static const char *const levels[] = {"info", "warning", "error"};
    char time[LOG_TIME_BYTES];
    log_time(time);
    *line = (struct log_line){.server = server, .is_json = server->options->logs_json};
    strbuf_format(&line->text, line->is_json ? "{\"time\":\"%s\",\"level\":\"%s\",\"event\":\"%s\"" : "%s %s %s", time,
                  levels[level], event);
}

void log_line_text(struct log_line *line, const char *name, const char *value) {
    struct strbuf mended = STRBUF_INIT;
    add_name(line, name);
    add_mended(&mended, value);
    if (!line->is_json && is_plain(strbuf_text(&mended)))
        strbuf_add_text(&line->text, strbuf_text(&mended));
    else
        json_add_string(&line->text, strbuf_text(&mended), mended.length);
    line->text.failed |= mended.failed;
    strbuf_free(&mended);
}

void log_line_integer(struct log_line *line, const char *name, int64_t value) {
    add_name(line, name);
    strbuf_format(&line->text, "%lld", (long long)value);
}

static void log_line_seconds(struct log_line *line, const char *name, double seconds) {
    add_name(line, name);
    strbuf_format(&line->text, "%.6f", seconds);
}

void log_line_end(struct log_line *line) {
    struct server *server = line->server;
    int64_t lost = server->lost_lines;
    if (lost && log_is_writable()) {
        server->lost_lines = 0;
        log_event(server, LOG_WARNING, "log", "%lld lines were lost, as nobody read them", (long long)lost);
    }
    strbuf_add_text(&line->text, line->is_json ? "}\n" : "\n");
    if (line->text.failed || !log_is_writable())
        server->lost_lines++;
    else
        file_write_all(STDERR_FILENO, line->text.data, line->text.length, "standard error");
    strbuf_free(&line->text);
}

void log_event(struct server *server, enum log_level level, const char *event, const char *format, ...) {
    struct log_line line;
    char text[VALUE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log_line_begin(&line, server, level, event);
    log_line_text(&line, "message", text);
    log_line_end(&line);
}

/* ---- requests ---- */

void log_take_update(struct exchange *exchange, const struct call_update *update) {
    struct request_usage *usage = &exchange->request->usage;
    if (update->start_count && usage->started == 0)
        usage->started = update->starts[0].time;
    if (update->draw_count && usage->first_token == 0)
        usage->first_token = update->draws[0].time;
    usage->completion_tokens += update->draw_count;
    for (int64_t i = 0; i < update->end_count; i++, usage->end_count++)
        if (usage->end_count < REQUEST_ENDS && !update->ends[i].is_stop)
            usage->length_ends |= (uint64_t)1 << usage->end_count;
}

void log_take_call(struct exchange *exchange, const struct call *call) {
    struct request_usage *usage = &exchange->request->usage;
    size_t length = 0;
    usage->is_there = true;
    usage->max_tokens = call->request.ask.max_tokens;
    usage->choices = call->request.ask.choices;
    usage->temperature = call->request.ask.sampling.temperature;
    usage->top_p = call->request.ask.sampling.top_p;
    for (int64_t i = 0; i < call->request.ask.adapter_count && length < sizeof usage->adapters; i++)
        length += (size_t)snprintf(usage->adapters + length, sizeof usage->adapters - length, i ? ",%s" : "%s",
                                   call->request.ask.adapters[i]);
    for (int64_t i = 0; i < call->request.prompt_count; i++) {
        usage->prompt_tokens += (int64_t)call->request.prompts[i].ids.count;
        usage->cached_tokens += call->cached[i];
    }
}

static void add_usage(struct log_line *line, const struct request_usage *usage, double start) {
    if (*usage->adapters)
        log_line_text(line, "adapters", usage->adapters);
    log_line_integer(line, "prompt_tokens", usage->prompt_tokens);
    log_line_integer(line, "cached_tokens", usage->cached_tokens);
    log_line_integer(line, "completion_tokens", usage->completion_tokens);
    if (usage->started > 0)
        log_line_seconds(line, "queue_seconds", usage->started - start);
    if (usage->first_token > 0)
        log_line_seconds(line, "first_token_seconds", usage->first_token - start);
}

bool log_may(const struct exchange *exchange) {
    struct rates *rates = &exchange->request->server->log_rates;
    const char *name = exchange->client ? exchange->request->client.name : exchange->head.peer;
    rates->burst = LINES_BURST;
    rates->per_second = LINES_PER_SECOND;
    struct rate *rate =
        rates_find(rates, exchange->client ? exchange->client : exchange->head.address, clock_seconds());
    bool may = rate_take(rate);
    rate->refused += !may;
    snprintf(rate->name, sizeof rate->name, "%s", name);
    return may;
}

void log_tick(struct server *server) {
    double now = clock_seconds();
    for (int i = 0; i < RATES_SETS * RATES_WAYS; i++) {
        struct rate *rate = &server->log_rates.places[i];
        if (!rate->refused || !rate_take(rates_find(&server->log_rates, rate->client, now)))
            continue;
        log_event(server, LOG_WARNING, "log",
                  "%lld requests of %s are not logged: the model answered none of them, and at most %d a second are",
                  (long long)rate->refused, rate->name, LINES_PER_SECOND);
        rate->refused = 0;
    }
}

void log_request(const struct exchange *exchange, bool is_whole) {
    const struct exchange_head *head = &exchange->head;
    struct log_line line;
    char path[256];
    bool is_answered = exchange->request->usage.is_there && is_whole && !request_error(exchange);
    if (!is_answered && !log_may(exchange))
        return;
    snprintf(path, sizeof path, "%s", head->path); /* without the query, which may contain anything */
    log_line_begin(&line, exchange->request->server, LOG_INFO, "request");
    log_line_text(&line, "id", exchange->request->id);
    if (exchange->request->trace.is_there) {
        char id[TRACE_ID_TEXT], span[TRACE_SPAN_TEXT];
        trace_hex(exchange->request->trace.id, sizeof exchange->request->trace.id, id);
        trace_hex(exchange->request->trace.span, sizeof exchange->request->trace.span, span);
        log_line_text(&line, "trace_id", id);
        log_line_text(&line, "span_id", span);
    }
    log_line_text(&line, "method", head->method);
    log_line_text(&line, "path", path);
    log_line_text(&line, "listener", head->listener == LISTENER_CONTROL ? "control" : "data");
    log_line_text(&line, "protocol", head->is_http2 ? "HTTP/2" : "HTTP/1.1");
    log_line_text(&line, "peer", head->peer);
    if (exchange->request->client.name && *exchange->request->client.name)
        log_line_text(&line, "client", exchange->request->client.name);
    log_line_integer(&line, "status", exchange->status);
    log_line_text(&line, "end", is_whole ? "whole" : "broken");
    log_line_seconds(&line, "seconds", clock_seconds() - exchange->start);
    if (exchange->request->usage.is_there)
        add_usage(&line, &exchange->request->usage, exchange->start);
    const struct error_row *row = error_row(request_error(exchange));
    if (request_error(exchange))
        log_line_text(&line, "error", row->code ? row->code : row->type);
    log_line_end(&line);
}
