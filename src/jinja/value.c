/* Values: made and compared. */
#include "jinja-internal.h"

#include "base/utf8.h"

#include <math.h>

/* ---- lists and dicts ---- */

struct jinja_value jinja_list_new(struct jinja_run *run, enum jinja_kind kind, size_t capacity) {
    struct jinja_list *list = jinja_object(run, sizeof *list);
    struct jinja_value *items = list && capacity ? jinja_object(run, capacity * sizeof *items) : NULL;
    if (!list || (capacity && !items))
        return (struct jinja_value){.kind = kind, .list = &run->nothing};
    *list = (struct jinja_list){.items = items, .capacity = capacity};
    return (struct jinja_value){.kind = kind, .list = list};
}

void jinja_list_add(struct jinja_run *run, struct jinja_list *list, struct jinja_value item) {
    if (run->status || list == &run->nothing)
        return;
    struct jinja_value *items = jinja_room(run, list->items, list->count, &list->capacity, sizeof *items);
    if (!items)
        return;
    list->items = items;
    list->items[list->count++] = item;
}

struct jinja_value jinja_pair(struct jinja_run *run, struct jinja_value first, struct jinja_value second) {
    struct jinja_value pair = jinja_list_new(run, JINJA_TUPLE, 2);
    jinja_list_add(run, pair.list, first);
    jinja_list_add(run, pair.list, second);
    return pair;
}

struct jinja_value jinja_dict_new(struct jinja_run *run, enum jinja_kind kind) {
    struct jinja_dict *dict = jinja_object(run, sizeof *dict);
    return (struct jinja_value){.kind = kind, .dict = dict ? dict : &run->no_entries};
}

/* The charge for examining one entry of a dict, in addition to its bytes. */
enum { ENTRY_BYTES = 16 };

static struct jinja_entry *find_entry(struct jinja_run *run, const struct jinja_dict *dict,
                                      const struct jinja_value *key) {
    for (size_t i = 0; i < dict->count && jinja_charge_bytes(run, ENTRY_BYTES); i++) {
        const struct jinja_value *present = &dict->entries[i].key;
        bool are_strings = present->kind == JINJA_STRING && key->kind == JINJA_STRING;
        if (are_strings ? present->string->length == key->string->length &&
                              jinja_same(run, present->string->bytes, key->string->bytes, key->string->length)
                        : key->kind != JINJA_STRING && jinja_equal(run, present, key))
            return &dict->entries[i];
    }
    return NULL;
}

/* Returns false after a failure too. */
static bool can_be_key(struct jinja_run *run, const struct jinja_value *key) {
    bool can = jinja_charge(run, 1) && key->kind != JINJA_LIST && key->kind != JINJA_DICT;
    if (!can || key->kind != JINJA_TUPLE)
        return can;
    can = jinja_enter(run);
    for (size_t i = 0; i < key->list->count && can; i++)
        can = can_be_key(run, &key->list->items[i]);
    jinja_leave(run);
    return can;
}

struct jinja_value jinja_dict_get(struct jinja_run *run, const struct jinja_dict *dict, struct jinja_value key) {
    struct jinja_entry *entry = find_entry(run, dict, &key);
    return entry ? entry->value : jinja_missing();
}

struct jinja_value jinja_dict_find(struct jinja_run *run, const struct jinja_dict *dict, const char *key,
                                   size_t length) {
    return jinja_dict_get(run, dict, jinja_string_value(&(struct jinja_string){.bytes = key, .length = length}));
}

void jinja_dict_put(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key, struct jinja_value value) {
    if (run->status || dict == &run->no_entries)
        return;
    if (!can_be_key(run, &key)) {
        jinja_fail(run, "a %s cannot be the key of a dict", jinja_type(&key));
        return;
    }
    struct jinja_entry *entry = find_entry(run, dict, &key);
    if (entry) {
        entry->value = value;
        return;
    }
    struct jinja_entry *entries = jinja_room(run, dict->entries, dict->count, &dict->capacity, sizeof *entries);
    if (!entries)
        return;
    dict->entries = entries;
    dict->entries[dict->count++] = (struct jinja_entry){key, value};
}

static struct jinja_value list_from_json(struct jinja_run *run, const json_t *json,
                                         const struct jinja_argument *argument) {
    size_t count = json_array_size(json);
    struct jinja_value list = jinja_list_new(run, JINJA_LIST, count);
    for (size_t i = 0; i < count && jinja_charge(run, 1); i++)
        jinja_list_add(run, list.list, jinja_from_json(run, json_array_get(json, i), argument));
    return list;
}

/* True for a value without marks, whatever the others have. */
static bool is_plain(const struct jinja_argument *argument, const char *key, const json_t *value) {
    if (!argument->plain_key || !json_is_string(value) || strcmp(argument->plain_key, key) != 0)
        return false;
    for (const char *const *plain = argument->plain_values; *plain; plain++)
        if (strlen(*plain) == json_string_length(value) && !strcmp(*plain, json_string_value(value)))
            return true;
    return false;
}

/* Keys of a JSON object are distinct, so no search is needed. */
static struct jinja_value dict_from_json(struct jinja_run *run, const json_t *json,
                                         const struct jinja_argument *argument) {
    struct jinja_value dict = jinja_dict_new(run, JINJA_DICT);
    struct jinja_entry *entries = jinja_object(run, (json_object_size(json) + 1) * sizeof *entries);
    if (!entries || run->status)
        return dict;
    dict.dict->entries = entries;
    dict.dict->capacity = json_object_size(json);
    for (void *at = json_object_iter((json_t *)json); at && !run->status;
         at = json_object_iter_next((json_t *)json, at)) {
        jinja_charge(run, 1);
        const char *key = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        size_t length = strlen(key);
        jinja_charge_bytes(run, length);
        entries[dict.dict->count].key = jinja_string(run, key, length, argument->marks);
        entries[dict.dict->count++].value =
            is_plain(argument, key, value) ? jinja_string(run, json_string_value(value), json_string_length(value), 0)
                                           : jinja_from_json(run, value, argument);
    }
    return dict;
}

struct jinja_value jinja_from_json(struct jinja_run *run, const json_t *json, const struct jinja_argument *argument) {
    struct jinja_value value = jinja_none();
    switch (json_typeof(json)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        if (!jinja_enter(run))
            return value;
        value = json_is_object(json) ? dict_from_json(run, json, argument) : list_from_json(run, json, argument);
        jinja_leave(run);
        return value;
    case JSON_STRING:
        return jinja_string(run, json_string_value(json), json_string_length(json), argument->marks);
    case JSON_INTEGER:
        return jinja_integer(json_integer_value(json));
    case JSON_REAL:
        return jinja_float(json_real_value(json));
    case JSON_TRUE:
    case JSON_FALSE:
        return jinja_bool(json_is_true(json));
    default:
        return value;
    }
}

/* ---- what they are ---- */

const char *jinja_type(const struct jinja_value *value) {
    static const char *const names[] = {
        [JINJA_UNDEFINED] = "Undefined", [JINJA_NONE] = "NoneType",       [JINJA_BOOL] = "bool",
        [JINJA_INTEGER] = "int",         [JINJA_FLOAT] = "float",         [JINJA_STRING] = "str",
        [JINJA_LIST] = "list",           [JINJA_TUPLE] = "tuple",         [JINJA_RANGE] = "range",
        [JINJA_VIEW] = "view of a dict", [JINJA_GENERATOR] = "generator", [JINJA_DICT] = "dict",
        [JINJA_NAMESPACE] = "namespace", [JINJA_LOOP] = "loop",           [JINJA_MACRO] = "macro",
        [JINJA_FUNCTION] = "function",   [JINJA_METHOD] = "method",       [JINJA_MISSING] = "nothing",
    };
    return names[value->kind];
}

/* Returns the number of items, or of bytes of a string; SIZE_MAX for a value that has no items. */
static size_t count_of(const struct jinja_value *value) {
    switch (value->kind) {
    case JINJA_UNDEFINED:
        return 0;
    case JINJA_STRING:
        return value->string->length;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
        return value->list->count;
    case JINJA_DICT:
        return value->dict->count;
    case JINJA_LOOP:
        return value->loop->items->count;
    default:
        return SIZE_MAX;
    }
}

bool jinja_is_true(const struct jinja_value *value) {
    switch (value->kind) {
    case JINJA_NONE:
    case JINJA_MISSING:
        return false;
    case JINJA_BOOL:
        return value->truth;
    case JINJA_INTEGER:
        return value->integer != 0;
    case JINJA_FLOAT:
        return value->real != 0;
    default:
        return count_of(value) > 0;
    }
}

bool jinja_is_number(const struct jinja_value *value) {
    return value->kind == JINJA_BOOL || value->kind == JINJA_INTEGER || value->kind == JINJA_FLOAT;
}

double jinja_as_real(const struct jinja_value *value) {
    return value->kind == JINJA_FLOAT ? value->real : (double)jinja_as_integer(value);
}

int64_t jinja_as_integer(const struct jinja_value *value) {
    return value->kind == JINJA_BOOL ? value->truth : value->integer;
}

struct jinja_value jinja_fail_undefined(struct jinja_run *run, const struct jinja_value *value) {
    return jinja_fail(run, "'%s' is undefined", value->hint ? value->hint : "a value");
}

static bool is_sequence(const struct jinja_value *value) {
    return value->kind == JINJA_LIST || value->kind == JINJA_TUPLE;
}

size_t jinja_length(struct jinja_run *run, const struct jinja_value *value) {
    size_t count = count_of(value);
    if (value->kind == JINJA_STRING)
        return jinja_characters(run, value->string);
    if (count == SIZE_MAX)
        jinja_fail(run, "a %s has no length", jinja_type(value));
    return count;
}

static const struct jinja_list *characters_of(struct jinja_run *run, const struct jinja_string *string) {
    struct jinja_value list = jinja_list_new(run, JINJA_LIST, 0);
    const unsigned char *at = (const unsigned char *)string->bytes, *end = at + string->length;
    while (at < end && jinja_charge(run, 1)) {
        size_t bytes = utf8_length(at, end), begin = (size_t)(at - (const unsigned char *)string->bytes);
        bytes = bytes ? bytes : 1;
        jinja_list_add(run, list.list, jinja_part(run, string, begin, begin + bytes));
        at += bytes;
    }
    return list.list;
}

const struct jinja_list *jinja_iterate(struct jinja_run *run, const struct jinja_value *value) {
    struct jinja_value list;
    switch (value->kind) {
    case JINJA_UNDEFINED:
        return &run->nothing;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
    case JINJA_VIEW:
        return value->list;
    case JINJA_STRING:
        return characters_of(run, value->string);
    case JINJA_GENERATOR:
        list = jinja_list_new(run, JINJA_LIST, 0);
        if (list.list != &run->nothing) {
            *list.list = (struct jinja_list){.items = value->list->items + value->list->gone,
                                             .count = value->list->count - value->list->gone};
            value->list->gone = value->list->count;
        }
        return list.list;
    case JINJA_DICT:
        list = jinja_list_new(run, JINJA_LIST, value->dict->count);
        for (size_t i = 0; i < value->dict->count && jinja_charge(run, 1); i++)
            jinja_list_add(run, list.list, value->dict->entries[i].key);
        return list.list;
    default:
        jinja_fail(run, "a %s cannot be gone through", jinja_type(value));
        return &run->nothing;
    }
}

/* ---- comparing ---- */

static bool lists_are_equal(struct jinja_run *run, const struct jinja_list *left, const struct jinja_list *right) {
    if (left->count != right->count)
        return false;
    bool is_equal = jinja_enter(run);
    for (size_t i = 0; i < left->count && is_equal; i++)
        is_equal = jinja_equal(run, &left->items[i], &right->items[i]);
    jinja_leave(run);
    return is_equal;
}

static bool dicts_are_equal(struct jinja_run *run, const struct jinja_dict *left, const struct jinja_dict *right) {
    if (left->count != right->count)
        return false;
    bool is_equal = jinja_enter(run);
    for (size_t i = 0; i < left->count && is_equal; i++) {
        struct jinja_value other = jinja_dict_get(run, right, left->entries[i].key);
        is_equal = other.kind != JINJA_MISSING && jinja_equal(run, &left->entries[i].value, &other);
    }
    jinja_leave(run);
    return is_equal;
}

static int order_numbers(const struct jinja_value *left, const struct jinja_value *right) {
    if (left->kind != JINJA_FLOAT && right->kind != JINJA_FLOAT) {
        int64_t a = jinja_as_integer(left), b = jinja_as_integer(right);
        return (a > b) - (a < b);
    }
    double a = jinja_as_real(left), b = jinja_as_real(right);
    return (a > b) - (a < b);
}

bool jinja_equal(struct jinja_run *run, const struct jinja_value *left, const struct jinja_value *right) {
    if (!jinja_charge(run, 1))
        return false;
    if (jinja_is_number(left) && jinja_is_number(right))
        return !isnan(jinja_as_real(left)) && !isnan(jinja_as_real(right)) && order_numbers(left, right) == 0;
    if (left->kind != right->kind)
        return false;
    switch (left->kind) {
    case JINJA_STRING:
        return left->string->length == right->string->length &&
               jinja_same(run, left->string->bytes, right->string->bytes, left->string->length);
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_RANGE:
        return lists_are_equal(run, left->list, right->list);
    case JINJA_DICT:
        return dicts_are_equal(run, left->dict, right->dict);
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return true;
    default: /* the same object */
        return left->list == right->list;
    }
}

static int order_strings(struct jinja_run *run, const struct jinja_string *left, const struct jinja_string *right) {
    size_t least = left->length < right->length ? left->length : right->length;
    int order = jinja_memcmp(run, left->bytes, right->bytes, least);
    return order ? order : (left->length > right->length) - (left->length < right->length);
}

static int order_lists(struct jinja_run *run, const struct jinja_list *left, const struct jinja_list *right) {
    size_t least = left->count < right->count ? left->count : right->count;
    int order = 0;
    bool is_in = jinja_enter(run);
    for (size_t i = 0; i < least && is_in && !order && !run->status; i++)
        if (!jinja_equal(run, &left->items[i], &right->items[i]))
            order = jinja_order(run, &left->items[i], &right->items[i]);
    jinja_leave(run);
    return order ? order : (left->count > right->count) - (left->count < right->count);
}

int jinja_order(struct jinja_run *run, const struct jinja_value *left, const struct jinja_value *right) {
    if (!jinja_charge(run, 1))
        return 0;
    if (jinja_is_number(left) && jinja_is_number(right))
        return order_numbers(left, right);
    if (left->kind == JINJA_STRING && right->kind == JINJA_STRING)
        return order_strings(run, left->string, right->string);
    if (left->kind == right->kind && is_sequence(left))
        return order_lists(run, left->list, right->list);
    if (left->kind == JINJA_UNDEFINED || right->kind == JINJA_UNDEFINED)
        jinja_fail_undefined(run, left->kind == JINJA_UNDEFINED ? left : right);
    else
        jinja_fail(run, "a %s and a %s have no order", jinja_type(left), jinja_type(right));
    return 0;
}

bool jinja_contains(struct jinja_run *run, const struct jinja_value *container, const struct jinja_value *item) {
    if (container->kind == JINJA_STRING) {
        if (item->kind != JINJA_STRING) {
            jinja_fail(run, "only a string can be in a string, not a %s", jinja_type(item));
            return false;
        }
        return jinja_find(run, container->string, item->string, 0) != SIZE_MAX;
    }
    if (container->kind == JINJA_DICT) {
        if (!can_be_key(run, item))
            jinja_fail(run, "a %s cannot be the key of a dict", jinja_type(item));
        return !run->status && find_entry(run, container->dict, item) != NULL;
    }
    const struct jinja_list *list = jinja_iterate(run, container);
    for (size_t i = 0; i < list->count && !run->status; i++)
        if (jinja_equal(run, &list->items[i], item))
            return true;
    return false;
}
