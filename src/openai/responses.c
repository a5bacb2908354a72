/* POST /v1/responses: its request as that of a chat. Nothing is stored, so what needs the state of an earlier response
 * is refused. */
#include "json_in.h"
#include "translate.h"

#include "base/base.h"

/* ---- input ---- */

/* Returns the assistant's message at the end of the list for another part of it, which it must not have yet; else adds
 * one. A message and the calls after it are one message. */
static json_t *assistants(json_t *list, const char *part, struct error *error) {
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    bool is_ended = json_object_get(last, "tool_calls") && strcmp(part, "tool_calls") != 0;
    if (chat_is_assistants(last) && !is_ended && (!json_object_get(last, part) || !strcmp(part, "tool_calls")))
        return last;
    if (!translate_add(list, translate_made(json_pack("{s:s}", "role", "assistant"), error), error))
        return NULL;
    return json_array_get(list, json_array_size(list) - 1);
}

static bool set(json_t *message, const char *name, json_t *value, struct error *error) {
    return value && (!json_object_set_new(message, name, value) || translate_made(NULL, error));
}

static bool add_message(json_t *list, const json_t *item, const struct translate_place *place, struct error *error) {
    const json_t *role = json_object_get(item, "role");
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    bool is_role = false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        is_role |= json_in_is(role, roles[i]);
    if (!is_role)
        return translate_refuse(place, "expected the role user, assistant, system or developer", error);
    json_t *content = translate_content(place, json_object_get(item, "content"), error);
    if (!content)
        return false;
    if (!json_in_is(role, "assistant"))
        return translate_add(list, translate_made(json_pack("{s:O,s:o}", "role", role, "content", content), error),
                             error);
    json_t *message = assistants(list, "content", error);
    if (!message)
        json_decref(content);
    return message && set(message, "content", content, error);
}

static bool add_call(json_t *list, const json_t *item, const struct translate_place *place, struct error *error) {
    json_t *message = assistants(list, "tool_calls", error);
    return message && translate_add_call(place, message, json_object_get(item, "call_id"),
                                         json_object_get(item, "name"), json_object_get(item, "arguments"), error);
}

static bool add_output(json_t *list, const json_t *item, const struct translate_place *place, struct error *error) {
    const json_t *id = json_object_get(item, "call_id");
    json_t *content = json_is_string(id) ? translate_content(place, json_object_get(item, "output"), error)
                                         : translate_refuse(place, "call_id: expected a text", error);
    return content &&
           translate_add(list,
                         translate_made(
                             json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id, "content", content), error),
                         error);
}

/* The text of the reasoning, or else its summary. */
static bool add_reasoning(json_t *list, const json_t *item, const struct translate_place *place, struct error *error) {
    static const char *const names[] = {"content", "summary"};
    struct strbuf text = STRBUF_INIT;
    for (size_t n = 0; n < 2 && !text.length; n++) {
        const json_t *parts = json_object_get(item, names[n]), *part;
        size_t i;
        json_array_foreach(parts, i, part) {
            const json_t *given = json_object_get(part, "text");
            strbuf_add(&text, json_is_string(given) ? json_string_value(given) : "", json_string_length(given));
        }
    }
    bool is_right = !strbuf_status(&text) || translate_made(NULL, error);
    if (is_right && text.length) {
        json_t *message = assistants(list, "reasoning_content", error);
        is_right = message && set(message, "reasoning_content",
                                  translate_made(json_stringn(text.data, text.length), error), error);
    }
    strbuf_free(&text);
    return is_right;
}

struct item_kind {
    const char *type;
    bool (*add)(json_t *list, const json_t *item, const struct translate_place *place, struct error *error);
};
static const struct item_kind item_kinds[] = {{"message", add_message},
                                              {"function_call", add_call},
                                              {"function_call_output", add_output},
                                              {"reasoning", add_reasoning}};

static bool add_item(json_t *list, const json_t *item, size_t number, struct error *error) {
    const struct translate_place place = {"input", number};
    const json_t *type = json_object_get(item, "type");
    char what[128];
    if (!json_is_object(item))
        return translate_refuse(&place, "expected an object", error);
    for (size_t i = 0; i < sizeof item_kinds / sizeof *item_kinds; i++)
        if (type ? json_in_is(type, item_kinds[i].type) : !i)
            return item_kinds[i].add(list, item, &place, error);
    snprintf(what, sizeof what, "the type \"%.64s\" is not supported",
             json_is_string(type) ? json_string_value(type) : "");
    return translate_refuse(&place, what, error);
}

static bool add_items(json_t *list, const json_t *input, struct error *error) {
    const json_t *item;
    size_t i;
    if (json_is_string(input))
        return translate_add(list, translate_made(json_pack("{s:s,s:O}", "role", "user", "content", input), error),
                             error);
    if (!json_is_array(input) || !json_array_size(input))
        return error_set(error, ERROR_ARGUMENT, "input", "input: expected a text, or a list of items, at least one");
    json_array_foreach(input, i, item) {
        if (!add_item(list, item, i, error))
            return false;
    }
    return true;
}

/* Keeps what the answer repeats. */
static bool keep_given(struct openai *request, struct error *error) {
    static const struct {
        const char *name, *otherwise;
    } repeated[] = {{"instructions", "null"},
                    {"max_output_tokens", "null"},
                    {"metadata", "{}"},
                    {"parallel_tool_calls", "true"},
                    {"reasoning", "{\"effort\":null,\"summary\":null}"},
                    {"text", "{\"format\":{\"type\":\"text\"}}"},
                    {"tool_choice", "\"auto\""},
                    {"tools", "[]"}};
    for (size_t i = 0; i < sizeof repeated / sizeof *repeated; i++) {
        const json_t *value = json_object_get(request->root, repeated[i].name);
        char *text = value && !json_is_null(value) ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        if (value && !json_is_null(value) && !text)
            return translate_made(NULL, error);
        strbuf_format(&request->given, "\"%s\":", repeated[i].name);
        strbuf_add_text(&request->given, text ? text : repeated[i].otherwise);
        strbuf_add_char(&request->given, ',');
        free(text);
    }
    return !strbuf_status(&request->given) || translate_made(NULL, error);
}

static bool open_responses(struct openai *request, struct error *error) {
    const json_t *instructions = json_object_get(request->root, "instructions");
    json_t *list = translate_made(json_array(), error);
    bool is_right = list && keep_given(request, error);
    if (is_right && instructions && !json_is_null(instructions))
        is_right =
            json_is_string(instructions)
                ? translate_add(
                      list, translate_made(json_pack("{s:s,s:O}", "role", "system", "content", instructions), error),
                      error)
                : error_set(error, ERROR_ARGUMENT, "instructions", "instructions: expected a text");
    if (!is_right || !add_items(list, json_object_get(request->root, "input"), error)) {
        json_decref(list);
        return false;
    }
    bool is_taken = openai_take_messages(request, list, error);
    if (!strcmp(error->param, "messages") && !is_taken)
        snprintf(error->param, sizeof error->param, "input");
    json_object_del(request->root, "input");
    return is_taken;
}

/* ---- fields ---- */

static bool read_tools(struct openai *request, const char *name, const json_t *value, struct error *error) {
    return translate_tools(request, value, "function", "parameters", error);
}

/* Reads {"format": {...}}; the constraint is that of response_format. */
static bool read_text(struct openai *request, const char *name, const json_t *value, struct error *error) {
    const json_t *format = json_object_get(value, "format"), *verbosity = json_object_get(value, "verbosity");
    if (!json_is_object(value))
        return error_set(error, ERROR_ARGUMENT, "text", "text: expected an object");
    if (verbosity && !json_is_null(verbosity) && !json_in_is(verbosity, "medium"))
        return error_set(error, ERROR_ARGUMENT, "text", "text: verbosity: not supported");
    return translate_format(request, "text", format, error);
}

/* The template decides what an effort is. */
static bool read_reasoning(struct openai *request, const char *name, const json_t *value, struct error *error) {
    const json_t *effort = json_object_get(value, "effort");
    if (!json_is_object(value) || (effort && !json_is_null(effort) && !json_is_string(effort)))
        return error_set(error, ERROR_ARGUMENT, "reasoning", "reasoning: expected an object {\"effort\", \"summary\"}");
    if (!json_is_string(effort) || request->variables)
        return true;
    json_t *variables = translate_made(json_pack("{s:O}", "reasoning_effort", effort), error);
    bool is_right = variables && openai_read_variables(request, name, variables, error);
    json_decref(variables);
    return is_right;
}

static bool read_truncation(struct openai *request, const char *name, const json_t *value, struct error *error) {
    return json_in_is(value, "disabled") ||
           error_set(error, ERROR_ARGUMENT, "truncation", "truncation: only \"disabled\" is supported");
}

static bool read_metadata(struct openai *request, const char *name, const json_t *value, struct error *error) {
    return json_is_object(value) || error_set(error, ERROR_ARGUMENT, "metadata", "metadata: expected an object");
}

static bool read_include(struct openai *request, const char *name, const json_t *value, struct error *error) {
    const json_t *item;
    size_t i;
    json_array_foreach(value, i, item) request->tells_logprobs |= json_in_is(item, "message.output_text.logprobs");
    return json_is_array(value) || error_set(error, ERROR_ARGUMENT, "include", "include: expected a list");
}

static const struct openai_field fields[] = {
    {"input", "ResponsesInput", 0, NULL},
    {"instructions", "Name", 0, NULL},
    {"max_output_tokens", "Length", 0, openai_read_longest},
    {"text", "ResponsesText", 0, read_text},
    {"tools", "ResponsesTools", 0, read_tools},
    {"tool_choice", "ToolChoice", 0, openai_read_tool_choice},
    {"parallel_tool_calls", "Flag", 0, openai_read_parallel},
    {"reasoning", "ResponsesReasoning", 0, read_reasoning},
    {"truncation", "Truncation", 0, read_truncation},
    {"include", "Anythings", 0, read_include},
    {"top_logprobs", "Alternatives", 0, openai_read_tops},
    {"n", "One", 0, translate_one},
    {"chat_template_kwargs", "Variables", 0, openai_read_variables},
    {"store", "Anything", 0, NULL},
    {"metadata", "Variables", 0, read_metadata},
    {"service_tier", "Anything", 0, NULL},
    {"safety_identifier", "Anything", 0, NULL},
    {"prompt_cache_key", "Anything", 0, NULL},
    {"prompt_cache_retention", "Anything", 0, NULL},
    {"previous_response_id", "NoField", 0, openai_refuse_field},
    {"conversation", "NoField", 0, openai_refuse_field},
    {"background", "NoField", 0, openai_refuse_field},
    {"prompt", "NoField", 0, openai_refuse_field},
    {"max_tool_calls", "NoField", 0, openai_refuse_field},
};

static bool check_responses(struct openai *request, struct error *error) {
    request->tells_logprobs |= request->tops > 0;
    if (!request->tells_logprobs)
        request->tops = -1;
    return openai_check_chat(request, error);
}

const struct openai_kind openai_responses_kind = {.url = "/v1/responses",
                                                  .schema = "ResponsesBody",
                                                  .is_chat = true,
                                                  .required = "input",
                                                  .dialect = &openai_responses_dialect,
                                                  .fields = fields,
                                                  .field_count = sizeof fields / sizeof *fields,
                                                  .open = open_responses,
                                                  .check = check_responses};
