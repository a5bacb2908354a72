/* Filters of lists. Those that are generators in Jinja2 can be iterated once, have no length and are true. */
#include "jinja-internal.h"

/* ---- ends, copies and joins ---- */

JINJA_OPERATION(first) {
    if (self.kind == JINJA_GENERATOR)
        return self.list->gone < self.list->count ? self.list->items[self.list->gone++]
                                                  : jinja_undefined("the first item");
    if (self.kind == JINJA_STRING) {
        struct jinja_value zero = jinja_integer(0);
        return jinja_item(run, &self, &zero);
    }
    const struct jinja_list *list = jinja_iterate(run, &self);
    return list->count ? list->items[0] : jinja_undefined("the first item");
}

JINJA_OPERATION(last) {
    if (self.kind == JINJA_GENERATOR)
        return jinja_fail(run, "last: a generator has no last item; make a list of it first");
    if (self.kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, &self);
    const struct jinja_list *list = jinja_iterate(run, &self);
    return list->count ? list->items[list->count - 1] : jinja_undefined("the last item");
}

JINJA_OPERATION(make_list) {
    const struct jinja_list *from = jinja_iterate(run, &self);
    struct jinja_value list = jinja_list_new(run, JINJA_LIST, from->count);
    for (size_t i = 0; i < from->count && jinja_charge(run, 1); i++)
        jinja_list_add(run, list.list, from->items[i]);
    return list;
}

JINJA_OPERATION(reverse) {
    struct jinja_builder builder = {0};
    const struct jinja_list *from = jinja_iterate(run, &self);
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, from->count);
    for (size_t i = from->count; i-- > 0 && jinja_charge(run, 1);)
        if (self.kind == JINJA_STRING)
            jinja_build_string(run, &builder, from->items[i].string);
        else
            jinja_list_add(run, list.list, from->items[i]);
    return self.kind == JINJA_STRING ? jinja_built(run, &builder) : list;
}

JINJA_OPERATION(items) {
    if (self.kind != JINJA_DICT && self.kind != JINJA_UNDEFINED)
        return jinja_fail(run, "items wants a dict, not a %s", jinja_type(&self));
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, 0);
    for (size_t i = 0; self.kind == JINJA_DICT && i < self.dict->count && jinja_charge(run, 1); i++)
        jinja_list_add(run, list.list, jinja_pair(run, self.dict->entries[i].key, self.dict->entries[i].value));
    return list;
}

JINJA_OPERATION(join) {
    const struct jinja_value *between = &call->given[0], *path = &call->given[1];
    struct jinja_builder builder = {0};
    const struct jinja_list *list = jinja_iterate(run, &self);
    for (size_t i = 0; i < list->count && jinja_charge(run, 1); i++) {
        struct jinja_value item = jinja_path(run, list->items[i], path);
        if (i && between->kind == JINJA_STRING)
            jinja_build_string(run, &builder, between->string);
        jinja_build_str(run, &builder, &item);
    }
    return jinja_built(run, &builder);
}

/* ---- map, select, reject ---- */

/* Returns the call without its first `skipped` arguments. */
static struct jinja_call rest_of(const struct jinja_call *call, size_t skipped) {
    struct jinja_call rest = *call;
    rest.arguments.items += skipped;
    rest.arguments.count -= skipped;
    rest.brackets = "";
    return rest;
}

static struct jinja_value map_attribute(struct jinja_run *run, const struct jinja_value *value,
                                        struct jinja_call *call) {
    struct jinja_value path = jinja_argument(run, call, 0, "attribute"),
                       fallback = jinja_argument(run, call, 1, "default");
    if (path.kind == JINJA_MISSING)
        return jinja_fail(run, "map: expected the name of a filter, or attribute=");
    if (!jinja_call_end(run, call, 0, "map"))
        return jinja_undefined(NULL);
    const struct jinja_list *from = jinja_iterate(run, value);
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, from->count);
    for (size_t i = 0; i < from->count && jinja_charge(run, 1); i++) {
        struct jinja_value item = jinja_path(run, from->items[i], &path);
        bool is_default = item.kind == JINJA_UNDEFINED && fallback.kind != JINJA_MISSING && fallback.kind != JINJA_NONE;
        jinja_list_add(run, list.list, is_default ? fallback : item);
    }
    return list;
}

JINJA_OPERATION(map) {
    if (!jinja_is_true(&self))
        return jinja_list_new(run, JINJA_GENERATOR, 0);
    if (!call->arguments.count)
        return map_attribute(run, &self, call);
    const struct jinja_value *name = &call->arguments.items[0];
    if (name->kind != JINJA_STRING && name->kind != JINJA_NONE)
        return jinja_fail(run, "map: expected a string, found a %s", jinja_type(name));
    const struct jinja_string none = {.bytes = ""}, *string = name->kind == JINJA_STRING ? name->string : &none;
    const struct jinja_operation *filter = jinja_operation_find(JINJA_FILTERS, string->bytes, string->length);
    if (!filter)
        return jinja_fail(run, "map: there is no filter '%.*s'", jinja_shown(string->length), string->bytes);
    const struct jinja_list *from = jinja_iterate(run, &self);
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, from->count);
    for (size_t i = 0; i < from->count && jinja_charge(run, 1) && jinja_enter(run); i++) {
        struct jinja_call rest = rest_of(call, 1);
        jinja_list_add(run, list.list, jinja_run_operation(run, filter, from->items[i], &rest));
        jinja_leave(run);
    }
    return list;
}

enum { KEEPS = 1, HAS_ATTRIBUTE = 2 };

/* select and the like: keeps items for which a test gives KEEPS. It tests the items, or an attribute that the first
 * argument names. */
JINJA_OPERATION(choose) {
    bool keeps = call->operation->variant & KEEPS, has_attribute = call->operation->variant & HAS_ATTRIBUTE;
    struct jinja_value path = has_attribute ? jinja_argument(run, call, 0, NULL) : jinja_missing();
    struct jinja_value named = jinja_argument(run, call, has_attribute, NULL);
    const struct jinja_operation *test = NULL;
    if (!jinja_is_true(&self))
        return jinja_list_new(run, JINJA_GENERATOR, 0);
    if (has_attribute && path.kind == JINJA_MISSING)
        return jinja_fail(run, "expected the name of an attribute");
    if (named.kind == JINJA_STRING)
        test = jinja_operation_find(JINJA_TESTS, named.string->bytes, named.string->length);
    if (named.kind != JINJA_MISSING && !test) {
        named = jinja_str(run, &named);
        return run->status
                   ? named
                   : jinja_fail(run, "there is no test '%.*s'", jinja_shown(named.string->length), named.string->bytes);
    }
    const struct jinja_list *from = jinja_iterate(run, &self);
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, 0);
    for (size_t i = 0; i < from->count && jinja_charge(run, 1); i++) {
        struct jinja_value item = jinja_path(run, from->items[i], &path);
        if (test) {
            struct jinja_call rest = rest_of(call, 1 + (size_t)has_attribute);
            item = jinja_run_operation(run, test, item, &rest);
        }
        if (jinja_is_true(&item) == keeps)
            jinja_list_add(run, list.list, from->items[i]);
    }
    return list;
}

/* ---- order ---- */

/* Returns the value to compare by: a string is compared in lower case, unless `is_case_sensitive`. */
static struct jinja_value fold(struct jinja_run *run, struct jinja_value value, bool is_case_sensitive) {
    return value.kind == JINJA_STRING && !is_case_sensitive ? jinja_change_case(run, value.string, JINJA_LOWER) : value;
}

struct sorted {
    struct jinja_value key, item;
};

/* A merge sort: it is stable, and an inconsistent order does no harm. Returns the sorted items as a list. */
static struct jinja_value sort_list(struct jinja_run *run, struct sorted *items, size_t count, bool is_reverse) {
    struct sorted *spare = jinja_object(run, (count + 1) * sizeof *spare);
    struct jinja_value list = jinja_list_new(run, JINJA_LIST, count);
    for (size_t width = 1; width < count && !run->status; width *= 2) {
        for (size_t begin = 0; begin < count; begin += 2 * width) {
            size_t middle = begin + width < count ? begin + width : count;
            size_t end = begin + 2 * width < count ? begin + 2 * width : count;
            size_t left = begin, right = middle;
            for (size_t out = begin; out < end && jinja_charge(run, 1); out++) {
                bool takes_right = left == middle;
                if (left < middle && right < end) {
                    int order = jinja_order(run, &items[right].key, &items[left].key);
                    takes_right = is_reverse ? order > 0 : order < 0;
                }
                spare[out] = takes_right ? items[right++] : items[left++];
            }
        }
        struct sorted *merged = spare;
        spare = items;
        items = merged;
    }
    for (size_t i = 0; i < count && jinja_charge(run, 1); i++)
        jinja_list_add(run, list.list, items[i].item);
    return list;
}

/* Returns the values of the attributes that a path with commas names. */
static struct jinja_value sort_key(struct jinja_run *run, struct jinja_value item, const struct jinja_value *path,
                                   bool is_case_sensitive) {
    struct jinja_value keys = jinja_list_new(run, JINJA_LIST, 1);
    struct jinja_value paths = jinja_list_new(run, JINJA_LIST, 1);
    if (path->kind == JINJA_STRING)
        paths = jinja_split(run, path->string, &(struct jinja_string){.bytes = ",", .length = 1}, -1, false);
    else
        jinja_list_add(run, paths.list, *path);
    for (size_t i = 0; !run->status && i < paths.list->count; i++)
        jinja_list_add(run, keys.list, fold(run, jinja_path(run, item, &paths.list->items[i]), is_case_sensitive));
    return keys;
}

JINJA_OPERATION(sort) {
    const struct jinja_list *list = jinja_iterate(run, &self);
    struct sorted *keyed = jinja_object(run, (list->count + 1) * sizeof *keyed);
    for (size_t i = 0; i < list->count && jinja_charge(run, 1); i++)
        keyed[i] =
            (struct sorted){sort_key(run, list->items[i], &call->given[2], call->given[1].truth), list->items[i]};
    return run->status ? jinja_undefined(NULL) : sort_list(run, keyed, list->count, call->given[0].truth);
}

JINJA_OPERATION(sort_dict) {
    const struct jinja_string *by = jinja_string_of(&call->given[1]);
    bool by_value = by && jinja_string_is(by, "value");
    if (by && !by_value && !jinja_string_is(by, "key"))
        return jinja_fail(run, "dictsort: by is \"key\" or \"value\"");
    struct sorted *keyed = jinja_object(run, (self.dict->count + 1) * sizeof *keyed);
    for (size_t i = 0; i < self.dict->count && jinja_charge(run, 1); i++) {
        const struct jinja_entry *entry = &self.dict->entries[i];
        keyed[i] = (struct sorted){fold(run, by_value ? entry->value : entry->key, call->given[0].truth),
                                   jinja_pair(run, entry->key, entry->value)};
    }
    return run->status ? jinja_undefined(NULL) : sort_list(run, keyed, self.dict->count, call->given[2].truth);
}

JINJA_OPERATION(unique) {
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, 0), seen = jinja_dict_new(run, JINJA_DICT);
    const struct jinja_list *from = jinja_iterate(run, &self);
    for (size_t i = 0; i < from->count && jinja_charge(run, 1); i++) {
        struct jinja_value key = fold(run, jinja_path(run, from->items[i], &call->given[1]), call->given[0].truth);
        size_t before = seen.dict->count;
        jinja_dict_put(run, seen.dict, key, jinja_none());
        if (seen.dict->count > before)
            jinja_list_add(run, list.list, from->items[i]);
    }
    return list;
}

/* `variant`: the greatest item, otherwise the smallest. */
JINJA_OPERATION(extreme) {
    bool is_max = call->operation->variant;
    struct jinja_value best = jinja_none(), found = best;
    const struct jinja_list *list = jinja_iterate(run, &self);
    if (!list->count)
        return jinja_undefined(is_max ? "the greatest item" : "the smallest item");
    for (size_t i = 0; i < list->count && jinja_charge(run, 1); i++) {
        struct jinja_value key = fold(run, jinja_path(run, list->items[i], &call->given[1]), call->given[0].truth);
        int order = i ? jinja_order(run, &key, &best) : 0;
        if (i && (is_max ? order <= 0 : order >= 0))
            continue;
        best = key;
        found = list->items[i];
    }
    return found;
}

JINJA_OPERATION(sum) {
    struct jinja_value total = call->given[1];
    if (total.kind == JINJA_MISSING)
        total = jinja_integer(0);
    if (total.kind == JINJA_STRING)
        return jinja_fail(run, "sum: strings have none; join them");
    const struct jinja_list *list = jinja_iterate(run, &self);
    for (size_t i = 0; i < list->count && jinja_charge(run, 1); i++) {
        struct jinja_value item = jinja_path(run, list->items[i], &call->given[0]);
        total = run->status ? total : jinja_binary(run, OPERATOR_ADD, &total, &item);
    }
    return total;
}

#define BY_CASE                                                                                                        \
    { "case_sensitive", WANTS_TRUTH, false }
#define BY_ATTRIBUTE                                                                                                   \
    { "attribute", WANTS_VALUE, 0 }
#define ARGUMENTS                                                                                                      \
    { NULL, WANTS_CALL, 0 }

const struct jinja_operation jinja_list_filters[] = {
    ROW("dictsort", WANTS_DICT, sort_dict, 0, BY_CASE, {"by", WANTS_STRING, 0}, {"reverse", WANTS_TRUTH, false}),
    ROW("first", WANTS_VALUE, first, 0),
    ROW("items", WANTS_VALUE, items, 0),
    ROW("join", WANTS_VALUE, join, 0, {"d", WANTS_TEXT, 0}, BY_ATTRIBUTE),
    ROW("last", WANTS_VALUE, last, 0),
    ROW("list", WANTS_VALUE, make_list, 0),
    ROW("map", WANTS_VALUE, map, 0, ARGUMENTS),
    ROW("max", WANTS_VALUE, extreme, true, BY_CASE, BY_ATTRIBUTE),
    ROW("min", WANTS_VALUE, extreme, false, BY_CASE, BY_ATTRIBUTE),
    ROW("reject", WANTS_VALUE, choose, 0, ARGUMENTS),
    ROW("rejectattr", WANTS_VALUE, choose, HAS_ATTRIBUTE, ARGUMENTS),
    ROW("reverse", WANTS_VALUE, reverse, 0),
    ROW("select", WANTS_VALUE, choose, KEEPS, ARGUMENTS),
    ROW("selectattr", WANTS_VALUE, choose, KEEPS | HAS_ATTRIBUTE, ARGUMENTS),
    ROW("sort", WANTS_VALUE, sort, 0, {"reverse", WANTS_TRUTH, false}, BY_CASE, BY_ATTRIBUTE),
    ROW("sum", WANTS_VALUE, sum, 0, BY_ATTRIBUTE, {"start", WANTS_VALUE, 0}),
    ROW("unique", WANTS_VALUE, unique, 0, BY_CASE, BY_ATTRIBUTE),
    ROW(NULL, WANTS_NOTHING, NULL, 0),
};
