/* Rules that derive the values of shapes.
 *
 * White space is in the terminals of punctuation and keys: `, "key": ` is one terminal. A set that has arrays or
 * objects has a rule; rules are written one after the other from a list. */
#include "schema-internal.h"

enum { MAX_STATES = 1 << 16, MAX_SPLIT = 1024 };

static rule_node terminal(struct schema *schema, regex one) {
    return rule_terminal(schema->rules, one);
}

/* A terminal of marks with white space where `text` has a blank. */
static regex marks(struct schema *schema, const char *text) {
    regex made = REGEX_EMPTY;
    for (size_t i = strlen(text); i-- > 0;)
        made = regex_join(schema->regexes, text[i] == ' ' ? schema->space : regex_text(schema->regexes, text + i, 1),
                          made);
    return made;
}

static rule_node mark_terminal(struct schema *schema, const char *text) {
    return terminal(schema, marks(schema, text));
}

static rule_node join3(struct schema *schema, rule_node a, rule_node b, rule_node c) {
    return rule_join(schema->rules, a, rule_join(schema->rules, b, c));
}

static int32_t repetitions(uint64_t count) {
    return count < REGEX_ENDLESS ? (int32_t)count : REGEX_ENDLESS;
}

static uint64_t less(uint64_t count, uint64_t by) {
    return count == ENDLESS ? ENDLESS : count > by ? count - by : 0;
}

/* ---- null, booleans, numbers, strings ---- */

static regex scalars(struct schema *schema, const struct shape *shape) {
    struct regexes *r = schema->regexes;
    static const struct {
        unsigned bit;
        const char *text;
    } words[] = {{HAS_NULL, "null"}, {HAS_FALSE, "false"}, {HAS_TRUE, "true"}};
    const regex number_spellings[] = {schema->any_number, schema->integer, schema->shortest};
    regex found = REGEX_NOTHING, string = shape->string;
    for (size_t i = 0; i < 3; i++)
        if (shape->simple & words[i].bit)
            found = regex_either(r, found, regex_text(r, words[i].text, strlen(words[i].text)));
    if (shape->number == ALL_VALUES || (shape->number == schema->whole_numbers && shape->spelling == NO_POINT))
        found = regex_either(r, found, number_spellings[shape->spelling]);
    else if (shape->spelling != ANY_SPELLING)
        found = regex_either(r, found, regex_both(r, shape->number, number_spellings[shape->spelling]));
    else
        found = regex_either(r, found, shape->number);
    if (string == ALL_VALUES)
        return regex_either(r, found, schema->free_string);
    if (schema->has_nul && !shape->has_nul) { /* U+0000 only where nothing else is allowed */
        regex without = regex_both(r, string, schema->content);
        string = regex_is_nothing(r, without) ? string : without;
    }
    return regex_either(r, found, regex_sequence(r, (regex[]){schema->quote, string, schema->quote}, 3));
}

/* ---- sets ---- */

/* The node of a set's values; its rule, if it has one, is written later. */
static int set_node(struct schema *schema, set_id id, rule_node *node) {
    const struct shape *shape;
    *node = RULE_NOTHING;
    if (id == SET_NOTHING)
        return STATUS_OK;
    if (schema->sets[id].has_rule) {
        *node = rule_call(schema->rules, schema->sets[id].rule);
        return STATUS_OK;
    }
    if (id == SET_ANYTHING) {
        shape = schema->spots[SPOT_ANYTHING].shape;
    } else {
        TRY(schema_settle(schema, id, &shape));
        if (!shape->array_count && !shape->object_count) {
            *node = terminal(schema, scalars(schema, shape));
            return STATUS_OK;
        }
    }
    TRY(array_reserve(&schema->written, &schema->written_capacity, schema->written_count + 1, sizeof *schema->written));
    schema->written[schema->written_count++] = id;
    schema->sets[id].has_rule = true;
    schema->sets[id].rule = rule_declare(schema->rules);
    *node = rule_call(schema->rules, schema->sets[id].rule);
    return STATUS_OK;
}

/* ---- objects ---- */

/* The keys that can follow the properties of an object. */
struct rest {
    rule_node pair;     /* an additional key, and its value */
    rule_node demanded; /* one that a demand names; RULE_NOTHING: there is no demand */
    bool has_pairs, has_demand;
};

/* Adds a pair of a key in `keys`, but no declared one, and a value. */
static int add_pair(struct schema *schema, regex keys, regex declared, set_id value, rule_node *pairs) {
    struct regexes *r = schema->regexes;
    rule_node node;
    keys = values_minus(schema, keys, declared, schema->content);
    keys = keys == ALL_VALUES ? schema->content : keys;
    if (value == SET_NOTHING || regex_is_nothing(r, keys))
        return STATUS_OK;
    TRY(set_node(schema, value, &node));
    regex key = regex_sequence(r, (regex[]){schema->quote, keys, schema->quote}, 3);
    rule_node pair = join3(schema, rule_unique(schema->rules, key), mark_terminal(schema, " : "), node);
    *pairs = rule_either(schema->rules, *pairs, pair);
    return STATUS_OK;
}

static regex declared_keys(struct schema *schema, const struct object *object) {
    regex *names = schema_take(schema, (size_t)object->property_count + 1, sizeof *names);
    for (uint32_t i = 0; names && i < object->property_count; i++) {
        const struct name *name = &schema->names[object->properties[i].name];
        names[i] = spell_text(schema->regexes, name->text, name->length, true);
    }
    return names ? regex_any_of(schema->regexes, names, object->property_count) : REGEX_NOTHING;
}

static int read_rest(struct schema *schema, const struct object *object, struct rest *rest) {
    const struct demand *demand = object->demands;
    regex declared = declared_keys(schema, object);
    bool is_known = object->property_count > 0,
         is_meetable = object->demand_count == 1 && object->least <= 1 && object->most == ENDLESS;
    *rest = (struct rest){.has_demand = object->demand_count > 0};
    for (uint32_t i = 0; i < object->cell_count; i++)
        is_known = is_known || !object->cells[i].is_implied;
    for (uint32_t i = 0; i < object->cell_count; i++) {
        struct cell cell = object->cells[i];
        if (cell.is_implied && is_known && schema->reading->is_closed)
            continue;
        TRY(add_pair(schema, cell.keys, declared, cell.value, &rest->pair));
        if (is_meetable)
            TRY(add_pair(schema, values_both(schema, cell.keys, demand->keys), declared,
                         schema_both(schema, cell.value, demand->value), &rest->demanded));
    }
    rest->has_pairs = rest->pair != RULE_NOTHING;
    if (!rest->has_demand || is_meetable)
        return STATUS_OK;
    bool is_dropped;
    rest->has_demand = false;
    return schema_drop(schema, schema->spots[demand->source].value, NULL,
                       "additional properties that must break a schema cannot be enforced", &is_dropped);
}

/* The node of the end of an object that has `count` properties. */
static rule_node object_end(struct schema *schema, const struct object *object, const struct rest *rest,
                            uint64_t count) {
    struct rules *rules = schema->rules;
    uint64_t least = less(object->least, count), most = less(object->most, count);
    rule_node end = mark_terminal(schema, " }"), comma = mark_terminal(schema, " , "),
              begin = mark_terminal(schema, "{ ");
    rule_node more = rule_join(rules, comma, rest->pair), all;
    if (object->least != ENDLESS && count > object->most)
        return RULE_NOTHING;
    if (rest->has_demand) {
        rule_node some = rule_repeat(rules, more, 0, REGEX_ENDLESS);
        rule_node after = rule_join(rules, some, end), here = rule_join(rules, rest->demanded, after);
        rule_node later = join3(schema, some, comma, here);
        all = count ? later : rule_join(rules, begin, rule_either(rules, here, rule_join(rules, rest->pair, later)));
    } else if (!rest->has_pairs || !most) {
        all = least ? RULE_NOTHING : count ? end : mark_terminal(schema, "{ }");
        return all;
    } else if (count) {
        all = rule_join(rules, rule_repeat(rules, more, repetitions(least), repetitions(most)), end);
    } else {
        rule_node others = rule_repeat(rules, more, repetitions(less(least, 1)), repetitions(less(most, 1)));
        all = join3(schema, begin, rest->pair, rule_join(rules, others, end));
        if (!least)
            all = rule_either(rules, mark_terminal(schema, "{ }"), all);
    }
    return rule_scope(rules, all);
}

/* The node of one property after others (or as the first one). */
static rule_node property_node(struct schema *schema, const struct property *property, rule_node value, bool is_first) {
    struct regexes *r = schema->regexes;
    const struct name *name = &schema->names[property->name];
    regex key = spell_text(r, name->text, name->length, true);
    regex all[] = {marks(schema, is_first ? "{ " : " , "), schema->quote, key, schema->quote, marks(schema, " : ")};
    return rule_join(schema->rules, terminal(schema, regex_sequence(r, all, 5)), value);
}

/* Properties come in order, each once; states are the next property and how many have come, as far as that matters.
 * `nodes` has a node for each count that can be reached; those which several others use become rules. */
static int object_node(struct schema *schema, const struct object *object, rule_node *node) {
    struct rules *rules = schema->rules;
    struct rest rest;
    uint32_t count = 0, required = 0, passed = 0;
    struct property *properties = schema_take(schema, (size_t)object->property_count + 1, sizeof *properties);
    *node = RULE_NOTHING;
    TRY(schema->status);
    for (uint32_t i = 0; i < object->property_count; i++) {
        if (object->properties[i].value == SET_NOTHING && object->properties[i].is_required)
            return STATUS_OK;
        if (object->properties[i].value == SET_NOTHING)
            continue;
        properties[count++] = object->properties[i];
        required += object->properties[i].is_required;
    }
    TRY(read_rest(schema, object, &rest));
    struct object bounds = *object;
    if (!rest.has_pairs && bounds.most >= count)
        bounds.most = ENDLESS;
    if (bounds.least <= required)
        bounds.least = 0;
    bool is_counted = bounds.most != ENDLESS || bounds.least > 1;
    uint32_t last = is_counted ? count : count ? 1 : 0; /* the largest count; without bounds it is "some" */
    if (is_counted && (uint64_t)count * count > MAX_STATES)
        return grammar_refuse(schema->reading->report, GRAMMAR_TOO_LARGE,
                              "%s: minProperties or maxProperties beside %u properties", schema->place, count);
    rule_node *nodes = schema_take(schema, (size_t)last + 2, sizeof *nodes);
    TRY(schema->status);
    for (uint32_t c = 0; c <= last; c++)
        nodes[c] = object_end(schema, &bounds, &rest, c);
    passed = required;
    for (uint32_t i = count; i-- > 0;) {
        rule_node value;
        bool is_required = properties[i].is_required;
        /* Counts that can be reached after this property. */
        uint32_t low = passed < last ? passed : last, high = i + 1 < last ? i + 1 : last;
        TRY(set_node(schema, properties[i].value, &value));
        for (uint32_t c = low; c <= high && low < high; c++) {
            rule_id rule = rule_declare(rules);
            rule_define(rules, rule, nodes[c]);
            nodes[c] = rule_call(rules, rule);
        }
        passed -= is_required;
        low = passed < last ? passed : last;
        high = i < last ? i : last;
        for (uint32_t c = low; c <= high; c++) {
            rule_node here = property_node(schema, &properties[i], value, c == 0);
            if (c == last && !is_required) {
                nodes[c] = rule_join(rules, rule_either(rules, RULE_EMPTY, here), nodes[c]);
                continue;
            }
            here = rule_join(rules, here, nodes[c < last ? c + 1 : last]);
            nodes[c] = is_required ? here : rule_either(rules, here, nodes[c]);
        }
    }
    *node = nodes[0];
    return schema->status;
}

/* Adds the alternatives of an object whose first open demand is met by one of its properties, or by another key. */
static int split_demand(struct schema *schema, const struct object *object, uint32_t at, struct object *list,
                        uint32_t *count) {
    const struct demand *demand = &object->demands[at];
    regex declared = declared_keys(schema, object);
    for (uint32_t i = 0; i <= object->property_count; i++) {
        bool is_rest = i == object->property_count;
        const struct property *property = &object->properties[i];
        if (!is_rest && (property->value == SET_NOTHING || !object_has_key(schema, demand->keys, property->name)))
            continue;
        if (*count == MAX_SPLIT)
            return grammar_refuse(schema->reading->report, GRAMMAR_TOO_LARGE, "%s: too many alternatives of objects",
                                  schema->place);
        struct object *made = &list[(*count)++];
        *made = *object;
        made->demands = schema_take(schema, object->demand_count, sizeof *made->demands);
        made->properties = schema_take(schema, (size_t)object->property_count + 1, sizeof *made->properties);
        TRY(schema->status);
        memcpy(made->demands, object->demands, object->demand_count * sizeof *made->demands);
        for (uint32_t k = 0; k < object->property_count; k++)
            made->properties[k] = object->properties[k];
        if (is_rest) {
            made->demands[at].keys = values_minus(schema, demand->keys, declared, schema->content);
            made->demands[at].is_rest = true;
        } else {
            made->properties[i].is_required = true;
            made->properties[i].value = schema_both(schema, property->value, demand->value);
            made->demands[at] = made->demands[--made->demand_count];
        }
    }
    return schema->status;
}

/* The node of an object, with its demands. */
static int demanding_node(struct schema *schema, const struct object *object, rule_node *node) {
    uint32_t count = 1;
    if (!object->demand_count)
        return object_node(schema, object, node);
    struct object *list = schema_take(schema, MAX_SPLIT, sizeof *list);
    *node = RULE_NOTHING;
    TRY(schema->status);
    for (list[0] = *object; count;) {
        struct object one = list[--count];
        uint32_t at = 0;
        rule_node made;
        while (at < one.demand_count && one.demands[at].is_rest)
            at++;
        if (at < one.demand_count) {
            TRY(split_demand(schema, &one, at, list, &count));
            continue;
        }
        TRY(object_node(schema, &one, &made));
        *node = rule_either(schema->rules, *node, made);
    }
    return schema->status;
}

/* ---- arrays ---- */

/* A contained item: others before and after it are any, or (with a maximum) none that match. */
static int contained_node(struct schema *schema, const struct array *array, rule_node *node) {
    struct rules *rules = schema->rules;
    const struct contained *contained = array->contained;
    set_id match = schema_both(schema, array->rest, contained->value), other = array->rest;
    if (contained->most != ENDLESS) {
        const struct spot *spot = &schema->spots[schema->sets[contained->value].spots[0]];
        other =
            schema_both(schema, other,
                        schema_single(schema, schema_spot(schema, spot->value, spot->is_constant, !spot->is_negated)));
    }
    rule_node one, any, comma = mark_terminal(schema, " , "), end = mark_terminal(schema, " ]");
    TRY(set_node(schema, match, &one));
    TRY(set_node(schema, other, &any));
    rule_node others = rule_repeat(rules, rule_join(rules, comma, any), 0, REGEX_ENDLESS);
    rule_node matches = join3(schema, comma, one, others);
    int32_t least = repetitions(contained->least), most = repetitions(contained->most);
    /* The first item has no comma: it matches, or it is another one. */
    rule_node first = rule_join(rules, one, others), rest = RULE_NOTHING, empty = RULE_NOTHING;
    if (most)
        rest = rule_join(rules, first,
                         rule_repeat(rules, matches, least ? least - 1 : 0, most == REGEX_ENDLESS ? most : most - 1));
    rest = rule_either(rules, rest, join3(schema, any, others, rule_repeat(rules, matches, least, most)));
    if (!least && !array->least)
        empty = mark_terminal(schema, "[ ]");
    *node = rule_either(rules, empty, join3(schema, mark_terminal(schema, "[ "), rest, end));
    return schema->status;
}

/* An item of an array whose items differ: a scalar whose values have one spelling each. */
static int unique_node(struct schema *schema, const struct array *array, set_id set, rule_node *node) {
    const struct shape *shape;
    bool is_dropped;
    TRY(schema_settle(schema, set, &shape));
    if (shape->array_count || shape->object_count) {
        TRY(schema_drop(schema, schema->spots[array->unique].value, "uniqueItems",
                        "it can be enforced for strings, numbers, booleans and null, or with maxItems 1", &is_dropped));
        return set_node(schema, set, node);
    }
    struct shape canonical = *shape;
    canonical.spelling = SHORTEST;
    canonical.string = values_both(schema, canonical.string, schema->content);
    if (canonical.number != schema->whole_numbers) /* no two may round to one value */
        canonical.number = values_both(schema, canonical.number, schema->exact_numbers);
    *node = rule_unique(schema->rules, scalars(schema, &canonical));
    return STATUS_OK;
}

static int item_node(struct schema *schema, const struct array *array, set_id set, rule_node *node) {
    return array->unique && array->most > 1 && set != SET_NOTHING ? unique_node(schema, array, set, node)
                                                                  : set_node(schema, set, node);
}

static int plain_array_node(struct schema *schema, const struct array *array, rule_node *node) {
    struct rules *rules = schema->rules;
    uint64_t least = array->least, most = array->most;
    uint32_t count = array->first_count;
    rule_node end = mark_terminal(schema, " ]"), comma = mark_terminal(schema, " , "),
              begin = mark_terminal(schema, "[ ");
    rule_node rest, item;
    for (uint32_t i = 0; i < count; i++)
        if (array->first[i] == SET_NOTHING || i >= most)
            count = i;
    if (count < array->first_count && most > count)
        most = count;
    TRY(item_node(schema, array, most > count ? array->rest : SET_NOTHING, &rest));
    /* `after` follows the items with their own schemas; then it becomes what follows fewer of them. */
    rule_node more = rule_join(rules, comma, rest), after = RULE_NOTHING;
    if (count) {
        after =
            least <= count || rest != RULE_NOTHING
                ? rule_join(rules,
                            rule_repeat(rules, more, repetitions(less(least, count)), repetitions(less(most, count))),
                            end)
                : RULE_NOTHING;
    } else if (rest != RULE_NOTHING) {
        after =
            join3(schema, rest, rule_repeat(rules, more, repetitions(less(least, 1)), repetitions(less(most, 1))), end);
    }
    for (uint32_t i = count; i-- > 0;) {
        TRY(item_node(schema, array, array->first[i], &item));
        after = rule_join(rules, item, after);
        if (i)
            after = rule_either(rules, rule_join(rules, comma, after), least <= i ? end : RULE_NOTHING);
    }
    *node = rule_join(rules, begin, after);
    if (!least)
        *node = rule_either(rules, mark_terminal(schema, "[ ]"), *node);
    if (array->unique)
        *node = rule_scope(rules, *node);
    return schema->status;
}

static int array_node(struct schema *schema, const struct array *array, rule_node *node) {
    struct array plain = *array;
    bool is_dropped;
    if (!array->contained_count)
        return plain_array_node(schema, array, node);
    const struct contained *contained = array->contained;
    if (array->contained_count == 1 && !array->first_count && !array->unique && array->most == ENDLESS &&
        array->least <= (contained->least ? contained->least : 1) &&
        (contained->most == ENDLESS || schema->sets[contained->value].count == 1))
        return contained_node(schema, array, node);
    plain.contained_count = 0;
    TRY(schema_drop(schema, schema->spots[contained->source].value, "contains",
                    "it cannot be enforced beside the array's other keywords", &is_dropped));
    return plain_array_node(schema, &plain, node);
}

/* ---- the whole ---- */

static int write_rule(struct schema *schema, set_id id) {
    const struct shape *shape = schema->spots[SPOT_ANYTHING].shape;
    if (id != SET_ANYTHING)
        TRY(schema_settle(schema, id, &shape));
    struct shape values = *shape;
    rule_node body = terminal(schema, scalars(schema, &values)), one;
    for (uint32_t i = 0; i < values.array_count; i++) {
        TRY(array_node(schema, &values.arrays[i], &one));
        body = rule_either(schema->rules, body, one);
    }
    for (uint32_t i = 0; i < values.object_count; i++) {
        TRY(demanding_node(schema, &values.objects[i], &one));
        body = rule_either(schema->rules, body, one);
    }
    rule_define(schema->rules, schema->sets[id].rule, body);
    TRY(rules_status(schema->rules));
    return schema->status;
}

int schema_rules(struct schema *schema, set_id set, rule_node *node) {
    rule_id root = rule_declare(schema->rules);
    TRY(set_node(schema, set, node));
    for (size_t i = 0; i < schema->written_count; i++)
        TRY(write_rule(schema, schema->written[i]));
    rule_define(schema->rules, root, *node);
    *node = rule_call(schema->rules, root);
    TRY(rules_status(schema->rules));
    if (set == SET_NOTHING || rule_is_nothing(schema->rules, root))
        return grammar_refuse(schema->reading->report, GRAMMAR_INVALID, "%s: no value satisfies the schema",
                              schema->place);
    return schema->status;
}
