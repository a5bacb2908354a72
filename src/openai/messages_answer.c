/* The answer of /v1/messages, whole and streamed, and its errors. */
#include "openai.h"

#include "json_in.h"
#include "json_out.h"

#include "base/base.h"

static void add_text(struct strbuf *out, const struct strbuf *text) {
    json_out_string(out, strbuf_text(text), text->length);
    out->failed |= text->failed;
}

/* Writes a call's arguments, which are an object unless the call was cut. */
static void add_input(struct strbuf *out, const struct strbuf *arguments) {
    struct error error;
    json_t *root;
    bool is_object = json_in_read(strbuf_text(arguments), arguments->length, false, &root, &error);
    json_decref(root);
    if (is_object)
        strbuf_add(out, arguments->data, arguments->length);
    else
        strbuf_add_text(out, "{}");
}

/* Ids of calls begin as Anthropic's. */
static void add_call_id(struct strbuf *out, const char *id) {
    strbuf_format(out, "\"toolu_%s\"", strncmp(id, "call_", 5) ? id : id + 5);
}

/* Writes a block, which is empty when it begins. */
static void add_block(const struct openai_item *item, bool begins, struct strbuf *out) {
    static const struct strbuf none = STRBUF_INIT;
    const struct strbuf *text = begins ? &none : &item->text;
    if (item->kind == CALL_BEGINS) {
        strbuf_add_text(out, "{\"type\":\"tool_use\",\"id\":");
        add_call_id(out, item->id);
        strbuf_format(out, ",\"name\":\"%s\",\"input\":", item->name);
        add_input(out, text);
    } else {
        const char *type = item->kind == CALL_TEXT ? "text" : "thinking";
        strbuf_format(out, "{\"type\":\"%s\",\"%s\":", type, type);
        add_text(out, text);
        if (item->kind == CALL_REASONING)
            strbuf_add_text(out, ",\"signature\":\"\"");
    }
    strbuf_add_char(out, '}');
}

static void add_stop(const struct openai *request, struct strbuf *out) {
    const struct openai_choice *choice = &request->choices[0];
    strbuf_format(out, "\"stop_reason\":%s,\"stop_sequence\":",
                  !choice->is_ended   ? "null"
                  : !choice->is_stop  ? "\"max_tokens\""
                  : choice->stop      ? "\"stop_sequence\""
                  : choice->has_calls ? "\"tool_use\""
                                      : "\"end_turn\"");
    if (choice->is_ended && choice->stop) {
        const struct writer_string *stop = &request->asked->ask.stop[choice->stop - 1];
        json_out_string(out, stop->bytes, stop->length);
    } else
        strbuf_add_text(out, "null");
}

static void add_message(const struct openai *request, struct strbuf *out) {
    int64_t cached, prompt = openai_prompt_tokens(request, &cached);
    strbuf_add_text(out, "{\"id\":");
    openai_add_id(request, "msg", NULL, out);
    strbuf_add_text(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    json_out_text(out, request->model_name);
    strbuf_add_text(out, ",\"content\":[");
    for (size_t i = 0; request->choices[0].is_ended && i < request->item_count; i++) {
        strbuf_add_text(out, i ? "," : "");
        add_block(&request->items[i], false, out);
    }
    strbuf_add_text(out, "],");
    add_stop(request, out);
    strbuf_add_char(out, ',');
    openai_add_facts(request, out);
    strbuf_format(out,
                  "\"usage\":{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%lld,"
                  "\"output_tokens\":%lld}}",
                  (long long)(prompt - cached), (long long)cached, (long long)request->completion_tokens);
}

/* ---- events ---- */

static void open_event(struct openai *request, const char *type) {
    strbuf_format(request->out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void open_block_event(struct openai *request, const struct openai_item *item, const char *type) {
    open_event(request, type);
    strbuf_format(request->out, ",\"index\":%td", item - request->items);
}

static void close_event(struct openai *request) {
    strbuf_add_text(request->out, "}\n\n");
}

static void begin(struct openai *request) {
    open_event(request, "message_start");
    strbuf_add_text(request->out, ",\"message\":");
    add_message(request, request->out);
    close_event(request);
}

static void open_block(struct openai *request, const struct openai_item *item) {
    open_block_event(request, item, "content_block_start");
    strbuf_add_text(request->out, ",\"content_block\":");
    add_block(item, true, request->out);
    close_event(request);
}

static void add_delta(struct openai *request, const struct openai_item *item, const char *type, const char *name,
                      const char *text, size_t length) {
    open_block_event(request, item, "content_block_delta");
    strbuf_format(request->out, ",\"delta\":{\"type\":\"%s\",\"%s\":", type, name);
    json_out_string(request->out, text, length);
    strbuf_add_char(request->out, '}');
    close_event(request);
}

static void add(struct openai *request, const struct openai_item *item, const char *text, size_t length) {
    static const char *const names[][2] = {
        {"text_delta", "text"}, {"thinking_delta", "thinking"}, {"input_json_delta", "partial_json"}};
    const char *const *name = names[item->kind == CALL_TEXT ? 0 : item->kind == CALL_REASONING ? 1 : 2];
    add_delta(request, item, name[0], name[1], text, length);
}

static void close_block(struct openai *request, const struct openai_item *item) {
    if (item->kind == CALL_REASONING)
        add_delta(request, item, "signature_delta", "signature", "", 0);
    open_block_event(request, item, "content_block_stop");
    close_event(request);
}

static void end(struct openai *request) {
    open_event(request, "message_delta");
    strbuf_add_text(request->out, ",\"delta\":{");
    add_stop(request, request->out);
    strbuf_format(request->out, "},\"usage\":{\"output_tokens\":%lld}", (long long)request->completion_tokens);
    close_event(request);
    open_event(request, "message_stop");
    close_event(request);
}

static void fail(struct openai *request, const struct error *error, struct strbuf *out) {
    strbuf_add_text(out, "event: error\ndata: ");
    error_add_message(error, out);
    strbuf_add_text(out, "\n\n");
}

static void build(struct openai *request, struct strbuf *out) {
    int64_t cached;
    if (request->kind->only_counts)
        strbuf_format(out, "{\"input_tokens\":%lld}", (long long)openai_prompt_tokens(request, &cached));
    else
        add_message(request, out);
}

const struct openai_dialect openai_messages_dialect = {.waiting = "event: ping\ndata: {\"type\": \"ping\"}\n\n",
                                                       .begin = begin,
                                                       .open = open_block,
                                                       .add = add,
                                                       .close = close_block,
                                                       .end = end,
                                                       .fail = fail,
                                                       .build = build};
