/* A stream: the events of an answer as server-sent events, without their transport.
 *
 * Completions and chats write chunks: a `data: ` line of JSON and a blank line each. Clients count chunks with text as
 * tokens. A completion's finish reason is therefore on the chunk of its last token. A chat's finish reason comes
 * afterwards in an empty chunk, which is not counted. An empty chat completion also gets a chunk, because some clients
 * take a stream without one for a failure. Other dialects write items (items.c). */
#include "openai.h"

#include "json_out.h"

#include "base/base.h"

/* ---- chunks ---- */

static void open_chunk(struct openai *request) {
    struct strbuf *out = request->out;
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
    strbuf_add_text(request->out, request->tells_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
}

static void add_index(struct openai *request, const struct openai_choice *choice) {
    strbuf_format(request->out, "{\"index\":%td,", choice - request->choices);
}

/* Writes a piece of a completion, and its end unless that is NULL. */
static void add_completion_chunk(struct openai *request, struct openai_choice *choice, const struct call_update *update,
                                 const struct call_piece *piece, const struct call_end *end) {
    struct strbuf *out = request->out;
    struct openai_part *part = &request->chunk;
    bool is_first = !choice->has_begun;
    openai_part_clear(part);
    openai_take(request, choice, update, piece, end, part);
    open_chunk(request);
    add_index(request, choice);
    strbuf_add_text(out, "\"text\":");
    json_out_string(out, strbuf_text(&part->text), part->text.length);
    strbuf_add_char(out, ',');
    openai_add_logprobs(out, part, false, request->tells_logprobs);
    strbuf_format(out, ",\"finish_reason\":%s", openai_finish_reason(choice));
    if (request->returns_ids)
        strbuf_format(out, ",\"token_ids\":[%s]", strbuf_text(&part->ids));
    if (is_first)
        openai_add_prompt_facts(request, choice, out);
    close_chunk(request);
    out->failed |= openai_part_failed(part);
}

static void add_delta(struct openai *request, struct openai_choice *choice, const char *delta) {
    open_chunk(request);
    add_index(request, choice);
    strbuf_format(request->out, "\"delta\":{%s},\"logprobs\":null,\"finish_reason\":%s", delta,
                  openai_finish_reason(choice));
    close_chunk(request);
}

/* Begins the delta of an event. */
static void open_delta(struct openai *request, const struct call_event *event) {
    struct strbuf *out = request->out;
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
    struct openai *request = context;
    struct openai_part *part = &choice->part;
    struct strbuf *out = request->out;
    bool is_call = event->kind == CALL_BEGINS || event->kind == CALL_ARGUMENTS;
    if (event->kind == CALL_ENDS)
        return STATUS_OK;
    open_chunk(request);
    add_index(request, choice);
    strbuf_add_text(out, "\"delta\":{");
    open_delta(request, event);
    json_out_string(out, event->text ? event->text : "", event->length);
    strbuf_add_text(out, is_call ? "}}]}," : "},");
    openai_add_logprobs(out, part, true, request->tells_logprobs);
    strbuf_add_text(out, ",\"finish_reason\":null");
    if (request->returns_ids)
        strbuf_format(out, ",\"token_ids\":[%s]", strbuf_text(&part->ids));
    close_chunk(request);
    out->failed |= openai_part_failed(part);
    openai_part_clear(part);
    return strbuf_status(out);
}

/* Writes a piece of a chat, and its end unless that is NULL. Tokens without an event wait for the next one, or for the
 * end. */
static void add_chat_chunks(struct openai *request, struct openai_choice *choice, const struct call_update *update,
                            const struct call_piece *piece, const struct call_end *end) {
    struct openai_part *part = &choice->part;
    bool is_first = !choice->has_begun;
    /* Before the choice has ended: roles come without a finish reason. Readers expect the first choice first. */
    if (!request->has_chunk)
        for (int64_t i = 0; i < request->choice_count; i++)
            add_delta(request, &request->choices[i], "\"role\":\"assistant\",\"content\":\"\"");
    size_t before = request->out->length;
    request->on_event = add_event;
    request->event_context = request;
    openai_take(request, choice, update, piece, end, part);
    bool is_empty = is_first && request->out->length == before;
    request->out->failed |= openai_part_failed(part);
    if (end && (is_empty || part->ids.length || part->content.length))
        add_event(request, choice, &(struct call_event){.kind = CALL_TEXT});
    if (end)
        add_delta(request, choice, "");
}

static void add_piece(struct openai *request, struct openai_choice *choice, const struct call_update *update,
                      const struct call_piece *piece, const struct call_end *end) {
    if (request->kind->dialect)
        openai_take(request, choice, update, piece, end, &choice->part);
    else if (request->is_chat)
        add_chat_chunks(request, choice, update, piece, end);
    else
        add_completion_chunk(request, choice, update, piece, end);
}

static struct openai_choice *choice_of(struct openai *request, int64_t prompt, int64_t choice) {
    return &request->choices[prompt * request->asked->ask.choices + choice];
}

/* An end belongs to the choice's last piece in the same update. */
static void add_pieces(struct openai *request, const struct call_update *update) {
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

/* ---- all of it ---- */

void openai_write_update(struct openai *request, const struct call_update *update, struct strbuf *out) {
    request->out = out;
    if (request->kind->dialect && !request->has_chunk && (update->piece_count || update->end_count))
        openai_items_begin(request);
    add_pieces(request, update);
}

void openai_write_end(struct openai *request, struct strbuf *out) {
    request->out = out;
    if (request->kind->dialect) {
        openai_items_end(request);
        return;
    }
    if (request->tells_usage) {
        open_chunk(request);
        strbuf_add_text(out, "],");
        openai_add_usage(request, out);
        strbuf_add_text(out, "}\n\n");
    }
    strbuf_add_text(out, "data: [DONE]\n\n");
}

void openai_write_failure(struct openai *request, const struct error *error, struct strbuf *out) {
    request->out = out;
    if (request->kind->dialect) {
        request->kind->dialect->fail(request, error, out);
        return;
    }
    strbuf_add_text(out, "data: ");
    error_add_json(error, out);
    strbuf_add_text(out, "\n\n");
}

const char *openai_waiting(const struct openai *request) {
    return request->kind->dialect ? request->kind->dialect->waiting : ": waiting\n\n";
}
