/* Arguments of qwen3-xml: <parameter=K>\nV\n</parameter>\n for each, then </function>. A value is the bare text of a
 * string, and JSON of anything else; the schema of the parameter tells which. It ends before a line that continues the
 * structure, so a string may contain </parameter>. */
#include "call_parser-internal.h"

#include "base/json.h"

enum { VALUE_STRING = 1, VALUE_ALL = 63, SCHEMA_STEPS = 16, KEY_BYTES = 256, SPACES = 64 };

/* ---- types ---- */

static unsigned type_named(const json_t *name) {
    static const char *const names[] = {"string", "null", "boolean", "number", "array", "object", "integer"};
    const char *text = json_string_value(name);
    for (unsigned i = 0; text && i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i]))
            return 1u << (i < 6 ? i : 3);
    return 0;
}

static unsigned type_of(const json_t *value) {
    return json_is_string(value)    ? 1
           : json_is_null(value)    ? 2
           : json_is_boolean(value) ? 4
           : json_is_number(value)  ? 8
           : json_is_array(value)   ? 16
                                    : 32;
}

/* Finds "#/a/b" in the document. */
static const json_t *follow(const json_t *root, const char *pointer) {
    const json_t *at = root;
    char key[KEY_BYTES];
    if (!pointer || *pointer++ != '#')
        return NULL;
    while (at && *pointer == '/') {
        size_t length = strcspn(++pointer, "/");
        if (length >= sizeof key)
            return NULL;
        memcpy(key, pointer, length);
        key[length] = 0;
        at = json_object_get(at, key);
        pointer += length;
    }
    return at;
}

static unsigned listed_types(const json_t *list, unsigned (*type)(const json_t *)) {
    unsigned types = 0;
    const json_t *item;
    size_t i;
    json_array_foreach(list, i, item) types |= type(item);
    return types;
}

/* Returns the types that the schema of a parameter names itself. */
static unsigned own_types(const json_t *schema) {
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    unsigned types = VALUE_ALL;
    if (type)
        types &= json_is_array(type) ? listed_types(type, type_named) : type_named(type);
    if (values)
        types &= listed_types(values, type_of);
    if (json_object_get(schema, "const"))
        types &= type_of(json_object_get(schema, "const"));
    return types;
}

/* Returns the types of the values that a schema allows, of its alternatives too. */
static unsigned schema_types(const json_t *root, const json_t *schema) {
    unsigned types = VALUE_ALL, some;
    for (int i = 0; i < SCHEMA_STEPS && json_object_get(schema, "$ref"); i++) {
        types &= own_types(schema);
        schema = follow(root, json_string_value(json_object_get(schema, "$ref")));
    }
    static const char *const unions[] = {"anyOf", "oneOf"};
    types &= own_types(schema);
    for (int k = 0; k < 2; k++) {
        const json_t *list = json_object_get(schema, unions[k]), *item;
        size_t i;
        some = 0;
        json_array_foreach(list, i, item) {
            const char *reference = json_string_value(json_object_get(item, "$ref"));
            const json_t *found = reference ? follow(root, reference) : item;
            some |= own_types(found);
        }
        types &= list ? some : VALUE_ALL;
    }
    return types;
}

/* ---- values ---- */

static void add_escaped(struct strbuf *out, uint8_t byte) {
    static const char escapes[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    const char *found = byte ? strchr(escapes, byte) : NULL;
    if (found)
        strbuf_format(out, "\\%c", letters[found - escapes]);
    else if (byte < 0x20)
        strbuf_format(out, "\\u%04x", byte);
    else
        strbuf_add_char(out, (char)byte);
}

/* Takes a byte of an object or a list, which is passed on as it comes. */
static enum taken take_json(struct call_reading *call, uint8_t byte) {
    if (call->is_value_complete)
        return unit_is_space(byte) ? TAKEN : BAD;
    enum json_scan_result result = json_scan_next(&call->scan, byte);
    if (result == JSON_SCAN_FAILS)
        return BAD;
    call->is_value_complete = result == JSON_SCAN_ENDS;
    strbuf_add_char(&call->arguments, (char)byte);
    return TAKEN;
}

static enum taken take_value(struct call_parser *parser, unit one) {
    struct call_reading *call = &parser->call;
    struct strbuf bytes = STRBUF_INIT;
    enum taken taken = TAKEN;
    unit_add_bytes(parser, one, &bytes);
    for (size_t i = 0; i < bytes.length && taken == TAKEN; i++) {
        uint8_t byte = (uint8_t)bytes.data[i];
        if (call->types == VALUE_STRING)
            add_escaped(&call->arguments, byte);
        else if (call->is_nested || (!call->value.length && !(call->types & VALUE_STRING) && strchr("{[", byte))) {
            call->is_nested = true;
            taken = take_json(call, byte);
        } else if (call->types & VALUE_STRING || call->value.length || !unit_is_space(byte))
            strbuf_add_char(&call->value, (char)byte);
    }
    taken = bytes.failed || call->value.failed ? FAILED : taken;
    strbuf_free(&bytes);
    return taken;
}

/* Some templates write Python's words. */
static const char *find_word(const struct strbuf *text) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (int i = 0; i < 3; i++)
        if (!strcmp(strbuf_text(text), words[i][0]))
            return words[i][1];
    return NULL;
}

/* Decides what a value is that came whole. */
static enum taken end_held(struct call_reading *call) {
    json_t *value = NULL;
    json_error_t error;
    struct strbuf *text = &call->value;
    while (!(call->types & VALUE_STRING) && text->length && unit_is_space(text->data[text->length - 1]))
        text->data[--text->length] = 0;
    const char *word = find_word(text), *written = word ? word : strbuf_text(text);
    size_t length = word ? strlen(word) : text->length;
    int status = json_read(written, length, JSON_DECODE_ANY | JSON_ALLOW_NUL, &value, &error);
    bool is_other = !status && !json_is_string(value) && type_of(value) & call->types;
    json_decref(value);
    if (status == STATUS_MEMORY)
        return FAILED;
    if (is_other)
        strbuf_add(&call->arguments, written, length);
    if (is_other || !(call->types & VALUE_STRING))
        return is_other ? TAKEN : BAD;
    strbuf_add_char(&call->arguments, '"');
    for (size_t i = 0; i < text->length; i++)
        add_escaped(&call->arguments, (uint8_t)text->data[i]);
    strbuf_add_char(&call->arguments, '"');
    return TAKEN;
}

static enum taken end_value(struct call_reading *call) {
    if (call->is_nested)
        return call->is_value_complete ? TAKEN : BAD;
    if (call->types != VALUE_STRING)
        return end_held(call);
    strbuf_add_char(&call->arguments, '"');
    return TAKEN;
}

/* ---- parameters ---- */

static bool has_come(const struct call_reading *call, const char *key) {
    for (size_t at = 0; at < call->keys.length; at += strlen(call->keys.data + at) + 1)
        if (!strcmp(call->keys.data + at, key))
            return true;
    return false;
}

static enum taken begin_value(struct call_reading *call) {
    const char *key = strbuf_text(&call->parameter_key);
    const json_t *root = call->tool->parameters, *known = json_object_get(json_object_get(root, "properties"), key);
    if (!known || has_come(call, key))
        return BAD;
    call->types = schema_types(root, known);
    strbuf_add_text(&call->arguments, call->keys.length ? ", " : "{");
    strbuf_add(&call->keys, key, strlen(key) + 1);
    json_add_string(&call->arguments, key, strlen(key));
    strbuf_add_text(&call->arguments, call->types == VALUE_STRING ? ": \"" : ": ");
    call->has_arguments = call->is_first_line = true;
    call->is_value_complete = call->is_nested = false;
    call->scan = (struct json_scan){0};
    strbuf_clear(&call->value);
    call->parameter = PARAMETER_VALUE;
    return call->keys.failed || call->arguments.failed ? FAILED : TAKEN;
}

static enum taken take_key(struct call_reading *call, unit one) {
    if (one == '>')
        return begin_value(call);
    if (one < 0x20 || one >= UNIT_MARK || call->parameter_key.length == KEY_BYTES)
        return BAD;
    strbuf_add_char(&call->parameter_key, (char)one);
    return call->parameter_key.failed ? FAILED : TAKEN;
}

static enum taken end_parameters(struct call_reading *call) {
    strbuf_add_text(&call->arguments, call->keys.length ? "}" : "{}");
    call->has_arguments = call->has_ended = true;
    return call->arguments.failed ? FAILED : TAKEN;
}

/* Compares the units that were tried with the end of a value: 0 no, 1 a part, 2 a parameter follows, 3 none follows. */
static int match_end(const struct call_reading *call, const struct literal *const *texts) {
    const unit *units = call->tried.items;
    size_t count = call->tried.count, at = texts[2]->count + 1;
    if (units[0] != '\n' || (count > 1 && !literal_match(texts[2], units + 1, count < at ? count - 1 : at - 1)))
        return 0;
    while (at < count && at < texts[2]->count + SPACES && unit_is_space(units[at]))
        at++;
    if (at >= count)
        return 1;
    int parameter = literal_match(texts[0], units + at, count - at);
    int function = literal_match(texts[1], units + at, count - at);
    return parameter == 2 ? 2 : function == 2 ? 3 : parameter || function;
}

/* Follows a value: what may be its end is tried, and what is none belongs to it. */
static enum taken follow_value(struct call_parser *parser, unit one, const struct literal *const *texts) {
    struct call_reading *call = &parser->call;
    struct units *tried = &call->tried;
    enum taken taken = units_add(tried, one) ? FAILED : TAKEN;
    int match = 0;
    while (taken == TAKEN && tried->count && !(match = match_end(call, texts))) {
        bool is_line_end = call->is_first_line && tried->items[0] == '\n';
        if (!is_line_end)
            taken = take_value(parser, tried->items[0]);
        call->is_first_line = false;
        memmove(tried->items, tried->items + 1, --tried->count * sizeof *tried->items);
    }
    if (taken != TAKEN || match < 2)
        return taken;
    tried->count = 0;
    taken = end_value(call);
    strbuf_clear(&call->parameter_key);
    call->parameter = PARAMETER_KEY;
    return taken == TAKEN && match == 3 ? end_parameters(call) : taken;
}

enum taken parameters_take(struct call_parser *parser, unit one) {
    struct call_reading *call = &parser->call;
    const struct literal *const texts[] = {&parser->parameter, &parser->steps[call->step + 1].text,
                                           &parser->parameter_end};
    int found;
    if (call->parameter == PARAMETER_KEY)
        return take_key(call, one);
    if (call->parameter == PARAMETER_VALUE)
        return follow_value(parser, one, texts);
    enum taken taken = literals_take(call, texts, 2, one, &found);
    if (found == 1)
        return end_parameters(call);
    if (found == 0) {
        call->parameter = PARAMETER_KEY;
        strbuf_clear(&call->parameter_key);
    }
    return taken;
}
