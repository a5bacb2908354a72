/* Sends an answer as server-sent events, which openai/chunks.c writes. A comment is sent when nothing else comes for
 * long. The header is sent with the first token or the first comment; until then a failure can still set the status. */
#include "openai.h"

#include "base/base.h"

enum { COMMENT_SECONDS = 5 };

/* ---- writing ---- */

/* Passes the gathered bytes to the transport, and pauses for a client that does not read. */
static void flush(struct openai_exchange *self) {
    struct exchange *exchange = self->exchange;
    size_t most = (size_t)self->server->options->limits.stream_output_bytes;
    if (!self->out.length)
        return;
    exchange_write(exchange, self->out.data, self->out.length);
    strbuf_clear(&self->out);
    self->has_written = true;
    if (!self->is_paused && !self->has_answered && exchange_pending(exchange) > most) {
        self->is_paused = true;
        call_pause(self->call, true);
    }
}

static bool begin(struct openai_exchange *self) {
    static const char type[] = "text/event-stream; charset=utf-8";
    struct field fields[] = {field_of("content-type", type), field_of("cache-control", "no-cache")};
    if (self->has_begun)
        return true;
    self->has_begun = true;
    return !exchange_begin(self->exchange, 200, fields, 2, -1);
}

static ON_EVENT(on_time) {
    struct openai_exchange *self = context;
    bool is_silent = !self->has_written;
    self->has_written = false;
    if (!is_silent || self->is_paused || self->has_answered || !begin(self))
        return;
    strbuf_add_text(&self->out, openai_waiting(&self->request));
    flush(self);
    self->has_written = false;
}

/* ---- the end ---- */

static void fail(struct openai_exchange *self) {
    if (!self->has_begun) {
        route_fail(self->exchange, &self->error);
        return;
    }
    if (self->out.failed)
        strbuf_clear(&self->out);
    self->out.failed = false;
    openai_write_failure(&self->request, &self->error, &self->out);
    if (!self->out.failed)
        flush(self);
    self->exchange->request->error = self->error.which;
    if (self->exchange->head.is_http2) /* after a reset, readers drop the part that they have not read */
        exchange_end(self->exchange, NULL, 0);
    else
        exchange_abort(self->exchange);
}

void openai_stream_update(struct openai_exchange *self, const struct call_update *update) {
    if (update->is_accepted) {
        struct timeval interval = {.tv_sec = COMMENT_SECONDS};
        self->timer = event_new(self->server->base, -1, EV_PERSIST, on_time, self);
        if (self->timer)
            event_add(self->timer, &interval); /* without it only the comments are missing */
    }
    openai_write_update(&self->request, update, &self->out);
    if (update->is_done && !self->error.which)
        openai_write_end(&self->request, &self->out);
    if (self->out.failed && !self->error.which)
        error_set(&self->error, ERROR_OVERLOADED, NULL, "out of memory");
    self->has_answered = update->is_done || self->error.which;
    if (self->error.which)
        fail(self);
    else if (self->out.length && begin(self))
        flush(self);
    if (self->has_answered && !self->error.which)
        exchange_end(self->exchange, NULL, 0);
}

void openai_stream_free(struct openai_exchange *self) {
    if (self->timer)
        event_free(self->timer);
    strbuf_free(&self->out);
}
