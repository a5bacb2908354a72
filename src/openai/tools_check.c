/* Compares what a template writes for calls with the format that reads them. */
#include "tools.h"

#include "json_out.h"

/* ---- the history ---- */

#define QUESTION "Tell me the weather in Berlin and in Rome."

/* Finds the first call of a rendering: the format's beginning, or else an object, after the question. */
static const char *find_calls(const struct tool_format *format, const char *text) {
    const char *at = strstr(text, QUESTION), *begin = at && *format->begin ? strstr(at, format->begin) : NULL;
    if (at && !begin && format->other)
        begin = strstr(at, format->other);
    return begin || !at || *format->begin ? begin : strchr(at, '{');
}

static int render(const struct tool_format *format, struct chat_template *template, const struct chat_request *asked,
                  json_t *calls, struct strbuf *text) {
    json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:s, s:O}]", "role", "user", "content", QUESTION, "role",
                                 "assistant", "content", "", "tool_calls", calls);
    struct chat_request request = *asked;
    struct chat_pieces pieces = {0};
    TRY(status_allocated(messages));
    request.messages = messages;
    int status = chat_render(template, &request, &pieces);
    const char *found = status ? NULL : find_calls(format, strbuf_text(&pieces.text));
    strbuf_clear(text);
    if (found)
        strbuf_add_text(text, found);
    THEN(status, strbuf_status(text));
    chat_pieces_free(&pieces);
    json_decref(messages);
    return status;
}

/* Renders a history with two calls, or with one if the template refuses two. `text` receives the template's words from
 * the first call on, and `calls` the calls, a new reference. STATUS_INVALID when the template fails; STATUS_MEMORY. */
static int render_calls(const struct tool_format *format, struct chat_template *template,
                        const struct chat_request *request, struct strbuf *text, json_t **calls) {
    *calls = json_pack("[{s:s, s:s, s:{s:s, s:{s:s, s:i}}}, {s:s, s:s, s:{s:s, s:{s:s, s:b}}}]", "id", "a1b2c3d4e",
                       "type", "function", "function", "name", "get_weather", "arguments", "city", "Berlin", "days", 3,
                       "id", "f5g6h7i8j", "type", "function", "function", "name", "get_weather", "arguments", "city",
                       "Rome", "hourly", 0);
    TRY(status_allocated(*calls));
    int status = render(format, template, request, *calls, text);
    if (status == STATUS_INVALID && !json_array_remove(*calls, 1))
        status = render(format, template, request, *calls, text);
    return status;
}

/* ---- the comparison ---- */

struct found {
    json_t *calls; /* a list of {"name", "arguments"} */
    struct strbuf arguments;
    const char *name;
};

static int on_event(void *context, const struct call_event *event) {
    struct found *found = context;
    json_error_t error;
    json_t *arguments, *call;
    if (event->kind == CALL_BEGINS) {
        found->name = event->name;
        strbuf_clear(&found->arguments);
    } else if (event->kind == CALL_ARGUMENTS)
        strbuf_add(&found->arguments, event->text, event->length);
    if (event->kind != CALL_ENDS)
        return strbuf_status(&found->arguments);
    int status = json_read(strbuf_text(&found->arguments), found->arguments.length, 0, &arguments, &error);
    if (status)
        return status == STATUS_MEMORY ? status : STATUS_OK;
    call = json_pack("{s:s, s:o}", "name", found->name, "arguments", arguments);
    return call && !json_array_append_new(found->calls, call) ? STATUS_OK : status_no_memory();
}

static bool is_same(const json_t *calls, const json_t *found) {
    bool is_same = json_array_size(calls) == json_array_size(found);
    for (size_t i = 0; is_same && i < json_array_size(calls); i++)
        is_same = json_equal(json_object_get(json_array_get(calls, i), "function"), json_array_get(found, i));
    return is_same;
}

/* The tool of these calls, whose parameters qwen3-xml looks up. */
static json_t *make_parameters(void) {
    return json_pack("{s:{s:{s:s}, s:{s:s}, s:{s:s}}}", "properties", "city", "type", "string", "days", "type",
                     "integer", "hourly", "type", "boolean");
}

static int read_text(const struct tool_format *format, const struct strbuf *text, const json_t *calls, bool *agrees) {
    json_t *parameters = make_parameters();
    struct found found = {.calls = json_array()};
    const struct call_tool tool = {.name = "get_weather", .parameters = parameters};
    struct call_parser *parser = NULL;
    int status = status_allocated(parameters && found.calls);
    THEN(status, call_parser_open(&(struct call_parser_options){.format = format,
                                                                .tools = &tool,
                                                                .tool_count = 1,
                                                                .is_constrained = true,
                                                                .on_event = on_event,
                                                                .context = &found},
                                  &parser));
    THEN(status, call_parser_add(parser, strbuf_text(text), text->length));
    THEN(status, call_parser_end(parser, true));
    *agrees = !status && is_same(calls, found.calls);
    call_parser_close(parser);
    strbuf_free(&found.arguments);
    json_decref(found.calls);
    json_decref(parameters);
    return status;
}

static void add_shown(struct strbuf *out, const struct strbuf *text) {
    enum { SHOWN = 300 };
    json_out_string(out, strbuf_text(text), text->length < SHOWN ? text->length : SHOWN);
    if (text->length > SHOWN)
        strbuf_add_text(out, "...");
}

static int add_both(const struct tool_format *format, const struct strbuf *text, const json_t *calls,
                    struct strbuf *out) {
    struct strbuf written = STRBUF_INIT;
    int status = tool_format_write(format, calls, &written);
    strbuf_add_text(out, "the chat template writes calls of tools as ");
    add_shown(out, text);
    strbuf_format(out, ", and the format %s as ", format->name);
    add_shown(out, &written);
    strbuf_add_text(out, ": calls that the model writes may stay text");
    strbuf_free(&written);
    return status ? status : strbuf_status(out);
}

int openai_tools_check(const struct openai_model *model, struct chat_template *template, struct strbuf *difference) {
    struct strbuf text = STRBUF_INIT;
    json_t *calls = NULL;
    bool agrees = true;
    if (!template || !chat_knows_tools(template))
        return STATUS_OK;
    const struct tool_format *format = model->tool_format ? model->tool_format : tool_format_of(template);
    const struct chat_request request = {
        .tokenizer = model->tokenizer, .eos = model_first_eos(&model->ends), .seconds = model->template_seconds};
    int status = render_calls(format, template, &request, &text, &calls);
    if (status == STATUS_INVALID) {
        strbuf_format(difference, "a history with calls of tools is refused: %s", status_text());
        status = strbuf_status(difference);
    } else
        THEN(status, read_text(format, &text, calls, &agrees));
    THEN_IF(status, !agrees, add_both(format, &text, calls, difference));
    json_decref(calls);
    strbuf_free(&text);
    return status;
}

int openai_tools_warn(const struct openai_model *model, struct chat_template *template, const char *whose) {
    struct strbuf difference = STRBUF_INIT;
    int status = openai_tools_check(model, template, &difference);
    if (!status && difference.length)
        log_warning("%s: %s", whose, difference.data);
    strbuf_free(&difference);
    return status;
}
