/* A schema's document: the place of each object and array in it, checks of keywords, and references.
 *
 * One table has a row for each keyword. A schema with a wrong keyword is refused, also where nothing uses it; what is
 * well-formed but cannot be enforced is found later, when its shape is made. */
#include "schema-internal.h"
#include "terms-internal.h"

#include <math.h>
#include <stdarg.h>

enum { MAX_DEPTH = 160, MAX_PLACES = 1 << 20, BLOCK_BYTES = 1 << 16, MAX_BYTES = 128 << 20, SHOWN = 80 };

/* ---- memory and names ---- */

struct block {
    struct block *next;
    size_t used, capacity;
};

void *schema_take(struct schema *schema, size_t count, size_t bytes) {
    if (!schema->status && !regexes_work(schema->regexes)) /* the deadline counts this work too */
        schema->status = regexes_status(schema->regexes);
    if (schema->status)
        return NULL;
    size_t needed = count > MAX_BYTES / bytes ? MAX_BYTES : (count * bytes + 15) / 16 * 16;
    struct block *block = schema->blocks;
    if (schema->bytes + needed > MAX_BYTES) {
        schema->status =
            grammar_refuse(schema->reading->report, GRAMMAR_TOO_LARGE, "%s: the schema is too large", schema->place);
        return NULL;
    }
    if (!block || block->used + needed > block->capacity) {
        size_t capacity = needed > BLOCK_BYTES ? needed : BLOCK_BYTES;
        block = calloc(1, sizeof *block + 16 + capacity);
        schema->status = status_allocated(block);
        if (schema->status)
            return NULL;
        *block = (struct block){.next = schema->blocks, .capacity = capacity};
        schema->blocks = block;
        schema->bytes += capacity;
    }
    void *memory = (char *)(block + 1) + block->used;
    block->used += needed;
    return memory;
}

void schema_free_blocks(struct schema *schema) {
    while (schema->blocks) {
        struct block *next = schema->blocks->next;
        free(schema->blocks);
        schema->blocks = next;
    }
}

uint32_t schema_name(struct schema *schema, const char *text, size_t length) {
    uint32_t hash = schema_hash(text, length), at = schema->name_buckets[hash];
    for (; at; at = schema->names[at - 1].next_same_hash)
        if (schema->names[at - 1].length == length && !memcmp(schema->names[at - 1].text, text, length))
            return at - 1;
    if (!schema->status)
        schema->status =
            array_reserve(&schema->names, &schema->name_capacity, schema->name_count + 1, sizeof *schema->names);
    char *copy = schema_take(schema, length + 1, 1);
    if (!copy)
        return 0;
    memcpy(copy, text, length);
    schema->names[schema->name_count] =
        (struct name){.text = copy, .length = length, .next_same_hash = schema->name_buckets[hash]};
    schema->name_buckets[hash] = (uint32_t)++schema->name_count;
    return (uint32_t)schema->name_count - 1;
}

/* ---- places ---- */

static uint32_t hash_pointer(const void *pointer) {
    return schema_hash(&pointer, sizeof pointer);
}

uint32_t schema_place_of(struct schema *schema, const json_t *value) {
    for (uint32_t at = schema->place_buckets[hash_pointer(value)]; at; at = schema->places[at - 1].next_same_hash)
        if (schema->places[at - 1].value == value)
            return at - 1;
    return 0;
}

static int add_resource(struct schema *schema, struct resource resource) {
    TRY(array_reserve(&schema->resources, &schema->resource_capacity, schema->resource_count + 1,
                      sizeof *schema->resources));
    schema->resources[schema->resource_count++] = resource;
    return STATUS_OK;
}

static const char *copy_text(struct schema *schema, const char *text, size_t length) {
    char *copy = schema_take(schema, length + 1, 1);
    if (copy)
        memcpy(copy, text, length);
    return copy ? copy : "";
}

/* Returns the length of a URI's part before `end`, which begins its path. */
static size_t path_at(const char *uri) {
    const char *colon = strpbrk(uri, ":/?#");
    if (!colon || *colon != ':')
        return 0;
    if (strncmp(colon, "://", 3))
        return (size_t)(colon + 1 - uri);
    return (size_t)(colon + 3 - uri) + strcspn(colon + 3, "/?#");
}

/* Resolves a reference's URI (without its fragment) against a base, as RFC 3986 does. */
static const char *resolve_uri(struct schema *schema, const char *base, const char *uri, size_t length) {
    struct strbuf made = STRBUF_INIT;
    const char *reference = copy_text(schema, uri, length);
    size_t authority = path_at(base);
    if (!*reference) {
        strbuf_add_text(&made, base);
    } else if (path_at(reference)) {
        strbuf_add_text(&made, reference);
    } else {
        const char *slash = strrchr(base + authority, '/');
        strbuf_add(&made, base, *reference == '/' || !slash ? authority : (size_t)(slash + 1 - base));
        while (!strncmp(reference, "./", 2) || !strncmp(reference, "../", 3)) {
            bool is_up = reference[1] == '.';
            reference += is_up ? 3 : 2;
            while (is_up && made.length > authority + 1 && made.data[made.length - 2] != '/')
                made.data[--made.length] = 0;
            if (is_up && made.length > authority + 1)
                made.data[--made.length] = 0;
        }
        strbuf_add_text(&made, reference);
    }
    if (!schema->status)
        schema->status = strbuf_status(&made);
    const char *copy = copy_text(schema, strbuf_text(&made), made.length);
    strbuf_free(&made);
    return copy;
}

static const char *base_of(const struct schema *schema, uint32_t place) {
    for (size_t i = 0; i < schema->resource_count; i++)
        if (schema->resources[i].place == place && !schema->resources[i].anchor)
            return schema->resources[i].uri;
    return "";
}

/* Lists what the place names: itself by $id, and anchors. */
static int add_names(struct schema *schema, uint32_t at) {
    static const char *const ids[] = {"$id", "id"}, *const anchors[] = {"$anchor", "$dynamicAnchor"};
    struct schema_place *place = &schema->places[at];
    uint32_t outer = place->base;
    for (size_t i = 0; i < 2; i++) {
        const char *id = json_string_value(json_object_get(place->value, ids[i]));
        const char *fragment = id ? strchr(id, '#') : NULL;
        size_t length = fragment ? (size_t)(fragment - id) : id ? strlen(id) : 0;
        if (length) {
            place->base = at;
            TRY(add_resource(schema, (struct resource){.uri = resolve_uri(schema, base_of(schema, outer), id, length),
                                                       .place = at,
                                                       .base = at}));
        }
        if (fragment && fragment[1] && fragment[1] != '/')
            TRY(add_resource(schema, (struct resource){.anchor = fragment + 1, .place = at, .base = place->base}));
        if (length)
            break;
    }
    for (size_t i = 0; i < 2; i++) {
        const char *anchor = json_string_value(json_object_get(place->value, anchors[i]));
        if (anchor)
            TRY(add_resource(schema, (struct resource){.anchor = anchor, .place = at, .base = place->base}));
    }
    return schema->status;
}

/* Adds a place for a value with members. */
static int add_place(struct schema *schema, const json_t *value, uint32_t parent, const char *key, uint32_t index) {
    if (!json_is_object(value) && !json_is_array(value))
        return STATUS_OK;
    if (schema->place_count == MAX_PLACES)
        return grammar_refuse(schema->reading->report, GRAMMAR_TOO_LARGE, "%s: the schema is too large", schema->place);
    TRY(array_reserve(&schema->places, &schema->place_capacity, schema->place_count + 1, sizeof *schema->places));
    uint32_t hash = hash_pointer(value), at = (uint32_t)schema->place_count++;
    schema->places[at] = (struct schema_place){.value = value,
                                               .parent = parent,
                                               .base = at ? schema->places[parent].base : 0,
                                               .key = key,
                                               .index = index,
                                               .next_same_hash = schema->place_buckets[hash]};
    schema->place_buckets[hash] = at + 1;
    return json_is_object(value) ? add_names(schema, at) : STATUS_OK;
}

int schema_index(struct schema *schema, const json_t *root) {
    TRY(add_place(schema, root, 0, NULL, 0));
    if (!schema->resource_count || base_of(schema, 0)[0] == 0)
        TRY(add_resource(schema, (struct resource){.uri = "", .place = 0, .base = 0}));
    for (uint32_t at = 0; at < schema->place_count; at++) {
        const json_t *value = schema->places[at].value, *member;
        const char *key;
        uint32_t index = 0;
        json_object_foreach((json_t *)value, key, member) {
            TRY(add_place(schema, member, at, key, index));
            index++;
        }
        for (size_t i = 0; i < json_array_size(value); i++)
            TRY(add_place(schema, json_array_get(value, i), at, NULL, (uint32_t)i));
    }
    return STATUS_OK;
}

/* ---- messages ---- */

/* Lists a place and its ancestors, the outermost first. Returns their number. */
static size_t ancestors(const struct schema *schema, uint32_t at, uint32_t path[MAX_DEPTH]) {
    size_t count = 0, made = 0;
    uint32_t back[MAX_DEPTH];
    for (; at && count < MAX_DEPTH; at = schema->places[at].parent)
        back[count++] = at;
    while (count)
        path[made++] = back[--count];
    return made;
}

static void add_key(struct strbuf *out, const char *key) {
    bool is_plain =
        *key && strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$-") == strlen(key);
    strbuf_add_text(out, is_plain ? "." : "[");
    if (is_plain)
        strbuf_add_text(out, key);
    else
        json_add_string(out, key, strlen(key));
    strbuf_add_text(out, is_plain ? "" : "]");
}

int schema_refuse(struct schema *schema, const json_t *value, const char *keyword, enum grammar_refusal refusal,
                  const char *format, ...) {
    struct strbuf place = STRBUF_INIT;
    uint32_t path[MAX_DEPTH];
    size_t count = ancestors(schema, schema_place_of(schema, value), path);
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    strbuf_add_text(&place, schema->place);
    for (size_t i = 0; i < count; i++)
        if (schema->places[path[i]].key)
            add_key(&place, schema->places[path[i]].key);
        else
            strbuf_format(&place, "[%u]", schema->places[path[i]].index);
    if (keyword)
        add_key(&place, keyword);
    int status = grammar_refuse(schema->reading->report, refusal, "%s: %s", strbuf_text(&place), text);
    strbuf_free(&place);
    return status;
}

static void add_pointer(struct strbuf *out, const char *key) {
    strbuf_add_char(out, '/');
    for (; *key; key++)
        if (*key == '~' || *key == '/')
            strbuf_add_text(out, *key == '~' ? "~0" : "~1");
        else
            strbuf_add_char(out, *key);
}

int schema_ignore(struct schema *schema, const json_t *value, const char *keyword, const char *detail) {
    struct strbuf order = STRBUF_INIT, text = STRBUF_INIT;
    uint32_t path[MAX_DEPTH], index = 0;
    size_t count = ancestors(schema, schema_place_of(schema, value), path);
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)value, key, member) {
        if (keyword && !strcmp(key, keyword))
            break;
        index++;
    }
    for (const char *at = schema->place + 1; *at; at++) /* "$.a[0]" as a pointer */
        if (*at != ']')
            strbuf_add_char(&text, *at == '.' || *at == '[' ? '/' : *at);
    for (size_t i = 0; i < count; i++) {
        const struct schema_place *place = &schema->places[path[i]];
        strbuf_format(&order, "%08x", place->index);
        if (place->key)
            add_pointer(&text, place->key);
        else
            strbuf_format(&text, "/%u", place->index);
    }
    strbuf_format(&order, "%08x", index);
    if (keyword)
        add_pointer(&text, keyword);
    if (detail)
        strbuf_format(&text, ": %s", detail);
    bool is_known = false;
    for (size_t i = 0; i < schema->ignored_count && !is_known; i++)
        is_known = !strcmp(schema->ignored[i].text, strbuf_text(&text));
    int status = strbuf_status(&order);
    THEN(status, strbuf_status(&text));
    THEN(status, array_reserve(&schema->ignored, &schema->ignored_capacity, schema->ignored_count + 1,
                               sizeof *schema->ignored));
    if (!status && !is_known)
        schema->ignored[schema->ignored_count++] =
            (struct ignored){.order = copy_text(schema, strbuf_text(&order), order.length),
                             .text = copy_text(schema, strbuf_text(&text), text.length)};
    strbuf_free(&order);
    strbuf_free(&text);
    return status ? status : schema->status;
}

int schema_drop(struct schema *schema, const json_t *value, const char *keyword, const char *why, bool *is_dropped) {
    *is_dropped = true;
    return schema->reading->is_lenient ? schema_ignore(schema, value, keyword, NULL)
                                       : schema_refuse(schema, value, keyword, GRAMMAR_UNSUPPORTED, "%s", why);
}

static int compare_ignored(const void *left, const void *right) {
    return strcmp(((const struct ignored *)left)->order, ((const struct ignored *)right)->order);
}

int schema_report_ignored(struct schema *schema) {
    int status = STATUS_OK;
    if (!schema->ignored_count)
        return STATUS_OK;
    qsort(schema->ignored, schema->ignored_count, sizeof *schema->ignored, compare_ignored);
    for (size_t i = 0; !status && i < schema->ignored_count; i++)
        status = grammar_ignore(schema->reading->report, schema->ignored[i].text);
    return status;
}

/* ---- keywords ---- */

enum form {
    FREE,
    BOOLEAN,
    TEXT,
    NUMBER,
    STEP,  /* a number above 0 */
    LIMIT, /* a number, or draft 4's boolean */
    COUNT,
    LIST,
    TEXTS, /* without repetition */
    TYPES,
    SCHEMA,
    SCHEMAS,
    SCHEMA_MAP,
    DEFINITIONS,  /* a map whose values are schemas where something refers to them */
    ITEMS,        /* a schema or a list */
    DEPENDENCIES, /* of each name, a schema or names */
    NAMES_MAP,
};
static const char *const EXPECTED[] = {
    [BOOLEAN] = "expected true or false",
    [TEXT] = "expected a string",
    [NUMBER] = "expected a number",
    [STEP] = "expected a number above 0",
    [LIMIT] = "expected a number or a boolean",
    [COUNT] = "expected an integer that is not negative",
    [LIST] = "expected an array",
    [TEXTS] = "expected an array of different strings",
    [TYPES] = "expected a type (null, boolean, integer, number, string, array, object) or an array of types",
    [SCHEMA] = "expected a schema: an object or a boolean",
    [SCHEMAS] = "expected an array of schemas that is not empty",
    [SCHEMA_MAP] = "expected an object of schemas",
    [DEFINITIONS] = "expected an object of schemas",
    [ITEMS] = "expected a schema or an array of schemas",
    [DEPENDENCIES] = "expected an object of schemas or of arrays of strings",
    [NAMES_MAP] = "expected an object of arrays of strings",
};
static const struct keyword {
    const char *name;
    enum form form;
} KEYWORDS[] = {
    {"$anchor", TEXT},
    {"$comment", FREE},
    {"$defs", DEFINITIONS},
    {"$dynamicAnchor", TEXT},
    {"$dynamicRef", TEXT},
    {"$id", TEXT},
    {"$recursiveAnchor", FREE},
    {"$recursiveRef", TEXT},
    {"$ref", TEXT},
    {"$schema", FREE},
    {"$vocabulary", FREE},
    {"additionalItems", SCHEMA},
    {"additionalProperties", SCHEMA},
    {"allOf", SCHEMAS},
    {"anyOf", SCHEMAS},
    {"const", FREE},
    {"contains", SCHEMA},
    {"contentEncoding", FREE},
    {"contentMediaType", FREE},
    {"contentSchema", FREE},
    {"default", FREE},
    {"definitions", DEFINITIONS},
    {"dependencies", DEPENDENCIES},
    {"dependentRequired", NAMES_MAP},
    {"dependentSchemas", SCHEMA_MAP},
    {"deprecated", FREE},
    {"description", FREE},
    {"else", SCHEMA},
    {"enum", LIST},
    {"examples", FREE},
    {"exclusiveMaximum", LIMIT},
    {"exclusiveMinimum", LIMIT},
    {"format", TEXT},
    {"id", FREE},
    {"if", SCHEMA},
    {"items", ITEMS},
    {"maxContains", COUNT},
    {"maxItems", COUNT},
    {"maxLength", COUNT},
    {"maxProperties", COUNT},
    {"maximum", NUMBER},
    {"minContains", COUNT},
    {"minItems", COUNT},
    {"minLength", COUNT},
    {"minProperties", COUNT},
    {"minimum", NUMBER},
    {"multipleOf", STEP},
    {"not", SCHEMA},
    {"oneOf", SCHEMAS},
    {"pattern", TEXT},
    {"patternProperties", SCHEMA_MAP},
    {"prefixItems", SCHEMAS},
    {"properties", SCHEMA_MAP},
    {"propertyNames", SCHEMA},
    {"readOnly", FREE},
    {"required", TEXTS},
    {"then", SCHEMA},
    {"title", FREE},
    {"type", TYPES},
    {"unevaluatedItems", SCHEMA},
    {"unevaluatedProperties", SCHEMA},
    {"uniqueItems", BOOLEAN},
    {"writeOnly", FREE},
};

static int compare_keyword(const void *name, const void *keyword) {
    return strcmp(name, ((const struct keyword *)keyword)->name);
}

static bool is_schema(const json_t *value) {
    return json_is_object(value) || json_is_boolean(value);
}

static bool are_texts(struct schema *schema, const json_t *list) {
    uint32_t mark = ++schema->mark;
    if (!json_is_array(list))
        return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *text = json_array_get(list, i);
        uint32_t name =
            json_is_string(text) ? schema_name(schema, json_string_value(text), json_string_length(text)) : 0;
        if (!json_is_string(text) || (schema->name_count > name && schema->names[name].marks[0] == mark))
            return false;
        if (schema->name_count > name)
            schema->names[name].marks[0] = mark;
    }
    return true;
}

unsigned schema_type(const char *name) {
    static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return 1u << i;
    return 0;
}

static bool is_type(const json_t *value) {
    return json_is_string(value) && schema_type(json_string_value(value));
}

/* Whether a keyword's value has its form. Schemas in it are checked later, in their turn. */
static bool has_form(struct schema *schema, const json_t *value, enum form form) {
    bool is_map = json_is_object(value), is_list = json_is_array(value), all_schemas = true, all_types = true;
    bool all_names = true, all_either = true;
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)value, key, member) {
        bool is_one = is_schema(member), are_names = !is_one && are_texts(schema, member);
        all_schemas = all_schemas && is_one;
        all_names = all_names && are_names;
        all_either = all_either && (is_one || are_names);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        all_schemas = all_schemas && is_schema(json_array_get(value, i));
        all_types = all_types && is_type(json_array_get(value, i));
    }
    switch (form) {
    case FREE:
        return true;
    case BOOLEAN:
        return json_is_boolean(value);
    case TEXT:
        return json_is_string(value);
    case NUMBER:
        return json_is_number(value);
    case STEP:
        return json_is_number(value) && json_number_value(value) > 0;
    case LIMIT:
        return json_is_number(value) || json_is_boolean(value);
    case COUNT:
        return json_is_number(value) && json_number_value(value) >= 0 &&
               json_number_value(value) == floor(json_number_value(value));
    case LIST:
        return is_list;
    case TEXTS:
        return are_texts(schema, value);
    case TYPES:
        return is_type(value) || (json_array_size(value) && all_types);
    case SCHEMA:
        return is_schema(value);
    case SCHEMAS:
        return json_array_size(value) && all_schemas;
    case SCHEMA_MAP:
        return is_map && all_schemas;
    case DEFINITIONS:
        return is_map;
    case ITEMS:
        return is_schema(value) || (is_list && all_schemas);
    case DEPENDENCIES:
        return is_map && all_either;
    case NAMES_MAP:
        return is_map && all_names;
    }
    return false;
}

static int add_task(struct schema *schema, const json_t ***tasks, size_t *count, size_t *capacity,
                    const json_t *value) {
    if (!json_is_object(value) || schema->places[schema_place_of(schema, value)].is_schema)
        return STATUS_OK;
    TRY(array_reserve(tasks, capacity, *count + 1, sizeof **tasks));
    (*tasks)[(*count)++] = value;
    return STATUS_OK;
}

static int check_keywords(struct schema *schema, const json_t *value, const json_t ***tasks, size_t *count,
                          size_t *capacity) {
    const char *key, *inner;
    json_t *member, *one;
    json_object_foreach((json_t *)value, key, member) {
        const struct keyword *keyword =
            bsearch(key, KEYWORDS, sizeof KEYWORDS / sizeof *KEYWORDS, sizeof *KEYWORDS, compare_keyword);
        if (!keyword && strncmp(key, "x-", 2))
            TRY(schema_ignore(schema, value, key, NULL));
        if (!keyword)
            continue;
        bool is_fine = has_form(schema, member, keyword->form);
        TRY(schema->status);
        if (!is_fine)
            return schema_refuse(schema, value, key, GRAMMAR_INVALID, "%s", EXPECTED[keyword->form]);
        if (keyword->form < SCHEMA || keyword->form == NAMES_MAP)
            continue;
        if (keyword->form != SCHEMA_MAP && keyword->form != DEFINITIONS && keyword->form != DEPENDENCIES)
            TRY(add_task(schema, tasks, count, capacity, member));
        else
            json_object_foreach(member, inner, one) {
                TRY(add_task(schema, tasks, count, capacity, one));
            }
        for (size_t i = 0; i < json_array_size(member); i++)
            TRY(add_task(schema, tasks, count, capacity, json_array_get(member, i)));
    }
    return schema->status;
}

int schema_check(struct schema *schema, const json_t *value) {
    const json_t **tasks = NULL;
    size_t count = 0, capacity = 0;
    if (!is_schema(value))
        return schema_refuse(schema, value, NULL, GRAMMAR_INVALID, "%s", EXPECTED[SCHEMA]);
    int status = add_task(schema, &tasks, &count, &capacity, value);
    while (!status && count) {
        const json_t *next = tasks[--count];
        struct schema_place *place = &schema->places[schema_place_of(schema, next)];
        if (!place->is_schema) {
            place->is_schema = true;
            status = check_keywords(schema, next, &tasks, &count, &capacity);
        }
    }
    free(tasks);
    return status;
}

/* ---- references ---- */

static int hex_of(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* Decodes one part of a pointer, up to "/", into a name. Returns where it ends. */
static const char *decode_part(const char *at, struct strbuf *name) {
    strbuf_clear(name);
    for (; *at && *at != '/'; at++) {
        char c = *at;
        if (c == '%' && hex_of(at[1]) >= 0 && hex_of(at[2]) >= 0) {
            c = (char)(hex_of(at[1]) * 16 + hex_of(at[2]));
            at += 2;
        }
        if (c == '~' && (at[1] == '0' || at[1] == '1'))
            c = *++at == '0' ? '~' : '/';
        strbuf_add_char(name, c);
    }
    return at;
}

static const json_t *follow_pointer(struct schema *schema, const json_t *value, const char *pointer) {
    struct strbuf name = STRBUF_INIT;
    while (value && *pointer == '/') {
        pointer = decode_part(pointer + 1, &name);
        const char *text = strbuf_text(&name);
        if (json_is_array(value))
            value = *text && strspn(text, "0123456789") == name.length && name.length < 9
                        ? json_array_get(value, (size_t)atoi(text))
                        : NULL;
        else
            value = name.length == strlen(text) ? json_object_get(value, text) : NULL;
    }
    if (!schema->status)
        schema->status = strbuf_status(&name);
    strbuf_free(&name);
    return *pointer ? NULL : value;
}

int schema_find(struct schema *schema, const json_t *from, const char *reference, const json_t **target) {
    size_t length = strcspn(reference, "#");
    const char *fragment = reference[length] ? reference + length + 1 : "";
    uint32_t base = schema->places[schema_place_of(schema, from)].base;
    const char *uri = resolve_uri(schema, base_of(schema, base), reference, length);
    bool is_known = length == 0;
    *target = NULL;
    TRY(schema->status);
    for (size_t i = 0; length && i < schema->resource_count && !is_known; i++)
        if (!schema->resources[i].anchor && !strcmp(schema->resources[i].uri, uri)) {
            base = schema->resources[i].place;
            is_known = true;
        }
    if (!is_known)
        return schema_refuse(schema, from, "$ref", GRAMMAR_UNSUPPORTED, "'%.*s' is in another document", SHOWN,
                             reference);
    if (!*fragment || *fragment == '/')
        *target = follow_pointer(schema, schema->places[base].value, fragment);
    for (size_t i = 0; i < schema->resource_count && !*target; i++)
        if (schema->resources[i].anchor && schema->resources[i].base == base &&
            !strcmp(schema->resources[i].anchor, fragment))
            *target = schema->places[schema->resources[i].place].value;
    TRY(schema->status);
    if (!*target || !is_schema(*target))
        return schema_refuse(schema, from, "$ref", GRAMMAR_INVALID, "'%.*s' is no schema of this document", SHOWN,
                             reference);
    TRY(schema_check(schema, *target));
    return schema->status;
}
