/* Tools for templates that have no place for them: definitions in the system message, calls and results as text. */
#include "chat-internal.h"
#include "tool_format.h"

static const char tools_begin[] =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>\n";
static const char tools_end[] =
    "</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
    "<args-json-object>}\n</tool_call>";

bool chat_mentions(const struct chat_template *template, const char *name) {
    return strstr(strbuf_text(&template->text), name) || strstr(strbuf_text(&template->tools_text), name);
}

bool chat_knows_tools(const struct chat_template *template) {
    return chat_mentions(template, "tools") || chat_mentions(template, "tool_calls");
}

static int add_text(struct strbuf *out, const json_t *value) {
    strbuf_add(out, json_string_value(value), json_string_length(value));
    return strbuf_status(out);
}

static int add_tools(struct strbuf *out, const json_t *tools) {
    const json_t *tool;
    size_t i;
    strbuf_add_text(out, tools_begin);
    json_array_foreach(tools, i, tool) {
        char *line;
        json_begin();
        TRY(json_end(json_incref((json_t *)tool), JSON_ENCODE_ANY, &line));
        strbuf_add_text(out, line);
        strbuf_add_char(out, '\n');
        free(line);
    }
    strbuf_add_text(out, tools_end);
    return strbuf_status(out);
}

static int add_message(json_t *list, const char *role, const struct strbuf *text) {
    json_t *message =
        strbuf_status(text) ? NULL : json_pack("{s:s, s:s%}", "role", role, "content", strbuf_text(text), text->length);
    return message && !json_array_append_new(list, message) ? STATUS_OK : status_no_memory();
}

/* Adds the system message with the tools. `given`: the request's; NULL: none. */
static int add_system(json_t *list, const json_t *given, const json_t *tools) {
    struct strbuf text = STRBUF_INIT;
    int status = add_text(&text, json_object_get(given, "content"));
    if (text.length)
        strbuf_add_text(&text, "\n\n");
    THEN(status, add_tools(&text, tools));
    THEN(status, add_message(list, "system", &text));
    strbuf_free(&text);
    return status;
}

static int add_calls(json_t *list, const json_t *message, const json_t *calls) {
    struct strbuf text = STRBUF_INIT;
    int status = add_text(&text, json_object_get(message, "content"));
    if (text.length)
        strbuf_add_char(&text, '\n');
    THEN(status, tool_format_write(tool_format_named("generic"), calls, &text));
    THEN(status, add_message(list, "assistant", &text));
    strbuf_free(&text);
    return status;
}

/* Adds the results from message `*at` on as one message of the user; *at becomes the last of them. */
static int add_results(json_t *list, const json_t *messages, size_t *at) {
    struct strbuf text = STRBUF_INIT;
    int status = STATUS_OK;
    for (size_t first = *at; !status && chat_has_role(json_array_get(messages, *at), "tool"); ++*at) {
        strbuf_add_text(&text, *at > first ? "\n<tool_response>\n" : "<tool_response>\n");
        status = add_text(&text, json_object_get(json_array_get(messages, *at), "content"));
        strbuf_add_text(&text, "\n</tool_response>");
    }
    --*at;
    THEN(status, add_message(list, "user", &text));
    strbuf_free(&text);
    return status;
}

static int write_messages(const json_t *messages, const json_t *tools, json_t *list) {
    size_t first = 0, count = json_array_size(messages);
    int status = STATUS_OK;
    if (json_array_size(tools)) {
        first = chat_has_role(json_array_get(messages, 0), "system");
        TRY(add_system(list, first ? json_array_get(messages, 0) : NULL, tools));
    }
    for (size_t i = first; i < count; i++) {
        json_t *message = json_array_get(messages, i), *calls = json_object_get(message, "tool_calls");
        if (chat_has_role(message, "tool"))
            status = add_results(list, messages, &i);
        else if (chat_is_assistants(message) && json_array_size(calls))
            status = add_calls(list, message, calls);
        else if (json_array_append(list, message))
            status = status_no_memory();
        if (status)
            return status_wrap(status, "message %zu", i + 1);
    }
    return STATUS_OK;
}

int chat_write_tools(const struct chat_request *request, json_t **messages) {
    json_t *normal = NULL, *list = json_array();
    int status = status_allocated(list);
    THEN(status, chat_normalize_messages(request->messages, &normal));
    THEN(status, write_messages(normal, request->tools, list));
    json_decref(normal);
    *messages = status ? NULL : list;
    if (status)
        json_decref(list);
    return status;
}
