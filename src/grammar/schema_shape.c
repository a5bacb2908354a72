/* Shapes: the values that schemas allow, as alternatives for each type, closed under intersection, union and (where it
 * can be said) complement.
 *
 * Null, booleans, numbers and strings are bits and languages: everything about them is exact. Arrays and objects are
 * lists of alternatives whose items and properties are sets, which are not looked into here. So an intersection of
 * objects is the union of their properties, and recursive schemas end. */
#include "schema-internal.h"

enum { MAX_ALTERNATIVES = 1024, MAX_CELLS = 256, FEW = 8 };

static const struct cell FREE_CELLS[] = {{.keys = ALL_VALUES, .value = SET_ANYTHING, .is_implied = true}};
const struct object FREE_OBJECT = {.cells = (struct cell *)FREE_CELLS, .cell_count = 1, .most = ENDLESS};
const struct array FREE_ARRAY = {.rest = SET_ANYTHING, .most = ENDLESS};

bool object_is_free(const struct object *object) {
    return !object->property_count && object->cell_count == 1 && object->cells->keys == ALL_VALUES &&
           object->cells->value == SET_ANYTHING && !object->demand_count && !object->least && object->most == ENDLESS;
}

bool array_is_free(const struct array *array) {
    return !array->first_count && array->rest == SET_ANYTHING && !array->contained_count && !array->least &&
           array->most == ENDLESS && !array->unique;
}

void shape_anything(struct shape *shape) {
    *shape = (struct shape){.simple = HAS_NULL | HAS_FALSE | HAS_TRUE,
                            .number = ALL_VALUES,
                            .string = ALL_VALUES,
                            .arrays = (struct array *)&FREE_ARRAY,
                            .objects = (struct object *)&FREE_OBJECT,
                            .array_count = 1,
                            .object_count = 1};
}

/* ---- languages ---- */

regex values_both(struct schema *schema, regex left, regex right) {
    return left == ALL_VALUES ? right : right == ALL_VALUES ? left : regex_both(schema->regexes, left, right);
}

static regex values_either(struct schema *schema, regex left, regex right) {
    return left == ALL_VALUES || right == ALL_VALUES ? ALL_VALUES : regex_either(schema->regexes, left, right);
}

regex values_minus(struct schema *schema, regex left, regex right, regex all) {
    if (right == REGEX_NOTHING || left == REGEX_NOTHING || right == ALL_VALUES)
        return right == ALL_VALUES ? REGEX_NOTHING : left;
    return regex_both(schema->regexes, left == ALL_VALUES ? all : left, regex_not(schema->regexes, right));
}

static bool values_lack(struct schema *schema, regex values) {
    return values != ALL_VALUES && regex_is_nothing(schema->regexes, values);
}

/* ---- objects ---- */

bool object_has_key(struct schema *schema, regex keys, uint32_t name) {
    struct strbuf spelled = STRBUF_INIT;
    if (keys == ALL_VALUES)
        return true;
    spell_bytes(&spelled, schema->names[name].text, schema->names[name].length);
    if (spelled.failed && !schema->status)
        schema->status = strbuf_status(&spelled);
    bool has = regex_matches(schema->regexes, keys, strbuf_text(&spelled), spelled.length);
    strbuf_free(&spelled);
    return has;
}

/* Notes where each property of an object is, as the left or the right one of a merge. */
static uint32_t mark_names(struct schema *schema, const struct object *object, int side, uint32_t mark) {
    for (uint32_t i = 0; i < object->property_count; i++) {
        struct name *name = &schema->names[object->properties[i].name];
        name->marks[side] = mark;
        name->at[side] = i;
    }
    return mark;
}

const struct cell *object_cell(struct schema *schema, const struct object *object, uint32_t name) {
    for (uint32_t i = 0; i < object->cell_count; i++)
        if (object_has_key(schema, object->cells[i].keys, name))
            return &object->cells[i];
    return NULL;
}

static set_id cell_value(struct schema *schema, const struct object *object, uint32_t name) {
    const struct cell *cell = object_cell(schema, object, name);
    return cell ? cell->value : SET_NOTHING;
}

static struct property marked_property(struct schema *schema, const struct object *object, int side, uint32_t mark,
                                       uint32_t name) {
    const struct name *known = &schema->names[name];
    return known->marks[side] == mark ? object->properties[known->at[side]]
                                      : (struct property){.name = name, .value = cell_value(schema, object, name)};
}

static int intersect_cells(struct schema *schema, const struct object *left, const struct object *right,
                           struct object *made) {
    size_t most = (size_t)left->cell_count * right->cell_count;
    if (most > MAX_CELLS)
        return grammar_refuse(schema->reading->report, GRAMMAR_TOO_LARGE, "%s: too many patterns of keys meet",
                              schema->place);
    made->cells = schema_take(schema, most + 1, sizeof *made->cells);
    for (size_t i = 0; i < most && made->cells; i++) {
        const struct cell *a = &left->cells[i / right->cell_count], *b = &right->cells[i % right->cell_count];
        struct cell cell = {.keys = values_both(schema, a->keys, b->keys),
                            .value = schema_both(schema, a->value, b->value),
                            .is_implied = a->is_implied && b->is_implied};
        if (cell.value != SET_NOTHING && !values_lack(schema, cell.keys))
            made->cells[made->cell_count++] = cell;
    }
    return schema->status;
}

/* Whether some key of an object can meet a demand. */
static bool can_meet(struct schema *schema, const struct object *object, const struct demand *demand) {
    for (uint32_t i = 0; i < object->property_count; i++)
        if (object->properties[i].value != SET_NOTHING &&
            object_has_key(schema, demand->keys, object->properties[i].name))
            return true;
    for (uint32_t i = 0; i < object->cell_count; i++)
        if (!values_lack(schema, values_both(schema, demand->keys, object->cells[i].keys)))
            return true;
    return false;
}

int object_intersect(struct schema *schema, const struct object *left, const struct object *right, struct object *made,
                     bool *is_dead) {
    *is_dead = false;
    if (object_is_free(left) || object_is_free(right)) {
        bool is_implied = object_is_free(left) ? left->cells->is_implied : right->cells->is_implied;
        *made = object_is_free(left) ? *right : *left;
        if (is_implied)
            return STATUS_OK;
    }
    uint32_t mark = ++schema->mark, required = 0;
    mark_names(schema, left, 0, mark);
    mark_names(schema, right, 1, mark);
    *made = (struct object){.least = left->least > right->least ? left->least : right->least,
                            .most = left->most < right->most ? left->most : right->most};
    made->properties =
        schema_take(schema, (size_t)left->property_count + right->property_count + 1, sizeof *made->properties);
    for (int pass = 0; pass < 4 && made->properties; pass++) { /* declared ones first, the left before the right */
        const struct object *from = pass % 2 ? right : left;
        for (uint32_t i = 0; i < from->property_count; i++) {
            uint32_t name = from->properties[i].name;
            if (from->properties[i].is_declared != (pass < 2) || schema->names[name].marks[2] == mark)
                continue;
            struct property a = marked_property(schema, left, 0, mark, name),
                            b = marked_property(schema, right, 1, mark, name);
            struct property both = {.name = name,
                                    .value = schema_both(schema, a.value, b.value),
                                    .is_required = a.is_required || b.is_required,
                                    .is_declared = a.is_declared || b.is_declared};
            schema->names[name].marks[2] = mark;
            made->properties[made->property_count++] = both;
            required += both.is_required;
            *is_dead = *is_dead || (both.is_required && both.value == SET_NOTHING);
        }
    }
    TRY(schema->status);
    TRY(intersect_cells(schema, left, right, made));
    made->demands = schema_take(schema, (size_t)left->demand_count + right->demand_count + 1, sizeof *made->demands);
    for (uint32_t i = 0; i < left->demand_count + right->demand_count && made->demands; i++) {
        struct demand demand = i < left->demand_count ? left->demands[i] : right->demands[i - left->demand_count];
        made->demands[made->demand_count++] = demand;
        *is_dead = *is_dead || !can_meet(schema, made, &demand);
    }
    *is_dead = *is_dead || made->least > made->most || required > made->most;
    return schema->status;
}

/* ---- arrays ---- */

static int array_intersect(struct schema *schema, const struct array *left, const struct array *right,
                           struct array *made, bool *is_dead) {
    *is_dead = false;
    if (array_is_free(left) || array_is_free(right)) {
        *made = array_is_free(left) ? *right : *left;
        return STATUS_OK;
    }
    uint32_t count = left->first_count > right->first_count ? left->first_count : right->first_count;
    *made = (struct array){.first_count = count,
                           .rest = schema_both(schema, left->rest, right->rest),
                           .least = left->least > right->least ? left->least : right->least,
                           .most = left->most < right->most ? left->most : right->most,
                           .unique = left->unique ? left->unique : right->unique,
                           .contained_count = left->contained_count + right->contained_count};
    made->first = schema_take(schema, (size_t)count + 1, sizeof *made->first);
    made->contained = schema_take(schema, (size_t)made->contained_count + 1, sizeof *made->contained);
    TRY(schema->status);
    for (uint32_t i = 0; i < count; i++)
        made->first[i] = schema_both(schema, i < left->first_count ? left->first[i] : left->rest,
                                     i < right->first_count ? right->first[i] : right->rest);
    for (uint32_t i = 0; i < made->contained_count; i++)
        made->contained[i] =
            i < left->contained_count ? left->contained[i] : right->contained[i - left->contained_count];
    *is_dead = made->least > made->most;
    return schema->status;
}

/* ---- shapes ---- */

static int too_many(struct schema *schema) {
    return grammar_refuse(schema->reading->report, GRAMMAR_TOO_LARGE, "%s: more than %d alternatives", schema->place,
                          MAX_ALTERNATIVES);
}

/* True when an alternative is known to have no value. */
static int object_is_empty(struct schema *schema, const struct object *object, bool *is_empty) {
    *is_empty = false;
    for (uint32_t i = 0; i < object->property_count && !*is_empty; i++)
        if (object->properties[i].is_required)
            TRY(schema_set_is_empty(schema, object->properties[i].value, is_empty));
    return STATUS_OK;
}

static int array_is_empty(struct schema *schema, const struct array *array, bool *is_empty) {
    *is_empty = false;
    for (uint64_t i = 0; i < array->least && i <= array->first_count && !*is_empty; i++)
        TRY(schema_set_is_empty(schema, i < array->first_count ? array->first[i] : array->rest, is_empty));
    return STATUS_OK;
}

int shape_is_empty(struct schema *schema, const struct shape *shape, bool *is_empty) {
    *is_empty = !shape->simple && values_lack(schema, shape->number) && values_lack(schema, shape->string);
    for (uint32_t i = 0; i < shape->array_count && *is_empty; i++)
        TRY(array_is_empty(schema, &shape->arrays[i], is_empty));
    for (uint32_t i = 0; i < shape->object_count && *is_empty; i++)
        TRY(object_is_empty(schema, &shape->objects[i], is_empty));
    return schema->status;
}

/* Drops objects that have no value, once there are many: conditions on a constant make few of very many. NEEDS. */
static int drop_empty(struct schema *schema, struct shape *shape) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < shape->object_count && shape->object_count > FEW; i++) {
        bool is_empty;
        TRY(object_is_empty(schema, &shape->objects[i], &is_empty));
        if (!is_empty)
            shape->objects[kept++] = shape->objects[i];
    }
    if (schema->has_needs)
        return NEEDS;
    shape->object_count = shape->object_count > FEW ? kept : shape->object_count;
    return STATUS_OK;
}

int shape_intersect(struct schema *schema, const struct shape *left, const struct shape *right, struct shape *made) {
    size_t arrays = (size_t)left->array_count * right->array_count,
           objects = (size_t)left->object_count * right->object_count;
    if (arrays > MAX_ALTERNATIVES || objects > MAX_ALTERNATIVES)
        return too_many(schema);
    struct shape both = {.simple = left->simple & right->simple,
                         .number = values_both(schema, left->number, right->number),
                         .string = values_both(schema, left->string, right->string),
                         .spelling = left->spelling > right->spelling ? left->spelling : right->spelling,
                         .has_nul = left->has_nul || right->has_nul,
                         .is_wider = left->is_wider || right->is_wider,
                         .arrays = schema_take(schema, arrays + 1, sizeof *both.arrays),
                         .objects = schema_take(schema, objects + 1, sizeof *both.objects)};
    TRY(schema->status);
    bool is_dead;
    for (size_t i = 0; i < arrays; i++) {
        TRY(array_intersect(schema, &left->arrays[i / right->array_count], &right->arrays[i % right->array_count],
                            &both.arrays[both.array_count], &is_dead));
        both.array_count += !is_dead;
    }
    for (size_t i = 0; i < objects; i++) {
        TRY(object_intersect(schema, &left->objects[i / right->object_count], &right->objects[i % right->object_count],
                             &both.objects[both.object_count], &is_dead));
        both.object_count += !is_dead;
    }
    TRY(schema->status);
    TRY(drop_empty(schema, &both));
    *made = both;
    return STATUS_OK;
}

int shape_unite(struct schema *schema, const struct shape *left, const struct shape *right, struct shape *made) {
    size_t arrays = (size_t)left->array_count + right->array_count,
           objects = (size_t)left->object_count + right->object_count;
    if (arrays > MAX_ALTERNATIVES || objects > MAX_ALTERNATIVES)
        return too_many(schema);
    enum spelling least = left->spelling < right->spelling ? left->spelling : right->spelling;
    struct shape either = {.simple = left->simple | right->simple,
                           .number = values_either(schema, left->number, right->number),
                           .string = values_either(schema, left->string, right->string),
                           .spelling = left->number == REGEX_NOTHING    ? right->spelling
                                       : right->number == REGEX_NOTHING ? left->spelling
                                                                        : least,
                           .has_nul = left->has_nul || right->has_nul,
                           .is_wider = left->is_wider || right->is_wider,
                           .arrays = schema_take(schema, arrays + 1, sizeof *either.arrays),
                           .objects = schema_take(schema, objects + 1, sizeof *either.objects)};
    TRY(schema->status);
    for (size_t i = 0; i < arrays; i++) {
        either.arrays[either.array_count++] =
            i < left->array_count ? left->arrays[i] : right->arrays[i - left->array_count];
        if (array_is_free(&either.arrays[either.array_count - 1])) {
            either.arrays[0] = FREE_ARRAY;
            either.array_count = 1;
            break;
        }
    }
    for (size_t i = 0; i < objects; i++) {
        const struct object *one = i < left->object_count ? &left->objects[i] : &right->objects[i - left->object_count];
        either.objects[either.object_count++] = *one;
        if (object_is_free(one)) {
            either.objects[0] = *one;
            either.object_count = 1;
            break;
        }
    }
    *made = either;
    return schema->status;
}

/* ---- complements ---- */

/* Alternatives that are added one by one. */
struct alternatives {
    struct array *arrays;
    struct object *objects;
    uint32_t array_count, object_count;
};

/* Returns room for one more alternative in a list that began with schema_take(schema, 1, ...). */
static void *one_more(struct schema *schema, void *list, uint32_t *count, size_t bytes) {
    uint32_t n = (*count)++;
    if (!n || n & (n - 1)) /* room doubles at powers of two */
        return n ? list : schema_take(schema, 1, bytes);
    void *larger = schema_take(schema, (size_t)n * 2, bytes);
    if (larger)
        memcpy(larger, list, n * bytes);
    return larger;
}

static int add_object(struct schema *schema, struct alternatives *list, struct object object) {
    if (list->object_count >= MAX_ALTERNATIVES)
        return too_many(schema);
    list->objects = one_more(schema, list->objects, &list->object_count, sizeof object);
    if (list->objects)
        list->objects[list->object_count - 1] = object;
    return schema->status;
}

static int add_array(struct schema *schema, struct alternatives *list, struct array array) {
    if (list->array_count >= MAX_ALTERNATIVES)
        return too_many(schema);
    list->arrays = one_more(schema, list->arrays, &list->array_count, sizeof array);
    if (list->arrays)
        list->arrays[list->array_count - 1] = array;
    return schema->status;
}

/* The set of what one spot of a set forbids. */
static set_id forbidden_by(struct schema *schema, set_id set, uint32_t index) {
    if (set == SET_NOTHING)
        return SET_ANYTHING;
    spot_id spot = schema->sets[set].spots[index];
    const struct spot *one = &schema->spots[spot];
    return schema_single(schema, schema_spot(schema, one->value, one->is_constant, !one->is_negated));
}

static uint32_t spots_of(const struct schema *schema, set_id set) {
    return set == SET_NOTHING ? 1 : schema->sets[set].count;
}

/* Adds objects with a property in one of the states that the alternative forbids. */
static int add_property(struct schema *schema, struct alternatives *list, uint32_t name, set_id value,
                        bool is_required) {
    struct object object = FREE_OBJECT;
    object.properties = schema_take(schema, 1, sizeof *object.properties);
    object.property_count = 1;
    if (object.properties)
        *object.properties = (struct property){.name = name, .value = value, .is_required = is_required};
    TRY(schema->status);
    return add_object(schema, list, object);
}

static int add_demand(struct schema *schema, struct alternatives *list, const struct object *from, regex keys,
                      set_id value, spot_id source) {
    struct object object = FREE_OBJECT;
    regex *names = schema_take(schema, (size_t)from->property_count + 1, sizeof *names);
    object.demands = schema_take(schema, 1, sizeof *object.demands);
    TRY(schema->status);
    for (uint32_t i = 0; i < from->property_count; i++) {
        const struct name *name = &schema->names[from->properties[i].name];
        names[i] = spell_text(schema->regexes, name->text, name->length, true);
    }
    regex declared = regex_any_of(schema->regexes, names, from->property_count);
    object.demand_count = 1;
    *object.demands = (struct demand){
        .keys = values_minus(schema, keys, declared, schema->content), .value = value, .source = source};
    return values_lack(schema, object.demands->keys) ? schema->status : add_object(schema, list, object);
}

static int object_complement(struct schema *schema, const struct object *object, spot_id source,
                             struct alternatives *list) {
    regex outside = ALL_VALUES;
    if (object->demand_count)
        return STATUS_NOT_FOUND;
    for (uint32_t i = 0; i < object->property_count; i++) {
        struct property property = object->properties[i];
        if (property.is_required)
            TRY(add_property(schema, list, property.name, SET_NOTHING, false));
        for (uint32_t k = 0; k < spots_of(schema, property.value); k++)
            TRY(add_property(schema, list, property.name, forbidden_by(schema, property.value, k), true));
    }
    for (uint32_t i = 0; i < object->cell_count; i++) {
        struct cell cell = object->cells[i];
        outside = values_minus(schema, outside, cell.keys, schema->content);
        for (uint32_t k = 0; k < spots_of(schema, cell.value); k++)
            TRY(add_demand(schema, list, object, cell.keys, forbidden_by(schema, cell.value, k), source));
    }
    if (outside != REGEX_NOTHING && !values_lack(schema, outside))
        TRY(add_demand(schema, list, object, outside, SET_ANYTHING, source));
    struct object few = FREE_OBJECT, many = FREE_OBJECT;
    few.most = object->least - 1;
    many.least = object->most + 1;
    if (object->least)
        TRY(add_object(schema, list, few));
    return object->most == ENDLESS ? schema->status : add_object(schema, list, many);
}

static int array_complement(struct schema *schema, const struct array *array, spot_id source,
                            struct alternatives *list) {
    if (array->unique)
        return STATUS_NOT_FOUND;
    for (uint32_t i = 0; i <= array->first_count; i++) {
        bool is_rest = i == array->first_count;
        set_id value = is_rest ? array->rest : array->first[i];
        for (uint32_t k = 0; k < spots_of(schema, value); k++) {
            struct array one = FREE_ARRAY;
            set_id forbidden = forbidden_by(schema, value, k);
            one.first = schema_take(schema, (size_t)i + 1, sizeof *one.first); /* zeroed: SET_ANYTHING */
            one.contained = schema_take(schema, 1, sizeof *one.contained);
            TRY(schema->status);
            if (is_rest && value != SET_NOTHING) {
                if (array->first_count)
                    return STATUS_NOT_FOUND;
                one.contained_count = 1;
                *one.contained = (struct contained){forbidden, 1, ENDLESS, source};
            } else {
                one.least = (uint64_t)i + 1;
                one.first_count = i + 1;
                one.first[i] = forbidden;
            }
            TRY(add_array(schema, list, one));
        }
    }
    for (uint32_t i = 0; i < array->contained_count; i++) {
        struct contained contained = array->contained[i];
        struct array few = FREE_ARRAY, many = FREE_ARRAY;
        few.contained = schema_take(schema, 2, sizeof *few.contained);
        TRY(schema->status);
        few.contained_count = many.contained_count = 1;
        many.contained = few.contained + 1;
        few.contained[0] = (struct contained){contained.value, 0, contained.least - 1, source};
        few.contained[1] = (struct contained){contained.value, contained.most + 1, ENDLESS, source};
        if (contained.least)
            TRY(add_array(schema, list, few));
        if (contained.most != ENDLESS)
            TRY(add_array(schema, list, many));
    }
    struct array few = FREE_ARRAY, many = FREE_ARRAY;
    few.most = array->least - 1;
    many.least = array->most + 1;
    if (array->least)
        TRY(add_array(schema, list, few));
    return array->most == ENDLESS ? schema->status : add_array(schema, list, many);
}

int shape_complement(struct schema *schema, const struct shape *shape, spot_id source, struct shape *made) {
    struct shape all;
    shape_anything(&all);
    if (shape->is_wider)
        return STATUS_NOT_FOUND;
    *made = all;
    made->simple &= ~shape->simple;
    made->number = values_minus(schema, ALL_VALUES, shape->number, schema->plain_number);
    made->string = values_minus(schema, ALL_VALUES, shape->string, schema->content);
    for (uint32_t i = 0; i < shape->array_count; i++) {
        struct alternatives list = {0};
        TRY(array_complement(schema, &shape->arrays[i], source, &list));
        struct shape one = all;
        one.arrays = list.arrays;
        one.array_count = list.array_count;
        TRY(shape_intersect(schema, made, &one, made));
    }
    for (uint32_t i = 0; i < shape->object_count; i++) {
        struct alternatives list = {0};
        TRY(object_complement(schema, &shape->objects[i], source, &list));
        struct shape one = all;
        one.objects = list.objects;
        one.object_count = list.object_count;
        TRY(shape_intersect(schema, made, &one, made));
    }
    return schema->status;
}

/* Adds one more shape's values to those that exactly one shape has, and to those that some shape has. */
static regex add_once(struct schema *schema, regex once, regex *some, regex more, regex all, bool *has_overlap) {
    regex twice = values_both(schema, *some, more);
    *has_overlap = *has_overlap || (twice != REGEX_NOTHING && !values_lack(schema, twice));
    *some = values_either(schema, *some, more);
    return values_minus(schema, values_either(schema, once, more), twice, all);
}

enum { SHARE_ARRAYS = 1, SHARE_OBJECTS = 2 };

/* Whether two shapes share an array, and an object, as far as that is known. */
static int find_shared(struct schema *schema, const struct shape *left, const struct shape *right,
                       unsigned char *shared) {
    struct shape both, objects;
    bool no_array, no_object;
    TRY(shape_intersect(schema, left, right, &both));
    both.simple = 0;
    both.number = both.string = REGEX_NOTHING;
    objects = both;
    both.object_count = objects.array_count = 0;
    TRY(shape_is_empty(schema, &both, &no_array));
    TRY(shape_is_empty(schema, &objects, &no_object));
    *shared = (unsigned char)((no_array ? 0 : SHARE_ARRAYS) | (no_object ? 0 : SHARE_OBJECTS));
    return STATUS_OK;
}

int shape_exactly_one(struct schema *schema, const struct shape *const *shapes, size_t count, spot_id source,
                      struct shape *made) {
    unsigned char *shared = schema_take(schema, count * count, sizeof *shared);
    bool is_wider = false, has_overlap = false;
    struct shape some = {0}, once = {0};
    TRY(schema->status);
    for (size_t i = 0; i < count; i++) {
        unsigned twice = some.simple & shapes[i]->simple;
        is_wider = is_wider || shapes[i]->is_wider;
        has_overlap = has_overlap || twice;
        some.simple |= shapes[i]->simple;
        once.simple = (once.simple | shapes[i]->simple) & ~twice;
        once.number =
            add_once(schema, once.number, &some.number, shapes[i]->number, schema->plain_number, &has_overlap);
        once.string = add_once(schema, once.string, &some.string, shapes[i]->string, schema->content, &has_overlap);
        once.has_nul = once.has_nul || shapes[i]->has_nul;
        once.spelling = i == 0 || shapes[i]->spelling < once.spelling ? shapes[i]->spelling : once.spelling;
        for (size_t k = 0; k < i; k++) {
            TRY(find_shared(schema, shapes[i], shapes[k], &shared[i * count + k]));
            shared[k * count + i] = shared[i * count + k];
            has_overlap = has_overlap || shared[i * count + k];
        }
    }
    if (schema->has_needs)
        return NEEDS;
    if (is_wider && has_overlap)
        return STATUS_NOT_FOUND;
    for (size_t i = 0; i < count; i++) {
        struct shape one = *shapes[i], other;
        one.simple = 0;
        one.number = one.string = REGEX_NOTHING;
        for (size_t k = 0; k < count; k++)
            if (shared[i * count + k]) {
                struct shape members = *shapes[k];
                members.array_count *= (shared[i * count + k] & SHARE_ARRAYS) != 0;
                members.object_count *= (shared[i * count + k] & SHARE_OBJECTS) != 0;
                TRY(shape_complement(schema, &members, source, &other));
                TRY(shape_intersect(schema, &one, &other, &one));
            }
        TRY(shape_unite(schema, &once, &one, &once));
    }
    once.is_wider = is_wider;
    *made = once;
    return schema->status;
}
