/* Why a constraint is refused. */
#include "readers-internal.h"

#include "support/test.h"

static void a_refusal_has_its_cause_in_one_line(void **state) {
    struct grammar_report report = {0};
    (void)state;
    test_fails(grammar_refuse(&report, GRAMMAR_INVALID, "line %d: %s", 3, "a\nb"), STATUS_INVALID, "line 3: a?b");
    assert_int_equal(report.refusal, GRAMMAR_INVALID);
    assert_string_equal(strbuf_text(&report.message), "line 3: a?b");
    test_fails(grammar_refuse(&report, GRAMMAR_UNSUPPORTED, "x"), STATUS_UNSUPPORTED, "x");
    assert_string_equal(strbuf_text(&report.message), "x");
    grammar_report_free(&report);
    assert_null(report.message.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refusal_has_its_cause_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
