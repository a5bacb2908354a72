/* Structural tags: free text in which tags appear, and formats made of parts. Both forms of the JSON.
 *
 * Each format has a rule, and a list holds the formats whose rules have no body yet: nothing recurses on an input.
 *
 * Free text ends at the first place where one of its guards (a trigger, or the end of a tag around it) occurs. A guard
 * can also begin in the free text and end in what follows; free_text() forbids the beginnings that would. */
#include "readers-internal.h"

#include <stdarg.h>

enum { MAX_DEPTH = 64, MAX_FORMATS = 1 << 16, MAX_GUARDS = 1024, MAX_GUARD_BYTES = 1024, SHOWN_PLACE = 160 };

struct tag;
struct text {
    const char *bytes;
    size_t length;
};
struct format {
    const json_t *json;
    rule_id rule;
    size_t parent; /* its own number for the outermost */
    const char *key;
    size_t index; /* in the list `key` of its parent; SIZE_MAX: the key's value */
    size_t depth;
    const json_t *part; /* of the request that it belongs to; NULL: none */
    const char *place;  /* that messages begin with; NULL: that of its parent, and then its key */
    int (*read)(struct tag *tag, size_t number);
    /* The end of the innermost tag around it, a text or a list; NULL: none. Free text does not hold it. The language of
     * the format includes it where `has_end` is set. */
    const json_t *end;
    bool has_end;
};
struct tag {
    struct grammar_reading *reading;
    struct rules *rules;
    struct regexes *regexes;
    regex characters; /* any text of whole characters */
    struct format *formats;
    size_t count, capacity;
};
struct guards {
    struct text items[MAX_GUARDS];
    size_t count;
    regex any; /* one of them, or a text that is excluded */
};
/* The keys that a format may have, the required ones first, and how its rule is made. */
struct format_type {
    const char *name;
    const char *keys[6];
    size_t needed;
    int (*read)(struct tag *tag, size_t number);
};

/* ---- messages ---- */

/* Appends the place of a format's key, "$.format.elements[2].begin". */
static void add_place(const struct tag *tag, size_t number, const char *key, struct strbuf *out) {
    size_t path[MAX_DEPTH + 2], depth = 0, at = number;
    for (; !tag->formats[at].place; at = tag->formats[at].parent)
        path[depth++] = at;
    strbuf_add_text(out, tag->formats[at].place);
    while (depth > 0) {
        const struct format *format = &tag->formats[path[--depth]];
        strbuf_format(out, ".%s", format->key);
        if (format->index != SIZE_MAX)
            strbuf_format(out, "[%zu]", format->index);
    }
    if (key && out->length) /* a text that is the whole field has no place */
        strbuf_format(out, ".%.64s", key);
}

static int refuse(struct tag *tag, size_t number, const char *key, enum grammar_refusal refusal, const char *format,
                  ...) __attribute__((format(printf, 5, 6)));
static int refuse(struct tag *tag, size_t number, const char *key, enum grammar_refusal refusal, const char *format,
                  ...) {
    struct strbuf place = STRBUF_INIT;
    char message[300];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    add_place(tag, number, key, &place);
    int status = grammar_refuse(tag->reading->report, refusal, "%.*s%s%s", SHOWN_PLACE, strbuf_text(&place),
                                place.length > SHOWN_PLACE ? "...: "
                                : place.length             ? ": "
                                                           : "",
                                message);
    strbuf_free(&place);
    return status;
}

static int refuse_type(struct tag *tag, size_t number, const char *key, const char *expected) {
    return refuse(tag, number, key, GRAMMAR_INVALID, "expected %s", expected);
}

/* ---- keys ---- */

static const json_t *find(const struct tag *tag, size_t number, const char *key) {
    const json_t *value = json_object_get(tag->formats[number].json, key);
    return json_is_null(value) ? NULL : value;
}

static struct text text_of(const json_t *value) {
    return (struct text){json_string_value(value), json_string_length(value)};
}

static int read_text(struct tag *tag, size_t number, const char *key, struct text *text) {
    const json_t *value = find(tag, number, key);
    *text = text_of(value);
    return json_is_string(value) ? STATUS_OK : refuse_type(tag, number, key, "a text");
}

static int read_flag(struct tag *tag, size_t number, const char *key, bool *flag) {
    const json_t *value = find(tag, number, key);
    *flag = json_is_true(value);
    return !value || json_is_boolean(value) ? STATUS_OK : refuse_type(tag, number, key, "true or false");
}

static int read_count(struct tag *tag, size_t number, const char *key, int32_t otherwise, int32_t *count) {
    const json_t *value = find(tag, number, key);
    json_int_t given = value ? json_integer_value(value) : otherwise;
    if (value && (!json_is_integer(value) || given < -1 || given >= REGEX_ENDLESS))
        return refuse_type(tag, number, key, "a number of times");
    *count = given == -1 ? REGEX_ENDLESS : (int32_t)given;
    return STATUS_OK;
}

/* Finds a list with a minimum number of values. */
static int read_list(struct tag *tag, size_t number, const char *key, size_t least, const json_t **list) {
    *list = find(tag, number, key);
    if (json_is_array(*list) && json_array_size(*list) >= least)
        return STATUS_OK;
    return refuse_type(tag, number, key, least ? "a list that is not empty" : "a list");
}

/* A text or a list of texts as a list: its size and its items. */
static size_t text_count(const json_t *texts) {
    return json_is_array(texts) ? json_array_size(texts) : texts != NULL;
}

static struct text text_at(const json_t *texts, size_t number) {
    return text_of(json_is_array(texts) ? json_array_get(texts, number) : texts);
}

static int check_texts(struct tag *tag, size_t number, const char *key, const json_t *texts) {
    size_t count = text_count(texts);
    for (size_t i = 0; i < count; i++) {
        struct text text = text_at(texts, i);
        if (!text.length)
            return refuse_type(tag, number, key, "texts that are not empty");
        if (text.length > MAX_GUARD_BYTES)
            return refuse(tag, number, key, GRAMMAR_TOO_LARGE, "a text of more than %d bytes", MAX_GUARD_BYTES);
    }
    return STATUS_OK;
}

/* ---- nodes ---- */

static rule_node terminal(struct tag *tag, regex term) {
    return term == REGEX_EMPTY ? RULE_EMPTY : rule_terminal(tag->rules, term);
}

/* Returns the bytes of a text before the first name of a special token, and that token; -1: none. */
static size_t plain_length(const struct tag *tag, struct text text, int32_t *id, size_t *bytes) {
    size_t at = 0;
    for (*id = -1; at < text.length && *id < 0; at += *id < 0)
        *id = grammar_vocabulary_special(tag->reading->vocabulary, text.bytes + at, text.length - at, bytes);
    return at;
}

/* A text of the format itself. Names of special tokens in it are these tokens. */
static rule_node text_node(struct tag *tag, struct text text) {
    rule_node node = RULE_EMPTY;
    while (text.length) {
        int32_t id;
        size_t bytes = 0, plain = plain_length(tag, text, &id, &bytes);
        node = rule_join(tag->rules, node, terminal(tag, regex_text(tag->regexes, text.bytes, plain)));
        if (id >= 0)
            node = rule_join(tag->rules, node, rule_special(tag->rules, id));
        text = (struct text){text.bytes + plain + bytes, text.length - plain - bytes};
    }
    return node;
}

/* The end of the format, if its language includes it. */
static rule_node end_node(struct tag *tag, const struct format *format) {
    rule_node node = format->has_end ? RULE_NOTHING : RULE_EMPTY;
    for (size_t i = 0; format->has_end && i < text_count(format->end); i++)
        node = rule_either(tag->rules, node, text_node(tag, text_at(format->end, i)));
    return node;
}

static void define(struct tag *tag, size_t number, rule_node node) {
    const struct format *format = &tag->formats[number];
    rule_define(tag->rules, format->rule, rule_join(tag->rules, node, end_node(tag, format)));
}

/* ---- free text ---- */

static bool begins_with(struct text text, struct text beginning) {
    return beginning.length <= text.length && !memcmp(text.bytes, beginning.bytes, beginning.length);
}

/* Texts that contain one of the language. */
static regex containing(struct tag *tag, regex inner) {
    return regex_join(tag->regexes, REGEX_ANY, regex_join(tag->regexes, inner, REGEX_ANY));
}

/* Free text before `next`: no guard begins in it, not even one that ends in `next`. */
static regex free_text(struct tag *tag, const struct guards *guards, struct text next) {
    regex forbidden = guards->count || guards->any != REGEX_NOTHING ? containing(tag, guards->any) : REGEX_NOTHING;
    for (size_t i = 0; i < guards->count; i++) {
        struct text guard = guards->items[i];
        for (size_t begun = 1; begun < guard.length; begun++) {
            struct text rest = {guard.bytes + begun, guard.length - begun};
            if (!begins_with(next, rest))
                continue;
            regex ending = regex_join(tag->regexes, REGEX_ANY, regex_text(tag->regexes, guard.bytes, begun));
            forbidden = regex_either(tag->regexes, forbidden, ending);
        }
    }
    return forbidden == REGEX_NOTHING ? tag->characters
                                      : regex_both(tag->regexes, tag->characters, regex_not(tag->regexes, forbidden));
}

/* Adds texts that the free text may not hold. */
static int add_guards(struct tag *tag, size_t number, const char *key, const json_t *texts, struct guards *guards) {
    TRY(check_texts(tag, number, key, texts));
    if (guards->count + text_count(texts) > MAX_GUARDS)
        return refuse(tag, number, key, GRAMMAR_TOO_LARGE, "more than %d texts", MAX_GUARDS);
    for (size_t i = 0; i < text_count(texts); i++) {
        struct text text = text_at(texts, i);
        guards->items[guards->count++] = text;
        guards->any = regex_either(tag->regexes, guards->any, regex_text(tag->regexes, text.bytes, text.length));
    }
    return STATUS_OK;
}

/* Begins the guards of a format: the end around it, and what it excludes by itself. */
static int begin_guards(struct tag *tag, size_t number, struct guards *guards) {
    const json_t *excludes = find(tag, number, "excludes");
    *guards = (struct guards){.any = REGEX_NOTHING};
    if (excludes && !json_is_array(excludes))
        return refuse_type(tag, number, "excludes", "a list");
    TRY(add_guards(tag, number, "excludes", excludes, guards));
    guards->count = 0; /* an excluded text may begin in the free text and end after it */
    return add_guards(tag, number, "end", tag->formats[number].end, guards);
}

/* The free text up to the format's end, and the end if it is the format's. */
static rule_node last_text(struct tag *tag, const struct format *format, const struct guards *guards) {
    rule_node node = RULE_NOTHING;
    if (!format->has_end)
        return rule_terminal(tag->rules, free_text(tag, guards, (struct text){"", 0}));
    for (size_t i = 0; i < text_count(format->end); i++) {
        struct text end = text_at(format->end, i);
        rule_node text = rule_terminal(tag->rules, free_text(tag, guards, end));
        node = rule_either(tag->rules, node, rule_join(tag->rules, text, text_node(tag, end)));
    }
    return node;
}

/* ---- the list of formats ---- */

static int read_format(struct tag *tag, size_t number);
static int check_keys(struct tag *tag, size_t number, const struct format_type *type);

/* Adds a format, the last one in the list then. */
static int add_format(struct tag *tag, struct format format) {
    if (tag->count) {
        format.depth = tag->formats[format.parent].depth + 1;
        format.part = tag->formats[format.parent].part;
    }
    if (format.depth > MAX_DEPTH)
        return refuse(tag, format.parent, format.key, GRAMMAR_TOO_LARGE, "more than %d nested formats", MAX_DEPTH);
    if (tag->count == MAX_FORMATS)
        return refuse(tag, format.parent, format.key, GRAMMAR_TOO_LARGE, "more than %d formats", MAX_FORMATS);
    TRY(array_reserve(&tag->formats, &tag->capacity, tag->count + 1, sizeof *tag->formats));
    format.rule = rule_declare(tag->rules);
    tag->formats[tag->count++] = format;
    return STATUS_OK;
}

static rule_node call_last(struct tag *tag) {
    return rule_call(tag->rules, tag->formats[tag->count - 1].rule);
}

/* Adds a part of a format, which has its parent's end if it is the last one. */
static int add_part(struct tag *tag, size_t parent, const char *key, size_t index, bool is_last, rule_node *node) {
    const json_t *value = find(tag, parent, key);
    const struct format *whole = &tag->formats[parent];
    TRY(add_format(tag, (struct format){.json = index == SIZE_MAX ? value : json_array_get(value, index),
                                        .parent = parent,
                                        .key = key,
                                        .index = index,
                                        .read = read_format,
                                        .end = whole->end,
                                        .has_end = is_last && whole->has_end}));
    *node = call_last(tag);
    return STATUS_OK;
}

/* ---- formats ---- */

static int read_const(struct tag *tag, size_t number) {
    struct text value;
    TRY(read_text(tag, number, "value", &value));
    define(tag, number, text_node(tag, value));
    return STATUS_OK;
}

/* The format is a schema, without anything around it. */
static int read_bare(struct tag *tag, size_t number, bool is_xml) {
    struct strbuf place = STRBUF_INIT;
    const json_t *schema = tag->formats[number].json;
    rule_node node = RULE_NOTHING;
    add_place(tag, number, NULL, &place);
    int status = strbuf_status(&place);
    if (!status && !json_is_object(schema) && !json_is_boolean(schema))
        status = refuse_type(tag, number, NULL, "a schema");
    THEN(status, (is_xml ? parameters_read : schema_read_value)(tag->reading, schema, strbuf_text(&place), &node));
    strbuf_free(&place);
    if (!status)
        define(tag, number, node);
    return status;
}

static int read_bare_json(struct tag *tag, size_t number) {
    return read_bare(tag, number, false);
}

static int read_bare_xml(struct tag *tag, size_t number) {
    return read_bare(tag, number, true);
}

static int read_schema_key(struct tag *tag, size_t number, bool is_xml) {
    rule_node node;
    TRY(add_part(tag, number, "json_schema", SIZE_MAX, true, &node));
    tag->formats[tag->count - 1].read = is_xml ? read_bare_xml : read_bare_json;
    rule_define(tag->rules, tag->formats[number].rule, node);
    return STATUS_OK;
}

static int read_schema(struct tag *tag, size_t number) {
    struct text style = {"json", 4};
    if (find(tag, number, "style"))
        TRY(read_text(tag, number, "style", &style));
    bool is_xml = !strcmp(style.bytes, "qwen_xml");
    if (!is_xml && strcmp(style.bytes, "json") != 0)
        return refuse(tag, number, "style", GRAMMAR_UNSUPPORTED, "expected \"json\" or \"qwen_xml\"");
    return read_schema_key(tag, number, is_xml);
}

static int read_parameters(struct tag *tag, size_t number) {
    return read_schema_key(tag, number, true);
}

static int read_any_text(struct tag *tag, size_t number) {
    struct guards *guards = malloc(sizeof *guards);
    int status = status_allocated(guards);
    THEN(status, begin_guards(tag, number, guards));
    if (!status)
        rule_define(tag->rules, tag->formats[number].rule, last_text(tag, &tag->formats[number], guards));
    free(guards);
    return status;
}

static int read_regex(struct tag *tag, size_t number) {
    struct text pattern;
    regex language = REGEX_NOTHING;
    TRY(read_text(tag, number, "pattern", &pattern));
    int status = pattern_read(pattern.bytes, pattern.length, false, false, tag->reading, &language);
    struct grammar_report *report = tag->reading->report;
    if (status && report->refusal) {
        char message[300];
        snprintf(message, sizeof message, "%s", strbuf_text(&report->message));
        return refuse(tag, number, "pattern", report->refusal, "%s", message);
    }
    TRY(status);
    define(tag, number, terminal(tag, language));
    return STATUS_OK;
}

static int read_grammar(struct tag *tag, size_t number) {
    struct text text;
    struct strbuf place = STRBUF_INIT;
    rule_node node = RULE_NOTHING;
    TRY(read_text(tag, number, "grammar", &text));
    add_place(tag, number, "grammar", &place);
    int status = strbuf_status(&place);
    THEN(status, gbnf_read_text(tag->reading, text.bytes, text.length, strbuf_text(&place), &node));
    strbuf_free(&place);
    if (!status)
        define(tag, number, node);
    return status;
}

static int read_sequence(struct tag *tag, size_t number) {
    const json_t *list;
    rule_node node = RULE_EMPTY, part;
    TRY(read_list(tag, number, "elements", 1, &list));
    size_t count = json_array_size(list);
    for (size_t i = 0; i < count; i++) {
        TRY(add_part(tag, number, "elements", i, i + 1 == count, &part));
        node = rule_join(tag->rules, node, part);
    }
    rule_define(tag->rules, tag->formats[number].rule, node);
    return STATUS_OK;
}

static int read_or(struct tag *tag, size_t number) {
    const json_t *list;
    rule_node node = RULE_NOTHING, part;
    TRY(read_list(tag, number, "elements", 1, &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        TRY(add_part(tag, number, "elements", i, true, &part));
        node = rule_either(tag->rules, node, part);
    }
    rule_define(tag->rules, tag->formats[number].rule, node);
    return STATUS_OK;
}

static int read_repeated(struct tag *tag, size_t number, int32_t least, int32_t most) {
    rule_node part;
    bool is_optional = least == 0 && most == 1;
    TRY(add_part(tag, number, "content", SIZE_MAX, is_optional, &part));
    if (is_optional)
        rule_define(tag->rules, tag->formats[number].rule,
                    rule_either(tag->rules, part, end_node(tag, &tag->formats[number])));
    else
        define(tag, number, rule_repeat(tag->rules, part, least, most));
    return STATUS_OK;
}

static int read_optional(struct tag *tag, size_t number) {
    return read_repeated(tag, number, 0, 1);
}

static int read_plus(struct tag *tag, size_t number) {
    return read_repeated(tag, number, 1, REGEX_ENDLESS);
}

static int read_star(struct tag *tag, size_t number) {
    return read_repeated(tag, number, 0, REGEX_ENDLESS);
}

static int read_repeat(struct tag *tag, size_t number) {
    int32_t least = 0, most = 0;
    TRY(read_count(tag, number, "min", 0, &least));
    TRY(read_count(tag, number, "max", -1, &most));
    if (least > most || least == REGEX_ENDLESS)
        return refuse(tag, number, "min", GRAMMAR_INVALID, "more than max");
    return read_repeated(tag, number, least, most);
}

/* ---- tags ---- */

/* Makes what follows the beginning of a tag: its content, which is a schema in the old form, and its end. An empty end
 * is none. */
static int read_rest(struct tag *tag, size_t number, bool is_old, rule_node *rest) {
    const json_t *end = find(tag, number, "end");
    bool is_open = json_is_string(end) && !json_string_length(end);
    if (!is_open)
        TRY(check_texts(tag, number, "end", end));
    if (!text_count(end))
        return refuse_type(tag, number, "end", "a text, or a list of texts");
    TRY(add_part(tag, number, is_old ? "schema" : "content", SIZE_MAX, false, rest));
    struct format *content = &tag->formats[tag->count - 1];
    content->read = is_old ? read_bare_json : read_format;
    content->end = is_open ? content->end : end;
    content->has_end = !is_open;
    return STATUS_OK;
}

static int read_tag(struct tag *tag, size_t number) {
    struct text begin;
    rule_node rest;
    TRY(read_text(tag, number, "begin", &begin));
    TRY(read_rest(tag, number, false, &rest));
    define(tag, number, rule_join(tag->rules, text_node(tag, begin), rest));
    return STATUS_OK;
}

static int read_nothing(struct tag *tag, size_t number) {
    return STATUS_OK;
}

/* Reads one of a format's tags. `rest` follows its beginning. */
static int read_tag_of(struct tag *tag, size_t parent, size_t index, bool is_old, struct text *begin, rule_node *rest) {
    static const struct format_type kinds[2] = {{"tag", {"begin", "content", "end", "type"}, 3, NULL},
                                                {"structure", {"begin", "schema", "end"}, 3, NULL}};
    rule_node unused;
    TRY(add_part(tag, parent, is_old ? "structures" : "tags", index, false, &unused));
    size_t number = tag->count - 1;
    rule_define(tag->rules, tag->formats[number].rule, RULE_EMPTY);
    tag->formats[number].read = read_nothing;
    tag->formats[number].end = NULL; /* free text inside a tag ends with the tag's own end */
    TRY(check_keys(tag, number, &kinds[is_old]));
    TRY(read_text(tag, number, "begin", begin));
    return read_rest(tag, number, is_old, rest);
}

/* Tags that follow the same free text. */
struct tag_group {
    regex free;
    rule_node tags;
};

/* Finds the shortest trigger of a tag. */
static int find_trigger(struct tag *tag, size_t number, const json_t *triggers, struct text begin, struct text *found) {
    *found = (struct text){NULL, SIZE_MAX};
    for (size_t i = 0; i < text_count(triggers); i++) {
        struct text trigger = text_at(triggers, i);
        if (begins_with(begin, trigger) && trigger.length < found->length)
            *found = trigger;
    }
    return found->bytes ? STATUS_OK
                        : refuse(tag, number, "begin", GRAMMAR_INVALID, "no trigger is the beginning of this text");
}

/* Adds each tag to the group of its free text; groups [as many as triggers]. */
static int group_tags(struct tag *tag, size_t number, bool is_old, const struct guards *guards,
                      struct tag_group *groups, size_t *group_count) {
    const json_t *list, *triggers = find(tag, number, "triggers");
    TRY(read_list(tag, number, is_old ? "structures" : "tags", 1, &list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct text begin, trigger;
        rule_node rest;
        int32_t id;
        size_t bytes, group = 0, member = tag->count;
        TRY(read_tag_of(tag, number, i, is_old, &begin, &rest));
        TRY(find_trigger(tag, member, triggers, begin, &trigger));
        size_t plain = plain_length(tag, begin, &id, &bytes);
        if (plain < trigger.length)
            trigger.length = plain;
        regex free = free_text(tag, guards, trigger);
        while (group < *group_count && groups[group].free != free)
            group++;
        if (group == *group_count)
            groups[(*group_count)++] = (struct tag_group){free, RULE_NOTHING};
        rest = rule_join(tag->rules, text_node(tag, begin), rest);
        groups[group].tags = rule_either(tag->rules, groups[group].tags, rest);
    }
    return STATUS_OK;
}

/* Free text with tags: "(free tag)* free". */
static int define_triggered(struct tag *tag, size_t number, const struct guards *guards, const struct tag_group *groups,
                            size_t group_count) {
    bool needs_one, stops;
    TRY(read_flag(tag, number, "at_least_one", &needs_one));
    TRY(read_flag(tag, number, "stop_after_first", &stops));
    const struct format *format = &tag->formats[number];
    rule_id more = rule_declare(tag->rules);
    rule_node next = stops ? end_node(tag, format) : rule_call(tag->rules, more), tags = RULE_NOTHING;
    for (size_t i = 0; i < group_count; i++) {
        rule_node one = rule_join(tag->rules, rule_terminal(tag->rules, groups[i].free), groups[i].tags);
        tags = rule_either(tag->rules, tags, rule_join(tag->rules, one, next));
    }
    rule_id first = rule_declare(tag->rules);
    rule_define(tag->rules, first, tags);
    tags = rule_call(tag->rules, first);
    rule_define(tag->rules, more, rule_either(tag->rules, tags, last_text(tag, format, guards)));
    rule_define(tag->rules, format->rule, needs_one ? tags : rule_call(tag->rules, more));
    return STATUS_OK;
}

static int read_with_triggers(struct tag *tag, size_t number, bool is_old) {
    const json_t *triggers;
    struct guards *guards = malloc(sizeof *guards);
    struct tag_group *groups = NULL;
    size_t group_count = 0;
    int status = status_allocated(guards);
    THEN(status, read_list(tag, number, "triggers", 1, &triggers));
    THEN(status, begin_guards(tag, number, guards));
    THEN(status, add_guards(tag, number, "triggers", triggers, guards));
    if (!status) {
        groups = calloc(guards->count + 1, sizeof *groups);
        status = status_allocated(groups);
    }
    THEN(status, group_tags(tag, number, is_old, guards, groups, &group_count));
    THEN(status, define_triggered(tag, number, guards, groups, group_count));
    free(groups);
    free(guards);
    return status;
}

static int read_triggered(struct tag *tag, size_t number) {
    return read_with_triggers(tag, number, false);
}

static int read_old(struct tag *tag, size_t number) {
    return read_with_triggers(tag, number, true);
}

static int read_separated(struct tag *tag, size_t number) {
    const json_t *list;
    struct text separator = {"", 0};
    bool needs_one, stops;
    rule_id one = rule_declare(tag->rules);
    rule_node tags = RULE_NOTHING, call = rule_call(tag->rules, one);
    TRY(read_list(tag, number, "tags", 1, &list));
    TRY(read_text(tag, number, "separator", &separator));
    TRY(read_flag(tag, number, "at_least_one", &needs_one));
    TRY(read_flag(tag, number, "stop_after_first", &stops));
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct text begin;
        rule_node rest;
        TRY(read_tag_of(tag, number, i, false, &begin, &rest));
        tags = rule_either(tag->rules, tags, rule_join(tag->rules, text_node(tag, begin), rest));
    }
    rule_define(tag->rules, one, tags);
    rule_node more = rule_join(tag->rules, text_node(tag, separator), call);
    if (!stops)
        call = rule_join(tag->rules, call, rule_repeat(tag->rules, more, 0, REGEX_ENDLESS));
    define(tag, number, needs_one ? call : rule_either(tag->rules, call, RULE_EMPTY));
    return STATUS_OK;
}

/* ---- parts of a request ---- */

static int read_root(struct tag *tag, size_t number);

static int read_part(struct tag *tag, size_t number) {
    static const struct {
        const char *key;
        int (*read)(struct tag *tag, size_t number);
    } values[] = {
        {"json_schema", read_bare_json}, {"xml_schema", read_bare_xml}, {"tag", read_root}, {"content", read_format}};
    const json_t *part = tag->formats[number].json;
    rule_node node;
    size_t i = 0;
    while (!json_object_get(part, values[i].key))
        i++;
    TRY(add_part(tag, number, values[i].key, SIZE_MAX, true, &node));
    struct format *value = &tag->formats[tag->count - 1];
    value->read = values[i].read;
    value->part = part;
    value->place = json_string_value(json_object_get(part, "place"));
    value->depth = 0;
    rule_define(tag->rules, tag->formats[number].rule, node);
    return STATUS_OK;
}

/* Lets the reading have the field and the settings of a part, or else its own. */
static void enter_part(struct grammar_reading *reading, const json_t *part) {
    const struct grammar_source *source = reading->source;
    const char *field = part ? json_string_value(json_object_get(part, "field")) : source->field;
    snprintf(reading->report->field, sizeof reading->report->field, "%s", field ? field : "");
    reading->is_compact = part ? json_is_true(json_object_get(part, "is_compact")) : source->is_compact;
    reading->is_closed = part ? json_is_true(json_object_get(part, "is_closed")) : source->is_closed;
    reading->is_lenient = part ? json_is_true(json_object_get(part, "is_lenient")) : source->is_lenient;
}

/* ---- types ---- */

static const struct format_type types[] = {
    {"const_string", {"value"}, 1, read_const},
    {"json_schema", {"json_schema", "style"}, 1, read_schema},
    {"any_text", {"excludes"}, 0, read_any_text},
    {"regex", {"pattern"}, 1, read_regex},
    {"grammar", {"grammar"}, 1, read_grammar},
    {"sequence", {"elements"}, 1, read_sequence},
    {"or", {"elements"}, 1, read_or},
    {"optional", {"content"}, 1, read_optional},
    {"plus", {"content"}, 1, read_plus},
    {"star", {"content"}, 1, read_star},
    {"repeat", {"content", "min", "max"}, 1, read_repeat},
    {"tag", {"begin", "content", "end"}, 3, read_tag},
    {"triggered_tags", {"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}, 2, read_triggered},
    {"tags_with_separator", {"tags", "separator", "at_least_one", "stop_after_first"}, 2, read_separated},
    {"qwen_xml_parameter", {"json_schema"}, 1, read_parameters},
};
/* Types of other servers. */
static const char *const unsupported[] = {"token",    "exclude_token", "any_tokens", "token_triggered_tags",
                                          "dispatch", "token_dispatch"};

/* Refuses a key that the type does not have, and one that it lacks. */
static int check_keys(struct tag *tag, size_t number, const struct format_type *type) {
    enum { KEYS = sizeof type->keys / sizeof *type->keys };
    const char *key;
    json_t *value;
    for (size_t i = 0; i < type->needed; i++)
        if (!find(tag, number, type->keys[i]))
            return refuse(tag, number, NULL, GRAMMAR_INVALID, "a %s needs \"%s\"", type->name, type->keys[i]);
    json_object_foreach((json_t *)tag->formats[number].json, key, value) {
        size_t i = 0;
        while (i < KEYS && type->keys[i] && strcmp(type->keys[i], key) != 0)
            i++;
        if ((i == KEYS || !type->keys[i]) && strcmp(key, "type") != 0 && !json_is_null(value))
            return refuse(tag, number, key, GRAMMAR_UNSUPPORTED, "no key of a %s", type->name);
    }
    return STATUS_OK;
}

static int read_format(struct tag *tag, size_t number) {
    struct text type;
    if (!json_is_object(tag->formats[number].json))
        return refuse_type(tag, number, NULL, "a format, an object");
    TRY(read_text(tag, number, "type", &type));
    if (tag->reading->source->kind == GRAMMAR_ANSWER && !tag->formats[number].part && !strcmp(type.bytes, "part"))
        return read_part(tag, number);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, type.bytes)) {
            TRY(check_keys(tag, number, &types[i]));
            return types[i].read(tag, number);
        }
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (!strcmp(unsupported[i], type.bytes))
            return refuse(tag, number, "type", GRAMMAR_UNSUPPORTED, "\"%s\" is not supported", type.bytes);
    return refuse(tag, number, "type", GRAMMAR_INVALID, "no format is named \"%.64s\"", type.bytes);
}

/* The whole constraint, in either form. */
static int read_root(struct tag *tag, size_t number) {
    static const struct format_type forms[2] = {{"structural tag", {"format"}, 1, NULL},
                                                {"structural tag", {"structures", "triggers"}, 2, NULL}};
    bool is_old = find(tag, number, "structures");
    const json_t *type = find(tag, number, "type");
    rule_node node;
    if (!json_is_object(tag->formats[number].json))
        return refuse_type(tag, number, NULL, "an object");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "structural_tag") != 0))
        return refuse_type(tag, number, "type", "\"structural_tag\"");
    TRY(check_keys(tag, number, &forms[is_old]));
    if (is_old)
        return read_old(tag, number);
    TRY(add_part(tag, number, "format", SIZE_MAX, true, &node));
    rule_define(tag->rules, tag->formats[number].rule, node);
    return STATUS_OK;
}

static int read_formats(struct tag *tag, const json_t *json) {
    TRY(add_format(tag, (struct format){.json = json, .place = "$", .read = read_root}));
    for (size_t i = 0; i < tag->count; i++) {
        enter_part(tag->reading, tag->formats[i].part);
        TRY(tag->formats[i].read(tag, i));
        TRY(regexes_status(tag->regexes));
        TRY(rules_status(tag->rules));
    }
    enter_part(tag->reading, NULL);
    return STATUS_OK;
}

int tag_read(struct grammar_reading *reading, rule_node *node) {
    static const struct regex_range any = {0, 0x10ffff};
    struct tag tag = {.reading = reading, .rules = reading->rules, .regexes = rules_regexes(reading->rules)};
    json_t *json;
    json_error_t error;
    int status = json_read(reading->source->text, reading->source->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL,
                           &json, &error);
    if (status == STATUS_INVALID)
        return grammar_refuse(reading->report, GRAMMAR_INVALID, "line %d, column %d: %s", error.line, error.column,
                              error.text);
    TRY(status);
    regex character = regex_characters(tag.regexes, &any, 1);
    tag.characters = regex_repeat(tag.regexes, character, 0, REGEX_ENDLESS);
    status = read_formats(&tag, json);
    if (!status)
        *node = rule_call(tag.rules, tag.formats[0].rule);
    free(tag.formats);
    json_decref(json);
    return status;
}
