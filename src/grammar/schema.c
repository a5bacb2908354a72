/* Schemas: their shapes, made in the order in which they need each other, and the room's functions for them.
 *
 * A schema in the place of another ($ref, anyOf, not, ...) is needed for its shape; properties and items are not. What
 * is needed goes on a stack, so that no input decides how deep a call goes. One that needs itself has no meaning. To
 * tell whether the schemas of a oneOf share an object, sets are looked into; there a circle only leaves it unknown. */
#include "schema-internal.h"

enum { MAX_SETS = 1 << 18, MAX_DEPTH_OF_TEXT = 64, EXACT_DIGITS = 15 };

/* ---- spots and sets ---- */

spot_id schema_spot(struct schema *schema, const json_t *value, bool is_constant, bool is_negated) {
    if (!is_constant && json_is_boolean(value))
        return json_is_true(value) != is_negated ? SPOT_ANYTHING : SPOT_NOTHING;
    struct {
        const json_t *value;
        size_t flags;
    } key = {value, (size_t)is_constant * 2 + is_negated};
    uint32_t hash = schema_hash(&key, sizeof key), at = schema->spot_buckets[hash];
    for (; at; at = schema->spots[at].next_same_hash) {
        const struct spot *spot = &schema->spots[at];
        if (spot->value == value && spot->is_constant == is_constant && spot->is_negated == is_negated)
            return at;
    }
    if (!schema->status && schema->spot_count == MAX_SETS)
        schema->status = schema_refuse(schema, value, NULL, GRAMMAR_TOO_LARGE, "the schema is too large");
    if (!schema->status)
        schema->status =
            array_reserve(&schema->spots, &schema->spot_capacity, schema->spot_count + 1, sizeof *schema->spots);
    if (schema->status)
        return SPOT_NOTHING;
    schema->spots[schema->spot_count] = (struct spot){.value = value,
                                                      .is_constant = is_constant,
                                                      .is_negated = is_negated,
                                                      .next_same_hash = schema->spot_buckets[hash]};
    schema->spot_buckets[hash] = (uint32_t)schema->spot_count;
    return (uint32_t)schema->spot_count++;
}

spot_id schema_spot_of(struct schema *schema, const json_t *value) {
    return schema_spot(schema, value, false, false);
}

/* Returns the set of these spots, which no two are the same. */
static set_id add_set(struct schema *schema, const spot_id *spots, uint32_t count) {
    uint32_t hash = schema_hash(spots, count * sizeof *spots), at = schema->set_buckets[hash];
    for (; at; at = schema->sets[at - 1].next_same_hash)
        if (schema->sets[at - 1].count == count && !memcmp(schema->sets[at - 1].spots, spots, count * sizeof *spots))
            return at - 1;
    if (!schema->status && schema->set_count == MAX_SETS)
        schema->status =
            grammar_refuse(schema->reading->report, GRAMMAR_TOO_LARGE, "%s: the schema is too large", schema->place);
    if (!schema->status)
        schema->status =
            array_reserve(&schema->sets, &schema->set_capacity, schema->set_count + 1, sizeof *schema->sets);
    spot_id *copy = schema_take(schema, (size_t)count + 1, sizeof *copy);
    if (!copy)
        return SET_NOTHING;
    memcpy(copy, spots, count * sizeof *spots);
    schema->sets[schema->set_count] =
        (struct set){.spots = copy, .count = count, .next_same_hash = schema->set_buckets[hash]};
    schema->set_buckets[hash] = (uint32_t)++schema->set_count;
    return (uint32_t)schema->set_count - 1;
}

set_id schema_single(struct schema *schema, spot_id spot) {
    return spot == SPOT_ANYTHING ? SET_ANYTHING : spot == SPOT_NOTHING ? SET_NOTHING : add_set(schema, &spot, 1);
}

set_id schema_set_of(struct schema *schema, const json_t *value) {
    return schema_single(schema, schema_spot_of(schema, value));
}

set_id schema_both(struct schema *schema, set_id left, set_id right) {
    if (left == SET_NOTHING || right == SET_NOTHING)
        return SET_NOTHING;
    if (left == right || right == SET_ANYTHING)
        return left;
    if (left == SET_ANYTHING)
        return right;
    struct set a = schema->sets[left], b = schema->sets[right];
    spot_id *spots = schema_take(schema, (size_t)a.count + b.count, sizeof *spots);
    if (!spots)
        return SET_NOTHING;
    uint32_t count = a.count;
    memcpy(spots, a.spots, a.count * sizeof *spots);
    for (uint32_t i = 0; i < b.count; i++) {
        bool is_known = false;
        for (uint32_t k = 0; k < a.count && !is_known; k++)
            is_known = spots[k] == b.spots[i];
        if (!is_known)
            spots[count++] = b.spots[i];
    }
    return add_set(schema, spots, count);
}

/* ---- what is needed ---- */

static int add_need(struct schema *schema, bool is_set, uint32_t id) {
    TRY(array_reserve(&schema->needs, &schema->need_capacity, schema->need_count + 1, sizeof *schema->needs));
    schema->needs[schema->need_count++] = (struct need){is_set, id};
    schema->has_needs = true;
    return STATUS_OK;
}

static bool *open_flag(struct schema *schema, struct need need) {
    return need.is_set ? &schema->sets[need.id].is_open : &schema->spots[need.id].is_open;
}

/* A spot needs itself. If a set is between, whether that one is empty stays unknown; it ends the circle. */
static int break_circle(struct schema *schema, spot_id spot) {
    size_t at = schema->need_count;
    while (at && !(schema->needs[at - 1].is_set && schema->sets[schema->needs[at - 1].id].is_open) &&
           (schema->needs[at - 1].is_set || schema->needs[at - 1].id != spot ||
            !schema->spots[schema->needs[at - 1].id].is_open))
        at--;
    if (!at || !schema->needs[at - 1].is_set)
        return schema_refuse(schema, schema->spots[spot].value, NULL, GRAMMAR_INVALID,
                             "the schema refers to itself in its own place");
    while (schema->need_count >= at)
        *open_flag(schema, schema->needs[--schema->need_count]) = false;
    schema->sets[schema->needs[at - 1].id].is_ready = true;
    schema->has_needs = true;
    return NEEDS;
}

int schema_spot_shape(struct schema *schema, spot_id spot, const struct shape **shape) {
    *shape = schema->spots[spot].shape;
    if (*shape)
        return STATUS_OK;
    if (schema->spots[spot].is_open)
        return break_circle(schema, spot);
    TRY(add_need(schema, false, spot));
    return NEEDS;
}

int schema_set_shape(struct schema *schema, set_id id, const struct shape **shape) {
    struct set set = schema->sets[id];
    struct shape *made = set.shape;
    const struct shape *one;
    int needs = STATUS_OK;
    for (uint32_t i = 0; i < set.count && !made; i++) {
        int status = schema_spot_shape(schema, set.spots[i], &one);
        if (status != NEEDS)
            TRY(status);
        needs = needs ? needs : status;
    }
    TRY(needs);
    if (!made) {
        made = schema_take(schema, 1, sizeof *made);
        TRY(schema->status);
        shape_anything(made);
        for (uint32_t i = 0; i < set.count; i++) {
            TRY(schema_spot_shape(schema, set.spots[i], &one));
            if (i)
                TRY(shape_intersect(schema, made, one, made));
            else
                *made = *one;
        }
        schema->sets[id].shape = made;
    }
    *shape = made;
    return STATUS_OK;
}

int schema_set_is_empty(struct schema *schema, set_id id, bool *is_empty) {
    const struct set *set = &schema->sets[id];
    *is_empty = id == SET_NOTHING || (set->is_ready && set->is_empty);
    if (id == SET_NOTHING || id == SET_ANYTHING || set->is_ready || set->is_open)
        return STATUS_OK;
    return add_need(schema, true, id);
}

/* Makes what a need names; NEEDS. */
static int make(struct schema *schema, struct need need) {
    const struct shape *known;
    if (!need.is_set) {
        struct shape made, *kept;
        TRY(schema_make_shape(schema, need.id, &made));
        if (schema->has_needs)
            return NEEDS;
        kept = schema_take(schema, 1, sizeof *kept);
        TRY(schema->status);
        *kept = made;
        schema->spots[need.id].shape = kept;
        return STATUS_OK;
    }
    bool is_empty;
    TRY(schema_set_shape(schema, need.id, &known));
    TRY(shape_is_empty(schema, known, &is_empty));
    if (schema->has_needs)
        return NEEDS;
    schema->sets[need.id].is_empty = is_empty;
    schema->sets[need.id].is_ready = true;
    return STATUS_OK;
}

static int make_all(struct schema *schema) {
    while (schema->need_count) {
        struct need need = schema->needs[schema->need_count - 1];
        if (need.is_set ? schema->sets[need.id].is_ready : schema->spots[need.id].shape != NULL) {
            schema->need_count--;
            continue;
        }
        *open_flag(schema, need) = true;
        schema->has_needs = false;
        int status = make(schema, need);
        if (status == NEEDS)
            continue;
        TRY(status);
        TRY(schema->status);
        TRY(regexes_status(schema->regexes));
        *open_flag(schema, need) = false;
        schema->need_count--;
    }
    return STATUS_OK;
}

int schema_settle(struct schema *schema, set_id set, const struct shape **shape) {
    int status;
    while ((status = schema_set_shape(schema, set, shape)) == NEEDS)
        TRY(make_all(schema));
    return status ? status : schema->status;
}

/* ---- the room's functions ---- */

static void prepare_terms(struct schema *schema) {
    struct regexes *r = schema->regexes;
    regex zero = regex_byte(r, '0', '0'), point = regex_byte(r, '.', '.'), digit = regex_byte(r, '0', '9');
    regex last = regex_byte(r, '1', '9'), minus = regex_byte(r, '-', '-'), plus = regex_byte(r, '+', '+');
    schema->space = spell_space(r, schema->reading->source->is_compact);
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
    schema->status = array_reserve(&schema->spots, &schema->spot_capacity, 2, sizeof *schema->spots);
    TRY(schema->status);
    memset(schema->spots, 0, 2 * sizeof *schema->spots);
    schema->spot_count = 2;
    add_set(schema, &nothing, 0);
    add_set(schema, &nothing, 1);
    struct shape *none = schema_take(schema, 2, sizeof *none);
    TRY(schema->status);
    shape_anything(none + 1);
    schema->spots[SPOT_NOTHING].shape = none;
    schema->spots[SPOT_ANYTHING].shape = none + 1;
    prepare_terms(schema);
    if (!value) { /* any object */
        struct shape *object = schema_take(schema, 1, sizeof *object);
        TRY(schema->status);
        shape_anything(object);
        *object = (struct shape){.objects = object->objects, .object_count = 1};
        schema->spots[SPOT_ANYTHING].shape = object;
        return schema_rules(schema, add_set(schema, &(spot_id){SPOT_ANYTHING}, 1), node);
    }
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
    size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES;
    int status = json_read(text, length, flags, &root, &error);
    if (status == STATUS_INVALID && json_error_code(&error) == json_error_numeric_overflow)
        status = json_read(text, length, flags | JSON_DECODE_INT_AS_REAL, &root, &error);
    if (status == STATUS_INVALID)
        return grammar_refuse(reading->report, GRAMMAR_INVALID, "$: not JSON: line %d, column %d: %s", error.line,
                              error.column, error.text);
    TRY(status);
    status = read_value(reading, root, "$", memmem(text, length, "u0000", 5) != NULL, node);
    json_decref(root);
    return status;
}
