/* Tables of the spellings of a constraint. */
#include "ask_constraint.h"

void ask_constraint_free(struct ask_constraint *constraint) {
    free(constraint->text);
    *constraint = (struct ask_constraint){0};
}

int ask_constraint_take(struct ask_constraint *constraint, const char *field, enum grammar_kind kind, const char *text,
                        size_t length) {
    if (constraint->source.field)
        return status_fail(STATUS_INVALID, "the request has another constraint, %s", constraint->source.field);
    constraint->text = malloc(length + 1);
    TRY(status_allocated(constraint->text));
    memcpy(constraint->text, text, length);
    constraint->text[length] = '\0';
    constraint->source.field = field;
    constraint->source.kind = kind;
    constraint->source.text = constraint->text;
    constraint->source.length = length;
    return STATUS_OK;
}

/* ---- values ---- */

/* Types of a constraint's value. */
enum { A_TEXT = 1, AN_OBJECT = 2, A_LIST = 4, A_BOOL = 8, IS_TRUE = 16 };

static const struct spelling {
    const char *key, *field; /* of structured_outputs, and of a request; NULL: there is none */
    enum grammar_kind kind;
    unsigned values;
    const char *expected;
} spellings[] = {
    {"json", "guided_json", GRAMMAR_JSON_SCHEMA, A_TEXT | AN_OBJECT | A_BOOL, "a schema, or its text"},
    {NULL, "json_schema", GRAMMAR_JSON_SCHEMA, A_TEXT | AN_OBJECT | A_BOOL, "a schema, or its text"},
    {"json_object", "guided_json_object", GRAMMAR_JSON_OBJECT, IS_TRUE, "true or false"},
    {"regex", "guided_regex", GRAMMAR_REGEX, A_TEXT, "a text"},
    {NULL, "regex", GRAMMAR_REGEX, A_TEXT, "a text"},
    {"choice", "guided_choice", GRAMMAR_CHOICE, A_LIST, "a list of texts that are not empty"},
    {"grammar", "guided_grammar", GRAMMAR_GBNF, A_TEXT, "a text"},
    {NULL, "grammar", GRAMMAR_GBNF, A_TEXT, "a text"},
    {NULL, "ebnf", GRAMMAR_GBNF, A_TEXT, "a text"},
    {"structural_tag", NULL, GRAMMAR_TAG, A_TEXT | AN_OBJECT, "a structural tag, an object or its text"},
};
enum { SPELLINGS = sizeof spellings / sizeof *spellings };

/* Takes the JSON of a value. */
static int take_json(struct ask_constraint *constraint, const char *field, enum grammar_kind kind,
                     const json_t *value) {
    char *text;
    json_begin();
    TRY(json_end(json_incref((json_t *)value), JSON_COMPACT | JSON_ENCODE_ANY, &text));
    int status = ask_constraint_take(constraint, field, kind, text, strlen(text));
    free(text);
    return status;
}

static bool are_texts(const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_string_length(json_array_get(list, i)))
            return false;
    return json_array_size(list) > 0;
}

static int take_value(struct ask_constraint *constraint, const char *field, const struct spelling *spelling,
                      const json_t *value) {
    unsigned values = spelling->values;
    if (values & IS_TRUE && json_is_true(value))
        return ask_constraint_take(constraint, field, spelling->kind, "", 0);
    if (values & IS_TRUE && json_is_false(value))
        return STATUS_OK;
    if (values & A_TEXT && json_is_string(value))
        return ask_constraint_take(constraint, field, spelling->kind, json_string_value(value),
                                   json_string_length(value));
    if ((values & AN_OBJECT && json_is_object(value)) || (values & A_LIST && are_texts(value)) ||
        (values & A_BOOL && json_is_boolean(value)))
        return take_json(constraint, field, spelling->kind, value);
    return status_fail(STATUS_INVALID, "expected %s", spelling->expected);
}

static int read_flag(const json_t *value, const char *key, bool *flag) {
    *flag = json_is_true(value);
    return !value || json_is_boolean(value) || json_is_null(value)
               ? STATUS_OK
               : status_fail(STATUS_INVALID, "%s: expected true or false", key);
}

/* Refuses keys that are not in the list, which ends with NULL. */
static int check_keys(const json_t *object, const char *const *known) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i] && !json_is_null(value))
            return status_fail(STATUS_INVALID, "there is no key \"%.64s\" in it", key);
    }
    return STATUS_OK;
}

/* ---- structured_outputs ---- */

static int read_structured(struct ask_constraint *constraint, const char *field, const json_t *value) {
    static const char *const known[] = {"json",
                                        "json_object",
                                        "regex",
                                        "choice",
                                        "grammar",
                                        "structural_tag",
                                        "disable_any_whitespace",
                                        "disable_additional_properties",
                                        "disable_fallback",
                                        NULL};
    const char *before = constraint->source.field;
    bool unused;
    if (!json_is_object(value))
        return status_fail(STATUS_INVALID, "expected an object");
    TRY(check_keys(value, known));
    for (size_t i = 0; i < SPELLINGS; i++) {
        const json_t *item = spellings[i].key ? json_object_get(value, spellings[i].key) : NULL;
        if (!item || json_is_null(item))
            continue;
        if (constraint->source.field != before)
            return status_fail(STATUS_INVALID, "it has two constraints, one of them %s", spellings[i].key);
        int status = take_value(constraint, field, &spellings[i], item);
        if (status)
            return status_wrap(status, "%s", spellings[i].key);
    }
    if (constraint->source.field == before)
        return status_fail(STATUS_INVALID,
                           "expected one of json, json_object, regex, choice, grammar and structural_tag");
    TRY(read_flag(json_object_get(value, known[6]), known[6], &constraint->source.is_compact));
    TRY(read_flag(json_object_get(value, known[7]), known[7], &constraint->source.is_closed));
    return read_flag(json_object_get(value, known[8]), known[8], &unused);
}

/* ---- response_format ---- */

/* Takes the schema in `holder`. "strict": false drops keywords that cannot be enforced. */
static int read_schema(struct ask_constraint *constraint, const char *field, const json_t *holder) {
    const json_t *strict = json_object_get(holder, "strict");
    bool is_strict;
    TRY(take_value(constraint, field, &spellings[0], json_object_get(holder, "schema")));
    TRY(read_flag(strict, "strict", &is_strict));
    constraint->source.is_lenient = json_is_false(strict);
    return STATUS_OK;
}

static int read_format(struct ask_constraint *constraint, const char *field, const json_t *value) {
    static const char *const of_text[] = {"type", NULL}, *const of_object[] = {"type", "schema", "strict", NULL},
                             *const of_schema[] = {"type",   "json_schema", "name", "description",
                                                   "schema", "strict",      NULL},
                             *const of_inner[] = {"name", "description", "schema", "strict", NULL};
    const json_t *given = json_object_get(value, "type"), *inner = json_object_get(value, "json_schema");
    const char *type = json_string_value(given);
    if (!type || strlen(type) != json_string_length(given))
        return status_fail(STATUS_INVALID, "expected an object with a \"type\"");
    if (!strcmp(type, "text"))
        return check_keys(value, of_text);
    if (!strcmp(type, "structural_tag"))
        return take_json(constraint, field, GRAMMAR_TAG, value);
    if (!strcmp(type, "json_object")) {
        TRY(check_keys(value, of_object));
        return json_object_get(value, "schema") ? read_schema(constraint, field, value)
                                                : ask_constraint_take(constraint, field, GRAMMAR_JSON_OBJECT, "", 0);
    }
    if (strcmp(type, "json_schema") != 0)
        return status_fail(STATUS_INVALID,
                           "expected the type \"text\", \"json_object\", \"json_schema\" or \"structural_tag\"");
    TRY(check_keys(value, of_schema));
    if (!inner || json_is_null(inner))
        return read_schema(constraint, field, value);
    if (!json_is_object(inner))
        return status_fail(STATUS_INVALID, "json_schema: expected an object with a \"schema\"");
    TRY(check_keys(inner, of_inner));
    return read_schema(constraint, field, inner);
}

/* vLLM's choice of a library, which changes no answer. */
static int read_nothing(struct ask_constraint *constraint, const char *field, const json_t *value) {
    return STATUS_OK;
}

/* ---- fields ---- */

/* Fields that are more than a spelling of one constraint. */
static const struct {
    const char *name;
    int (*read)(struct ask_constraint *constraint, const char *field, const json_t *value);
    const char *schema;
} wholes[] = {
    {"structured_outputs", read_structured,
     "\"type\":[\"object\",\"null\"],\"anyOf\":[{\"type\":\"null\"},{\"required\":[\"json\"]},"
     "{\"required\":[\"json_object\"]},{\"required\":[\"regex\"]},{\"required\":[\"choice\"]},"
     "{\"required\":[\"grammar\"]},{\"required\":[\"structural_tag\"]}]"},
    {"response_format", read_format,
     "\"type\":[\"object\",\"null\"],\"required\":[\"type\"],\"properties\":{\"type\":{\"enum\":[\"text\","
     "\"json_object\",\"json_schema\",\"structural_tag\"]}}"},
    {"guided_decoding_backend", read_nothing, ""},
};
enum { WHOLES = sizeof wholes / sizeof *wholes };

static const struct spelling *find_spelling(const char *field) {
    for (size_t i = 0; i < SPELLINGS; i++)
        if (spellings[i].field && !strcmp(spellings[i].field, field))
            return &spellings[i];
    return NULL;
}

static size_t find_whole(const char *field) {
    size_t i = 0;
    while (i < WHOLES && strcmp(wholes[i].name, field) != 0)
        i++;
    return i;
}

bool ask_constraint_has(const char *field) {
    return find_whole(field) < WHOLES || find_spelling(field);
}

int ask_constraint_read(struct ask_constraint *constraint, const char *field, const json_t *value) {
    size_t whole = find_whole(field);
    if (whole < WHOLES)
        return wholes[whole].read(constraint, wholes[whole].name, value);
    const struct spelling *spelling = find_spelling(field);
    return take_value(constraint, spelling->field, spelling, value);
}

void ask_constraint_add_schema(const char *field, struct strbuf *out) {
    static const struct {
        unsigned value;
        const char *name;
    } types[] = {{A_TEXT, "string"}, {AN_OBJECT, "object"}, {A_LIST, "array"}, {A_BOOL | IS_TRUE, "boolean"}};
    size_t whole = find_whole(field);
    if (whole < WHOLES) {
        strbuf_add_text(out, wholes[whole].schema);
        return;
    }
    strbuf_add_text(out, "\"type\":[");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (find_spelling(field)->values & types[i].value)
            strbuf_format(out, "\"%s\",", types[i].name);
    strbuf_add_text(out, "\"null\"]");
    if (find_spelling(field)->values & A_LIST)
        strbuf_add_text(out, ",\"items\":{\"type\":\"string\",\"minLength\":1},\"minItems\":1");
}
