/* Answers as server-sent events: a `data: ` line of JSON and a blank line each. Comments are sent as events when
 * nothing else comes for long.
 *
 * The header is sent with the first token or the first comment; until then a failure can still set the status. Clients
 * count chunks with text as tokens. A completion's finish reason is therefore on the chunk of its last token. A chat's
 * finish reason comes afterwards in an empty chunk, which is not counted. An empty chat completion also gets a chunk,
 * because some clients take a stream without one for a failure. */
#include "openai.h"

#include "json_out.h"
#include "route.h"

#include "base/base.h"

#include <string.h>

enum { COMMENT_SECONDS = 5 };

/* ---- writing ---- */

/* Passes the gathered bytes to the transport, and pauses for a client that does not read. */
static void flush(struct openai *request) {
    struct exchange *exchange = request->exchange;
    size_t most = (size_t)request->server->options->limits.stream_output_bytes;
    if (!request->out.length)
        return;
    exchange_write(exchange, request->out.data, request->out.length);
    strbuf_clear(&request->out);
    request->has_written = true;
    if (!request->is_paused && !request->has_answered && exchange_pending(exchange) > most) {
        request->is_paused = true;
        call_pause(request->call, true);
    }
}

static bool begin(struct openai *request) {
    static const char type[] = "text/event-stream; charset=utf-8";
    struct field fields[] = {field_of("content-type", type), field_of("cache-control", "no-cache")};
    if (request->has_begun)
        return true;
    request->has_begun = true;
    return !exchange_begin(request->exchange, 200, fields, 2, -1);
}

static void on_time(evutil_socket_t ignored, short what, void *context) {
    struct openai *request = context;
    (void)ignored;
    (void)what;
    bool is_silent = !request->has_written;
    request->has_written = false;
    if (!is_silent || request->is_paused || request->has_answered || !begin(request))
        return;
    strbuf_add_text(&request->out, ": waiting\n\n");
    flush(request);
    request->has_written = false;
}

static void start_timer(struct openai *request) {
    struct timeval interval = {.tv_sec = COMMENT_SECONDS};
    request->timer = event_new(request->server->base, -1, EV_PERSIST, on_time, request);
    if (request->timer)
        event_add(request->timer, &interval); /* without it only the comments are missing */
}

/* ---- chunks ---- */

static void open_chunk(struct openai *request) {
    struct strbuf *out = &request->out;
    if (!request->head.length) {
        strbuf_add_text(&request->head, "data: {");
        openai_add_head(request, &request->head);
        out->failed |= request->head.failed;
    }
    strbuf_add(out, strbuf_text(&request->head), request->head.length);
    if (!request->has_chunk)
        openai_add_facts(request, out);
    request->has_chunk = true;
    strbuf_add_text(out, "\"choices\":[");
}

static void close_chunk(struct openai *request) {
    strbuf_add_text(&request->out, request->tells_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
}

static void add_index(struct openai *request, const struct openai_choice *choice) {
    strbuf_format(&request->out, "{\"index\":%td,", choice - request->choices);
}

static void add_text_chunk(struct openai *request, struct openai_choice *choice, bool is_first) {
    struct strbuf *out = &request->out;
    const struct openai_part *part = &request->chunk;
    open_chunk(request);
    add_index(request, choice);
    strbuf_add_text(out, request->is_chat ? "\"delta\":{\"content\":" : "\"text\":");
    json_out_string(out, strbuf_text(&part->text), part->text.length);
    strbuf_add_text(out, request->is_chat ? "}," : ",");
    openai_add_logprobs(out, part, request->is_chat, request->tells_logprobs);
    strbuf_format(out, ",\"finish_reason\":%s", request->is_chat ? "null" : openai_finish_reason(choice));
    if (request->returns_ids)
        strbuf_format(out, ",\"token_ids\":[%s]", strbuf_text(&part->ids));
    if (is_first && !request->is_chat)
        openai_add_prompt_facts(request, openai_prompt_of(request, choice), out);
    close_chunk(request);
    out->failed |= openai_part_failed(part);
}

static void add_delta(struct openai *request, struct openai_choice *choice, const char *delta) {
    open_chunk(request);
    add_index(request, choice);
    strbuf_format(&request->out, "\"delta\":{%s},\"logprobs\":null,\"finish_reason\":%s", delta,
                  openai_finish_reason(choice));
    close_chunk(request);
}

/* Readers expect the first choice first. */
static void add_roles(struct openai *request) {
    if (!request->is_chat || request->has_chunk)
        return;
    for (int64_t i = 0; i < request->choice_count; i++)
        add_delta(request, &request->choices[i], "\"role\":\"assistant\",\"content\":\"\"");
}

static void add_piece(struct openai *request, struct openai_choice *choice, const struct call_update *update,
                      const struct call_piece *piece, const struct call_end *end) {
    bool is_first = !choice->has_begun;
    add_roles(request); /* before the choice has ended: the role comes without a finish reason */
    openai_part_clear(&request->chunk);
    openai_take(request, choice, update, piece, end, &request->chunk);
    if (piece || is_first || !request->is_chat)
        add_text_chunk(request, choice, is_first);
    if (end && request->is_chat)
        add_delta(request, choice, "");
}

static struct openai_choice *choice_of(struct openai *request, int64_t prompt, int64_t choice) {
    return &request->choices[prompt * request->call->ask.choices + choice];
}

/* An end belongs to the choice's last piece in the same update. */
static void add_update(struct openai *request, const struct call_update *update) {
    for (int64_t i = 0; i < update->end_count; i++)
        choice_of(request, update->ends[i].prompt, update->ends[i].choice)->end = i + 1;
    for (int64_t i = 0; i < update->piece_count; i++)
        if (update->pieces[i].choice >= 0)
            choice_of(request, update->pieces[i].prompt, update->pieces[i].choice)->last_piece = i + 1;
    for (int64_t i = 0; i < update->piece_count; i++) {
        const struct call_piece *piece = &update->pieces[i];
        if (piece->choice < 0)
            continue;
        struct openai_choice *choice = choice_of(request, piece->prompt, piece->choice);
        bool is_last = choice->last_piece == i + 1 && choice->end;
        add_piece(request, choice, update, piece, is_last ? &update->ends[choice->end - 1] : NULL);
        if (is_last)
            choice->end = 0;
    }
    for (int64_t i = 0; i < update->end_count; i++) {
        struct openai_choice *choice = choice_of(request, update->ends[i].prompt, update->ends[i].choice);
        if (choice->end)
            add_piece(request, choice, update, NULL, &update->ends[i]);
        choice->end = 0;
    }
}

/* ---- the end ---- */

static void fail(struct openai *request) {
    if (!request->has_begun) {
        route_fail(request->exchange, &request->error);
        return;
    }
    strbuf_clear(&request->out);
    request->out.failed = false;
    strbuf_add_text(&request->out, "data: ");
    error_add_json(&request->error, &request->out);
    strbuf_add_text(&request->out, "\n\n");
    if (!request->out.failed)
        flush(request);
    request->exchange->request->error = request->error.which;
    if (request->exchange->head.is_http2) /* after a reset, readers drop the part that they have not read */
        exchange_end(request->exchange, NULL, 0);
    else
        exchange_abort(request->exchange);
}

static void add_last(struct openai *request) {
    if (request->tells_usage) {
        open_chunk(request);
        strbuf_add_text(&request->out, "],");
        openai_add_usage(request, &request->out);
        strbuf_add_text(&request->out, "}\n\n");
    }
    strbuf_add_text(&request->out, "data: [DONE]\n\n");
}

void openai_stream_update(struct openai *request, const struct call_update *update) {
    if (update->is_accepted)
        start_timer(request);
    add_update(request, update);
    if (update->is_done && !request->error.which)
        add_last(request);
    if (request->out.failed && !request->error.which)
        error_set(&request->error, ERROR_OVERLOADED, NULL, "out of memory");
    request->has_answered = update->is_done || request->error.which;
    if (request->error.which)
        fail(request);
    else if (request->out.length && begin(request))
        flush(request);
    if (request->has_answered && !request->error.which)
        exchange_end(request->exchange, NULL, 0);
}
