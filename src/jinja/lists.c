/* Filters of lists. Those that are generators in Jinja2 can be iterated once, have no length and are true. */
#include "jinja-internal.h"

#include <string.h>

/* ---- ends, copies and joins ---- */

static struct jinja_value filter_first(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    if (!jinja_call_end(run, call, 0, "first"))
        return jinja_undefined(NULL);
    if (value.kind == JINJA_GENERATOR)
        return value.list->gone < value.list->count ? value.list->items[value.list->gone++]
                                                    : jinja_undefined("the first item");
    if (value.kind == JINJA_STRING) {
        struct jinja_value zero = jinja_integer(0);
        return jinja_item(run, &value, &zero);
    }
    const struct jinja_list *list = jinja_iterate(run, &value);
    return list->count ? list->items[0] : jinja_undefined("the first item");
}

static struct jinja_value filter_last(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    if (!jinja_call_end(run, call, 0, "last"))
        return jinja_undefined(NULL);
    if (value.kind == JINJA_GENERATOR)
        return jinja_fail(run, "last: a generator has no last item; make a list of it first");
    if (value.kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, &value);
    const struct jinja_list *list = jinja_iterate(run, &value);
    return list->count ? list->items[list->count - 1] : jinja_undefined("the last item");
}

static struct jinja_value copy_list(struct jinja_run *run, enum jinja_kind kind, const struct jinja_list *from) {
    struct jinja_value list = jinja_list_new(run, kind, from->count);
    for (size_t i = 0; i < from->count && jinja_charge(run, 1); i++)
        jinja_list_add(run, list.list, from->items[i]);
    return list;
}

static struct jinja_value filter_list(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return jinja_call_end(run, call, 0, "list") ? copy_list(run, JINJA_LIST, jinja_iterate(run, &value))
                                                : jinja_undefined(NULL);
}

static struct jinja_value filter_reverse(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    struct jinja_builder builder = {0};
    if (!jinja_call_end(run, call, 0, "reverse"))
        return jinja_undefined(NULL);
    const struct jinja_list *from = jinja_iterate(run, &value);
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, from->count);
    for (size_t i = from->count; i-- > 0 && jinja_charge(run, 1);)
        if (value.kind == JINJA_STRING)
            jinja_build_string(run, &builder, from->items[i].string);
        else
            jinja_list_add(run, list.list, from->items[i]);
    return value.kind == JINJA_STRING ? jinja_built(run, &builder) : list;
}

static struct jinja_value filter_items(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    if (!jinja_call_end(run, call, 0, "items"))
        return jinja_undefined(NULL);
    if (value.kind != JINJA_DICT && value.kind != JINJA_UNDEFINED)
        return jinja_fail(run, "items wants a dict, not a %s", jinja_type(&value));
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, 0);
    for (size_t i = 0; value.kind == JINJA_DICT && i < value.dict->count && jinja_charge(run, 1); i++)
        jinja_list_add(run, list.list, jinja_pair(run, value.dict->entries[i].key, value.dict->entries[i].value));
    return list;
}

static struct jinja_value filter_join(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    struct jinja_value between = jinja_argument(run, call, 0, "d"), path = jinja_argument(run, call, 1, "attribute");
    struct jinja_builder builder = {0};
    if (between.kind != JINJA_MISSING)
        between = jinja_str(run, &between);
    if (!jinja_call_end(run, call, 2, "join"))
        return jinja_undefined(NULL);
    const struct jinja_list *items = jinja_iterate(run, &value);
    for (size_t i = 0; i < items->count && jinja_charge(run, 1); i++) {
        struct jinja_value item = jinja_path(run, items->items[i], &path);
        if (i && between.kind == JINJA_STRING)
            jinja_build_string(run, &builder, between.string);
        jinja_build_str(run, &builder, &item);
    }
    return jinja_built(run, &builder);
}

/* ---- map, select, reject ---- */

/* Returns the call without its first `skipped` arguments, for one more use. */
static struct jinja_call rest_of(struct jinja_run *run, const struct jinja_call *call, size_t skipped) {
    struct jinja_call rest = *call;
    for (size_t i = 0; i < rest.keyword_count && jinja_charge_bytes(run, sizeof *call->keywords); i++)
        rest.keywords[i].is_taken = false;
    rest.arguments = call->arguments + skipped;
    rest.count = call->count - skipped;
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
    const struct jinja_list *items = jinja_iterate(run, value);
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, items->count);
    for (size_t i = 0; i < items->count && jinja_charge(run, 1); i++) {
        struct jinja_value item = jinja_path(run, items->items[i], &path);
        bool is_default = item.kind == JINJA_UNDEFINED && fallback.kind != JINJA_MISSING && fallback.kind != JINJA_NONE;
        jinja_list_add(run, list.list, is_default ? fallback : item);
    }
    return list;
}

static struct jinja_value filter_map(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    if (!jinja_is_true(&value))
        return jinja_list_new(run, JINJA_GENERATOR, 0);
    if (!call->count)
        return map_attribute(run, &value, call);
    const struct jinja_string *name = jinja_string_argument(run, call, 0, NULL, "map");
    const struct jinja_filter *filter = name ? jinja_filter_find(name->bytes, name->length) : NULL;
    if (!filter)
        return jinja_fail(run, "map: there is no filter '%.*s'", name ? jinja_shown(name->length) : 0,
                          name ? name->bytes : "");
    const struct jinja_list *items = jinja_iterate(run, &value);
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, items->count);
    for (size_t i = 0; i < items->count && jinja_charge(run, 1) && jinja_enter(run); i++) {
        struct jinja_call rest = rest_of(run, call, 1);
        jinja_list_add(run, list.list, jinja_run_filter(run, filter, items->items[i], &rest));
        jinja_leave(run);
    }
    return list;
}

/* Keeps items for which a test gives `is_kept`. It tests the items, or an attribute that the first argument names. */
static struct jinja_value choose(struct jinja_run *run, const struct jinja_value *value, struct jinja_call *call,
                                 bool has_attribute, bool is_kept) {
    struct jinja_value path = has_attribute ? jinja_argument(run, call, 0, NULL) : jinja_missing();
    struct jinja_value named = jinja_argument(run, call, has_attribute, NULL);
    const struct jinja_test *test = NULL;
    if (!jinja_is_true(value))
        return jinja_list_new(run, JINJA_GENERATOR, 0);
    if (has_attribute && path.kind == JINJA_MISSING)
        return jinja_fail(run, "expected the name of an attribute");
    if (named.kind == JINJA_STRING)
        test = jinja_test_find(named.string->bytes, named.string->length);
    if (named.kind != JINJA_MISSING && !test) {
        named = jinja_str(run, &named);
        return run->status
                   ? named
                   : jinja_fail(run, "there is no test '%.*s'", jinja_shown(named.string->length), named.string->bytes);
    }
    const struct jinja_list *items = jinja_iterate(run, value);
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, 0);
    for (size_t i = 0; i < items->count && jinja_charge(run, 1); i++) {
        struct jinja_value item = jinja_path(run, items->items[i], &path);
        struct jinja_call rest = rest_of(run, call, test ? 1 + (size_t)has_attribute : call->count);
        if ((test ? jinja_run_test(run, test, item, &rest) : jinja_is_true(&item)) == is_kept)
            jinja_list_add(run, list.list, items->items[i]);
    }
    return list;
}

static struct jinja_value filter_select(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return choose(run, &value, call, false, true);
}

static struct jinja_value filter_reject(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return choose(run, &value, call, false, false);
}

static struct jinja_value filter_selectattr(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return choose(run, &value, call, true, true);
}

static struct jinja_value filter_rejectattr(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return choose(run, &value, call, true, false);
}

/* ---- order ---- */

/* Returns the value to compare by: a string is compared in lower case, unless `is_case_sensitive`. */
static struct jinja_value fold(struct jinja_run *run, struct jinja_value value, bool is_case_sensitive) {
    return value.kind == JINJA_STRING && !is_case_sensitive ? jinja_change_case(run, value.string, JINJA_LOWER) : value;
}

struct sorted {
    struct jinja_value key, item;
};

/* A merge sort: it is stable, and an inconsistent order does no harm. Returns the array that holds the result. */
static const struct sorted *sort(struct jinja_run *run, struct sorted *items, struct sorted *spare, size_t count,
                                 bool is_reverse) {
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
    return items;
}

static struct jinja_value sort_list(struct jinja_run *run, struct sorted *keyed, size_t count, bool is_reverse) {
    struct sorted *spare = jinja_object(run, (count + 1) * sizeof *spare);
    struct jinja_value list = jinja_list_new(run, JINJA_LIST, count);
    if (run->status)
        return list;
    const struct sorted *items = sort(run, keyed, spare, count, is_reverse);
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
        paths = jinja_split(run, path->string, &(struct jinja_string){.bytes = ",", .length = 1}, -1);
    else
        jinja_list_add(run, paths.list, *path);
    for (size_t i = 0; !run->status && i < paths.list->count; i++)
        jinja_list_add(run, keys.list, fold(run, jinja_path(run, item, &paths.list->items[i]), is_case_sensitive));
    return keys;
}

static struct jinja_value filter_sort(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    bool is_reverse = jinja_bool_argument(run, call, 0, "reverse", false);
    bool is_case_sensitive = jinja_bool_argument(run, call, 1, "case_sensitive", false);
    struct jinja_value path = jinja_argument(run, call, 2, "attribute");
    if (!jinja_call_end(run, call, 3, "sort"))
        return jinja_undefined(NULL);
    const struct jinja_list *list = jinja_iterate(run, &value);
    struct sorted *keyed = jinja_object(run, (list->count + 1) * sizeof *keyed);
    for (size_t i = 0; i < list->count && jinja_charge(run, 1); i++)
        keyed[i] = (struct sorted){sort_key(run, list->items[i], &path, is_case_sensitive), list->items[i]};
    return run->status ? jinja_undefined(NULL) : sort_list(run, keyed, list->count, is_reverse);
}

static struct jinja_value filter_dictsort(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    bool is_case_sensitive = jinja_bool_argument(run, call, 0, "case_sensitive", false);
    const struct jinja_string *by = jinja_string_argument(run, call, 1, "by", "dictsort");
    bool is_reverse = jinja_bool_argument(run, call, 2, "reverse", false),
         by_value = by && jinja_string_is(by, "value");
    if (by && !by_value && !jinja_string_is(by, "key"))
        return jinja_fail(run, "dictsort: by is \"key\" or \"value\"");
    if (value.kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, &value);
    if (value.kind != JINJA_DICT)
        return jinja_fail(run, "dictsort wants a dict, not a %s", jinja_type(&value));
    if (!jinja_call_end(run, call, 3, "dictsort"))
        return jinja_undefined(NULL);
    struct sorted *keyed = jinja_object(run, (value.dict->count + 1) * sizeof *keyed);
    for (size_t i = 0; i < value.dict->count && jinja_charge(run, 1); i++) {
        const struct jinja_entry *entry = &value.dict->entries[i];
        keyed[i] = (struct sorted){fold(run, by_value ? entry->value : entry->key, is_case_sensitive),
                                   jinja_pair(run, entry->key, entry->value)};
    }
    return run->status ? jinja_undefined(NULL) : sort_list(run, keyed, value.dict->count, is_reverse);
}

static struct jinja_value filter_unique(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    bool is_case_sensitive = jinja_bool_argument(run, call, 0, "case_sensitive", false);
    struct jinja_value path = jinja_argument(run, call, 1, "attribute");
    struct jinja_value list = jinja_list_new(run, JINJA_GENERATOR, 0), seen = jinja_dict_new(run, JINJA_DICT);
    if (!jinja_call_end(run, call, 2, "unique"))
        return jinja_undefined(NULL);
    const struct jinja_list *items = jinja_iterate(run, &value);
    for (size_t i = 0; i < items->count && jinja_charge(run, 1); i++) {
        struct jinja_value key = fold(run, jinja_path(run, items->items[i], &path), is_case_sensitive);
        size_t before = seen.dict->count;
        jinja_dict_put(run, seen.dict, key, jinja_none());
        if (seen.dict->count > before)
            jinja_list_add(run, list.list, items->items[i]);
    }
    return list;
}

static struct jinja_value extreme(struct jinja_run *run, const struct jinja_value *value, struct jinja_call *call,
                                  bool is_max) {
    bool is_case_sensitive = jinja_bool_argument(run, call, 0, "case_sensitive", false);
    struct jinja_value path = jinja_argument(run, call, 1, "attribute"), best = jinja_none(), found = best;
    if (!jinja_call_end(run, call, 2, is_max ? "max" : "min"))
        return jinja_undefined(NULL);
    const struct jinja_list *items = jinja_iterate(run, value);
    if (!items->count)
        return jinja_undefined(is_max ? "the greatest item" : "the smallest item");
    for (size_t i = 0; i < items->count && jinja_charge(run, 1); i++) {
        struct jinja_value key = fold(run, jinja_path(run, items->items[i], &path), is_case_sensitive);
        int order = i ? jinja_order(run, &key, &best) : 0;
        if (i && (is_max ? order <= 0 : order >= 0))
            continue;
        best = key;
        found = items->items[i];
    }
    return found;
}

static struct jinja_value filter_min(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return extreme(run, &value, call, false);
}

static struct jinja_value filter_max(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    return extreme(run, &value, call, true);
}

static struct jinja_value filter_sum(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    struct jinja_value path = jinja_argument(run, call, 0, "attribute"), sum = jinja_argument(run, call, 1, "start");
    if (!jinja_call_end(run, call, 2, "sum"))
        return jinja_undefined(NULL);
    if (sum.kind == JINJA_MISSING)
        sum = jinja_integer(0);
    if (sum.kind == JINJA_STRING)
        return jinja_fail(run, "sum: strings have none; join them");
    const struct jinja_list *items = jinja_iterate(run, &value);
    for (size_t i = 0; i < items->count && jinja_charge(run, 1); i++) {
        struct jinja_value item = jinja_path(run, items->items[i], &path);
        sum = run->status ? sum : jinja_binary(run, OPERATOR_ADD, &sum, &item);
    }
    return sum;
}

const struct jinja_filter jinja_list_filters[] = {
    {"dictsort", JINJA_COST_WALK, filter_dictsort},
    {"first", JINJA_COST_WALK, filter_first},
    {"items", JINJA_COST_WALK, filter_items},
    {"join", JINJA_COST_WALK, filter_join},
    {"last", JINJA_COST_WALK, filter_last},
    {"list", JINJA_COST_WALK, filter_list},
    {"map", JINJA_COST_WALK, filter_map},
    {"max", JINJA_COST_WALK, filter_max},
    {"min", JINJA_COST_WALK, filter_min},
    {"reject", JINJA_COST_WALK, filter_reject},
    {"rejectattr", JINJA_COST_WALK, filter_rejectattr},
    {"reverse", JINJA_COST_WALK, filter_reverse},
    {"select", JINJA_COST_WALK, filter_select},
    {"selectattr", JINJA_COST_WALK, filter_selectattr},
    {"sort", JINJA_COST_WALK, filter_sort},
    {"sum", JINJA_COST_WALK, filter_sum},
    {"unique", JINJA_COST_WALK, filter_unique},
    {NULL, JINJA_COST_NOTHING, NULL},
};
