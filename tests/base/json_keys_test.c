/* The reader of a file's keys: what each call gives and refuses, and that the first failure stays. */
#include "base/base.h"
#include "base/json.h"
#include "base/json_keys.h"
#include "support/test.h"

static struct json_keys open_keys(const char *text, enum json_wording wording) {
    struct json_keys keys;
    test_ok(json_keys_open(&keys, text, "F", wording));
    return keys;
}

static void values_are_read_and_null_is_absent(void **state) {
    (void)state;
    struct json_keys keys = open_keys(
        "{\"i\": 3, \"n\": 0.5, \"b\": true, \"s\": \"word\", \"z\": null, \"in\": {\"i\": 4}}", JSON_MUST_BE);
    assert_int_equal(json_keys_integer(&keys, "i", 7, 1, 3), 3);
    assert_int_equal(json_keys_integer(&keys, "z", 7, 1, 3), 7);
    assert_true(json_keys_number(&keys, "i", 7, 0, 3) == 3);
    assert_true(json_keys_number_below(&keys, "n", 7, 0.5, 1) == 0.5);
    assert_true(json_keys_bool(&keys, "b", false));
    assert_true(json_keys_bool(&keys, "none", true));
    assert_string_equal(json_keys_string(&keys, "s", ""), "word");
    assert_null(json_keys_string(&keys, "z", NULL));
    json_keys_need(&keys, "i");
    test_ok(keys.status);
    keys.object = json_keys_find(&keys, "in");
    assert_int_equal(json_keys_integer(&keys, "i", 7, 1, 4), 4);
    json_keys_close(&keys);
}

static void what_is_wrong_is_named_with_its_file_and_key(void **state) {
    (void)state;
    static const char text[] = "{\"i\": 9, \"n\": 1, \"b\": 1, \"s\": []}";
    static const char *const must[] = {"F: 'i' must be an integer from 1 to 3",
                                       "F: 'n' must be a number from 2 to 3",
                                       "F: 'n' must be a number from 0 to below 1",
                                       "F: 'b' must be true or false",
                                       "F: 's' must be a string",
                                       "F: 'none' is missing"};
    static const char *const expected[] = {"F: \"i\": expected an integer from 1 to 3",
                                           "F: \"n\": expected a number from 2 to 3",
                                           "F: \"n\": expected a number from 0 to below 1",
                                           "F: \"b\": expected true or false",
                                           "F: \"s\": expected a string",
                                           "F: 'none' is missing"};
    for (int i = 0; i < 12; i++) {
        struct json_keys keys = open_keys(text, i < 6 ? JSON_MUST_BE : JSON_EXPECTED);
        switch (i % 6) {
        case 0:
            assert_int_equal(json_keys_integer(&keys, "i", 7, 1, 3), 7);
            break;
        case 1:
            assert_true(json_keys_number(&keys, "n", 7, 2, 3) == 7);
            break;
        case 2:
            assert_true(json_keys_number_below(&keys, "n", 7, 0, 1) == 7);
            break;
        case 3:
            json_keys_bool(&keys, "b", true);
            break;
        case 4:
            assert_string_equal(json_keys_string(&keys, "s", "7"), "7");
            break;
        default:
            json_keys_need(&keys, "none");
        }
        test_fails(keys.status, STATUS_INVALID, i < 6 ? must[i] : expected[i - 6]);
        json_keys_close(&keys);
    }
}

static void the_first_failure_stays_and_the_rest_are_fallbacks(void **state) {
    (void)state;
    struct json_keys keys = open_keys("{\"a\": \"x\", \"b\": \"y\", \"i\": 1}", JSON_EXPECTED);
    json_keys_bool(&keys, "a", true);
    json_keys_bool(&keys, "b", true);
    json_keys_need(&keys, "none");
    json_keys_refuse(&keys, "i", "%d", 2);
    assert_int_equal(json_keys_integer(&keys, "i", 7, 1, 3), 7);
    test_fails(keys.status, STATUS_INVALID, "F: \"a\": expected true or false");
    json_keys_close(&keys);
}

static void what_is_no_object_is_refused_on_one_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *error;
    } bad[] = {{"", "F:1:0: "},
               {"[]", "F: expected a JSON object"},
               {"{\"a\": 1, \"a\": 2}", "duplicate"},
               {"{\n\n\"a\": no}", "F:3:"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct json_keys keys;
        test_fails(json_keys_open(&keys, bad[i].text, "F", JSON_EXPECTED), STATUS_INVALID, bad[i].error);
        assert_null(strchr(status_text(), '\n'));
        assert_int_equal(json_keys_integer(&keys, "a", 7, 1, 3), 7);
        json_keys_close(&keys);
    }
    char word[4];
    assert_string_equal(json_shown("a\nbcd", sizeof word, word), "a?b");
}

/* Strict readers refuse control characters within a string. */
static void every_character_of_a_string_is_read_again(void **state) {
    (void)state;
    for (int c = 1; c < 0x80; c++) {
        struct strbuf text = STRBUF_INIT;
        json_error_t error;
        json_t *read;
        const char bytes[] = {'a', (char)c, 'b'};
        strbuf_add_char(&text, '[');
        json_add_string(&text, bytes, sizeof bytes);
        strbuf_add_char(&text, ']');
        test_ok(json_read(strbuf_text(&text), text.length, 0, &read, &error));
        const json_t *string = json_array_get(read, 0);
        assert_int_equal(json_string_length(string), sizeof bytes);
        assert_memory_equal(json_string_value(string), bytes, sizeof bytes);
        json_decref(read);
        strbuf_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read_and_null_is_absent),
        cmocka_unit_test(what_is_wrong_is_named_with_its_file_and_key),
        cmocka_unit_test(the_first_failure_stays_and_the_rest_are_fallbacks),
        cmocka_unit_test(what_is_no_object_is_refused_on_one_line),
        cmocka_unit_test(every_character_of_a_string_is_read_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
