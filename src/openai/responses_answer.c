/* The answer of /v1/responses, whole and streamed. Events of a stream count from 0; ids are those of the final
 * response. */
#include "openai.h"

#include "json_out.h"

#include "base/base.h"

static const char *prefix_of(const struct openai_item *item) {
    return item->kind == CALL_TEXT ? "msg" : item->kind == CALL_REASONING ? "rs" : "fc";
}

static void add_text(struct strbuf *out, const struct strbuf *text) {
    json_out_string(out, strbuf_text(text), text->length);
    out->failed |= text->failed;
}

/* Writes the part of a text or of reasoning. */
static void add_part(const struct openai *request, const struct openai_item *item, bool is_empty, struct strbuf *out) {
    static const struct strbuf none = STRBUF_INIT;
    const struct strbuf *tokens = &request->choices[0].part.content;
    strbuf_format(out, "{\"type\":\"%s\",\"text\":", item->kind == CALL_TEXT ? "output_text" : "reasoning_text");
    add_text(out, is_empty ? &none : &item->text);
    if (item->kind == CALL_TEXT) {
        strbuf_add_text(out, ",\"annotations\":[],\"logprobs\":[");
        if (request->tells_logprobs && !is_empty)
            strbuf_add(out, strbuf_text(tokens), tokens->length);
        strbuf_add_char(out, ']');
    }
    strbuf_add_char(out, '}');
}

/* Only the last item can be cut. */
static const char *status_of(const struct openai *request, const struct openai_item *item) {
    const struct openai_choice *choice = &request->choices[0];
    bool is_last = item - request->items + 1 == (ptrdiff_t)request->item_count;
    return is_last && choice->is_ended && !choice->is_stop ? "incomplete" : "completed";
}

static void add_item(const struct openai *request, const struct openai_item *item, bool begins, struct strbuf *out) {
    static const struct strbuf none = STRBUF_INIT;
    strbuf_add_text(out, "{\"id\":");
    openai_add_id(request, prefix_of(item), item, out);
    strbuf_format(out, ",\"status\":\"%s\",", begins ? "in_progress" : status_of(request, item));
    if (item->kind == CALL_BEGINS) {
        strbuf_format(out, "\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":\"%s\",\"arguments\":", item->id,
                      item->name);
        add_text(out, begins ? &none : &item->text);
    } else {
        strbuf_add_text(out, item->kind == CALL_TEXT ? "\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                                                     : "\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (!begins)
            add_part(request, item, false, out);
        strbuf_add_char(out, ']');
    }
    strbuf_add_char(out, '}');
}

static void add_usage(const struct openai *request, struct strbuf *out) {
    int64_t cached, prompt = openai_prompt_tokens(request, &cached);
    strbuf_format(out,
                  "{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,\"cache_write_tokens\":0},"
                  "\"output_tokens\":%lld,"
                  "\"output_tokens_details\":{\"reasoning_tokens\":%lld},\"total_tokens\":%lld}",
                  (long long)prompt, (long long)cached, (long long)request->completion_tokens,
                  (long long)request->reasoning_tokens, (long long)(prompt + request->completion_tokens));
}

/* Writes the whole response. `error` NULL: it did not fail. */
static void add_response(const struct openai *request, const struct error *error, struct strbuf *out) {
    const struct openai_choice *choice = &request->choices[0];
    bool is_cut = choice->is_ended && !choice->is_stop;
    const struct sampling *sampling = &request->asked->ask.sampling;
    strbuf_add_text(out, "{\"id\":");
    openai_add_id(request, "resp", NULL, out);
    strbuf_format(
        out, ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":", (long long)request->created,
        error               ? "failed"
        : !choice->is_ended ? "in_progress"
        : is_cut            ? "incomplete"
                            : "completed");
    if (error) {
        strbuf_add_text(out, "{\"code\":\"server_error\",\"message\":");
        json_out_text(out, error->text);
        strbuf_add_char(out, '}');
    } else
        strbuf_add_text(out, "null");
    strbuf_format(
        out, ",\"incomplete_details\":%s,\"model\":", is_cut && !error ? "{\"reason\":\"max_output_tokens\"}" : "null");
    json_out_text(out, request->model_name);
    strbuf_add_text(out, ",\"output\":[");
    for (size_t i = 0; (choice->is_ended || error) && i < request->item_count; i++) {
        strbuf_add_text(out, i ? "," : "");
        add_item(request, &request->items[i], false, out);
    }
    strbuf_add_text(out, "],");
    strbuf_add(out, strbuf_text(&request->given), request->given.length);
    openai_add_facts(request, out);
    strbuf_add_text(out, "\"previous_response_id\":null,\"truncation\":\"disabled\",\"temperature\":");
    json_out_float(out, (float)sampling->temperature);
    strbuf_add_text(out, ",\"top_p\":");
    json_out_float(out, (float)sampling->top_p);
    strbuf_add_text(out, ",\"usage\":");
    if (choice->is_ended)
        add_usage(request, out);
    else
        strbuf_add_text(out, "null");
    strbuf_add_char(out, '}');
}

/* ---- events ---- */

static void open_event(struct openai *request, const char *type) {
    strbuf_format(request->out, "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%lld", type,
                  type, (long long)request->sequence++);
}

static void close_event(struct openai *request) {
    strbuf_add_text(request->out, "}\n\n");
}

static void add_response_event(struct openai *request, const char *type, const struct error *error) {
    open_event(request, type);
    strbuf_add_text(request->out, ",\"response\":");
    add_response(request, error, request->out);
    close_event(request);
}

/* Begins an event of an item's contents. */
static void open_content_event(struct openai *request, const struct openai_item *item, const char *type) {
    open_event(request, type);
    strbuf_add_text(request->out, ",\"item_id\":");
    openai_add_id(request, prefix_of(item), item, request->out);
    strbuf_format(request->out, ",\"output_index\":%td", item - request->items);
    if (item->kind != CALL_BEGINS)
        strbuf_add_text(request->out, ",\"content_index\":0");
}

static void add_part_event(struct openai *request, const struct openai_item *item, const char *type, bool begins) {
    if (item->kind == CALL_BEGINS)
        return;
    open_content_event(request, item, type);
    strbuf_add_text(request->out, ",\"part\":");
    add_part(request, item, begins, request->out);
    close_event(request);
}

static void add_item_event(struct openai *request, const struct openai_item *item, const char *type, bool begins) {
    open_event(request, type);
    strbuf_format(request->out, ",\"output_index\":%td,\"item\":", item - request->items);
    add_item(request, item, begins, request->out);
    close_event(request);
}

static void begin(struct openai *request) {
    add_response_event(request, "created", NULL);
    add_response_event(request, "in_progress", NULL);
}

static void open_item(struct openai *request, const struct openai_item *item) {
    add_item_event(request, item, "output_item.added", true);
    add_part_event(request, item, "content_part.added", true);
}

static const char *delta_of(const struct openai_item *item, bool is_done) {
    static const char *const types[][2] = {{"output_text.delta", "output_text.done"},
                                           {"reasoning_text.delta", "reasoning_text.done"},
                                           {"function_call_arguments.delta", "function_call_arguments.done"}};
    return types[item->kind == CALL_TEXT ? 0 : item->kind == CALL_REASONING ? 1 : 2][is_done];
}

static void add(struct openai *request, const struct openai_item *item, const char *text, size_t length) {
    open_content_event(request, item, delta_of(item, false));
    strbuf_add_text(request->out, ",\"delta\":");
    json_out_string(request->out, text, length);
    if (item->kind == CALL_TEXT)
        strbuf_add_text(request->out, ",\"logprobs\":[]");
    close_event(request);
}

static void close_item(struct openai *request, const struct openai_item *item) {
    open_content_event(request, item, delta_of(item, true));
    if (item->kind == CALL_BEGINS)
        strbuf_format(request->out, ",\"name\":\"%s\"", item->name);
    strbuf_add_text(request->out, item->kind == CALL_BEGINS ? ",\"arguments\":" : ",\"text\":");
    add_text(request->out, &item->text);
    if (item->kind == CALL_TEXT)
        strbuf_add_text(request->out, ",\"logprobs\":[]");
    close_event(request);
    add_part_event(request, item, "content_part.done", false);
    add_item_event(request, item, "output_item.done", false);
}

static void end(struct openai *request) {
    add_response_event(request, request->choices[0].is_stop ? "completed" : "incomplete", NULL);
}

static void fail(struct openai *request, const struct error *error, struct strbuf *out) {
    if (!request->has_chunk)
        openai_items_begin(request);
    add_response_event(request, "failed", error);
}

static void build(struct openai *request, struct strbuf *out) {
    add_response(request, NULL, out);
}

const struct openai_dialect openai_responses_dialect = {.waiting = ": waiting\n\n",
                                                        .begin = begin,
                                                        .open = open_item,
                                                        .add = add,
                                                        .close = close_item,
                                                        .end = end,
                                                        .fail = fail,
                                                        .build = build};
