/* POST /v1/chat/completions: messages. */
#include "openai.h"

#include "json_in.h"
#include "route.h"

#include "base/base.h"

#include <stdlib.h>

/* ---- messages ---- */

static bool refuse(struct error *error, size_t number, const char *what) {
    error_set(error, ERROR_ARGUMENT, "messages", "messages: message %zu: %s", number + 1, what);
    return false;
}

static bool read_role(const json_t *value, size_t number, enum chat_role *role, struct error *error) {
    static const struct {
        const char *name;
        enum chat_role role;
    } roles[] = {
        {"system", CHAT_SYSTEM}, {"developer", CHAT_SYSTEM}, {"user", CHAT_USER}, {"assistant", CHAT_ASSISTANT}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (json_in_is(value, roles[i].name)) {
            *role = roles[i].role;
            return true;
        }
    return refuse(error, number, "expected the role system, developer, user or assistant");
}

/* The text becomes the request's own; what else a message holds need not stay. */
static bool keep(struct openai *request, struct strbuf *text, struct chat_message *message, struct error *error) {
    if (strbuf_reserve(text, 1)) {
        strbuf_free(text);
        error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
        return false;
    }
    message->text = text->data;
    message->length = text->length;
    return openai_keep(request, text->data, error);
}

/* Parts are joined by line ends. */
static bool join_parts(struct openai *request, const json_t *parts, size_t number, struct chat_message *message,
                       struct error *error) {
    struct strbuf joined = STRBUF_INIT;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        if (!json_in_is(json_object_get(part, "type"), "text") || !json_is_string(text)) {
            strbuf_free(&joined);
            return refuse(error, number, "expected parts {\"type\": \"text\", \"text\"} alone");
        }
        if (i)
            strbuf_add_char(&joined, '\n');
        strbuf_add(&joined, json_string_value(text), json_string_length(text));
    }
    return keep(request, &joined, message, error);
}

static bool read_message(struct openai *request, const json_t *json, size_t number, struct chat_message *message,
                         struct error *error) {
    static const char *const refused[] = {"tool_calls", "function_call", "audio"};
    const json_t *content = json_object_get(json, "content");
    if (!json_is_object(json))
        return refuse(error, number, "expected an object {\"role\", \"content\"}");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *value = json_object_get(json, refused[i]);
        if (value && !json_is_null(value))
            return refuse(error, number, "calls of tools and sounds are not supported");
    }
    if (!read_role(json_object_get(json, "role"), number, &message->role, error))
        return false;
    if (message->role == CHAT_SYSTEM && number > 0)
        return refuse(error, number, "the system's message is not the first");
    if (number > 0 && message->role == CHAT_ASSISTANT && message[-1].role == CHAT_ASSISTANT)
        return refuse(error, number, "two messages of the assistant in a row");
    if (json_is_array(content) && json_array_size(content))
        return join_parts(request, content, number, message, error);
    if (!json_is_string(content))
        return refuse(error, number, "expected a content that is a text, or a list of text parts");
    struct strbuf text = STRBUF_INIT;
    strbuf_add(&text, json_string_value(content), json_string_length(content));
    return keep(request, &text, message, error);
}

static bool open_chat(struct openai *request, struct error *error) {
    const json_t *value = json_object_get(request->root, "messages");
    size_t count = json_array_size(value);
    if (!json_is_array(value) || !count) {
        error_set(error, ERROR_ARGUMENT, "messages", "messages: expected a list of messages, at least one");
        return false;
    }
    request->call = call_new(request->server, 1);
    request->messages = calloc(count, sizeof *request->messages);
    if (!request->call || !request->messages) {
        error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
        return false;
    }
    for (size_t i = 0; i < count; i++)
        if (!read_message(request, json_array_get(value, i), i, &request->messages[i], error))
            return false;
    request->call->prompts[0].messages = request->messages;
    request->call->prompts[0].message_count = count;
    json_object_del(request->root, "messages");
    return true;
}

/* ---- fields ---- */

static bool read_messages(struct openai *request, const char *name, const json_t *value, struct error *error) {
    (void)request; /* the call was made with them */
    (void)name;
    (void)value;
    (void)error;
    return true;
}

static bool read_longest(struct openai *request, const char *name, const json_t *value, struct error *error) {
    return json_in_integer(value, name, 0, 1000000000, &request->longest, error);
}

static bool read_logprobs(struct openai *request, const char *name, const json_t *value, struct error *error) {
    return json_in_bool(value, name, &request->tells_logprobs, error);
}

static bool read_tops(struct openai *request, const char *name, const json_t *value, struct error *error) {
    return json_in_integer(value, name, 0, ASK_MAX_TOP, &request->tops, error);
}

static bool read_head(struct openai *request, const char *name, const json_t *value, struct error *error) {
    if (!json_in_bool(value, name, &request->asks_for_head, error))
        return false;
    request->has_no_head = !request->asks_for_head;
    return true;
}

static bool read_continues(struct openai *request, const char *name, const json_t *value, struct error *error) {
    return json_in_bool(value, name, &request->continues, error);
}

static const struct openai_field fields[] = {
    {"messages", read_messages}, {"max_completion_tokens", read_longest}, {"logprobs", read_logprobs},
    {"top_logprobs", read_tops}, {"add_generation_prompt", read_head},    {"continue_final_message", read_continues},
};

static bool check_head(struct openai *request, struct error *error) {
    struct call_prompt *prompt = &request->call->prompts[0];
    bool is_assistants = request->messages[prompt->message_count - 1].role == CHAT_ASSISTANT;
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

static bool check_chat(struct openai *request, struct error *error) {
    struct ask *ask = &request->call->ask;
    if (request->tops >= 0 && !request->tells_logprobs) {
        error_set(error, ERROR_ARGUMENT, "top_logprobs", "top_logprobs: only together with logprobs");
        return false;
    }
    if (request->tells_logprobs && request->tops < 0)
        request->tops = 0;
    ask->logprobs = request->tops;
    request->prompt_tops = ask->prompt_logprobs;
    if (request->longest >= 0)
        ask->max_tokens = request->longest;
    return check_head(request, error);
}

static const struct openai_kind chat = {.is_chat = true,
                                        .fields = fields,
                                        .field_count = sizeof fields / sizeof *fields,
                                        .open = open_chat,
                                        .check = check_chat};

static void on_whole(struct exchange *exchange, const char *bytes, size_t length) {
    openai_start(exchange, &chat, bytes, length);
}

void openai_chat(struct exchange *exchange) {
    static const struct route_body body = {.on_whole = on_whole};
    route_collect(exchange, &body);
}
