/* Shared by the translations of requests: contents, calls, tools. */
#include "translate.h"

#include "json_in.h"

#include "base/base.h"

json_t *translate_refuse(const struct translate_place *place, const char *what, struct error *error) {
    error_set(error, ERROR_ARGUMENT, place->field, "%s: item %zu: %s", place->field, place->number + 1, what);
    return NULL;
}

json_t *translate_made(json_t *made, struct error *error) {
    if (!made)
        error_set(error, ERROR_OVERLOADED, NULL, "out of memory");
    return made;
}

bool translate_add(json_t *list, json_t *message, struct error *error) {
    return message && (!json_array_append_new(list, message) || translate_made(NULL, error));
}

json_t *translate_content(const struct translate_place *place, const json_t *content, struct error *error) {
    static const char *const types[] = {"text", "input_text", "output_text"};
    const json_t *part;
    size_t i;
    if (!content || json_is_null(content) || (json_is_array(content) && !json_array_size(content)))
        return translate_made(json_string(""), error);
    if (json_is_string(content))
        return json_incref((json_t *)content);
    if (!json_is_array(content))
        return translate_refuse(place, "expected a content that is a text, or a list of text parts", error);
    json_t *parts = translate_made(json_array(), error);
    json_array_foreach(content, i, part) {
        const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        bool is_text = false;
        for (size_t k = 0; k < sizeof types / sizeof *types; k++)
            is_text |= json_in_is(type, types[k]);
        bool is_right = parts && is_text && json_is_string(text);
        if (parts && !is_right)
            translate_refuse(place, "only parts with a text are supported", error);
        if (!is_right ||
            !translate_add(parts, translate_made(json_pack("{s:s,s:O}", "type", "text", "text", text), error), error)) {
            json_decref(parts);
            return NULL;
        }
    }
    return parts;
}

bool translate_add_call(const struct translate_place *place, json_t *message, const json_t *id, const json_t *name,
                        const json_t *arguments, struct error *error) {
    json_t *calls = json_object_get(message, "tool_calls");
    if (!json_is_string(id) || !json_is_string(name) || !arguments)
        return translate_refuse(place, "expected a call with its id, its name and its arguments", error);
    if (!calls && !json_object_set_new(message, "tool_calls", json_array()))
        calls = json_object_get(message, "tool_calls");
    return calls && translate_add(calls,
                                  translate_made(json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function",
                                                           "function", "name", name, "arguments", arguments),
                                                 error),
                                  error);
}

bool translate_tools(struct openai *request, const json_t *list, const char *type, const char *schema,
                     struct error *error) {
    json_t *tools = json_is_array(list) ? translate_made(json_array(), error) : NULL;
    const json_t *tool;
    size_t i;
    bool is_right = tools != NULL, is_optional = !strcmp(type, "custom");
    if (!json_is_array(list))
        return error_set(error, ERROR_ARGUMENT, "tools", "tools: expected a list of tools");
    json_array_foreach(list, i, tool) {
        const struct translate_place place = {"tools", i};
        const json_t *given = json_object_get(tool, "type");
        bool is_none = !given || json_is_null(given);
        if (is_right && !(is_none ? is_optional : json_in_is(given, type))) {
            char what[128];
            snprintf(what, sizeof what, "the type \"%.64s\" is not supported: a tool is a function",
                     json_is_string(given) ? json_string_value(given) : "");
            is_right = translate_refuse(&place, what, error);
        }
        is_right =
            is_right && translate_add(tools,
                                      translate_made(json_pack("{s:s,s:{s:O*,s:O*,s:O*,s:O*}}", "type", "function",
                                                               "function", "name", json_object_get(tool, "name"),
                                                               "description", json_object_get(tool, "description"),
                                                               "parameters", json_object_get(tool, schema), "strict",
                                                               json_object_get(tool, "strict")),
                                                     error),
                                      error);
    }
    request->tool_schema = schema;
    is_right = is_right && openai_read_tools(request, "tools", tools, error);
    json_decref(tools);
    return is_right;
}

bool translate_format(struct openai *request, const char *field, const json_t *format, struct error *error) {
    struct ask *ask = &request->asked->ask;
    bool is_known;
    if (!format || json_is_null(format))
        return true;
    json_t *made = json_in_is(json_object_get(format, "type"), "json_schema")
                       ? json_pack("{s:s,s:{s:O*,s:O*,s:O*}}", "type", "json_schema", "json_schema", "name",
                                   json_object_get(format, "name"), "schema", json_object_get(format, "schema"),
                                   "strict", json_object_get(format, "strict"))
                       : json_incref((json_t *)format);
    if (!translate_made(made, error))
        return false;
    int status = ask_read_field(ask, "response_format", made, request->model->vocab, &is_known);
    json_decref(made);
    if (status)
        json_in_fail(status, field, error);
    if (status == STATUS_INVALID)
        error->which = ERROR_CONSTRAINT_INVALID;
    if (!status && ask->constraint.source.field)
        ask->constraint.source.field = field;
    return !status;
}

bool translate_one(struct openai *request, const char *name, const json_t *value, struct error *error) {
    int64_t count;
    return json_in_integer(value, "n", 1, 1, &count, error);
}
