/* Schemas: the room's functions, and the terms that they all use. */
#include "schema-internal.h"

enum { MAX_DEPTH_OF_TEXT = 64, EXACT_DIGITS = 15 };

static void prepare_terms(struct schema *schema) {
    struct regexes *r = schema->regexes;
    regex zero = regex_byte(r, '0', '0'), point = regex_byte(r, '.', '.'), digit = regex_byte(r, '0', '9');
    regex last = regex_byte(r, '1', '9'), minus = regex_byte(r, '-', '-'), plus = regex_byte(r, '+', '+');
    schema->space = spell_space(r, schema->reading->is_compact);
    schema->quote = regex_byte(r, '"', '"');
    schema->free_string = spell_free_string(r);
    schema->any_number = spell_number(r);
    schema->plain_number = spell_plain_number(r, false);
    schema->integer = spell_plain_number(r, true);
    schema->character = spell_any(r, true);
    schema->content = regex_repeat(r, schema->character, 0, REGEX_ENDLESS);
    regex zeros = regex_sequence(r, (regex[]){point, zero, regex_repeat(r, zero, 0, REGEX_ENDLESS)}, 3);
    schema->whole_numbers =
        regex_both(r, schema->plain_number, regex_join(r, schema->integer, regex_either(r, REGEX_EMPTY, zeros)));
    /* No point in an integer, no zeros at the end, no -0; or as Python writes very large and small ones. */
    regex fraction = regex_sequence(r, (regex[]){point, regex_repeat(r, digit, 0, REGEX_ENDLESS), last}, 3);
    regex plain =
        regex_both(r, schema->plain_number, regex_join(r, schema->integer, regex_either(r, REGEX_EMPTY, fraction)));
    regex exponent = regex_sequence(
        r, (regex[]){regex_byte(r, 'e', 'e'), regex_either(r, plus, minus), regex_repeat(r, digit, 2, 3)}, 3);
    schema->shortest =
        regex_either(r, regex_both(r, plain, regex_not(r, regex_text(r, "-0", 2))), regex_join(r, plain, exponent));
    /* Numbers of 15 digits: doubles tell them apart. */
    schema->exact_numbers =
        regex_both(r, schema->plain_number,
                   regex_either(r, schema->integer,
                                regex_join(r, regex_either(r, REGEX_EMPTY, minus),
                                           regex_repeat(r, regex_either(r, digit, point), 1, EXACT_DIGITS + 1))));
    if (schema->has_nul)
        schema->character = regex_either(r, schema->character, regex_text(r, "\\u0000", 6));
}

static int read_schema(struct schema *schema, const json_t *value, rule_node *node) {
    static const spot_id nothing = SPOT_NOTHING;
    schema->regexes = rules_regexes(schema->rules);
    schema->status = array_reserve(&schema->spots, &schema->spot_capacity, FIRST_SPOTS, sizeof *schema->spots);
    TRY(schema->status);
    memset(schema->spots, 0, FIRST_SPOTS * sizeof *schema->spots);
    schema->spot_count = FIRST_SPOTS;
    schema_add_set(schema, &nothing, 0);
    schema_add_set(schema, &nothing, 1);
    struct shape *shapes = schema_take(schema, FIRST_SPOTS, sizeof *shapes);
    TRY(schema->status);
    shape_anything(&shapes[SPOT_ANYTHING]);
    shapes[SPOT_OBJECT].objects = shapes[SPOT_ANYTHING].objects;
    shapes[SPOT_OBJECT].object_count = 1;
    for (spot_id i = 0; i < FIRST_SPOTS; i++)
        schema->spots[i].shape = &shapes[i];
    prepare_terms(schema);
    if (!value)
        return schema_rules(schema, schema_single(schema, SPOT_OBJECT), node);
    TRY(schema_index(schema, value));
    TRY(schema_check(schema, value));
    TRY(schema_rules(schema, schema_set_of(schema, value), node));
    return schema_report_ignored(schema);
}

static int read_value(struct grammar_reading *reading, const json_t *value, const char *place, bool has_nul,
                      rule_node *node) {
    struct schema *schema = calloc(1, sizeof *schema);
    TRY(status_allocated(schema));
    *schema = (struct schema){.reading = reading, .rules = reading->rules, .place = place, .has_nul = has_nul};
    *node = RULE_NOTHING;
    int status = read_schema(schema, value, node);
    THEN(status, schema->status);
    THEN(status, rules_status(reading->rules));
    schema_free_blocks(schema);
    free(schema->places);
    free(schema->resources);
    free(schema->spots);
    free(schema->sets);
    free(schema->names);
    free(schema->needs);
    free(schema->written);
    free(schema->ignored);
    free(schema);
    return status;
}

int schema_read_value(struct grammar_reading *reading, const json_t *schema, const char *place, rule_node *node) {
    return read_value(reading, schema, place, true, node);
}

int schema_read_object(struct grammar_reading *reading, rule_node *node) {
    return read_value(reading, NULL, "$", false, node);
}

/* Whether a text's brackets nest deeper than allowed. */
static bool is_too_deep(const char *text, size_t length) {
    int depth = 0;
    bool is_string = false;
    for (size_t i = 0; i < length && depth <= MAX_DEPTH_OF_TEXT; i++) {
        if (is_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            is_string = !is_string;
        else if (!is_string)
            depth += (text[i] == '{' || text[i] == '[') - (text[i] == '}' || text[i] == ']');
    }
    return depth > MAX_DEPTH_OF_TEXT;
}

int schema_read(struct grammar_reading *reading, rule_node *node) {
    const char *text = reading->source->text;
    size_t length = reading->source->length;
    json_t *root;
    json_error_t error;
    if (is_too_deep(text, length))
        return grammar_refuse(reading->report, GRAMMAR_TOO_LARGE, "$: more than %d nested arrays and objects",
                              MAX_DEPTH_OF_TEXT);
    int status = json_read_wide(text, length, JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &root, &error);
    if (status == STATUS_INVALID)
        return grammar_refuse(reading->report, GRAMMAR_INVALID, "$: not JSON: line %d, column %d: %s", error.line,
                              error.column, error.text);
    TRY(status);
    status = read_value(reading, root, "$", memmem(text, length, "u0000", 5) != NULL, node);
    json_decref(root);
    return status;
}
