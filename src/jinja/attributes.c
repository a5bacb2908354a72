/* a.name and a[key]. As in Jinja2's sandbox, Python's attributes come before the keys of a dict, and methods that would
 * change a list or a dict do not exist. */
#include "jinja-internal.h"

#include <string.h>

/* ---- arguments ---- */

struct jinja_value jinja_argument(struct jinja_run *run, struct jinja_call *call, size_t index, const char *keyword) {
    if (index < call->count)
        return call->arguments[index];
    for (size_t i = 0; keyword && i < call->keyword_count && jinja_charge_bytes(run, sizeof *call->keywords); i++) {
        struct jinja_keyword *given = &call->keywords[i];
        if (!given->is_taken && given->name.length == strlen(keyword) &&
            !memcmp(given->name.bytes, keyword, given->name.length)) {
            given->is_taken = true;
            return given->value;
        }
    }
    return jinja_missing();
}

bool jinja_call_end(struct jinja_run *run, const struct jinja_call *call, size_t most, const char *what) {
    if (call->count > most)
        jinja_fail(run, "%s: %zu arguments, and it takes %zu", what, call->count, most);
    for (size_t i = 0; i < call->keyword_count && jinja_charge_bytes(run, sizeof *call->keywords); i++)
        if (!call->keywords[i].is_taken)
            jinja_fail(run, "%s: there is no argument '%.*s'", what, jinja_shown(call->keywords[i].name.length),
                       call->keywords[i].name.bytes);
    return !run->status;
}

bool jinja_bool_argument(struct jinja_run *run, struct jinja_call *call, size_t index, const char *keyword,
                         bool fallback) {
    struct jinja_value value = jinja_argument(run, call, index, keyword);
    return value.kind == JINJA_MISSING ? fallback : jinja_is_true(&value);
}

int64_t jinja_integer_argument(struct jinja_run *run, struct jinja_call *call, size_t index, const char *keyword,
                               int64_t fallback) {
    struct jinja_value value = jinja_argument(run, call, index, keyword);
    if (value.kind == JINJA_MISSING || value.kind == JINJA_NONE)
        return fallback;
    if (value.kind == JINJA_INTEGER || value.kind == JINJA_BOOL)
        return jinja_as_integer(&value);
    jinja_fail(run, "expected an integer, found a %s", jinja_type(&value));
    return fallback;
}

const struct jinja_string *jinja_string_argument(struct jinja_run *run, struct jinja_call *call, size_t index,
                                                 const char *keyword, const char *what) {
    struct jinja_value value = jinja_argument(run, call, index, keyword);
    if (value.kind == JINJA_STRING)
        return value.string;
    if (value.kind != JINJA_MISSING && value.kind != JINJA_NONE)
        jinja_fail(run, "%s: expected a string, found a %s", what, jinja_type(&value));
    return NULL;
}

/* ---- dicts and lists ---- */

static struct jinja_value view(struct jinja_run *run, const struct jinja_dict *dict, const char *name) {
    struct jinja_value list = jinja_list_new(run, JINJA_VIEW, dict->count);
    if (list.list == &run->nothing)
        return jinja_undefined(NULL);
    list.list->name = name;
    for (size_t i = 0; i < dict->count && jinja_charge(run, 1); i++) {
        const struct jinja_entry *entry = &dict->entries[i];
        jinja_list_add(run, list.list,
                       !strcmp(name, "dict_items")  ? jinja_pair(run, entry->key, entry->value)
                       : !strcmp(name, "dict_keys") ? entry->key
                                                    : entry->value);
    }
    return list;
}

static struct jinja_value dict_items(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return jinja_call_end(run, call, 0, "items()") ? view(run, self.dict, "dict_items") : jinja_undefined(NULL);
}

static struct jinja_value dict_keys(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return jinja_call_end(run, call, 0, "keys()") ? view(run, self.dict, "dict_keys") : jinja_undefined(NULL);
}

static struct jinja_value dict_values(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return jinja_call_end(run, call, 0, "values()") ? view(run, self.dict, "dict_values") : jinja_undefined(NULL);
}

static struct jinja_value dict_get(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    struct jinja_value key = jinja_argument(run, call, 0, NULL), fallback = jinja_argument(run, call, 1, NULL);
    if (!jinja_call_end(run, call, 2, "get()"))
        return jinja_undefined(NULL);
    if (key.kind == JINJA_MISSING || key.kind == JINJA_LIST || key.kind == JINJA_DICT)
        return jinja_fail(run, "get(): a %s is no key", jinja_type(&key));
    struct jinja_value value = jinja_dict_get(run, self.dict, key);
    return value.kind != JINJA_MISSING ? value : fallback.kind != JINJA_MISSING ? fallback : jinja_none();
}

static struct jinja_value copy(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return jinja_call_end(run, call, 0, "copy()") ? self : jinja_undefined(NULL); /* neither changes */
}

const struct jinja_method jinja_dict_methods[] = {
    {"copy", JINJA_COST_STEP, copy},          {"get", JINJA_COST_WALK, dict_get},
    {"items", JINJA_COST_WALK, dict_items},   {"keys", JINJA_COST_WALK, dict_keys},
    {"values", JINJA_COST_WALK, dict_values}, {NULL, JINJA_COST_NOTHING, NULL}};
static const char *const changing_dict[] = {"clear", "fromkeys", "pop", "popitem", "setdefault", "update", NULL};

static struct jinja_value list_count(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    struct jinja_value item = jinja_argument(run, call, 0, NULL);
    int64_t count = 0;
    if (!jinja_call_end(run, call, 1, "count()"))
        return jinja_undefined(NULL);
    for (size_t i = 0; i < self.list->count && !run->status; i++)
        count += jinja_equal(run, &self.list->items[i], &item);
    return jinja_integer(count);
}

static struct jinja_value list_index(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    struct jinja_value item = jinja_argument(run, call, 0, NULL);
    if (!jinja_call_end(run, call, 1, "index()"))
        return jinja_undefined(NULL);
    for (size_t i = 0; i < self.list->count && !run->status; i++)
        if (jinja_equal(run, &self.list->items[i], &item))
            return jinja_integer((int64_t)i);
    return jinja_fail(run, "index(): the value is not in the list");
}

const struct jinja_method jinja_list_methods[] = {{"copy", JINJA_COST_STEP, copy},
                                                  {"count", JINJA_COST_WALK, list_count},
                                                  {"index", JINJA_COST_WALK, list_index},
                                                  {NULL, JINJA_COST_NOTHING, NULL}};
static const char *const changing_list[] = {"append", "clear",   "extend", "insert", "pop",
                                            "remove", "reverse", "sort",   NULL};
static const char *const none[] = {NULL};

static struct jinja_value loop_cycle(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    if (!call->count)
        return jinja_fail(run, "loop.cycle() without values");
    return jinja_call_end(run, call, call->count, "cycle()") ? call->arguments[self.loop->index % call->count]
                                                             : jinja_undefined(NULL);
}

const struct jinja_method jinja_loop_methods[] = {{"cycle", JINJA_COST_STEP, loop_cycle},
                                                  {NULL, JINJA_COST_NOTHING, NULL}};

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

static bool is_one_of(const char *const *names, const char *name) {
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

/* Python's attribute `name`; MISSING when the object has none. */
static struct jinja_value find_method(struct jinja_run *run, const struct jinja_value *value, const char *name) {
    const struct jinja_method *methods = value->kind == JINJA_STRING ? jinja_string_methods
                                         : value->kind == JINJA_DICT ? jinja_dict_methods
                                         : value->kind == JINJA_LOOP ? jinja_loop_methods
                                                                     : jinja_list_methods;
    const char *const *refused = value->kind == JINJA_STRING ? jinja_other_string_methods
                                 : value->kind == JINJA_DICT ? changing_dict
                                 : value->kind == JINJA_LIST ? changing_list
                                                             : none;
    if (value->kind != JINJA_STRING && value->kind != JINJA_DICT && value->kind != JINJA_LOOP &&
        value->kind != JINJA_LIST && value->kind != JINJA_TUPLE)
        return jinja_missing();
    for (; methods->name; methods++)
        if (!strcmp(methods->name, name)) {
            struct jinja_bound *bound = jinja_object(run, sizeof *bound);
            if (!bound)
                return jinja_undefined(NULL);
            *bound = (struct jinja_bound){*value, methods};
            return (struct jinja_value){.kind = JINJA_METHOD, .bound = bound};
        }
    if (!is_one_of(refused, name))
        return jinja_missing();
    return value->kind == JINJA_STRING ? jinja_fail(run, "the method '%s' of a string is not supported", name)
                                       : jinja_undefined(name);
}

/* Copies a name for the lifetime of the run. */
static const char *keep_name(struct jinja_run *run, const char *name, size_t length) {
    return jinja_grown(run, name, length, length + 1);
}

const struct jinja_costs jinja_accesses[JINJA_ACCESS_COUNT] = {
    [JINJA_ACCESS_ATTRIBUTE] = {"a.name", JINJA_COST_WALK},
    [JINJA_ACCESS_ITEM] = {"a[key]", JINJA_COST_WALK},
    [JINJA_ACCESS_SLICE] = {"a[from:to:step]", JINJA_COST_WALK},
};

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
    const char *name = keep_name(run, key->string->bytes, key->string->length);
    if (!name)
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
