/* Spots and sets of a schema, and what is needed next.
 *
 * Spots and sets are found by their contents, so equal ones are one. A stack has what is needed (schema_make.c
 * works on it), so no input decides how deep a call goes. A schema that needs itself has no meaning. To tell
 * whether the schemas of a oneOf share an object, sets are looked into; there a circle only leaves it unknown. */
#include "schema-internal.h"

enum { MAX_SETS = 1 << 18 };

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

set_id schema_add_set(struct schema *schema, const spot_id *spots, uint32_t count) {
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
    return spot == SPOT_ANYTHING ? SET_ANYTHING : spot == SPOT_NOTHING ? SET_NOTHING : schema_add_set(schema, &spot, 1);
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
    return schema_add_set(schema, spots, count);
}

/* ---- what is needed ---- */

static int add_need(struct schema *schema, bool is_set, uint32_t id) {
    TRY(array_reserve(&schema->needs, &schema->need_capacity, schema->need_count + 1, sizeof *schema->needs));
    schema->needs[schema->need_count++] = (struct need){is_set, id};
    schema->has_needs = true;
    return STATUS_OK;
}

bool *schema_open_flag(struct schema *schema, struct need need) {
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
        *schema_open_flag(schema, schema->needs[--schema->need_count]) = false;
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

int schema_set_is_empty(struct schema *schema, set_id id, bool *is_empty) {
    const struct set *set = &schema->sets[id];
    *is_empty = id == SET_NOTHING || (set->is_ready && set->is_empty);
    if (id == SET_NOTHING || id == SET_ANYTHING || set->is_ready || set->is_open)
        return STATUS_OK;
    return add_need(schema, true, id);
}
