/* The spellings of a constraint in a request. */
#include "infer/ask.h"

#include "support/test.h"

struct given {
    const char *field, *value;
    int kind; /* -1: no constraint */
    const char *text;
    bool is_compact, is_closed, is_lenient;
};
static const struct given rows[] = {
    {"structured_outputs", "{\"json\": {\"type\": \"null\"}}", GRAMMAR_JSON_SCHEMA, "{\"type\":\"null\"}", 0, 0, 0},
    {"structured_outputs", "{\"json\": \"{}\", \"disable_any_whitespace\": true}", GRAMMAR_JSON_SCHEMA, "{}", 1, 0, 0},
    {"structured_outputs", "{\"json\": true, \"disable_additional_properties\": true, \"regex\": null}",
     GRAMMAR_JSON_SCHEMA, "true", 0, 1, 0},
    {"structured_outputs", "{\"json_object\": true, \"disable_fallback\": true}", GRAMMAR_JSON_OBJECT, "", 0, 0, 0},
    {"structured_outputs", "{\"regex\": \"a|b\"}", GRAMMAR_REGEX, "a|b", 0, 0, 0},
    {"structured_outputs", "{\"choice\": [\"a\", \"b\"]}", GRAMMAR_CHOICE, "[\"a\",\"b\"]", 0, 0, 0},
    {"structured_outputs", "{\"grammar\": \"root ::= \\\"a\\\"\"}", GRAMMAR_GBNF, "root ::= \"a\"", 0, 0, 0},
    {"structured_outputs", "{\"structural_tag\": \"{}\"}", GRAMMAR_TAG, "{}", 0, 0, 0},
    {"structured_outputs", "{\"structural_tag\": {\"format\": 1}}", GRAMMAR_TAG, "{\"format\":1}", 0, 0, 0},
    {"response_format", "{\"type\": \"text\"}", -1, NULL, 0, 0, 0},
    {"response_format", "{\"type\": \"json_object\"}", GRAMMAR_JSON_OBJECT, "", 0, 0, 0},
    {"response_format", "{\"type\": \"json_object\", \"schema\": {}}", GRAMMAR_JSON_SCHEMA, "{}", 0, 0, 0},
    {"response_format",
     "{\"type\": \"json_schema\", \"json_schema\": {\"name\": \"n\", \"schema\": {}, \"strict\": true}}",
     GRAMMAR_JSON_SCHEMA, "{}", 0, 0, 0},
    {"response_format",
     "{\"type\": \"json_schema\", \"json_schema\": {\"name\": \"n\", \"schema\": {}, \"strict\": false}}",
     GRAMMAR_JSON_SCHEMA, "{}", 0, 0, 1},
    {"response_format", "{\"type\": \"json_schema\", \"schema\": {\"b\": 1, \"a\": 2}, \"strict\": false}",
     GRAMMAR_JSON_SCHEMA, "{\"b\":1,\"a\":2}", 0, 0, 1},
    {"response_format", "{\"type\": \"structural_tag\", \"format\": 1}", GRAMMAR_TAG,
     "{\"type\":\"structural_tag\",\"format\":1}", 0, 0, 0},
    {"guided_json", "{}", GRAMMAR_JSON_SCHEMA, "{}", 0, 0, 0},
    {"guided_regex", "\"a\"", GRAMMAR_REGEX, "a", 0, 0, 0},
    {"guided_choice", "[\"a\"]", GRAMMAR_CHOICE, "[\"a\"]", 0, 0, 0},
    {"guided_grammar", "\"a\"", GRAMMAR_GBNF, "a", 0, 0, 0},
    {"guided_json_object", "true", GRAMMAR_JSON_OBJECT, "", 0, 0, 0},
    {"guided_json_object", "false", -1, NULL, 0, 0, 0},
    {"guided_decoding_backend", "\"xgrammar\"", -1, NULL, 0, 0, 0},
    {"grammar", "\"a\"", GRAMMAR_GBNF, "a", 0, 0, 0},
    {"json_schema", "{}", GRAMMAR_JSON_SCHEMA, "{}", 0, 0, 0},
    {"regex", "\"a\\u0000b\"", GRAMMAR_REGEX, "a", 0, 0, 0},
    {"ebnf", "\"a\"", GRAMMAR_GBNF, "a", 0, 0, 0},
    {"ebnf", "null", -1, NULL, 0, 0, 0},
};

static int read(struct ask *ask, const char *field, const char *text) {
    bool is_known;
    json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(value);
    int status = ask_read_field(ask, field, value, 100, &is_known);
    assert_true(is_known);
    json_decref(value);
    return status;
}

static void every_spelling_is_one_meaning(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct given *row = &rows[i];
        struct ask ask;
        ask_begin(&ask);
        assert_int_equal(read(&ask, row->field, row->value), 0);
        const struct grammar_source *source = &ask.constraint.source;
        if (row->kind < 0) {
            assert_null(ask.constraint.source.field);
        } else {
            assert_string_equal(ask.constraint.source.field, row->field);
            assert_int_equal(source->kind, row->kind);
            assert_string_equal(source->text, row->text);
            assert_true(source->length >= strlen(row->text));
            assert_int_equal(source->is_compact, row->is_compact);
            assert_int_equal(source->is_closed, row->is_closed);
            assert_int_equal(source->is_lenient, row->is_lenient);
            assert_true(ask_constraint_has(row->field));
        }
        ask_free(&ask);
    }
}

static void what_is_no_constraint_is_refused(void **state) {
    static const struct {
        const char *field, *value, *message;
    } bad[] = {
        {"structured_outputs", "1", "expected an object"},
        {"structured_outputs", "{}", "expected one of json, json_object, regex, choice, grammar and structural_tag"},
        {"structured_outputs", "{\"backend\": 1}", "there is no key \"backend\" in it"},
        {"structured_outputs", "{\"json\": {}, \"regex\": \"a\"}", "it has two constraints, one of them regex"},
        {"structured_outputs", "{\"regex\": 1}", "regex: expected a text"},
        {"structured_outputs", "{\"choice\": \"a\"}", "choice: expected a list of texts that are not empty"},
        {"guided_choice", "[]", "expected a list of texts that are not empty"},
        {"guided_choice", "[\"a\", \"\"]", "expected a list of texts that are not empty"},
        {"structured_outputs", "{\"regex\": \"a\", \"disable_any_whitespace\": 1}",
         "disable_any_whitespace: expected true or false"},
        {"response_format", "{}", "expected an object with a \"type\""},
        {"response_format", "{\"type\": \"xml\"}",
         "expected the type \"text\", \"json_object\", \"json_schema\" or \"structural_tag\""},
        {"response_format", "{\"type\": \"json_schema\"}", "expected a schema, or its text"},
        {"response_format", "{\"type\": \"json_schema\", \"json_schema\": 1}",
         "json_schema: expected an object with a \"schema\""},
        {"response_format", "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": {}, \"pattern\": 1}}",
         "there is no key \"pattern\" in it"},
        {"response_format", "{\"type\": \"text\", \"schema\": {}}", "there is no key \"schema\" in it"},
        {"response_format", "{\"type\": \"json_schema\", \"schema\": {}, \"strict\": 1}",
         "strict: expected true or false"},
        {"guided_json", "[]", "expected a schema, or its text"},
        {"guided_json_object", "1", "expected true or false"},
        {"grammar", "{}", "expected a text"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ask ask;
        ask_begin(&ask);
        test_fails(read(&ask, bad[i].field, bad[i].value), STATUS_INVALID, bad[i].message);
        ask_free(&ask);
    }
}

static void two_constraints_are_refused_with_both_names(void **state) {
    struct ask ask;
    (void)state;
    ask_begin(&ask);
    assert_int_equal(read(&ask, "response_format", "{\"type\": \"text\"}"), 0);
    assert_int_equal(read(&ask, "guided_regex", "\"a\""), 0);
    test_fails(read(&ask, "ebnf", "\"a\""), STATUS_INVALID, "the request has another constraint, guided_regex");
    test_fails(read(&ask, "structured_outputs", "{\"json\": {}}"), STATUS_INVALID,
               "json: the request has another constraint, guided_regex");
    ask_free(&ask);
}

static void ignore_eos_is_refused_beside_a_constraint(void **state) {
    struct ask ask;
    const char *field;
    (void)state;
    ask_begin(&ask);
    ask.ignore_eos = true;
    assert_int_equal(read(&ask, "regex", "\"a\""), 0);
    test_fails(ask_check(&ask, 100, &field), STATUS_INVALID, "regex ends a completion where its text is complete");
    assert_string_equal(field, "ignore_eos");
    ask_free(&ask);
}

static void schemas_of_the_fields_are_json(void **state) {
    (void)state;
    for (size_t i = 0; ask_field_name(i); i++) {
        struct strbuf out = STRBUF_INIT;
        strbuf_add_char(&out, '{');
        ask_add_schema(i, 100, &out);
        strbuf_add_char(&out, '}');
        json_t *schema = json_loads(strbuf_text(&out), JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(schema);
        json_decref(schema);
        strbuf_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_spelling_is_one_meaning),
        cmocka_unit_test(what_is_no_constraint_is_refused),
        cmocka_unit_test(two_constraints_are_refused_with_both_names),
        cmocka_unit_test(ignore_eos_is_refused_beside_a_constraint),
        cmocka_unit_test(schemas_of_the_fields_are_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
