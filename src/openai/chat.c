/* POST /v1/chat/completions: messages. */
#include "openai.h"

#include "json_in.h"

#include "base/base.h"

/* ---- messages ---- */

static bool refuse(struct error *error, size_t number, const char *what) {
    return error_set(error, ERROR_ARGUMENT, "messages", "messages: message %zu: %s", number + 1, what);
}

static bool fail_memory(struct error *error) {
    return error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
}

/* Templates know a developer's message as a system message. They decide about the order of roles. */
static bool check_role(json_t *message, size_t number, struct error *error) {
    if (chat_has_role(message, "developer") && json_object_set_new(message, "role", json_string("system")))
        return fail_memory(error);
    if (!chat_has_role(message, "system") && !chat_has_role(message, "user") && !chat_has_role(message, "assistant") &&
        !chat_has_role(message, "tool"))
        return refuse(error, number, "expected the role system, developer, user, assistant or tool");
    return true;
}

/* Joins the parts by line ends. */
static bool join_parts(json_t *message, const json_t *parts, size_t number, struct error *error) {
    struct strbuf joined = STRBUF_INIT;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        if (!json_in_is(json_object_get(part, "type"), "text") || !json_is_string(text)) {
            strbuf_free(&joined);
            return refuse(error, number, "expected only parts {\"type\": \"text\", \"text\"}");
        }
        if (i)
            strbuf_add_char(&joined, '\n');
        strbuf_add(&joined, json_string_value(text), json_string_length(text));
    }
    bool is_set = !strbuf_status(&joined) &&
                  !json_object_set_new(message, "content", json_stringn(strbuf_text(&joined), joined.length));
    strbuf_free(&joined);
    return is_set || fail_memory(error);
}

/* Checks {"function": {"name", "arguments"}}. The arguments are JSON in a string, which the renderer reads. */
static bool check_call(const json_t *call, size_t number, struct error *error) {
    const json_t *function = json_object_get(call, "function"), *type = json_object_get(call, "type");
    const json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_string(json_object_get(function, "name")) || (type && !json_in_is(type, "function")))
        return refuse(error, number,
                      "expected calls {\"type\": \"function\", \"function\": {\"name\", \"arguments\"}}");
    if (json_is_string(arguments) &&
        !json_in_is_bounded(json_string_value(arguments), json_string_length(arguments), error)) {
        snprintf(error->param, sizeof error->param, "messages");
        return false;
    }
    return true;
}

static bool check_calls(const json_t *message, size_t number, struct error *error) {
    const json_t *calls = json_object_get(message, "tool_calls");
    if (!calls || json_is_null(calls))
        return true;
    if (!json_is_array(calls) || !chat_has_role(message, "assistant"))
        return refuse(error, number, "tool_calls: expected a list, in a message of the assistant");
    for (size_t i = 0; i < json_array_size(calls); i++)
        if (!check_call(json_array_get(calls, i), number, error))
            return false;
    return true;
}

static bool read_message(json_t *message, size_t number, struct error *error) {
    static const char *const refused[] = {"function_call", "audio"};
    const json_t *content = json_object_get(message, "content");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *value = json_object_get(message, refused[i]);
        if (value && !json_is_null(value))
            return refuse(error, number, "function_call and audio are not supported: calls stand in tool_calls");
    }
    if (!check_role(message, number, error) || !check_calls(message, number, error))
        return false;
    if (!content || json_is_null(content))
        return true;
    if (json_is_array(content) && json_array_size(content))
        return join_parts(message, content, number, error);
    return json_is_string(content) ||
           refuse(error, number, "expected a content that is a text, or a list of text parts");
}

/* Reads the messages of a request in the form that templates take. Other members of a message stay for templates that
 * know them. */
static bool read_all(struct openai *request, const json_t *value, struct error *error) {
    struct call_prompt *prompt = &request->asked->prompts[0];
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *given = json_array_get(value, i);
        json_t *message = json_copy((json_t *)given);
        bool is_whole =
            json_object_size(message) == json_object_size(given); /* it may lack a member that found no memory */
        bool is_right = message && is_whole ? read_message(message, i, error) : fail_memory(error);
        const json_t *content = is_right ? json_object_get(message, "content") : NULL;
        if (json_string_length(content) && memchr(json_string_value(content), 0, json_string_length(content)))
            is_right = refuse(error, i, JSON_IN_NUL);
        if (is_right)
            prompt->chat_bytes += json_string_length(content);
        if (is_right && json_array_append(request->messages, message))
            is_right = fail_memory(error);
        json_decref(message);
        if (!is_right)
            return false;
    }
    return true;
}

bool openai_take_messages(struct openai *request, json_t *list, struct error *error) {
    request->messages = json_array();
    bool is_right = (list && request->messages && !call_request_begin(request->asked, 1)) || fail_memory(error);
    int status = is_right ? chat_check_messages(list) : STATUS_OK;
    if (status)
        json_in_fail(status, "messages", error);
    is_right = is_right && !status && read_all(request, list, error);
    if (is_right)
        request->asked->prompts[0].chat.messages = request->messages;
    json_decref(list);
    return is_right;
}

static bool open_chat(struct openai *request, struct error *error) {
    json_t *value = json_object_get(request->root, "messages");
    if (!openai_take_messages(request, value ? json_incref(value) : json_null(), error))
        return false;
    json_object_del(request->root, "messages");
    return true;
}

/* ---- fields ---- */

bool openai_read_longest(struct openai *request, const char *name, const json_t *value, struct error *error) {
    return json_in_integer(value, name, 0, 1000000000, &request->longest, error);
}

bool openai_read_tops(struct openai *request, const char *name, const json_t *value, struct error *error) {
    return json_in_integer(value, name, 0, ASK_MAX_TOP, &request->tops, error);
}

static bool read_head(struct openai *request, const char *name, const json_t *value, struct error *error) {
    if (!json_in_bool(value, name, &request->asks_for_head, error))
        return false;
    request->has_no_head = !request->asks_for_head;
    return true;
}

/* Reads further variables for the template. The request keeps them. */
bool openai_read_variables(struct openai *request, const char *name, const json_t *value, struct error *error) {
    if (!json_is_null(value) && !json_is_object(value))
        return error_set(error, ERROR_ARGUMENT, name, "%s: expected an object", name);
    request->variables = json_is_null(value) ? NULL : json_incref((json_t *)value);
    request->asked->prompts[0].chat.variables = request->variables;
    return true;
}

static bool read_documents(struct openai *request, const char *name, const json_t *value, struct error *error) {
    if (!json_is_null(value) && !json_is_array(value))
        return error_set(error, ERROR_ARGUMENT, name, "%s: expected a list", name);
    request->documents = json_is_null(value) ? NULL : json_incref((json_t *)value);
    request->asked->prompts[0].chat.documents = request->documents;
    return true;
}

/* Keeps the tools, which the template interprets. An empty list counts as none. */
bool openai_read_tools(struct openai *request, const char *name, const json_t *value, struct error *error) {
    bool is_empty = json_is_array(value) && !json_array_size(value);
    request->tools = is_empty ? NULL : json_incref((json_t *)value);
    request->asked->prompts[0].chat.tools = request->tools;
    return true;
}

bool openai_read_tool_choice(struct openai *request, const char *name, const json_t *value, struct error *error) {
    request->tool_choice = json_incref((json_t *)value);
    return true;
}

bool openai_read_parallel(struct openai *request, const char *name, const json_t *value, struct error *error) {
    request->parallel_calls = json_incref((json_t *)value);
    return true;
}

/* The template sees the tools in any case. */
static bool check_tools(struct openai *request, struct error *error) {
    if (!openai_tools_read(&request->calls, request->tools, request->tool_choice, request->parallel_calls, error))
        return false;
    if (request->tool_schema)
        request->calls.schema = request->tool_schema;
    return true;
}

/* Checks a field that the template already decides: a chat has the special tokens of its template. */
static bool read_special(struct openai *request, const char *name, const json_t *value, struct error *error) {
    bool adds_special = false;
    if (!json_in_bool(value, name, &adds_special, error))
        return false;
    if (adds_special)
        error_set(error, ERROR_ARGUMENT, name, "%s: not supported for chats, whose template has them", name);
    return !adds_special;
}

static const struct openai_field fields[] = {
    {"messages", "Messages", 0, NULL},
    {"max_completion_tokens", "Length", 0, openai_read_longest},
    {"logprobs", "Flag", offsetof(struct openai, tells_logprobs), NULL},
    {"top_logprobs", "Alternatives", 0, openai_read_tops},
    {"add_generation_prompt", "Flag", 0, read_head},
    {"continue_final_message", "Flag", offsetof(struct openai, continues), NULL},
    {"chat_template_kwargs", "Variables", 0, openai_read_variables},
    {"documents", "Documents", 0, read_documents},
    {"tools", "Tools", 0, openai_read_tools},
    {"tool_choice", "ToolChoice", 0, openai_read_tool_choice},
    {"parallel_tool_calls", "Flag", 0, openai_read_parallel},
    {"add_special_tokens", "No", 0, read_special},
    {"parse_special", "No", 0, read_special},
};

static bool check_head(struct openai *request, struct error *error) {
    struct call_prompt *prompt = &request->asked->prompts[0];
    size_t count = json_array_size(request->messages);
    bool is_assistants = chat_is_assistants(json_array_get(request->messages, count - 1));
    bool asks = json_is_true(json_object_get(request->root, "add_generation_prompt"));
    const char *field = "continue_final_message", *what = NULL;
    if (request->continues && asks)
        what = "not together with add_generation_prompt";
    else if (request->continues && !is_assistants)
        what = "the last message is not the assistant's";
    else if (!request->continues && !request->has_no_head && is_assistants) {
        field = "messages";
        what = "the last message is the assistant's: there is nothing to answer";
    }
    if (what)
        error_set(error, ERROR_ARGUMENT, field, "%s: %s", field, what);
    prompt->continues = request->continues;
    prompt->has_no_head = request->has_no_head || request->continues;
    return !what;
}

bool openai_check_chat(struct openai *request, struct error *error) {
    struct ask *ask = &request->asked->ask;
    if (request->tops >= 0 && !request->tells_logprobs)
        return error_set(error, ERROR_ARGUMENT, "top_logprobs", "top_logprobs: only together with logprobs");
    if (request->tells_logprobs && request->tops < 0)
        request->tops = 0;
    ask->logprobs = request->tops;
    request->prompt_tops = ask->prompt_logprobs;
    if (request->longest >= 0)
        ask->max_tokens = request->longest;
    return check_tools(request, error) && check_head(request, error);
}

const struct openai_kind openai_chat_kind = {.url = "/v1/chat/completions",
                                             .schema = "ChatBody",
                                             .other = &openai_completion_kind,
                                             .is_chat = true,
                                             .required = "messages",
                                             .fields = fields,
                                             .field_count = sizeof fields / sizeof *fields,
                                             .open = open_chat,
                                             .check = openai_check_chat};
