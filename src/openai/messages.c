/* POST /v1/messages and /v1/messages/count_tokens, of Anthropic: its request as that of a chat. */
#include "json_in.h"
#include "translate.h"

#include "base/base.h"

/* ---- messages ---- */

/* A message that is being translated: a user's may become several of a chat. */
struct translation {
    struct openai *request;
    json_t *list;    /* the messages so far */
    json_t *message; /* of the assistant; NULL: the user's */
    json_t *parts;   /* texts that no message has yet */
    struct translate_place place;
};

static bool add_text(struct translation *t, const json_t *block, struct error *error) {
    const json_t *text = json_object_get(block, "text");
    if (!json_is_string(text))
        return translate_refuse(&t->place, "text: expected a text", error);
    if (!t->parts && !(t->parts = translate_made(json_array(), error)))
        return false;
    return translate_add(t->parts, translate_made(json_pack("{s:s,s:O}", "type", "text", "text", text), error), error);
}

/* Writes the texts that were gathered, as a message of the user, or into that of the assistant. */
static bool end_texts(struct translation *t, struct error *error) {
    json_t *parts = t->parts;
    t->parts = NULL;
    if (!parts)
        return true;
    if (t->message)
        return !json_object_set_new(t->message, "content", parts) || translate_made(NULL, error);
    return translate_add(t->list, translate_made(json_pack("{s:s,s:o}", "role", "user", "content", parts), error),
                         error);
}

/* Ids of calls are those of chats, with another beginning. */
static json_t *call_id(const json_t *id, struct error *error) {
    static const char beginning[] = "toolu_";
    const char *text = json_string_value(id);
    if (!text || strncmp(text, beginning, sizeof beginning - 1) != 0)
        return json_incref((json_t *)id);
    text += sizeof beginning - 1;
    return translate_made(strlen(text) == 9 ? json_string(text) : json_sprintf("call_%s", text), error);
}

static bool add_use(struct translation *t, const json_t *block, struct error *error) {
    const json_t *given = json_object_get(block, "id"), *input = json_object_get(block, "input");
    if (!t->message || !json_is_string(given) || !json_is_object(input))
        return translate_refuse(&t->place, "tool_use: expected id, name and input, in a message of the assistant",
                                error);
    json_t *id = call_id(given, error);
    bool is_right = id && translate_add_call(&t->place, t->message, id, json_object_get(block, "name"), input, error);
    json_decref(id);
    return is_right;
}

static bool add_result(struct translation *t, const json_t *block, struct error *error) {
    const json_t *given = json_object_get(block, "tool_use_id");
    if (t->message || !json_is_string(given))
        return translate_refuse(&t->place, "tool_result: expected a tool_use_id, in a message of the user", error);
    json_t *content = translate_content(&t->place, json_object_get(block, "content"), error);
    json_t *id = content ? call_id(given, error) : NULL;
    if (!id) {
        json_decref(content);
        return false;
    }
    return end_texts(t, error) ? translate_add(t->list,
                                               translate_made(json_pack("{s:s,s:o,s:o}", "role", "tool", "tool_call_id",
                                                                        id, "content", content),
                                                              error),
                                               error)
                               : (json_decref(id), json_decref(content), false);
}

static bool add_thinking(struct translation *t, const json_t *block, struct error *error) {
    const json_t *text = json_object_get(block, "thinking");
    if (!t->message || !json_is_string(text))
        return translate_refuse(&t->place, "thinking: expected a text, in a message of the assistant", error);
    return !json_object_set(t->message, "reasoning_content", (json_t *)text) || translate_made(NULL, error);
}

struct block_kind {
    const char *type;
    bool (*add)(struct translation *t, const json_t *block, struct error *error);
};
static const struct block_kind block_kinds[] = {
    {"text", add_text}, {"tool_use", add_use}, {"tool_result", add_result}, {"thinking", add_thinking}};

static bool add_block(struct translation *t, const json_t *block, struct error *error) {
    const json_t *type = json_object_get(block, "type");
    char what[128];
    for (size_t i = 0; i < sizeof block_kinds / sizeof *block_kinds; i++)
        if (json_in_is(type, block_kinds[i].type))
            return block_kinds[i].add(t, block, error);
    snprintf(what, sizeof what, "a block of the type \"%.64s\" is not supported",
             json_is_string(type) ? json_string_value(type) : "");
    return translate_refuse(&t->place, what, error);
}

static bool add_blocks(struct translation *t, const json_t *blocks, struct error *error) {
    const json_t *block;
    size_t i;
    json_array_foreach(blocks, i, block) {
        if (!add_block(t, block, error))
            return false;
    }
    return end_texts(t, error);
}

static bool add_message(struct translation *t, const json_t *given, struct error *error) {
    const json_t *role = json_object_get(given, "role"), *content = json_object_get(given, "content");
    bool is_assistants = json_in_is(role, "assistant");
    if (!is_assistants && !json_in_is(role, "user"))
        return translate_refuse(&t->place, "expected the role user or assistant", error);
    if (json_is_string(content))
        return translate_add(t->list, translate_made(json_pack("{s:O,s:O}", "role", role, "content", content), error),
                             error);
    if (!json_is_array(content))
        return translate_refuse(&t->place, "expected a content that is a text, or a list of blocks", error);
    t->message = NULL;
    if (is_assistants) {
        if (!translate_add(t->list, translate_made(json_pack("{s:s}", "role", "assistant"), error), error))
            return false;
        t->message = json_array_get(t->list, json_array_size(t->list) - 1);
    }
    return add_blocks(t, content, error);
}

static bool add_system(struct translation *t, const json_t *system, struct error *error) {
    const struct translate_place place = {"system", 0};
    if (!system || json_is_null(system))
        return true;
    json_t *content = translate_content(&place, system, error);
    return content &&
           translate_add(t->list, translate_made(json_pack("{s:s,s:o}", "role", "system", "content", content), error),
                         error);
}

/* A last message of the assistant is continued. */
static bool note_last(struct openai *request, struct error *error) {
    const json_t *last = json_array_get(request->messages, json_array_size(request->messages) - 1);
    request->continues = chat_is_assistants(last);
    return !request->continues || !json_object_get(last, "tool_calls") ||
           error_set(error, ERROR_ARGUMENT, "messages", "messages: the last message calls a tool and has no result");
}

static bool open_messages(struct openai *request, struct error *error) {
    const json_t *given = json_object_get(request->root, "messages"), *message;
    struct translation t = {.request = request, .list = translate_made(json_array(), error)};
    size_t i;
    bool is_right = t.list && add_system(&t, json_object_get(request->root, "system"), error);
    if (is_right && (!json_is_array(given) || !json_array_size(given)))
        is_right = error_set(error, ERROR_ARGUMENT, "messages", "messages: expected a list of messages, at least one");
    json_array_foreach(given, i, message) {
        t.place = (struct translate_place){"messages", i};
        is_right = is_right && add_message(&t, message, error);
    }
    json_decref(t.parts);
    if (!is_right) {
        json_decref(t.list);
        return false;
    }
    if (!openai_take_messages(request, t.list, error))
        return false;
    json_object_del(request->root, "messages");
    return note_last(request, error);
}

/* ---- fields ---- */

static bool read_tools(struct openai *request, const char *name, const json_t *value, struct error *error) {
    return translate_tools(request, value, "custom", "input_schema", error);
}

static bool read_tool_choice(struct openai *request, const char *name, const json_t *value, struct error *error) {
    static const char *const types[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const json_t *type = json_object_get(value, "type"),
                 *is_single = json_object_get(value, "disable_parallel_tool_use");
    bool may_repeat = true, has_name = json_in_is(type, "tool");
    if (!json_in_bool(is_single, "tool_choice", &may_repeat, error))
        return false;
    const char *meant = NULL;
    for (size_t i = 0; i < 3; i++)
        if (json_in_is(type, types[i][0]))
            meant = types[i][1];
    if (!meant && !has_name)
        return error_set(error, ERROR_ARGUMENT, "tool_choice",
                         "tool_choice: expected {\"type\"} with \"auto\", \"any\", \"tool\" or \"none\"");
    json_t *choice = meant ? json_string(meant)
                           : json_pack("{s:s,s:O*}", "type", "function", "name", json_object_get(value, "name"));
    if (!translate_made(choice, error))
        return false;
    bool is_right = openai_read_tool_choice(request, name, choice, error);
    json_decref(choice);
    return is_right && (!json_is_true(is_single) || openai_read_parallel(request, name, json_false(), error));
}

static bool read_stops(struct openai *request, const char *name, const json_t *value, struct error *error) {
    bool is_known;
    if (!json_is_array(value))
        return error_set(error, ERROR_ARGUMENT, "stop_sequences", "stop_sequences: expected a list of texts");
    int status = json_array_size(value)
                     ? ask_read_field(&request->asked->ask, "stop", value, request->model->vocab, &is_known)
                     : STATUS_OK;
    if (status)
        json_in_fail(status, "stop_sequences", error);
    return !status;
}

static bool read_thinking(struct openai *request, const char *name, const json_t *value, struct error *error) {
    const json_t *type = json_object_get(value, "type");
    request->hides_reasoning = json_in_is(type, "disabled");
    return request->hides_reasoning || json_in_is(type, "enabled") || json_in_is(type, "adaptive") ||
           error_set(error, ERROR_ARGUMENT, "thinking",
                     "thinking: expected {\"type\"} with \"enabled\", \"adaptive\" or \"disabled\"");
}

/* Reads {"format": {"type": "json_schema", "schema"}}; the constraint is that of response_format. */
static bool read_output(struct openai *request, const char *name, const json_t *value, struct error *error) {
    const json_t *format = json_object_get(value, "format"), *effort = json_object_get(value, "effort");
    if (!json_is_object(value) || (effort && !json_is_null(effort)))
        return error_set(error, ERROR_ARGUMENT, "output_config", "output_config: expected an object {\"format\"}");
    return translate_format(request, "output_config", format, error);
}

static const struct openai_field fields[] = {
    {"messages", "MessagesMessages", 0, NULL},
    {"system", "MessagesContent", 0, NULL},
    {"tools", "MessagesTools", 0, read_tools},
    {"tool_choice", "MessagesToolChoice", 0, read_tool_choice},
    {"stop_sequences", "StopSequences", 0, read_stops},
    {"thinking", "Thinking", 0, read_thinking},
    {"output_config", "OutputConfig", 0, read_output},
    {"n", "One", 0, translate_one},
    {"chat_template_kwargs", "Variables", 0, openai_read_variables},
    {"metadata", "Anything", 0, NULL},
    {"service_tier", "Anything", 0, NULL},
    {"container", "NoField", 0, openai_refuse_field},
    {"context_management", "NoField", 0, openai_refuse_field},
    {"mcp_servers", "NoField", 0, openai_refuse_field},
};

static bool check_messages(struct openai *request, struct error *error) {
    const struct ask *ask = &request->asked->ask;
    request->is_stream &= !request->kind->only_counts;
    if (ask->max_tokens < 0 && !request->kind->only_counts)
        return error_set(error, ERROR_ARGUMENT, "max_tokens", "max_tokens: expected the maximum number of tokens");
    return openai_check_chat(request, error);
}

const struct openai_kind openai_messages_kind = {.url = "/v1/messages",
                                                 .schema = "MessagesBody",
                                                 .is_chat = true,
                                                 .required = "messages",
                                                 .dialect = &openai_messages_dialect,
                                                 .fields = fields,
                                                 .field_count = sizeof fields / sizeof *fields,
                                                 .open = open_messages,
                                                 .check = check_messages};
const struct openai_kind openai_count_kind = {.url = "/v1/messages/count_tokens",
                                              .schema = "CountBody",
                                              .is_chat = true,
                                              .only_counts = true,
                                              .required = "messages",
                                              .dialect = &openai_messages_dialect,
                                              .fields = fields,
                                              .field_count = sizeof fields / sizeof *fields,
                                              .open = open_messages,
                                              .check = check_messages};
