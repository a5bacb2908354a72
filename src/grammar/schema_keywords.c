/* Each keyword as a shape. Keywords apply in the order in which they are written, so that properties keep their order.
 *
 * A keyword that needs the shape of another schema asks for it and returns NEEDS; the whole spot is then made again. */
#include "schema-internal.h"

enum { MAX_CELLS_OF_PATTERNS = 128 };

static int unsupported(struct schema *schema, const json_t *value, const char *keyword, const char *why,
                       struct shape *shape) {
    return schema_drop(schema, value, keyword, why, &shape->is_wider);
}

static int restrict_by(struct schema *schema, struct shape *shape, const struct shape *other) {
    return shape_intersect(schema, shape, other, shape);
}

/* A text "keyword: what it cannot" of a status that a reader of a pattern or format returned. */
static int language_failed(struct schema *schema, int status, const json_t *value, const char *keyword,
                           struct shape *shape) {
    struct grammar_report *report = schema->reading->report;
    enum grammar_refusal refusal = report->refusal;
    char why[256];
    if (status != STATUS_INVALID && status != STATUS_UNSUPPORTED)
        return status;
    snprintf(why, sizeof why, "%s", status_text());
    report->refusal = GRAMMAR_FINE;
    strbuf_clear(&report->message);
    return refusal == GRAMMAR_UNSUPPORTED ? unsupported(schema, value, keyword, why, shape)
                                          : schema_refuse(schema, value, keyword, refusal, "%s", why);
}

/* ---- values ---- */

/* Starts with no value. */
static int constant_shape(struct schema *schema, const json_t *value, struct shape *shape) {
    const char *key, *text = json_string_value(value);
    size_t count = json_array_size(value), length = json_string_length(value);
    json_t *member;
    *shape = (struct shape){.spelling = SHORTEST};
    switch (json_typeof(value)) {
    case JSON_NULL:
        shape->simple = HAS_NULL;
        break;
    case JSON_TRUE:
        shape->simple = HAS_TRUE;
        break;
    case JSON_FALSE:
        shape->simple = HAS_FALSE;
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        shape->number = number_constant(schema, value, &shape->spelling);
        break;
    case JSON_STRING:
        shape->string = spell_text(schema->regexes, text, length, true);
        shape->has_nul = memchr(text, 0, length) != NULL;
        break;
    case JSON_ARRAY:
        shape->array_count = 1;
        shape->arrays = schema_take(schema, 1, sizeof *shape->arrays);
        set_id *first = schema_take(schema, count + 1, sizeof *first);
        TRY(schema->status);
        for (size_t i = 0; i < count; i++)
            first[i] = schema_single(schema, schema_spot(schema, json_array_get(value, i), true, false));
        *shape->arrays = (struct array){
            .first = first, .first_count = (uint32_t)count, .rest = SET_NOTHING, .least = count, .most = count};
        break;
    case JSON_OBJECT:
        shape->object_count = 1;
        shape->objects = schema_take(schema, 1, sizeof *shape->objects);
        struct property *properties = schema_take(schema, json_object_size(value) + 1, sizeof *properties);
        TRY(schema->status);
        *shape->objects = (struct object){.properties = properties, .most = ENDLESS};
        json_object_foreach((json_t *)value, key, member) {
            properties[shape->objects->property_count++] =
                (struct property){.name = schema_name(schema, key, strlen(key)),
                                  .value = schema_single(schema, schema_spot(schema, member, true, false)),
                                  .is_required = true,
                                  .is_declared = true};
        }
    }
    return schema->status;
}

static int apply_const(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    struct shape constant;
    (void)value;
    TRY(constant_shape(schema, member, &constant));
    return restrict_by(schema, shape, &constant);
}

static int apply_enum(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    size_t count = json_array_size(member), strings = 0, numbers = 0;
    regex *languages = schema_take(schema, 2 * count + 1, sizeof *languages);
    struct shape all = {.spelling = SHORTEST}, one;
    (void)value;
    TRY(schema->status);
    for (size_t i = 0; i < count; i++) {
        TRY(constant_shape(schema, json_array_get(member, i), &one));
        all.has_nul = all.has_nul || one.has_nul;
        if (one.string != REGEX_NOTHING)
            languages[strings++] = one.string;
        if (one.number != REGEX_NOTHING) {
            languages[count + numbers++] = one.number;
            all.spelling = one.spelling < all.spelling ? one.spelling : all.spelling;
        }
        all.simple |= one.simple;
        if (one.array_count || one.object_count) {
            enum spelling spelling = all.spelling;
            TRY(shape_unite(schema, &all, &one, &all));
            all.spelling = spelling;
        }
    }
    all.string = regex_any_of(schema->regexes, languages, strings);
    all.number = regex_any_of(schema->regexes, languages + count, numbers);
    return restrict_by(schema, shape, &all);
}

static int apply_type(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    unsigned types = json_is_string(member) ? schema_type(json_string_value(member)) : 0;
    (void)value;
    for (size_t i = 0; i < json_array_size(member); i++)
        types |= schema_type(json_string_value(json_array_get(member, i)));
    shape->simple &= (types & TYPE_NULL ? HAS_NULL : 0u) | (types & TYPE_BOOLEAN ? HAS_TRUE | HAS_FALSE : 0u);
    if (!(types & (TYPE_NUMBER | TYPE_INTEGER)))
        shape->number = REGEX_NOTHING;
    if ((types & TYPE_INTEGER) && !(types & TYPE_NUMBER)) {
        shape->number = values_both(schema, shape->number, schema->whole_numbers);
        shape->spelling = shape->spelling > NO_POINT ? shape->spelling : NO_POINT;
    }
    if (!(types & TYPE_STRING))
        shape->string = REGEX_NOTHING;
    shape->array_count = types & TYPE_ARRAY ? shape->array_count : 0;
    shape->object_count = types & TYPE_OBJECT ? shape->object_count : 0;
    return STATUS_OK;
}

/* ---- numbers and strings ---- */

static int apply_bound(struct schema *schema, const json_t *bound, struct shape *shape, bool is_least, bool is_strict) {
    if (json_is_number(bound)) /* draft 4's booleans belong to minimum and maximum */
        shape->number = values_both(schema, shape->number, number_bound(schema, bound, is_least, is_strict));
    return STATUS_OK;
}
static int apply_minimum(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    return apply_bound(schema, member, shape, true, json_is_true(json_object_get(value, "exclusiveMinimum")));
}
static int apply_maximum(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    return apply_bound(schema, member, shape, false, json_is_true(json_object_get(value, "exclusiveMaximum")));
}
static int apply_above(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    (void)value;
    return apply_bound(schema, member, shape, true, true);
}
static int apply_below(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    (void)value;
    return apply_bound(schema, member, shape, false, true);
}

static int apply_multiple(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    regex multiples;
    int status = number_multiples(schema, member, &multiples);
    if (status == STATUS_NOT_FOUND)
        return unsupported(schema, value, "multipleOf",
                           "expected an integer up to 10000, or a decimal with at most 6 places", shape);
    shape->number = values_both(schema, shape->number, multiples);
    return status;
}

/* A count of a keyword; `absent` without it. */
static uint64_t count_of(const json_t *value, const char *keyword, uint64_t absent) {
    const json_t *count = json_object_get(value, keyword);
    double number = json_number_value(count);
    return !json_is_number(count) ? absent : number < 1e15 ? (uint64_t)number : ENDLESS - 1;
}

static int32_t repetitions(uint64_t count) {
    return count < REGEX_ENDLESS ? (int32_t)count : REGEX_ENDLESS;
}

/* minLength and maxLength together. */
static int apply_length(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    uint64_t least = count_of(value, "minLength", 0), most = count_of(value, "maxLength", ENDLESS);
    (void)member;
    if (least > most)
        shape->string = REGEX_NOTHING;
    else if (least || most != ENDLESS)
        shape->string =
            values_both(schema, shape->string,
                        regex_repeat(schema->regexes, schema->character, repetitions(least), repetitions(most)));
    return STATUS_OK;
}

static int apply_pattern(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    regex language;
    int status =
        pattern_read(json_string_value(member), json_string_length(member), true, true, schema->reading, &language);
    if (status)
        return language_failed(schema, status, value, "pattern", shape);
    shape->string = values_both(schema, shape->string, language);
    return STATUS_OK;
}

static int apply_format(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    regex language;
    const char *name = json_string_value(member);
    if (!strcmp(name, "regex"))
        return unsupported(schema, value, "format", "texts that are regular expressions cannot be enforced", shape);
    int status = format_read(schema->reading, name, &language);
    if (status == STATUS_NOT_FOUND)
        return schema_ignore(schema, value, "format", name);
    if (!status)
        shape->string = values_both(schema, shape->string, language);
    return status;
}

/* ---- schemas in their place ---- */

/* Asks for the shapes of all schemas of a list, or of one. */
static int shapes_of(struct schema *schema, const json_t *list, const struct shape ***shapes, size_t *count) {
    *count = json_is_array(list) ? json_array_size(list) : 1;
    *shapes = schema_take(schema, *count + 1, sizeof **shapes);
    int needs = STATUS_OK;
    for (size_t i = 0; i < *count && *shapes; i++) {
        const json_t *one = json_is_array(list) ? json_array_get(list, i) : list;
        int status = schema_spot_shape(schema, schema_spot_of(schema, one), &(*shapes)[i]);
        if (status != NEEDS)
            TRY(status);
        needs = needs ? needs : status;
    }
    return schema->status ? schema->status : needs;
}

static int apply_all(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    const struct shape **shapes;
    size_t count;
    (void)value;
    TRY(shapes_of(schema, member, &shapes, &count));
    for (size_t i = 0; i < count; i++)
        TRY(restrict_by(schema, shape, shapes[i]));
    return STATUS_OK;
}

static int apply_ref(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    const json_t *target;
    TRY(schema_find(schema, value, json_string_value(member), &target));
    return apply_all(schema, value, target, shape);
}

static int unite_all(struct schema *schema, const struct shape *const *shapes, size_t count, struct shape *made) {
    *made = *shapes[0];
    for (size_t i = 1; i < count; i++)
        TRY(shape_unite(schema, made, shapes[i], made));
    return STATUS_OK;
}

static int apply_any(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    const struct shape **shapes;
    struct shape any;
    size_t count;
    (void)value;
    TRY(shapes_of(schema, member, &shapes, &count));
    TRY(unite_all(schema, shapes, count, &any));
    return restrict_by(schema, shape, &any);
}

static int apply_one(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    const struct shape **shapes;
    struct shape one;
    size_t count;
    TRY(shapes_of(schema, member, &shapes, &count));
    /* Values that other keywords forbid do not count as an overlap. */
    for (size_t i = 0; i < count; i++) {
        struct shape *here = schema_take(schema, 1, sizeof *here);
        TRY(schema->status);
        TRY(shape_intersect(schema, shape, shapes[i], here));
        shapes[i] = here;
    }
    int status = shape_exactly_one(schema, shapes, count, schema_spot_of(schema, value), &one);
    if (status == STATUS_NOT_FOUND) { /* at least one, if that may be */
        TRY(unite_all(schema, shapes, count, &one));
        one.is_wider = true;
        status = unsupported(schema, value, "oneOf", "its schemas overlap", &one);
    }
    TRY(status);
    *shape = one;
    return STATUS_OK;
}

static int apply_not(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    const struct shape **shapes;
    struct shape other;
    size_t count;
    TRY(shapes_of(schema, member, &shapes, &count));
    int status = shape_complement(schema, shapes[0], schema_spot_of(schema, value), &other);
    return status == STATUS_NOT_FOUND
               ? unsupported(schema, value, "not", "what this schema forbids cannot be enforced", shape)
           : status ? status
                    : restrict_by(schema, shape, &other);
}

/* Properties keep the order of a condition also where it does not hold. */
static int keep_order(struct schema *schema, const struct shape *condition, struct shape *shape) {
    struct shape order;
    struct object object = FREE_OBJECT;
    if (!condition->object_count || !condition->objects->property_count)
        return STATUS_OK;
    const struct object *from = condition->objects;
    object.properties = schema_take(schema, from->property_count, sizeof *object.properties);
    TRY(schema->status);
    for (uint32_t i = 0; i < from->property_count; i++)
        object.properties[object.property_count++] = (struct property){
            .name = from->properties[i].name, .value = SET_ANYTHING, .is_declared = from->properties[i].is_declared};
    shape_anything(&order);
    order.objects = &object;
    return shape_intersect(schema, &order, shape, shape);
}

static int apply_if(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    const struct shape **condition, **then_shapes = NULL, **else_shapes = NULL;
    struct shape yes, no, either;
    size_t count;
    const json_t *then_schema = json_object_get(value, "then"), *else_schema = json_object_get(value, "else");
    if (!then_schema && !else_schema)
        return STATUS_OK;
    int needs = shapes_of(schema, member, &condition, &count), status;
    if (needs != NEEDS)
        TRY(needs);
    status = then_schema ? shapes_of(schema, then_schema, &then_shapes, &count) : STATUS_OK;
    if (status != NEEDS)
        TRY(status);
    needs = needs ? needs : status;
    TRY(else_schema ? shapes_of(schema, else_schema, &else_shapes, &count) : STATUS_OK);
    TRY(needs);
    status = shape_complement(schema, condition[0], schema_spot_of(schema, value), &no);
    if (status == STATUS_NOT_FOUND)
        return unsupported(schema, value, "if", "its complement cannot be enforced", shape);
    TRY(status);
    yes = *condition[0];
    TRY(keep_order(schema, &yes, &no));
    if (then_shapes)
        TRY(restrict_by(schema, &yes, then_shapes[0]));
    if (else_shapes)
        TRY(restrict_by(schema, &no, else_shapes[0]));
    TRY(shape_unite(schema, &yes, &no, &either));
    return restrict_by(schema, shape, &either);
}

/* ---- arrays ---- */

static int apply_array(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    const json_t *prefix = json_object_get(value, "prefixItems"), *items = json_object_get(value, "items"),
                 *rest = items, *contains = json_object_get(value, "contains");
    (void)member;
    if (json_is_array(items)) { /* drafts before 2020-12 */
        prefix = items;
        rest = json_object_get(value, "additionalItems");
    }
    size_t count = json_array_size(prefix);
    struct array array = {.rest = rest ? schema_set_of(schema, rest) : SET_ANYTHING,
                          .first = schema_take(schema, count + 1, sizeof *array.first),
                          .contained = schema_take(schema, 1, sizeof *array.contained),
                          .first_count = (uint32_t)count,
                          .least = count_of(value, "minItems", 0),
                          .most = count_of(value, "maxItems", ENDLESS)};
    TRY(schema->status);
    for (size_t i = 0; i < count; i++)
        array.first[i] = schema_set_of(schema, json_array_get(prefix, i));
    if (json_is_true(json_object_get(value, "uniqueItems")))
        array.unique = schema_spot_of(schema, value);
    if (contains) {
        struct contained contained = {schema_set_of(schema, contains), count_of(value, "minContains", 1),
                                      count_of(value, "maxContains", ENDLESS), schema_spot_of(schema, value)};
        *array.contained = contained;
        array.contained_count = contained.least || contained.most != ENDLESS;
    }
    struct shape arrays;
    shape_anything(&arrays);
    arrays.arrays = &array;
    arrays.array_count = array.least <= array.most && array.contained->least <= array.contained->most;
    return restrict_by(schema, shape, &arrays);
}

/* ---- objects ---- */

/* Splits the cells by a pattern: keys that match it have its value too. */
static int split_cells(struct schema *schema, struct object *object, bool *are_matched, regex pattern, set_id value) {
    uint32_t count = object->cell_count;
    for (uint32_t i = 0; i < count; i++) {
        struct cell *cell = &object->cells[i];
        regex in = values_both(schema, cell->keys, pattern),
              out = values_minus(schema, cell->keys, pattern, schema->content);
        if (regex_is_nothing(schema->regexes, in))
            continue;
        bool has_out = !regex_is_nothing(schema->regexes, out);
        if (has_out && object->cell_count == MAX_CELLS_OF_PATTERNS)
            return grammar_refuse(schema->reading->report, GRAMMAR_TOO_LARGE, "%s: too many patterns of keys overlap",
                                  schema->place);
        if (has_out) {
            are_matched[object->cell_count] = are_matched[i];
            object->cells[object->cell_count++] = (struct cell){.keys = out, .value = cell->value};
        }
        are_matched[i] = true;
        cell->keys = in;
        cell->value = schema_both(schema, cell->value, value);
    }
    return schema->status;
}

static int read_cells(struct schema *schema, const json_t *value, struct object *object, struct shape *shape) {
    const json_t *rest = json_object_get(value, "additionalProperties");
    bool are_matched[MAX_CELLS_OF_PATTERNS] = {false};
    const char *key;
    json_t *member;
    object->cells = schema_take(schema, MAX_CELLS_OF_PATTERNS, sizeof *object->cells);
    TRY(schema->status);
    object->cells[0] = (struct cell){.keys = ALL_VALUES, .value = SET_ANYTHING};
    object->cell_count = 1;
    json_object_foreach(json_object_get(value, "patternProperties"), key, member) {
        regex pattern;
        int status = pattern_read(key, strlen(key), true, true, schema->reading, &pattern);
        if (status)
            TRY(language_failed(schema, status, value, "patternProperties", shape));
        else
            TRY(split_cells(schema, object, are_matched, pattern, schema_set_of(schema, member)));
    }
    for (uint32_t i = 0; i < object->cell_count; i++) {
        struct cell *cell = &object->cells[i];
        cell->is_pattern = are_matched[i];
        if (!cell->is_pattern) {
            cell->is_implied = !rest;
            cell->value = rest ? schema_set_of(schema, rest) : SET_ANYTHING;
        }
    }
    return schema->status;
}

/* Properties in the order of `properties`, then those that only `required` names. */
static int read_properties(struct schema *schema, const json_t *value, struct object *object) {
    const json_t *properties = json_object_get(value, "properties"), *required = json_object_get(value, "required");
    size_t most = json_object_size(properties) + json_array_size(required);
    uint32_t mark = ++schema->mark;
    const char *key;
    json_t *member;
    object->properties = schema_take(schema, most + 1, sizeof *object->properties);
    TRY(schema->status);
    json_object_foreach((json_t *)properties, key, member) {
        uint32_t name = schema_name(schema, key, strlen(key));
        struct property property = {.name = name, .value = schema_set_of(schema, member), .is_declared = true};
        TRY(schema->status);
        const struct cell *cell = object_cell(schema, object, name);
        if (cell && cell->is_pattern)
            property.value = schema_both(schema, property.value, cell->value);
        schema->names[name].marks[0] = mark;
        schema->names[name].at[0] = object->property_count;
        object->properties[object->property_count++] = property;
    }
    for (size_t i = 0; i < json_array_size(required); i++) {
        const json_t *text = json_array_get(required, i);
        uint32_t name = schema_name(schema, json_string_value(text), json_string_length(text));
        TRY(schema->status);
        if (schema->names[name].marks[0] == mark) {
            object->properties[schema->names[name].at[0]].is_required = true;
            continue;
        }
        const struct cell *cell = object_cell(schema, object, name);
        object->properties[object->property_count++] =
            (struct property){.name = name, .value = cell ? cell->value : SET_NOTHING, .is_required = true};
    }
    return schema->status;
}

static int apply_object(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    const json_t *names = json_object_get(value, "propertyNames");
    const struct shape *name_shape = NULL;
    struct object object = {.least = count_of(value, "minProperties", 0),
                            .most = count_of(value, "maxProperties", ENDLESS)};
    struct shape objects;
    bool is_dead;
    (void)member;
    if (names)
        TRY(schema_spot_shape(schema, schema_spot_of(schema, names), &name_shape));
    TRY(read_cells(schema, value, &object, shape));
    TRY(read_properties(schema, value, &object));
    if (name_shape && name_shape->string != ALL_VALUES) {
        struct object all = object, by_name = {.cell_count = 1, .most = ENDLESS};
        by_name.cells = schema_take(schema, 1, sizeof *by_name.cells);
        TRY(schema->status);
        *by_name.cells = (struct cell){.keys = name_shape->string, .value = SET_ANYTHING, .is_implied = true};
        TRY(object_intersect(schema, &all, &by_name, &object, &is_dead));
        shape->is_wider = shape->is_wider || name_shape->is_wider;
    }
    shape_anything(&objects);
    objects.objects = &object;
    objects.object_count = object.least <= object.most;
    return restrict_by(schema, shape, &objects);
}

/* The shape of objects that lack a property, or (with `others`) have it and more. */
static int property_shape(struct schema *schema, const char *key, const json_t *others, bool is_present,
                          struct shape *shape) {
    struct object *object = schema_take(schema, 1, sizeof *object);
    struct property *properties = schema_take(schema, json_array_size(others) + 1, sizeof *properties);
    TRY(schema->status);
    *object = FREE_OBJECT;
    object->properties = properties;
    object->property_count = 1;
    *properties = (struct property){.name = schema_name(schema, key, strlen(key)),
                                    .value = is_present ? SET_ANYTHING : SET_NOTHING,
                                    .is_required = is_present};
    for (size_t i = 0; i < json_array_size(others); i++) {
        const json_t *other = json_array_get(others, i);
        uint32_t name = schema_name(schema, json_string_value(other), json_string_length(other));
        if (name != properties->name)
            properties[object->property_count++] =
                (struct property){.name = name, .value = SET_ANYTHING, .is_required = true};
    }
    shape_anything(shape);
    shape->objects = object;
    return schema->status;
}

/* dependencies, dependentRequired and dependentSchemas. */
static int apply_dependencies(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    const struct shape **shapes;
    struct shape without, with, either;
    const char *key;
    json_t *one;
    size_t count;
    int needs = STATUS_OK;
    (void)value;
    json_object_foreach((json_t *)member, key, one) {
        int status = json_is_array(one) ? STATUS_OK : shapes_of(schema, one, &shapes, &count);
        if (status != NEEDS)
            TRY(status);
        needs = needs ? needs : status;
        if (needs)
            continue;
        TRY(property_shape(schema, key, NULL, false, &without));
        TRY(property_shape(schema, key, one, true, &with));
        if (!json_is_array(one))
            TRY(restrict_by(schema, &with, shapes[0]));
        TRY(shape_unite(schema, &without, &with, &either));
        TRY(restrict_by(schema, shape, &either));
    }
    return needs;
}

static int apply_dynamic(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape) {
    const char *key;
    json_t *one;
    json_object_foreach((json_t *)value, key, one) {
        if (one == member)
            return unsupported(schema, value, key, "this keyword cannot be enforced", shape);
    }
    return STATUS_OK;
}

/* ---- the table ---- */

/* Keywords of a group apply together, where the first of the group is written. */
static const char *const ARRAY_GROUP[] = {"items",    "additionalItems", "minItems",    "maxItems",    "uniqueItems",
                                          "contains", "minContains",     "maxContains", "prefixItems", NULL},
                         *const OBJECT_GROUP[] =
                             {"required",      "patternProperties", "additionalProperties", "propertyNames",
                              "minProperties", "maxProperties",     "properties",           NULL},
                         *const LENGTH_GROUP[] = {"minLength", "maxLength", NULL};
static const struct {
    const char *name;
    int (*apply)(struct schema *schema, const json_t *value, const json_t *member, struct shape *shape);
    const char *const *group;
} APPLIED[] = {
    {"$dynamicRef", apply_dynamic, NULL},
    {"$recursiveRef", apply_dynamic, NULL},
    {"$ref", apply_ref, NULL},
    {"additionalItems", apply_array, ARRAY_GROUP},
    {"additionalProperties", apply_object, OBJECT_GROUP},
    {"allOf", apply_all, NULL},
    {"anyOf", apply_any, NULL},
    {"const", apply_const, NULL},
    {"contains", apply_array, ARRAY_GROUP},
    {"dependencies", apply_dependencies, NULL},
    {"dependentRequired", apply_dependencies, NULL},
    {"dependentSchemas", apply_dependencies, NULL},
    {"enum", apply_enum, NULL},
    {"exclusiveMaximum", apply_below, NULL},
    {"exclusiveMinimum", apply_above, NULL},
    {"format", apply_format, NULL},
    {"if", apply_if, NULL},
    {"items", apply_array, ARRAY_GROUP},
    {"maxContains", apply_array, ARRAY_GROUP},
    {"maxItems", apply_array, ARRAY_GROUP},
    {"maxLength", apply_length, LENGTH_GROUP},
    {"maxProperties", apply_object, OBJECT_GROUP},
    {"maximum", apply_maximum, NULL},
    {"minContains", apply_array, ARRAY_GROUP},
    {"minItems", apply_array, ARRAY_GROUP},
    {"minLength", apply_length, LENGTH_GROUP},
    {"minProperties", apply_object, OBJECT_GROUP},
    {"minimum", apply_minimum, NULL},
    {"multipleOf", apply_multiple, NULL},
    {"not", apply_not, NULL},
    {"oneOf", apply_one, NULL},
    {"pattern", apply_pattern, NULL},
    {"patternProperties", apply_object, OBJECT_GROUP},
    {"prefixItems", apply_array, ARRAY_GROUP},
    {"properties", apply_object, OBJECT_GROUP},
    {"propertyNames", apply_object, OBJECT_GROUP},
    {"required", apply_object, OBJECT_GROUP},
    {"unevaluatedItems", apply_dynamic, NULL},
    {"unevaluatedProperties", apply_dynamic, NULL},
    {"uniqueItems", apply_array, ARRAY_GROUP},
};

/* Whether a group's keywords apply where this one is written: at `properties`, or else at the first of them. */
static bool leads_group(const json_t *value, const char *const *group, const char *keyword) {
    const char *key;
    json_t *member;
    if (group == OBJECT_GROUP && json_object_get(value, "properties"))
        return !strcmp(keyword, "properties");
    json_object_foreach((json_t *)value, key, member) {
        for (size_t i = 0; group[i]; i++)
            if (!strcmp(key, group[i]))
                return !strcmp(key, keyword);
    }
    return false;
}

static int positive_shape(struct schema *schema, const json_t *value, struct shape *shape) {
    const char *key;
    json_t *member;
    shape_anything(shape);
    if (json_object_get(value, "type")) /* first, as it decides what the others must look at */
        TRY(apply_type(schema, value, json_object_get(value, "type"), shape));
    json_object_foreach((json_t *)value, key, member) {
        for (size_t i = 0; i < sizeof APPLIED / sizeof *APPLIED; i++)
            if (!strcmp(APPLIED[i].name, key)) {
                if (!APPLIED[i].group || leads_group(value, APPLIED[i].group, key))
                    TRY(APPLIED[i].apply(schema, value, member, shape));
                break;
            }
    }
    return schema->status;
}

int schema_make_shape(struct schema *schema, spot_id at, struct shape *shape) {
    struct spot spot = schema->spots[at];
    const struct shape *positive;
    if (!spot.is_negated)
        return spot.is_constant ? constant_shape(schema, spot.value, shape) : positive_shape(schema, spot.value, shape);
    TRY(schema_spot_shape(schema, schema_spot(schema, spot.value, spot.is_constant, false), &positive));
    int status = shape_complement(schema, positive, at, shape);
    if (status != STATUS_NOT_FOUND)
        return status;
    shape_anything(shape);
    return unsupported(schema, spot.value, NULL, "what this schema forbids cannot be enforced", shape);
}
