/* The arguments of a call in Qwen's XML, as rules: <parameter=KEY>\nVALUE\n</parameter>\n for each property, in the
 * schema's order. A text stands as it is, without quotation marks and escapes; anything else is JSON.
 *
 * Keywords about texts are read here, because they hold for the text itself. Everything else is schema.c's. */
#include "readers-internal.h"

enum { MAX_BRANCHES = 256, MAX_PLACE = 400 };

struct parameters {
    struct grammar_reading *reading;
    struct rules *rules;
    struct regexes *regexes;
    const json_t *root;
    regex texts; /* any text that ends at its first "\n</parameter>" */
};

/* ---- keywords ---- */

/* Keywords that say nothing about a text, or are read elsewhere. */
static const char *const silent[] = {"type",    "title",    "description", "default",  "examples",   "deprecated",
                                     "$schema", "readOnly", "writeOnly",   "$comment", "properties", "required",
                                     "$defs",   "$id",      "definitions", "strict",   "items"};
static const char *const of_texts[] = {"enum", "const", "pattern", "minLength", "maxLength"};
static const char *const of_objects[] = {"additionalProperties"};

static bool is_in(const char *name, const char *const *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(name, list[i]))
            return true;
    return false;
}

/* Refuses keywords that are in neither list, or names them in the answer. */
static int check_keywords(struct parameters *p, const json_t *schema, const char *place, const char *const *known,
                          size_t count) {
    struct grammar_report *report = p->reading->report;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) {
        if (is_in(key, silent, sizeof silent / sizeof *silent) || is_in(key, known, count))
            continue;
        if (!p->reading->is_lenient)
            return grammar_refuse(report, GRAMMAR_UNSUPPORTED, "%s.%.64s: not supported in an argument of XML", place,
                                  key);
        struct strbuf text = STRBUF_INIT;
        for (const char *at = place + 1; *at; at++) /* "$.a[0]" as a pointer */
            if (*at != ']')
                strbuf_add_char(&text, *at == '.' || *at == '[' ? '/' : *at);
        strbuf_format(&text, "/%s", key);
        int status = strbuf_status(&text);
        THEN(status, grammar_ignore(report, strbuf_text(&text)));
        strbuf_free(&text);
        TRY(status);
    }
    return STATUS_OK;
}

/* ---- texts ---- */

static regex text_of(struct parameters *p, const json_t *value) {
    return regex_text(p->regexes, json_string_value(value), json_string_length(value));
}

/* Narrows the language of texts to a schema's constants; *narrowed stays where it has none. */
static regex constants(struct parameters *p, const json_t *schema) {
    const json_t *list = json_object_get(schema, "enum"), *constant = json_object_get(schema, "const");
    regex texts = list || constant ? REGEX_NOTHING : p->texts;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_string(json_array_get(list, i)))
            texts = regex_either(p->regexes, texts, text_of(p, json_array_get(list, i)));
    if (json_is_string(constant))
        texts = list ? regex_both(p->regexes, texts, text_of(p, constant)) : text_of(p, constant);
    return regex_both(p->regexes, texts, p->texts);
}

static int read_length(struct parameters *p, const json_t *schema, const char *key, const char *place,
                       int32_t otherwise, int32_t *length) {
    const json_t *value = json_object_get(schema, key);
    json_int_t given = value ? json_integer_value(value) : otherwise;
    if (value && (!json_is_integer(value) || given < 0))
        return grammar_refuse(p->reading->report, GRAMMAR_INVALID, "%s.%s: expected a number of characters", place,
                              key);
    *length = given > REGEX_ENDLESS ? REGEX_ENDLESS : (int32_t)given;
    return STATUS_OK;
}

/* The texts that a schema allows. */
static int read_texts(struct parameters *p, const json_t *schema, const char *place, regex *texts) {
    static const struct regex_range any = {0, 0x10ffff};
    const json_t *pattern = json_object_get(schema, "pattern");
    int32_t least = 0, most = 0;
    TRY(check_keywords(p, schema, place, of_texts, sizeof of_texts / sizeof *of_texts));
    TRY(read_length(p, schema, "minLength", place, 0, &least));
    TRY(read_length(p, schema, "maxLength", place, REGEX_ENDLESS, &most));
    *texts = least <= most ? constants(p, schema) : REGEX_NOTHING;
    if (least <= most && (least || most != REGEX_ENDLESS)) {
        regex character = regex_characters(p->regexes, &any, 1);
        *texts = regex_both(p->regexes, *texts, regex_repeat(p->regexes, character, least, most));
    }
    if (pattern) {
        regex found;
        if (!json_is_string(pattern))
            return grammar_refuse(p->reading->report, GRAMMAR_INVALID, "%s.pattern: expected a text", place);
        TRY(pattern_read(json_string_value(pattern), json_string_length(pattern), true, false, p->reading, &found));
        *texts = regex_both(p->regexes, *texts, found);
    }
    return regexes_status(p->regexes);
}

/* ---- values ---- */

static bool has_type(const json_t *schema, const char *type) {
    const json_t *given = json_object_get(schema, "type");
    for (size_t i = 0; i < json_array_size(given); i++)
        if (json_is_string(json_array_get(given, i)) && !strcmp(json_string_value(json_array_get(given, i)), type))
            return true;
    return json_is_string(given) && !strcmp(json_string_value(given), type);
}

/* True when a schema without `type` is about texts: all its constants are. */
static bool has_text_constants(const json_t *schema) {
    const json_t *list = json_object_get(schema, "enum");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i)))
            return false;
    return json_array_size(list) || json_is_string(json_object_get(schema, "const"));
}

/* Copies a schema without the type "string", and with the definitions of the whole schema. NULL: no memory. */
static json_t *copy_without_texts(struct parameters *p, const json_t *schema) {
    json_t *copy = json_object(), *types = json_object_get(schema, "type"), *value;
    const char *key;
    bool is_made = copy;
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "definitions" : "$defs";
        json_t *shared = json_object_get(p->root, name);
        is_made &= !shared || !json_object_set(copy, name, shared);
    }
    json_object_foreach((json_t *)schema, key, value) {
        is_made &= !json_object_set(copy, key, value);
    }
    if (is_made && json_is_array(types)) {
        json_t *others = json_array();
        for (size_t i = 0; i < json_array_size(types); i++) {
            const char *type = json_string_value(json_array_get(types, i));
            if (!type || strcmp(type, "string") != 0)
                is_made &= !json_array_append(others, json_array_get(types, i));
        }
        is_made &= !json_object_set_new(copy, "type", others);
    }
    if (!is_made)
        json_decref(copy);
    return is_made ? copy : NULL;
}

/* Adds the values of a schema that are no texts, as JSON. */
static int add_json(struct parameters *p, const json_t *schema, const char *place, rule_node *node) {
    json_t *copy = json_is_object(schema) ? copy_without_texts(p, schema) : json_incref((json_t *)schema);
    rule_node json;
    int status = status_allocated(copy);
    THEN(status, schema_read_value(p->reading, copy, place, &json));
    if (!status)
        *node = rule_either(p->rules, *node, json);
    json_decref(copy);
    return status;
}

/* Follows references to definitions of the whole schema, so that those of texts are seen as such. */
static const json_t *resolve(struct parameters *p, const json_t *schema) {
    static const char *const beginnings[] = {"#/$defs/", "#/definitions/"}, *const keys[] = {"$defs", "definitions"};
    for (int step = 0; step < MAX_BRANCHES && json_object_size(schema) == 1; step++) {
        const char *reference = json_string_value(json_object_get(schema, "$ref"));
        const json_t *found = NULL;
        for (int i = 0; i < 2 && reference; i++)
            if (!strncmp(reference, beginnings[i], strlen(beginnings[i])))
                found = json_object_get(json_object_get(p->root, keys[i]), reference + strlen(beginnings[i]));
        if (!found)
            break;
        schema = found;
    }
    return schema;
}

/* Adds what a schema without branches allows. */
static int add_value(struct parameters *p, const json_t *given, const char *place, rule_node *node) {
    const json_t *schema = resolve(p, given);
    const json_t *types = json_object_get(schema, "type");
    bool is_free = json_is_true(schema) || (json_is_object(schema) && !json_object_size(schema));
    if (is_free || has_type(schema, "string") || (!types && has_text_constants(schema))) {
        regex texts = p->texts;
        if (!is_free)
            TRY(read_texts(p, schema, place, &texts));
        *node = rule_either(p->rules, *node, rule_terminal(p->rules, texts));
        if (is_free || json_array_size(types) < 2)
            return STATUS_OK;
    }
    return add_json(p, schema, place, node);
}

/* The value of a property: its schema, or the branches of it. */
static int read_value(struct parameters *p, const json_t *schema, const char *place, rule_node *node) {
    static const char *const keys[] = {"anyOf", "oneOf"};
    *node = RULE_NOTHING;
    for (int i = 0; i < 2; i++) {
        const json_t *branches = json_object_get(schema, keys[i]);
        if (!branches || json_object_get(schema, "type"))
            continue;
        TRY(check_keywords(p, schema, place, &keys[i], 1));
        if (!json_array_size(branches) || json_array_size(branches) > MAX_BRANCHES)
            return grammar_refuse(p->reading->report, GRAMMAR_INVALID, "%s.%s: expected 1 to %d schemas", place,
                                  keys[i], MAX_BRANCHES);
        for (size_t k = 0; k < json_array_size(branches); k++) {
            char inner[MAX_PLACE + 40];
            snprintf(inner, sizeof inner, "%s.%s[%zu]", place, keys[i], k);
            TRY(add_value(p, json_array_get(branches, k), inner, node));
        }
        return STATUS_OK;
    }
    return add_value(p, schema, place, node);
}

/* ---- arguments ---- */

static rule_node text_node(struct parameters *p, const char *text, size_t length) {
    return rule_terminal(p->rules, regex_text(p->regexes, text, length));
}

static int add_property(struct parameters *p, const char *key, const json_t *schema, const char *place, bool is_needed,
                        rule_node *node) {
    static const char end[] = "\n</parameter>\n";
    char inner[MAX_PLACE];
    struct strbuf begin = STRBUF_INIT;
    rule_node value = RULE_NOTHING;
    snprintf(inner, sizeof inner, "%.200s.properties.%.100s", place, key);
    strbuf_format(&begin, "<parameter=%s>\n", key);
    int status = strbuf_status(&begin);
    THEN(status, read_value(p, schema, inner, &value));
    if (!status) {
        value = rule_join(p->rules, text_node(p, strbuf_text(&begin), begin.length), value);
        value = rule_join(p->rules, value, text_node(p, end, sizeof end - 1));
        value = is_needed ? value : rule_either(p->rules, value, RULE_EMPTY);
        *node = rule_join(p->rules, *node, value);
    }
    strbuf_free(&begin);
    return status;
}

static bool is_required(const json_t *required, const char *key) {
    for (size_t i = 0; i < json_array_size(required); i++)
        if (json_is_string(json_array_get(required, i)) && !strcmp(json_string_value(json_array_get(required, i)), key))
            return true;
    return false;
}

static regex make_texts(struct parameters *p) {
    static const struct regex_range any = {0, 0x10ffff};
    static const char end[] = "\n</parameter>";
    regex text = regex_repeat(p->regexes, regex_characters(p->regexes, &any, 1), 0, REGEX_ENDLESS);
    regex inside = regex_join(p->regexes, REGEX_ANY, regex_text(p->regexes, end, sizeof end - 1));
    regex at_once = regex_text(p->regexes, end + 1, sizeof end - 2); /* after the line end before the value */
    regex begun = regex_either(p->regexes, inside, at_once);
    return regex_both(p->regexes, text, regex_not(p->regexes, regex_join(p->regexes, begun, REGEX_ANY)));
}

int parameters_read(struct grammar_reading *reading, const json_t *schema, const char *place, rule_node *node) {
    struct parameters p = {
        .reading = reading, .rules = reading->rules, .regexes = rules_regexes(reading->rules), .root = schema};
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
    const char *key;
    json_t *value;
    if (!json_is_object(schema) || (properties && !json_is_object(properties)) ||
        (required && !json_is_array(required)))
        return grammar_refuse(reading->report, GRAMMAR_INVALID, "%s: expected a schema of an object", place);
    TRY(check_keywords(&p, schema, place, of_objects, 1));
    p.texts = make_texts(&p);
    *node = RULE_EMPTY;
    json_object_foreach((json_t *)properties, key, value) {
        TRY(add_property(&p, key, value, place, is_required(required, key), node));
    }
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (name && !json_object_get(properties, name))
            TRY(add_property(&p, name, json_true(), place, true, node));
    }
    return rules_status(reading->rules);
}
