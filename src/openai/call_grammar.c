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

static json_t *arguments_format(const struct call_grammar *grammar, size_t number) {
    const struct openai_tools *tools = grammar->tools;
    const char *key = strstr(grammar->format->call, "%P") ? "xml_schema" : "json_schema";
    char place[64];
    snprintf(place, sizeof place, "$[%zu].%s", tools->items[number].number, tools->schema);
    return json_pack("{s:s, s:s, s:s, s:o, s:b}", "type", "part", "field", "tools", "place", place, key,
                     arguments_schema(&tools->items[number]), "is_lenient", !tools->items[number].is_strict);
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
static json_t *call_tag(const struct call_grammar *grammar, size_t number) {
    const struct tool_format *format = grammar->format;
    bool is_each = format->grouping == TOOL_EACH;
    struct strbuf before = STRBUF_INIT, after = STRBUF_INIT;
    if (is_each)
        strbuf_add_text(&before, format->begin);
    write_around(format, grammar->tools->items[number].name, &before, &after);
    if (is_each)
        strbuf_add_text(&after, format->end);
    json_t *tag = before.failed || after.failed
                      ? NULL
                      : tag_format(before.data, arguments_format(grammar, number), strbuf_text(&after));
    strbuf_free(&before);
    strbuf_free(&after);
    return tag;
}

static json_t *call_tags(const struct call_grammar *grammar) {
    json_t *tags = json_array();
    for (size_t i = 0; i < grammar->tools->count; i++)
        json_array_append_new(tags, call_tag(grammar, i));
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

/* Returns a constraint as a part of an answer: the value's key, its place and the value. */
static json_t *part_of(const struct ask_constraint *given, const json_t *json) {
    const struct grammar_source *source = &given->source;
    const char *key = "content", *place = "";
    json_t *value;
    switch (source->kind) {
    case GRAMMAR_REGEX:
        value = json_pack("{s:s, s:s%}", "type", "regex", "pattern", source->text, source->length);
        break;
    case GRAMMAR_GBNF:
        value = json_pack("{s:s, s:s%}", "type", "grammar", "grammar", source->text, source->length);
        break;
    case GRAMMAR_CHOICE:
        value = choice_format(json);
        break;
    default:
        key = source->kind == GRAMMAR_TAG ? "tag" : "json_schema";
        place = "$";
        value = json ? json_incref((json_t *)json) : json_pack("{s:s}", "type", "object");
    }
    return json_pack("{s:s, s:s, s:s, s:o, s:b, s:b, s:b}", "type", "part", "field", source->field, "place", place, key,
                     value, "is_compact", source->is_compact, "is_closed", source->is_closed, "is_lenient",
                     source->is_lenient);
}

/* Reads the JSON of a constraint that is JSON; *json is NULL for others, and when it is none. STATUS_MEMORY. */
static int read_source(const struct grammar_source *source, json_t **json, bool *is_right) {
    bool is_json = source->kind == GRAMMAR_JSON_SCHEMA || source->kind == GRAMMAR_CHOICE || source->kind == GRAMMAR_TAG;
    json_error_t error;
    *json = NULL;
    *is_right = true;
    if (!is_json)
        return STATUS_OK;
    int status = json_read_wide(source->text, source->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY,
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
    json_t *given = constraint->source.field && tools->choice != TOOLS_REQUIRED ? part_of(constraint, json) : NULL;
    if (tools->choice == TOOLS_NONE)
        return given;
    if (given)
        return list_format("or", json_pack("[o, o]", required(grammar), given));
    return tools->choice == TOOLS_REQUIRED ? required(grammar) : allowed(grammar);
}

static int copy(const struct ask_constraint *given, struct ask_constraint *made) {
    const struct grammar_source *source = &given->source;
    if (!source->field)
        return STATUS_OK;
    TRY(ask_constraint_take(made, source->field, source->kind, source->text, source->length));
    made->source.is_compact = source->is_compact;
    made->source.is_closed = source->is_closed;
    made->source.is_lenient = source->is_lenient;
    return STATUS_OK;
}

static int make(const struct call_grammar *grammar, const struct ask_constraint *given, const json_t *json,
                struct ask_constraint *made) {
    char *text = NULL;
    json_begin();
    json_t *answer = answer_format(grammar, given, json);
    if (grammar->thought != THOUGHT_NEVER)
        answer = after_reasoning(grammar, answer);
    int status = json_end(json_pack("{s:s, s:o}", "type", "structural_tag", "format", answer), JSON_COMPACT, &text);
    const char *field = given->source.field ? given->source.field : "tools";
    THEN(status, ask_constraint_take(made, field, GRAMMAR_ANSWER, text, strlen(text)));
    free(text);
    return status;
}

int call_grammar_make(const struct call_grammar *grammar, const struct ask_constraint *given,
                      struct ask_constraint *made) {
    bool has_calls = grammar->tools->choice != TOOLS_NONE;
    bool is_made = has_calls || (given->source.field && grammar->thought != THOUGHT_NEVER);
    json_t *json = NULL;
    *made = (struct ask_constraint){0};
    if (is_made && given->source.field)
        TRY(read_source(&given->source, &json, &is_made));
    int status = is_made ? make(grammar, given, json, made) : copy(given, made);
    json_decref(json);
    return status;
}
