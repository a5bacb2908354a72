/* The shapes of spots and sets, made in the order in which they need each other. */
#include "schema-internal.h"

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
        *schema_open_flag(schema, need) = true;
        schema->has_needs = false;
        int status = make(schema, need);
        if (status == NEEDS)
            continue;
        TRY(status);
        TRY(schema->status);
        TRY(regexes_status(schema->regexes));
        *schema_open_flag(schema, need) = false;
        schema->need_count--;
    }
    return STATUS_OK;
}

int schema_settle(struct schema *schema, set_id set, const struct shape **shape) {
    int status;
    schema->has_needs = false;
    while ((status = schema_set_shape(schema, set, shape)) == NEEDS)
        TRY(make_all(schema));
    return status ? status : schema->status;
}
