/* a.name and a[key]. As in Jinja2's sandbox, Python's attributes come before the keys of a dict, and methods that would
 * change a list or a dict do not exist. */
#include "jinja-internal.h"

/* ---- dicts and lists ---- */

/* The views of a dict; `variant` is an index. */
static const char *const views[] = {"dict_items", "dict_keys", "dict_values"};
enum { ITEMS, KEYS, VALUES };

JINJA_OPERATION(view) {
    int which = call->operation->variant;
    struct jinja_value list = jinja_list_new(run, JINJA_VIEW, self.dict->count);
    if (list.list == &run->nothing)
        return jinja_undefined(NULL);
    list.list->name = views[which];
    for (size_t i = 0; i < self.dict->count && jinja_charge(run, 1); i++) {
        const struct jinja_entry *entry = &self.dict->entries[i];
        jinja_list_add(run, list.list,
                       which == ITEMS  ? jinja_pair(run, entry->key, entry->value)
                       : which == KEYS ? entry->key
                                       : entry->value);
    }
    return list;
}

JINJA_OPERATION(get) {
    const struct jinja_value *key = &call->given[0], *fallback = &call->given[1];
    if (key->kind == JINJA_MISSING || key->kind == JINJA_LIST || key->kind == JINJA_DICT)
        return jinja_fail(run, "get(): a %s is no key", jinja_type(key));
    struct jinja_value value = jinja_dict_get(run, self.dict, *key);
    return value.kind != JINJA_MISSING ? value : fallback->kind != JINJA_MISSING ? *fallback : jinja_none();
}

/* The copy of a list or a dict is itself: neither changes. */
JINJA_OPERATION(copy) {
    return self;
}

const struct jinja_operation jinja_dict_methods[] = {
    ROW("copy", WANTS_VALUE, copy, 0),
    ROW("get", WANTS_VALUE, get, 0, {NULL, WANTS_VALUE, 0}, {NULL, WANTS_VALUE, 0}),
    ROW("items", WANTS_VALUE, view, ITEMS),
    ROW("keys", WANTS_VALUE, view, KEYS),
    ROW("values", WANTS_VALUE, view, VALUES),
    ROW(NULL, WANTS_NOTHING, NULL, 0),
};

JINJA_OPERATION(count_item) {
    int64_t count = 0;
    for (size_t i = 0; i < self.list->count && !run->status; i++)
        count += jinja_equal(run, &self.list->items[i], &call->given[0]);
    return jinja_integer(count);
}

JINJA_OPERATION(find_item) {
    for (size_t i = 0; i < self.list->count && !run->status; i++)
        if (jinja_equal(run, &self.list->items[i], &call->given[0]))
            return jinja_integer((int64_t)i);
    return jinja_fail(run, "index(): the value is not in the list");
}

const struct jinja_operation jinja_list_methods[] = {
    ROW("copy", WANTS_VALUE, copy, 0),
    ROW("count", WANTS_VALUE, count_item, 0, {NULL, WANTS_VALUE, 0}),
    ROW("index", WANTS_VALUE, find_item, 0, {NULL, WANTS_VALUE, 0}),
    ROW(NULL, WANTS_NOTHING, NULL, 0),
};

JINJA_OPERATION(cycle) {
    size_t count = call->arguments.count;
    if (!count)
        return jinja_fail(run, "loop.cycle() without values");
    return jinja_call_end(run, call, count, "cycle") ? call->arguments.items[self.loop->index % count]
                                                     : jinja_undefined(NULL);
}

const struct jinja_operation jinja_loop_methods[] = {
    ROW("cycle", WANTS_VALUE, cycle, 0, {NULL, WANTS_CALL, 0}),
    ROW(NULL, WANTS_NOTHING, NULL, 0),
};

static struct jinja_value loop_attribute(const struct jinja_loop *loop, const char *name) {
    int64_t index = (int64_t)loop->index, count = (int64_t)loop->items->count;
    const struct {
        const char *name;
        struct jinja_value value;
    } facts[] = {
        {"index", jinja_integer(index + 1)},
        {"index0", jinja_integer(index)},
        {"first", jinja_bool(index == 0)},
        {"last", jinja_bool(index + 1 == count)},
        {"length", jinja_integer(count)},
        {"revindex", jinja_integer(count - index)},
        {"revindex0", jinja_integer(count - index - 1)},
        {"previtem", index ? loop->items->items[index - 1] : jinja_undefined("loop.previtem")},
        {"nextitem", index + 1 < count ? loop->items->items[index + 1] : jinja_undefined("loop.nextitem")},
        {"depth", jinja_integer(1)},
        {"depth0", jinja_integer(0)},
    };
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        if (!strcmp(facts[i].name, name))
            return facts[i].value;
    return jinja_missing();
}

/* ---- looking up ---- */

/* Methods of Python that change a list or a dict: as in the sandbox, they are undefined. */
static const char *const changing_dict[] = {"clear", "fromkeys", "pop", "popitem", "setdefault", "update", NULL};
static const char *const changing_list[] = {"append", "clear",   "extend", "insert", "pop",
                                            "remove", "reverse", "sort",   NULL};

/* Python's attribute `name`; MISSING when the object has none. */
static struct jinja_value find_method(struct jinja_run *run, const struct jinja_value *value, const char *name) {
    static const struct {
        enum jinja_group_index group;
        const char *const *refused;
    } kinds[JINJA_MISSING] = {
        [JINJA_STRING] = {JINJA_STRING_METHODS, jinja_other_string_methods},
        [JINJA_DICT] = {JINJA_DICT_METHODS, changing_dict},
        [JINJA_LIST] = {JINJA_LIST_METHODS, changing_list},
        [JINJA_TUPLE] = {JINJA_LIST_METHODS, NULL},
        [JINJA_LOOP] = {JINJA_LOOP_METHODS, NULL},
    };
    enum jinja_group_index group = kinds[value->kind].group;
    const struct jinja_operation *method = group ? jinja_operation_find(group, name, strlen(name)) : NULL;
    if (method) {
        struct jinja_bound *bound = jinja_object(run, sizeof *bound);
        if (!bound)
            return jinja_undefined(NULL);
        *bound = (struct jinja_bound){*value, method};
        return (struct jinja_value){.kind = JINJA_METHOD, .bound = bound};
    }
    for (const char *const *refused = kinds[value->kind].refused; refused && *refused; refused++)
        if (!strcmp(*refused, name))
            return value->kind == JINJA_STRING ? jinja_fail(run, "the method '%s' of a string is not supported", name)
                                               : jinja_undefined(name);
    return jinja_missing();
}

struct jinja_value jinja_attribute(struct jinja_run *run, const struct jinja_value *value, const char *name,
                                   size_t length) {
    jinja_charge(run, 1);
    if (value->kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, value);
    if (value->kind == JINJA_NAMESPACE) {
        struct jinja_value found = jinja_dict_find(run, value->dict, name, length);
        return found.kind == JINJA_MISSING ? jinja_undefined(name) : found;
    }
    struct jinja_value found = value->kind == JINJA_LOOP ? loop_attribute(value->loop, name) : jinja_missing();
    if (found.kind == JINJA_MISSING)
        found = find_method(run, value, name);
    if (found.kind == JINJA_MISSING && value->kind == JINJA_DICT)
        found = jinja_dict_find(run, value->dict, name, length);
    return found.kind == JINJA_MISSING ? jinja_undefined(name) : found;
}

static struct jinja_value string_item(struct jinja_run *run, const struct jinja_string *string, int64_t index) {
    int64_t length = (int64_t)jinja_characters(run, string);
    index += index < 0 ? length : 0;
    if (index < 0 || index >= length)
        return jinja_undefined("a character");
    size_t begin = jinja_byte_of(run, string, (size_t)index), end = begin + 1;
    while (end < string->length && ((unsigned char)string->bytes[end] & 0xc0) == 0x80)
        end++;
    return jinja_part(run, string, begin, end);
}

struct jinja_value jinja_item(struct jinja_run *run, const struct jinja_value *value, const struct jinja_value *key) {
    bool is_index = key->kind == JINJA_INTEGER || key->kind == JINJA_BOOL;
    jinja_charge(run, 1);
    if (value->kind == JINJA_UNDEFINED)
        return jinja_fail_undefined(run, value);
    if (value->kind == JINJA_DICT && key->kind != JINJA_LIST && key->kind != JINJA_DICT) {
        struct jinja_value found = jinja_dict_get(run, value->dict, *key);
        if (found.kind != JINJA_MISSING)
            return found;
    }
    bool is_list = value->kind == JINJA_LIST || value->kind == JINJA_TUPLE || value->kind == JINJA_RANGE;
    if (is_index && value->kind == JINJA_STRING)
        return string_item(run, value->string, jinja_as_integer(key));
    if (is_index && is_list) {
        int64_t index = jinja_as_integer(key), count = (int64_t)value->list->count;
        index += index < 0 ? count : 0;
        return index >= 0 && index < count ? value->list->items[index] : jinja_undefined("an element");
    }
    if (key->kind != JINJA_STRING)
        return jinja_undefined("an element");
    const char *name = jinja_grown(run, key->string->bytes, key->string->length, key->string->length + 1);
    if (!name) /* a copy that lives as long as the run */
        return jinja_undefined(NULL);
    return jinja_find_byte(run, key->string, 0, 0, key->string->length) == key->string->length
               ? jinja_attribute(run, value, name, key->string->length)
               : jinja_undefined("an element");
}

struct jinja_value jinja_path(struct jinja_run *run, struct jinja_value value, const struct jinja_value *path) {
    if (path->kind != JINJA_STRING)
        return path->kind == JINJA_NONE || path->kind == JINJA_MISSING ? value : jinja_item(run, &value, path);
    const struct jinja_string *string = path->string;
    size_t at = 0, stop;
    for (bool is_more = true; is_more && jinja_charge(run, 1); at = stop + 1) {
        stop = jinja_find_byte(run, string, '.', at, string->length);
        struct jinja_value key = jinja_string(run, string->bytes + at, stop - at, 0);
        int64_t index;
        bool is_number = stop > at;
        for (size_t i = at; i < stop && is_number && jinja_charge_bytes(run, 1); i++)
            is_number = string->bytes[i] >= '0' && string->bytes[i] <= '9';
        if (key.kind == JINJA_STRING && is_number && jinja_read_integer(run, key.string, 10, &index))
            key = jinja_integer(index);
        value = jinja_item(run, &value, &key);
        is_more = stop < string->length;
    }
    return value;
}
