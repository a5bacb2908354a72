/* The formats of calls: the table, how a template selects a row, and what a row writes. */
#include "tool_format.h"

#include "chat-internal.h"

#define HERMES .begin = "<tool_call>", .call = "\n%O\n", .more = "\n", .end = "</tool_call>", .arguments = "arguments"

const struct tool_format tool_formats[TOOL_FORMAT_COUNT] = {
    {.name = "mistral-v11",
     .finds = {"[ARGS]"},
     .begin = "[TOOL_CALLS]",
     .call = "%N%I[ARGS]%A",
     .more = "",
     .end = "",
     .id_bytes = 9},
    {.name = "mistral",
     .finds = {"[TOOL_CALLS]"},
     .begin = "[TOOL_CALLS]",
     .call = "%O",
     .more = ", ",
     .end = "",
     .arguments = "arguments",
     .grouping = TOOL_LIST,
     .id_bytes = 9},
    {.name = "deepseek",
     .finds = {"<｜tool▁calls▁begin｜>"},
     .begin = "<｜tool▁calls▁begin｜>",
     .call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%N\n```json\n%A\n```<｜tool▁call▁end｜>",
     .more = "\n",
     .end = "<｜tool▁calls▁end｜>",
     .grouping = TOOL_ALL},
    {.name = "phi4",
     .finds = {"<|tool_call|>"},
     .begin = "<|tool_call|>",
     .other = "functools",
     .call = "%O",
     .more = ", ",
     .end = "<|/tool_call|>",
     .arguments = "arguments",
     .grouping = TOOL_LIST},
    {.name = "qwen3-xml",
     .finds = {"<function="},
     .begin = "<tool_call>",
     .call = "\n<function=%N>\n%P</function>\n",
     .more = "\n",
     .end = "</tool_call>"},
    {.name = "hermes", .finds = {"<tool_call>"}, HERMES},
    {.name = "llama3",
     .finds = {"\"parameters\"", "<|python_tag|>", "Environment: ipython"},
     .begin = "",
     .other = "<|python_tag|>",
     .call = "%O",
     .more = "; ",
     .end = "",
     .arguments = "parameters",
     .grouping = TOOL_ALL},
    {.name = "generic", HERMES},
};
const char *const tool_format_choices[] = {"auto",      "mistral-v11", "mistral", "deepseek", "phi4",
                                           "qwen3-xml", "hermes",      "llama3",  "generic",  NULL};

const struct tool_format *tool_format_named(const char *name) {
    for (int i = 0; i < TOOL_FORMAT_COUNT; i++)
        if (!strcmp(tool_formats[i].name, name))
            return &tool_formats[i];
    return NULL;
}

static bool has_text(const struct chat_template *template, const char *text) {
    return strstr(strbuf_text(&template->text), text) || strstr(strbuf_text(&template->tools_text), text);
}

static bool is_found(const struct tool_format *format, const struct chat_template *template) {
    const char *const *finds = format->finds;
    return !finds[0] || (has_text(template, finds[0]) &&
                         (!finds[1] || has_text(template, finds[1]) || has_text(template, finds[2])));
}

const struct tool_format *tool_format_of(const struct chat_template *template) {
    int row = template ? 0 : TOOL_FORMAT_COUNT - 1;
    while (template && !is_found(&tool_formats[row], template))
        row++;
    return &tool_formats[row];
}

bool chat_may_think(const struct chat_template *template) {
    return template && has_text(template, THINK_BEGIN);
}

/* Returns what the last mark says; `otherwise`: there is none. */
static enum chat_thought last_mark(const char *text, size_t length, enum chat_thought otherwise) {
    const char *end = text + length;
    for (const char *at = text; (at = memchr(at, '<', (size_t)(end - at))); at++)
        if ((size_t)(end - at) >= strlen(THINK_BEGIN) && !memcmp(at, THINK_BEGIN, strlen(THINK_BEGIN)))
            otherwise = THOUGHT_HAS_BEGUN;
        else if ((size_t)(end - at) >= strlen(THINK_END) && !memcmp(at, THINK_END, strlen(THINK_END)))
            otherwise = THOUGHT_NEVER;
    return otherwise;
}

enum chat_thought chat_thought_of_text(const char *text, size_t length) {
    size_t end = length;
    while (end && strchr(" \t\r\n", text[end - 1]) && text[end - 1])
        end--;
    size_t begin = end > strlen(THINK_END) ? end - strlen(THINK_END) : 0; /* only a mark at the end counts */
    return last_mark(text + begin, end - begin, THOUGHT_MAY);
}

enum chat_thought chat_thought_of(const struct chat_pieces *pieces, bool continues) {
    size_t first = pieces->count, begin = pieces->text.length;
    if (continues && first > 0)
        begin -= pieces->items[--first].length;
    while (first > 0 && pieces->items[first - 1].flags & CHAT_SPECIAL)
        begin -= pieces->items[--first].length;
    return last_mark(strbuf_text(&pieces->text) + begin, pieces->text.length - begin,
                     continues ? THOUGHT_NEVER : THOUGHT_MAY);
}

/* ---- writing ---- */

/* Appends a value as Python's json.dumps writes it for a template. */
static int add_json(struct strbuf *out, const json_t *value) {
    char *text;
    json_begin();
    TRY(json_end(json_incref((json_t *)value), JSON_ENCODE_ANY, &text));
    strbuf_add_text(out, text);
    free(text);
    return strbuf_status(out);
}

/* Arguments that are not JSON are a text. */
static int add_arguments(struct strbuf *out, const json_t *arguments) {
    if (!json_is_string(arguments))
        return add_json(out, arguments);
    strbuf_add(out, json_string_value(arguments), json_string_length(arguments));
    return strbuf_status(out);
}

static int add_object(struct strbuf *out, const struct tool_format *format, const json_t *function) {
    strbuf_add_text(out, "{\"name\": ");
    TRY(add_json(out, json_object_get(function, "name")));
    strbuf_format(out, ", \"%s\": ", format->arguments);
    TRY(add_arguments(out, json_object_get(function, "arguments")));
    strbuf_add_char(out, '}');
    return strbuf_status(out);
}

static int add_parameters(struct strbuf *out, const json_t *arguments) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)arguments, key, value) {
        strbuf_format(out, "<parameter=%s>\n", key);
        if (json_is_string(value))
            strbuf_add(out, json_string_value(value), json_string_length(value));
        else
            TRY(add_json(out, value));
        strbuf_add_text(out, "\n</parameter>\n");
    }
    return strbuf_status(out);
}

static int add_call(struct strbuf *out, const struct tool_format *format, const json_t *call) {
    const json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    if (!json_is_string(json_object_get(function, "name")) || !arguments)
        return status_fail(STATUS_INVALID, "expected calls {\"function\": {\"name\", \"arguments\"}}");
    for (const char *at = format->call; *at; at++) {
        if (*at != '%') {
            strbuf_add_char(out, *at);
            continue;
        }
        at++;
        int status = *at == 'O'   ? add_object(out, format, function)
                     : *at == 'A' ? add_arguments(out, arguments)
                     : *at == 'P' ? add_parameters(out, arguments)
                                  : STATUS_OK;
        TRY(status);
        if (*at == 'N')
            strbuf_add_text(out, json_string_value(json_object_get(function, "name")));
    }
    return strbuf_status(out);
}

int tool_format_write(const struct tool_format *format, const json_t *calls, struct strbuf *out) {
    size_t count = json_array_size(calls);
    bool is_each = format->grouping == TOOL_EACH, is_list = format->grouping == TOOL_LIST;
    for (size_t i = 0; i < count; i++) {
        if (i)
            strbuf_add_text(out, format->more);
        if (!i || is_each)
            strbuf_add_text(out, format->begin);
        if (!i && is_list)
            strbuf_add_char(out, '[');
        TRY(add_call(out, format, json_array_get(calls, i)));
        if (i + 1 == count && is_list)
            strbuf_add_char(out, ']');
        if (i + 1 == count || is_each)
            strbuf_add_text(out, format->end);
    }
    return strbuf_status(out);
}
