/* Answers as server-sent events: a `data: ` line of JSON and a blank line each. Comments are sent as events when
 * nothing else comes for long.
 *
 * The header is sent with the first token or the first comment; until then a failure can still set the status. Clients
 * count chunks with text as tokens. A completion's finish reason is therefore on the chunk of its last token. A chat's
 * finish reason comes afterwards in an empty chunk, which is not counted. An empty chat completion also gets a chunk,
 * because some clients take a stream without one for a failure. */
#include "openai.h"

#include "base/base.h"
#include "openai/json_out.h"

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
    strbuf_add_text(&self->out, ": waiting\n\n");
    flush(self);
    self->has_written = false;
}

/* ---- chunks ---- */

static void open_chunk(struct openai_exchange *self) {
    struct strbuf *out = &self->out;
    if (!self->head.length) {
        strbuf_add_text(&self->head, "data: {");
        openai_add_head(&self->request, &self->head);
        out->failed |= self->head.failed;
    }
    strbuf_add(out, strbuf_text(&self->head), self->head.length);
    if (!self->has_chunk)
        openai_add_facts(&self->request, out);
    self->has_chunk = true;
    strbuf_add_text(out, "\"choices\":[");
}

static void close_chunk(struct openai_exchange *self) {
    strbuf_add_text(&self->out, self->request.tells_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
}

static void add_index(struct openai_exchange *self, const struct openai_choice *choice) {
    strbuf_format(&self->out, "{\"index\":%td,", choice - self->request.choices);
}

static void add_text_chunk(struct openai_exchange *self, struct openai_choice *choice, bool is_first) {
    struct strbuf *out = &self->out;
    const struct openai_part *part = &self->chunk;
    open_chunk(self);
    add_index(self, choice);
    strbuf_add_text(out, self->request.is_chat ? "\"delta\":{\"content\":" : "\"text\":");
    json_out_string(out, strbuf_text(&part->text), part->text.length);
    strbuf_add_text(out, self->request.is_chat ? "}," : ",");
    openai_add_logprobs(out, part, self->request.is_chat, self->request.tells_logprobs);
    strbuf_format(out, ",\"finish_reason\":%s", self->request.is_chat ? "null" : openai_finish_reason(choice));
    if (self->request.returns_ids)
        strbuf_format(out, ",\"token_ids\":[%s]", strbuf_text(&part->ids));
    if (is_first && !self->request.is_chat)
        openai_add_prompt_facts(&self->request, choice, out);
    close_chunk(self);
    out->failed |= openai_part_failed(part);
}

static void add_delta(struct openai_exchange *self, struct openai_choice *choice, const char *delta) {
    open_chunk(self);
    add_index(self, choice);
    strbuf_format(&self->out, "\"delta\":{%s},\"logprobs\":null,\"finish_reason\":%s", delta,
                  openai_finish_reason(choice));
    close_chunk(self);
}

/* Begins the delta of an event. */
static void open_delta(struct openai_exchange *self, const struct call_event *event) {
    struct strbuf *out = &self->out;
    if (event->kind == CALL_BEGINS)
        strbuf_format(out,
                      "\"tool_calls\":[{\"index\":%lld,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":"
                      "\"%s\",\"arguments\":",
                      (long long)event->index, event->id, event->name);
    else if (event->kind == CALL_ARGUMENTS)
        strbuf_format(out, "\"tool_calls\":[{\"index\":%lld,\"function\":{\"arguments\":", (long long)event->index);
    else
        strbuf_add_text(out, event->kind == CALL_TEXT ? "\"content\":" : "\"reasoning_content\":");
}

/* Writes an event of a choice as a chunk, with the tokens that no chunk has yet. */
static int add_event(void *context, struct openai_choice *choice, const struct call_event *event) {
    struct openai_exchange *self = context;
    struct openai_part *part = &choice->part;
    struct strbuf *out = &self->out;
    bool is_call = event->kind == CALL_BEGINS || event->kind == CALL_ARGUMENTS;
    if (event->kind == CALL_ENDS)
        return STATUS_OK;
    open_chunk(self);
    add_index(self, choice);
    strbuf_add_text(out, "\"delta\":{");
    open_delta(self, event);
    json_out_string(out, event->text ? event->text : "", event->length);
    strbuf_add_text(out, is_call ? "}}]}," : "},");
    openai_add_logprobs(out, part, true, self->request.tells_logprobs);
    strbuf_add_text(out, ",\"finish_reason\":null");
    if (self->request.returns_ids)
        strbuf_format(out, ",\"token_ids\":[%s]", strbuf_text(&part->ids));
    close_chunk(self);
    out->failed |= openai_part_failed(part);
    openai_part_clear(part);
    return strbuf_status(out);
}

/* Writes a piece of a choice out of which calls and reasoning are read. Tokens without an event wait for the next one,
 * or for the end. */
static void add_read_piece(struct openai_exchange *self, struct openai_choice *choice, const struct call_update *update,
                           const struct call_piece *piece, const struct call_end *end) {
    struct openai_part *part = &choice->part;
    size_t before = self->out.length;
    bool is_first = !choice->has_begun;
    self->request.on_event = add_event;
    self->request.event_context = self;
    openai_take(&self->request, choice, update, piece, end, part);
    bool is_empty = is_first && self->out.length == before;
    self->out.failed |= openai_part_failed(part);
    if (end && (is_empty || part->ids.length || part->content.length))
        add_event(self, choice, &(struct call_event){.kind = CALL_TEXT});
    if (end)
        add_delta(self, choice, "");
}

static void add_piece(struct openai_exchange *self, struct openai_choice *choice, const struct call_update *update,
                      const struct call_piece *piece, const struct call_end *end) {
    bool is_first = !choice->has_begun;
    /* Before the choice has ended: roles come without a finish reason. Readers expect the first choice first. */
    if (self->request.is_chat && !self->has_chunk)
        for (int64_t i = 0; i < self->request.choice_count; i++)
            add_delta(self, &self->request.choices[i], "\"role\":\"assistant\",\"content\":\"\"");
    if (openai_reads(&self->request)) {
        add_read_piece(self, choice, update, piece, end);
        return;
    }
    openai_part_clear(&self->chunk);
    openai_take(&self->request, choice, update, piece, end, &self->chunk);
    if (piece || is_first || !self->request.is_chat)
        add_text_chunk(self, choice, is_first);
    if (end && self->request.is_chat)
        add_delta(self, choice, "");
}

static struct openai_choice *choice_of(struct openai_exchange *self, int64_t prompt, int64_t choice) {
    return &self->request.choices[prompt * self->call->request.ask.choices + choice];
}

/* An end belongs to the choice's last piece in the same update. */
static void add_update(struct openai_exchange *self, const struct call_update *update) {
    for (int64_t i = 0; i < update->end_count; i++)
        choice_of(self, update->ends[i].prompt, update->ends[i].choice)->end = i + 1;
    for (int64_t i = 0; i < update->piece_count; i++)
        if (update->pieces[i].choice >= 0)
            choice_of(self, update->pieces[i].prompt, update->pieces[i].choice)->last_piece = i + 1;
    for (int64_t i = 0; i < update->piece_count; i++) {
        const struct call_piece *piece = &update->pieces[i];
        if (piece->choice < 0)
            continue;
        struct openai_choice *choice = choice_of(self, piece->prompt, piece->choice);
        bool is_last = choice->last_piece == i + 1 && choice->end;
        add_piece(self, choice, update, piece, is_last ? &update->ends[choice->end - 1] : NULL);
        if (is_last)
            choice->end = 0;
    }
    for (int64_t i = 0; i < update->end_count; i++) {
        struct openai_choice *choice = choice_of(self, update->ends[i].prompt, update->ends[i].choice);
        if (choice->end)
            add_piece(self, choice, update, NULL, &update->ends[i]);
        choice->end = 0;
    }
}

/* ---- the end ---- */

static void fail(struct openai_exchange *self) {
    if (!self->has_begun) {
        route_fail(self->exchange, &self->error);
        return;
    }
    strbuf_clear(&self->out);
    self->out.failed = false;
    strbuf_add_text(&self->out, "data: ");
    error_add_json(&self->error, &self->out);
    strbuf_add_text(&self->out, "\n\n");
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
    add_update(self, update);
    if (update->is_done && !self->error.which) {
        if (self->request.tells_usage) {
            open_chunk(self);
            strbuf_add_text(&self->out, "],");
            openai_add_usage(&self->request, &self->out);
            strbuf_add_text(&self->out, "}\n\n");
        }
        strbuf_add_text(&self->out, "data: [DONE]\n\n");
    }
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
    strbuf_free(&self->head);
    strbuf_free(&self->out);
    openai_part_free(&self->chunk);
}
