/* Messages as JSON. */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

static int get_string(const json_t *object, const char *key, const char **text, size_t *length) {
    const json_t *value = json_object_get(object, key);
    if (!value)
        return status_fail(STATUS_INVALID, "there is no field \"%s\"", key);
    if (!json_is_string(value))
        return status_fail(STATUS_INVALID, "field \"%s\" is not a string", key);
    *text = json_string_value(value);
    *length = json_string_length(value);
    return STATUS_OK;
}

int chat_read_message(const json_t *json, bool is_first, struct chat_message *message) {
    static const char *const roles[CHAT_ROLE_COUNT] = {"system", "user", "assistant"};
    static const char *const refused[] = {"tool_calls", "function_call", "weight"};
    const char *role = NULL;
    size_t length = 0, r = 0;
    if (!json_is_object(json))
        return status_fail(STATUS_INVALID, "expected an object {\"role\", \"content\"}");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (json_object_get(json, refused[i]))
            return status_fail(STATUS_INVALID, "field \"%s\" is not supported", refused[i]);
    int status = get_string(json, "role", &role, &length);
    if (!status)
        status = get_string(json, "content", &message->text, &message->length);
    if (status)
        return status;
    while (r < CHAT_ROLE_COUNT && (strlen(roles[r]) != length || memcmp(roles[r], role, length) != 0))
        r++;
    if (r == CHAT_ROLE_COUNT)
        return status_fail(STATUS_INVALID, "\"role\" is none of system, user, assistant");
    message->role = (enum chat_role)r;
    return message->role == CHAT_SYSTEM && !is_first
               ? status_fail(STATUS_INVALID, "the system's message is not the first")
               : STATUS_OK;
}

int chat_read_messages(const json_t *json, struct chat_message **messages, size_t *count) {
    *messages = NULL;
    *count = json_array_size(json);
    if (!json_is_array(json) || *count == 0)
        return status_fail(STATUS_INVALID, "expected a list of messages {\"role\", \"content\"}, at least one");
    struct chat_message *read = calloc(*count, sizeof *read);
    if (!read)
        return status_fail(STATUS_MEMORY, "out of memory");
    int status = STATUS_OK;
    for (size_t i = 0; i < *count && !status; i++) {
        status = chat_read_message(json_array_get(json, i), i == 0, &read[i]);
        if (status)
            status_wrap(status, "message %zu", i + 1);
    }
    if (status)
        free(read);
    else
        *messages = read;
    return status;
}
