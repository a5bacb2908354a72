/* Whichever allocation fails while a schema is compiled, the failure is reported and nothing remains. */
#include "support/failing.h"

#include "texts.h"

static const char *const schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-3.5,\"multipleOf\":3},\"b\":{"
    "\"enum\":"
    "[\"x\",1.5,null,{\"y\":[1]}]},\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":2}},\"required\":["
    "\"b\",\"z\"],\"patternProperties\":{\"^p\":{}},\"minProperties\":2}",
    "{\"$id\":\"http://a/b\",\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"not\":{\"properties\":{\"c\":{"
    "\"const\":1}}},\"if\":{\"properties\":{\"k\":{\"const\":\"x\"}}},\"then\":{\"$ref\":\"c#/$defs/d~1e\"},\"$defs\":{"
    "\"f\":{\"$id\":\"c\",\"$defs\":{\"d/e\":{\"propertyNames\":{\"maxLength\":3}}}}}}",
    "{\"type\":\"string\",\"pattern\":\"^(?!a)(b|[^\\\\p{Lu}])+$\",\"maxLength\":9,\"format\":\"ipv4\",\"foo\":1}",
    "{\"minimum\":\"x\"}",
    "{\"$ref\":\"#/nowhere\"}",
};

static int compile(void *context) {
    const char *schema = context;
    struct grammar_vocabulary *vocabulary;
    struct grammar_report report = {0};
    struct grammar *grammar;
    failing_pause(true);
    vocabulary = texts_vocabulary();
    failing_pause(false);
    int status = texts_compile(GRAMMAR_JSON_SCHEMA, schema, vocabulary, &report, &grammar);
    if (status == STATUS_INVALID && report.refusal == GRAMMAR_INVALID)
        status = STATUS_OK; /* refused, as it should be */
    grammar_release(grammar);
    grammar_report_free(&report);
    grammar_vocabulary_close(vocabulary);
    return status;
}

static void a_schema_is_compiled_or_the_failure_is_reported(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        failing_try_all(compile, (void *)schemas[i], 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_schema_is_compiled_or_the_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
