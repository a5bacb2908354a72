/* Messages as JSON: their validation, and the form in which `transformers` passes them to a template. */
#include "chat-internal.h"

#include "base/beginning.h"
#include "base/utf8.h"

static int check_string(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!value)
        return status_fail(STATUS_INVALID, "there is no field \"%s\"", key);
    return json_is_string(value) ? STATUS_OK : status_fail(STATUS_INVALID, "field \"%s\" is not a string", key);
}

/* Checks each message; the first failure names its number. */
static int check_each(const json_t *messages, int (*check)(const json_t *message, size_t number, const char *name),
                      const char *name) {
    const json_t *message;
    size_t i;
    json_array_foreach(messages, i, message) {
        int status = check(message, i, name);
        if (status)
            return status_wrap(status, "message %zu", i + 1);
    }
    return STATUS_OK;
}

static int check_form(const json_t *message, size_t number, const char *name) {
    return json_is_object(message) ? check_string(message, "role")
                                   : status_fail(STATUS_INVALID, "expected an object {\"role\", \"content\"}");
}

int chat_check_messages(const json_t *messages) {
    if (!json_is_array(messages) || !json_array_size(messages))
        return status_fail(STATUS_INVALID, "expected a list of messages {\"role\", \"content\"}, at least one");
    return check_each(messages, check_form, NULL);
}

bool chat_has_role(const json_t *message, const char *role) {
    const json_t *value = json_object_get(message, "role");
    return json_string_length(value) == strlen(role) && !memcmp(json_string_value(value), role, strlen(role));
}

bool chat_is_assistants(const json_t *message) {
    return chat_has_role(message, "assistant");
}

static bool is_given(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value);
}

/* Returns the part of a message that belongs to tools: a role or a field. NULL: none. */
static const char *find_tools(const json_t *message) {
    if (chat_has_role(message, "tool"))
        return "\"role\" tool";
    if (chat_has_role(message, "function"))
        return "\"role\" function";
    if (is_given(message, "function_call"))
        return "field \"function_call\"";
    return json_array_size(json_object_get(message, "tool_calls")) ? "field \"tool_calls\"" : NULL;
}

#define KNOWS_NO_TOOLS "the chat template %s knows no tools: name one that does"

static int check_plain(const json_t *message, size_t number, const char *name) {
    const char *tools = find_tools(message);
    bool is_system = chat_has_role(message, "system");
    if (tools)
        return status_fail(STATUS_INVALID, "%s: " KNOWS_NO_TOOLS, tools, name);
    TRY(check_string(message, "content"));
    if (!is_system && !chat_has_role(message, "user") && !chat_is_assistants(message))
        return status_fail(STATUS_INVALID, "\"role\" is none of system, user, assistant");
    return is_system && number ? status_fail(STATUS_INVALID, "the system's message is not the first") : STATUS_OK;
}

int chat_check_plain(const struct chat_request *request, const char *name) {
    if (json_array_size(request->tools))
        return status_fail(STATUS_INVALID, "field \"tools\": " KNOWS_NO_TOOLS, name);
    if (request->documents)
        return status_fail(STATUS_INVALID, "field \"documents\" is not supported by chatml, alpaca and plain");
    return check_each(request->messages, check_plain, name);
}

static int check_weight(const json_t *message, size_t number, const char *name) {
    static const char *const refused[] = {"weights", "loss_weight", "sample_weight", "train_detail"};
    const json_t *weight = json_object_get(message, "weight"), *train = json_object_get(message, "train");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (is_given(message, refused[i]))
            return status_fail(STATUS_INVALID,
                               "field \"%s\" is not supported: an answer that is not trained has "
                               "\"weight\" 0",
                               refused[i]);
    bool has_weight = is_given(message, "weight"), has_train = is_given(message, "train");
    if (has_weight && !(json_is_number(weight) && (json_number_value(weight) == 0 || json_number_value(weight) == 1)))
        return status_fail(STATUS_INVALID, "field \"weight\" is neither 0 nor 1");
    if (has_train && !json_is_boolean(train))
        return status_fail(STATUS_INVALID, "field \"train\" is neither true nor false");
    if (has_weight && has_train && (json_number_value(weight) == 1) != json_is_true(train))
        return status_fail(STATUS_INVALID, "fields \"weight\" and \"train\" contradict each other");
    if (!chat_is_assistants(message) && ((has_weight && json_number_value(weight) == 1) || json_is_true(train)))
        return status_fail(STATUS_INVALID, "field \"%s\": only the assistant's messages are trained",
                           has_weight ? "weight" : "train");
    return STATUS_OK;
}

int chat_check_weights(const json_t *messages) {
    return check_each(messages, check_weight, NULL);
}

bool chat_is_silent(const json_t *message) {
    return (is_given(message, "weight") && json_number_value(json_object_get(message, "weight")) == 0) ||
           json_is_false(json_object_get(message, "train"));
}

static int take(const json_t *object, const char *key, bool is_list, const json_t **taken) {
    const json_t *value = json_object_get(object, key);
    *taken = value && !json_is_null(value) ? value : NULL;
    if (!*taken || (is_list ? json_is_array(value) : json_is_object(value)))
        return STATUS_OK;
    return status_fail(STATUS_INVALID, "field \"%s\" is not %s", key, is_list ? "a list" : "an object");
}

int chat_take_fields(const json_t *object, struct chat_request *request) {
    int status = take(object, "tools", true, &request->tools);
    THEN(status, take(object, "documents", true, &request->documents));
    return status ? status : take(object, "chat_template_kwargs", false, &request->variables);
}

int chat_take_request(const json_t *object, struct chat_request *request) {
    int status = chat_take_fields(object, request);
    request->messages = json_object_get(object, "messages");
    return status ? status : chat_check_messages(request->messages);
}

static int out_of_memory(void) {
    return status_no_memory();
}

/* True for a text that can be no JSON of messages: it begins with something else than a list or an object. */
static bool is_plain(const char *text, size_t length) {
    size_t at = 0;
    while (at < length && strchr(" \t\r\n", text[at]))
        at++;
    return at < length && text[at] != '[' && text[at] != '{';
}

/* Makes a list of one message of the user, without the line ends at the end of the text. */
static int read_plain(const char *text, size_t length, const char *where, json_t **root) {
    while (length && (text[length - 1] == '\n' || text[length - 1] == '\r'))
        length--;
    if (utf8_valid_length((const unsigned char *)text, length) != length)
        return status_fail(STATUS_INVALID, "%s: neither JSON nor a text in UTF-8", where);
    *root = json_pack("[{s:s, s:s%}]", "role", "user", "content", text, length);
    return *root ? STATUS_OK : out_of_memory();
}

static int read_json(const char *text, size_t length, const char *where, json_t **root) {
    json_error_t error;
    int status = json_read(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, root, &error);
    if (status == STATUS_INVALID)
        status_fail(status, "%s: line %d column %d: bad JSON: %s", where, error.line, error.column, error.text);
    return status;
}

int chat_read_request(const char *text, size_t length, const char *where, json_t **root, struct chat_request *request) {
    size_t mark = beginning_mark(text, length);
    text += mark;
    length -= mark;
    TRY(is_plain(text, length) ? read_plain(text, length, where, root) : read_json(text, length, where, root));
    request->messages = *root;
    int status = json_is_object(*root) ? chat_take_request(*root, request) : chat_check_messages(*root);
    return status ? status_wrap(status, "%s", where) : STATUS_OK;
}

/* ---- as templates have them ---- */

const json_t *chat_find_reasoning(const json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_given(message, names[i]))
            return json_object_get(message, names[i]);
    return NULL;
}

static bool has_null(const json_t *message) {
    const json_t *value;
    const char *key;
    json_object_foreach((json_t *)message, key, value) if (json_is_null(value)) return true;
    return false;
}

/* Converts a call's arguments as vLLM does for templates: the value of the JSON text in OpenAI's requests, or an empty
 * object when there is none. A text that is not JSON stays a text. */
static int read_arguments(const json_t *arguments, json_t **value) {
    json_error_t error;
    *value = NULL;
    if (!arguments || json_is_null(arguments) || (json_is_string(arguments) && !json_string_length(arguments)))
        return (*value = json_object()) ? STATUS_OK : out_of_memory();
    if (!json_is_string(arguments)) {
        *value = json_incref((json_t *)arguments);
        return STATUS_OK;
    }
    int status = json_read(json_string_value(arguments), json_string_length(arguments),
                           JSON_DECODE_ANY | JSON_ALLOW_NUL, value, &error);
    if (status != STATUS_INVALID)
        return status;
    *value = json_incref((json_t *)arguments);
    return STATUS_OK;
}

/* Copies an object. NULL: no memory; jansson's copy may lack a member that found none. */
static json_t *copy_whole(const json_t *object) {
    json_t *copy = json_copy((json_t *)object);
    if (json_object_size(copy) == json_object_size(object))
        return copy;
    json_decref(copy);
    return NULL;
}

/* Converts a call in OpenAI's form, {"function": {"name", "arguments"}}, to one with its arguments as a value. */
static int normalize_call(const json_t *call, json_t **normalized) {
    const json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
    json_t *value = NULL, *inner = NULL;
    *normalized = NULL;
    if (!json_is_object(function) || json_is_object(arguments) || json_is_array(arguments)) {
        *normalized = json_incref((json_t *)call);
        return STATUS_OK;
    }
    TRY(read_arguments(arguments, &value));
    inner = copy_whole(function); /* keeps the order of the keys */
    *normalized = copy_whole(call);
    int failed = !inner || json_object_set(inner, "arguments", value) || !*normalized ||
                 json_object_set(*normalized, "function", inner);
    json_decref(value);
    json_decref(inner);
    if (!failed)
        return STATUS_OK;
    json_decref(*normalized);
    *normalized = NULL;
    return out_of_memory();
}

static int normalize_calls(const json_t *calls, json_t **normalized) {
    json_t *list = *normalized = json_array(), *call, *made;
    size_t i;
    if (!list)
        return out_of_memory();
    json_array_foreach((json_t *)calls, i, call) {
        int status = normalize_call(call, &made);
        THEN_IF(status, json_array_append_new(list, made), out_of_memory());
        if (status)
            return status_wrap(status, "call %zu", i + 1);
    }
    return STATUS_OK;
}

/* Copies a message. `calls` replaces its "tool_calls"; NULL: none. A new "thinking" is added first, a new
 * "reasoning_content" last. Returns NULL without memory. */
static json_t *copy_message(const json_t *message, json_t *calls) {
    const json_t *reasoning = chat_find_reasoning(message), *value;
    json_t *copy = json_object();
    const char *key;
    int failed = !copy;
    if (copy && reasoning)
        failed |= json_object_set(copy, "thinking", (json_t *)reasoning);
    json_object_foreach((json_t *)message, key, value) {
        bool is_calls = json_is_array(value) && !strcmp(key, "tool_calls");
        const json_t *kept = is_calls ? calls : value;
        if (!failed && kept && !json_is_null(kept))
            failed |= json_object_set(copy, key, (json_t *)kept);
    }
    if (!failed && reasoning)
        failed |= json_object_set(copy, "reasoning_content", (json_t *)reasoning);
    if (!failed)
        return copy;
    json_decref(copy);
    return NULL;
}

static int normalize(const json_t *message, json_t **normalized) {
    const json_t *calls = json_object_get(message, "tool_calls");
    bool has_calls = json_is_array(calls) && chat_is_assistants(message);
    json_t *made = NULL;
    int status = STATUS_OK;
    *normalized = NULL;
    if (!chat_find_reasoning(message) && !has_null(message) && !has_calls) {
        *normalized = json_incref((json_t *)message);
        return STATUS_OK;
    }
    if (has_calls && json_array_size(calls))
        status = normalize_calls(calls, &made);
    if (!status)
        *normalized = copy_message(message, has_calls ? made : (json_t *)calls);
    THEN_IF(status, !*normalized, out_of_memory());
    json_decref(made);
    return status;
}

int chat_normalize_messages(const json_t *messages, json_t **normalized) {
    json_t *list = json_array(), *message, *made;
    size_t i;
    int status = list ? STATUS_OK : out_of_memory();
    *normalized = NULL;
    json_array_foreach((json_t *)messages, i, message) {
        if (status)
            break;
        status = normalize(message, &made);
        THEN_IF(status, json_array_append_new(list, made), out_of_memory());
        if (status)
            status_wrap(status, "message %zu", i + 1);
    }
    if (status)
        json_decref(list);
    else
        *normalized = list;
    return status;
}
