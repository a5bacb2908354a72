/* Messages as JSON: what is one, and how `transformers` hands them to a template. */
#include "chat-internal.h"

#include <string.h>

static int check_string(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!value)
        return status_fail(STATUS_INVALID, "there is no field \"%s\"", key);
    return json_is_string(value) ? STATUS_OK : status_fail(STATUS_INVALID, "field \"%s\" is not a string", key);
}

int chat_check_messages(const json_t *messages) {
    const json_t *message;
    size_t i;
    if (!json_is_array(messages) || !json_array_size(messages))
        return status_fail(STATUS_INVALID, "expected a list of messages {\"role\", \"content\"}, at least one");
    json_array_foreach(messages, i, message) {
        int status = json_is_object(message)
                         ? check_string(message, "role")
                         : status_fail(STATUS_INVALID, "expected an object {\"role\", \"content\"}");
        if (status)
            return status_wrap(status, "message %zu", i + 1);
    }
    return STATUS_OK;
}

static bool has_role(const json_t *message, const char *role) {
    const json_t *value = json_object_get(message, "role");
    return json_string_length(value) == strlen(role) && !memcmp(json_string_value(value), role, strlen(role));
}

bool chat_is_assistants(const json_t *message) {
    return has_role(message, "assistant");
}

static int check_plain(const json_t *message, bool is_first) {
    static const char *const refused[] = {"tool_calls", "function_call", "weight"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (json_object_get(message, refused[i]))
            return status_fail(STATUS_INVALID, "field \"%s\" is not supported by chatml, alpaca and plain", refused[i]);
    int status = check_string(message, "content");
    if (status)
        return status;
    if (!has_role(message, "system") && !has_role(message, "user") && !has_role(message, "assistant"))
        return status_fail(STATUS_INVALID, "\"role\" is none of system, user, assistant");
    return has_role(message, "system") && !is_first
               ? status_fail(STATUS_INVALID, "the system's message is not the first")
               : STATUS_OK;
}

int chat_check_plain(const struct chat_request *request) {
    const json_t *message;
    size_t i;
    if (request->tools || request->documents)
        return status_fail(STATUS_INVALID, "field \"%s\" is not supported by chatml, alpaca and plain",
                           request->tools ? "tools" : "documents");
    json_array_foreach(request->messages, i, message) {
        int status = check_plain(message, i == 0);
        if (status)
            return status_wrap(status, "message %zu", i + 1);
    }
    return STATUS_OK;
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
    if (!status)
        status = take(object, "documents", true, &request->documents);
    return status ? status : take(object, "chat_template_kwargs", false, &request->variables);
}

int chat_take_request(const json_t *object, struct chat_request *request) {
    int status = chat_take_fields(object, request);
    request->messages = json_object_get(object, "messages");
    return status ? status : chat_check_messages(request->messages);
}

int chat_read_request(const char *text, size_t length, const char *where, json_t **root, struct chat_request *request) {
    json_error_t error;
    int status = json_read(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, root, &error);
    if (status == STATUS_INVALID)
        status_fail(status, "%s: line %d column %d: bad JSON: %s", where, error.line, error.column, error.text);
    if (status)
        return status;
    request->messages = *root;
    status = json_is_object(*root) ? chat_take_request(*root, request) : chat_check_messages(*root);
    return status ? status_wrap(status, "%s", where) : STATUS_OK;
}

/* ---- as transformers has them ---- */

static const json_t *find_reasoning(const json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = json_object_get(message, names[i]);
        if (value && !json_is_null(value))
            return value;
    }
    return NULL;
}

static bool has_null(const json_t *message) {
    const json_t *value;
    const char *key;
    json_object_foreach((json_t *)message, key, value) if (json_is_null(value)) return true;
    return false;
}

/* A new reference. "thinking" comes first and "reasoning_content" last, where they are new. */
static json_t *normalize(const json_t *message) {
    const json_t *reasoning = find_reasoning(message), *value;
    const char *key;
    if (!reasoning && !has_null(message))
        return json_incref((json_t *)message);
    json_t *copy = json_object();
    int failed = !copy;
    if (copy && reasoning)
        failed |= json_object_set(copy, "thinking", (json_t *)reasoning);
    json_object_foreach((json_t *)message, key, value) if (!failed && !json_is_null(value)) failed |=
        json_object_set(copy, key, (json_t *)value);
    if (!failed && reasoning)
        failed |= json_object_set(copy, "reasoning_content", (json_t *)reasoning);
    if (!failed)
        return copy;
    json_decref(copy);
    return NULL;
}

json_t *chat_normalize_messages(const json_t *messages) {
    json_t *list = json_array();
    const json_t *message;
    size_t i;
    int failed = !list;
    json_array_foreach(messages, i, message) failed = failed || json_array_append_new(list, normalize(message));
    if (!failed)
        return list;
    json_decref(list);
    status_fail(STATUS_MEMORY, "out of memory");
    return NULL;
}
