/* Whichever allocation of a reader fails, the failure is reported and nothing remains. */
#include "texts.h"

#include "support/failing.h"

struct constraint {
    enum grammar_kind kind;
    const char *text;
    const struct grammar_vocabulary *vocabulary;
};

static int compile(void *context) {
    const struct constraint *constraint = context;
    struct grammar_report report = {0};
    struct grammar *grammar;
    int status = texts_compile(constraint->kind, constraint->text, constraint->vocabulary, &report, &grammar);
    grammar_release(grammar);
    grammar_report_free(&report);
    return status;
}

static void check(enum grammar_kind kind, const char *text) {
    struct grammar_vocabulary *vocabulary = texts_vocabulary();
    struct constraint constraint = {kind, text, vocabulary};
    assert_int_equal(compile(&constraint), 0);
    assert_int_equal(failing_try_all(compile, &constraint, 300), 0);
    grammar_vocabulary_close(vocabulary);
}

static void a_grammar_is_read(void **state) {
    (void)state;
    check(GRAMMAR_GBNF, "root ::= (\"a\" [^b-d]{2,3} | x)* \"\\u00e9\"\nx ::= x \"y\" | \"z\"?");
}

static void a_tag_is_read(void **state) {
    (void)state;
    check(GRAMMAR_TAG, "{\"structures\":[{\"begin\":\"<f>\",\"schema\":{\"type\":\"integer\"},\"end\":\"</"
                       "f>\"}],\"triggers\":[\"<f\"]}");
    check(GRAMMAR_TAG, "{\"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"<\"],\"tags\":[{\"begin\":\"<tool>\","
                       "\"content\":{\"type\":"
                       "\"qwen_xml_parameter\",\"json_schema\":{\"properties\":{\"a\":{\"type\":[\"string\",\"null\"]},"
                       "\"b\":{\"anyOf\":[{"
                       "\"$ref\":\"#/$defs/"
                       "c\"},{\"type\":\"null\"}]}},\"required\":[\"a\",\"d\"],\"$defs\":{\"c\":{\"enum\":[\"x\"]}}}},"
                       "\"end\":[\"a\",\"b\"]}]}}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grammar_is_read),
        cmocka_unit_test(a_tag_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
