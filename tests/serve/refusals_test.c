/* Refused adapters are known until their files change, and clients never see an absolute path. */
#include "base/base.h"
#include "serve/refusals.h"
#include "support/test.h"

static void a_refusal_holds_until_the_stamp_changes(void **state) {
    (void)state;
    struct refusals *refusals;
    struct error error, found;
    test_ok(refusals_open(&refusals));
    error_set(&error, ERROR_ADAPTER_INVALID, NULL, "a: its header is damaged");
    assert_false(refusals_find(refusals, "/r/a", 1, &found));
    refusals_add(refusals, "/r/a", 1, &error);
    assert_true(refusals_find(refusals, "/r/a", 1, &found));
    assert_int_equal(found.which, ERROR_ADAPTER_INVALID);
    assert_string_equal(found.text, error.text);
    assert_false(refusals_find(refusals, "/r/a", 2, &found));
    assert_false(refusals_find(refusals, "/r/b", 1, &found));
    error_set(&error, ERROR_ADAPTER_INVALID, NULL, "a: another");
    refusals_add(refusals, "/r/a", 2, &error);
    assert_false(refusals_find(refusals, "/r/a", 1, &found));
    assert_true(refusals_find(refusals, "/r/a", 2, &found));
    assert_string_equal(found.text, "a: another");
    refusals_close(refusals);
}

static void the_oldest_make_room(void **state) {
    (void)state;
    struct refusals *refusals;
    struct error error, found;
    char name[32];
    test_ok(refusals_open(&refusals));
    error_set(&error, ERROR_ADAPTER_INVALID, NULL, "damaged");
    for (int i = 0; i < 3 * REFUSALS_MAX; i++) {
        snprintf(name, sizeof name, "/r/%d", i);
        refusals_add(refusals, name, 5, &error);
    }
    for (int i = 0; i < 3 * REFUSALS_MAX; i++) {
        snprintf(name, sizeof name, "/r/%d", i);
        assert_int_equal(refusals_find(refusals, name, 5, &found), i >= 2 * REFUSALS_MAX);
    }
    refusals_close(refusals);
}

static void errors_name_no_absolute_path(void **state) {
    (void)state;
    static const struct {
        const char *root, *text, *expected;
    } cases[] = {
        {"/srv/adapters", "/srv/adapters/x/adapter_config.json: damaged JSON", "x/adapter_config.json: damaged JSON"},
        {"/srv/adapters/", "cannot open /srv/adapters//x: No such file or directory",
         "cannot open x: No such file or directory"},
        {"/srv/adapters", "/srv/adapters/x: q has shape [4, 2] (expected [2, 4])",
         "x: q has shape [4, 2] (expected [2, 4])"},
        {"adapters", "adapters/x: unknown tensor: a/b", "x: unknown tensor: a/b"},
        {"/", "/x/adapter_config.json: no", "adapter_config.json: no"},
        {NULL, "/home/me/lora/adapter_config.json: no", "adapter_config.json: no"},
        {NULL, "cannot open '/home/me/lora': no (see \"/etc/passwd\")", "cannot open 'lora': no (see \"passwd\")"},
        {"/srv/adapters", "/srv/adapters2/x: no", "x: no"},
        {"/srv/adapters", "/srv/adapters: no", "adapters: no"},
        {NULL, "a/b and a / b stay", "a/b and a / b stay"},
        {NULL, "/", "/"},
        {NULL, "", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error error;
        error_set(&error, ERROR_ADAPTER_INVALID, NULL, "%s", cases[i].text);
        error_hide_paths(&error, cases[i].root);
        assert_string_equal(error.text, cases[i].expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refusal_holds_until_the_stamp_changes),
        cmocka_unit_test(the_oldest_make_room),
        cmocka_unit_test(errors_name_no_absolute_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
