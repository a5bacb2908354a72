/* Formats of calls as structural tags. */
#include "call_grammar.h"

/* jansson's functions are called without checking their results: json_end knows if one had no memory. */

static json_t *text_format(const char *text) {
    return json_pack("{s:s, s:s}", "type", "const_string", "value", text);
}

static json_t *pattern_format(const char *pattern) {
    return json_pack("{s:s, s:s}", "type", "regex", "pattern", pattern);
}

static json_t *tag_format(const char *begin, json_t *content, const char *end) {
    return json_pack("{s:s, s:s, s:o, s:s}", "type", "tag", "begin", begin, "content", content, "end", end);
}

static json_t *list_format(const char *type, json_t *elements) {
    return json_pack("{s:s, s:o}", "type", type, "elements", elements);
}

/* ---- a call ---- */

/* Returns the schema of a tool's arguments, an object. */
static json_t *arguments_schema(const struct call_tool *tool) {
    if (!tool->parameters)
        return json_pack("{s:s, s:{}, s:b}", "type", "object", "properties", "additionalProperties", 0);
    json_t *schema = json_copy((json_t *)tool->parameters);
    if (!json_object_get(schema, "type"))
        json_object_set_new(schema, "type", json_string("object"));
    return schema;
}

static json_t *arguments_format(const struct tool_format *format, const struct call_tool *tool) {
    const char *type = strstr(format->call, "%P") ? "qwen_xml_parameter" : "json_schema";
    return json_pack("{s:s, s:o}", "type", type, "json_schema", arguments_schema(tool));
}

/* Writes the texts of a call before and after its arguments. */
static void write_around(const struct tool_format *format, const char *name, struct strbuf *before,
                         struct strbuf *after) {
    struct strbuf *out = before;
    for (const char *at = format->call; *at; at++) {
        if (*at != '%') {
            strbuf_add_char(out, *at);
            continue;
        }
        at++;
        if (*at == 'N')
            strbuf_add_text(out, name);
        if (*at == 'O')
            strbuf_format(before, "{\"name\": \"%s\", \"%s\": ", name, format->arguments);
        if (*at == 'O' || *at == 'A' || *at == 'P')
            out = after;
        if (*at == 'O')
            strbuf_add_char(after, '}');
    }
}

/* Returns a call as a tag, with the texts around it where each call has them. */
static json_t *call_tag(const struct tool_format *format, const struct call_tool *tool) {
    bool is_each = format->grouping == TOOL_EACH;
    struct strbuf before = STRBUF_INIT, after = STRBUF_INIT;
    if (is_each)
        strbuf_add_text(&before, format->begin);
    write_around(format, tool->name, &before, &after);
    if (is_each)
        strbuf_add_text(&after, format->end);
    json_t *tag = before.failed || after.failed
                      ? NULL
                      : tag_format(before.data, arguments_format(format, tool), strbuf_text(&after));
    strbuf_free(&before);
    strbuf_free(&after);
    return tag;
}

static json_t *call_tags(const struct call_grammar *grammar) {
    json_t *tags = json_array();
    for (size_t i = 0; i < grammar->tools->count; i++)
        json_array_append_new(tags, call_tag(grammar->format, &grammar->tools->items[i]));
    return tags;
}

/* ---- calls ---- */

/* Returns one call or more, with the text between them. */
static json_t *repeated(const struct call_grammar *grammar) {
    return json_pack("{s:s, s:o, s:s, s:b, s:b}", "type", "tags_with_separator", "tags", call_tags(grammar),
                     "separator", grammar->format->more, "at_least_one", 1, "stop_after_first",
                     grammar->tools->is_single);
}

/* Returns the calls of a section as a tag, without the text before it. */
static json_t *section(const struct call_grammar *grammar, const char *begin, const char *end) {
    json_t *calls = repeated(grammar);
    if (grammar->format->grouping == TOOL_LIST)
        calls = list_format("sequence",
                            json_pack("[o, o, o, o]", pattern_format(" ?"), text_format("["), calls, text_format("]")));
    return tag_format(begin, calls, end);
}

/* Returns an answer that is calls. */
static json_t *required(const struct call_grammar *grammar) {
    const struct tool_format *format = grammar->format;
    return format->grouping == TOOL_EACH ? repeated(grammar) : section(grammar, format->begin, format->end);
}

/* Returns an answer that is text in which calls may begin. A format without a mark has calls only as the whole answer,
 * which no text begins like. */
static json_t *allowed(const struct call_grammar *grammar) {
    const struct tool_format *format = grammar->format;
    if (!*format->begin)
        return list_format("or", json_pack("[o, o, o]", required(grammar), section(grammar, format->other, format->end),
                                           pattern_format("\\s*([^{\\s][\\s\\S]*)?")));
    json_t *tags = format->grouping == TOOL_EACH ? call_tags(grammar)
                                                 : json_pack("[o]", section(grammar, format->begin, format->end));
    return json_pack("{s:s, s:[s], s:o, s:b}", "type", "triggered_tags", "triggers", format->begin, "tags", tags,
                     "stop_after_first", grammar->tools->is_single);
}

/* ---- a constraint as a part of a tag ---- */

static json_t *choice_format(const json_t *choices) {
    json_t *elements = json_array(), *choice;
    size_t i;
    json_array_foreach((json_t *)choices, i, choice)
        json_array_append_new(elements, json_pack("{s:s, s:O}", "type", "const_string", "value", choice));
    return list_format("or", elements);
}

/* The old form of tags has no place in another tag; the new one says the same. */
static json_t *old_tags(const json_t *root) {
    json_t *tags = json_array(), *structure;
    size_t i;
    json_array_foreach(json_object_get(root, "structures"), i, structure) {
        json_t *tag = json_copy(structure);
        json_object_set_new(
            tag, "content",
            json_pack("{s:s, s:O}", "type", "json_schema", "json_schema", json_object_get(structure, "schema")));
        json_object_set_new(tag, "type", json_string("tag"));
        json_object_del(tag, "schema");
        json_array_append_new(tags, tag);
    }
    return json_pack("{s:s, s:O, s:o}", "type", "triggered_tags", "triggers", json_object_get(root, "triggers"), "tags",
                     tags);
}

static json_t *format_of(const struct grammar_source *source, const json_t *json) {
    switch (source->kind) {
    case GRAMMAR_JSON_SCHEMA:
        return json_pack("{s:s, s:O}", "type", "json_schema", "json_schema", json);
    case GRAMMAR_JSON_OBJECT:
        return json_pack("{s:s, s:{s:s}}", "type", "json_schema", "json_schema", "type", "object");
    case GRAMMAR_REGEX:
        return json_pack("{s:s, s:s%}", "type", "regex", "pattern", source->text, source->length);
    case GRAMMAR_GBNF:
        return json_pack("{s:s, s:s%}", "type", "grammar", "grammar", source->text, source->length);
    case GRAMMAR_CHOICE:
        return choice_format(json);
    default:
        return json_object_get(json, "format") ? json_incref(json_object_get(json, "format")) : old_tags(json);
    }
}

/* Reads the JSON of a constraint that is JSON; *json is NULL for others, and when it is none. STATUS_MEMORY. */
static int read_source(const struct grammar_source *source, json_t **json, bool *is_right) {
    bool is_json = source->kind == GRAMMAR_JSON_SCHEMA || source->kind == GRAMMAR_CHOICE || source->kind == GRAMMAR_TAG;
    json_error_t error;
    *json = NULL;
    *is_right = true;
    if (!is_json)
        return STATUS_OK;
    int status = json_read(source->text, source->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY,
                           json, &error);
    *is_right = !status && (source->kind != GRAMMAR_TAG || json_is_object(*json)) &&
                (source->kind != GRAMMAR_CHOICE || json_is_array(*json));
    return status == STATUS_MEMORY ? status : STATUS_OK;
}

/* ---- the whole ---- */

static json_t *after_reasoning(const struct call_grammar *grammar, json_t *answer) {
    bool has_begun = grammar->thought == THOUGHT_HAS_BEGUN;
    json_t *thought = tag_format(has_begun ? "" : THINK_BEGIN, json_pack("{s:s}", "type", "any_text"), THINK_END);
    thought = list_format("sequence", json_pack("[o, o]", thought, pattern_format("[ \\t\\r\\n]{0,8}")));
    if (!has_begun)
        thought = json_pack("{s:s, s:o}", "type", "optional", "content", thought);
    return list_format("sequence", json_pack("[o, o]", thought, answer));
}

static json_t *answer_format(const struct call_grammar *grammar, const struct ask_constraint *constraint,
                             const json_t *json) {
    const struct openai_tools *tools = grammar->tools;
    json_t *given = constraint->field && tools->choice != TOOLS_REQUIRED ? format_of(&constraint->source, json) : NULL;
    if (tools->choice == TOOLS_NONE)
        return given;
    if (given)
        return list_format("or", json_pack("[o, o]", required(grammar), given));
    return tools->choice == TOOLS_REQUIRED ? required(grammar) : allowed(grammar);
}

static bool has_strict(const struct openai_tools *tools) {
    bool found = false;
    for (size_t i = 0; i < tools->count; i++)
        found |= tools->is_strict[i];
    return found;
}

static int copy(const struct ask_constraint *given, struct ask_constraint *made) {
    const struct grammar_source *source = &given->source;
    return given->field ? ask_constraint_take(made, given->field, source->kind, source->text, source->length)
                        : STATUS_OK;
}

static int make(const struct call_grammar *grammar, const struct ask_constraint *given, const json_t *json,
                struct ask_constraint *made) {
    char *text = NULL;
    json_begin();
    json_t *answer = answer_format(grammar, given, json);
    if (grammar->thought != THOUGHT_NEVER)
        answer = after_reasoning(grammar, answer);
    int status = json_end(json_pack("{s:s, s:o}", "type", "structural_tag", "format", answer), JSON_COMPACT, &text);
    THEN(status, ask_constraint_take(made, given->field ? given->field : "tools", GRAMMAR_TAG, text, strlen(text)));
    free(text);
    return status;
}

int call_grammar_make(const struct call_grammar *grammar, const struct ask_constraint *given,
                      struct ask_constraint *made) {
    bool has_calls = grammar->tools->choice != TOOLS_NONE;
    bool is_made = has_calls || (given->field && grammar->thought != THOUGHT_NEVER);
    json_t *json = NULL;
    *made = (struct ask_constraint){0};
    if (is_made && given->field)
        TRY(read_source(&given->source, &json, &is_made));
    int status = is_made ? make(grammar, given, json, made) : copy(given, made);
    json_decref(json);
    made->source.is_compact = given->source.is_compact;
    made->source.is_closed = given->source.is_closed;
    made->source.is_lenient = !has_strict(grammar->tools) && (!given->field || given->source.is_lenient);
    return status;
}
