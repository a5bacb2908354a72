/* Bodies of requests: what may not be in them, and what their answers look like. */
#include "support/test.h"

#include "openai/json_in.h"
#include "openai/json_out.h"

static void refuses(const char *text, size_t length, const char *part) {
    struct error error = {0};
    json_t *root = (json_t *)text;
    assert_false(json_in_read(text, length, false, &root, &error));
    assert_null(root);
    assert_int_equal(error.which, ERROR_ARGUMENT);
    assert_null(strchr(error.text, '\n'));
    if (!strstr(error.text, part))
        fail_msg("\"%s\" does not say \"%s\"", error.text, part);
}

static json_t *reads(const char *text) {
    struct error error = {0};
    json_t *root = NULL;
    if (!json_in_read(text, strlen(text), false, &root, &error))
        fail_msg("%s: %s", text, error.text);
    return root;
}

static void what_is_no_object_is_refused(void **state) {
    static const char *const texts[] = {"",
                                        "1",
                                        "[]",
                                        "{",
                                        "{}x",
                                        "{'a':1}",
                                        "{\"a\":01}",
                                        "{\"a\":1.}",
                                        "{\"a\":NaN}",
                                        "{\"a\":1e999}",
                                        "{\"a\":\"\xff\"}",
                                        "{\"a\":\"\\ud800\"}",
                                        "{\"a\":\"\\\n\"}",
                                        "{\"a\":99999999999999999999}"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        refuses(texts[i], strlen(texts[i]), "JSON");
    refuses("{\"a\":\"b\0c\"}", 11, "JSON");
}

/* A text may have any character; what is compared as a C string must not end before its end. */
static void a_nul_is_a_character_of_texts_and_of_no_name(void **state) {
    json_t *root = reads("{\"a\":\"x\\u0000y\",\"b\":\"x\"}");
    const json_t *text = json_object_get(root, "a"), *name = json_object_get(root, "b");
    const char *string = "kept";
    struct error error = {0};
    (void)state;
    assert_int_equal(json_string_length(text), 3);
    assert_memory_equal(json_string_value(text), "x\0y", 3);
    assert_false(json_in_string(text, "a", &string, &error));
    assert_string_equal(error.param, "a");
    assert_string_equal(string, "kept");
    assert_false(json_in_is(text, "x"));
    assert_true(json_in_is(name, "x"));
    assert_false(json_in_is(name, "y") || json_in_is(NULL, "x") || json_in_is(root, "x"));
    json_decref(root);
}

static void a_key_stands_once(void **state) {
    (void)state;
    refuses("{\"a\":1,\"a\":2}", 13, "duplicate");
    refuses("{\"b\":{\"a\":1,\"a\":2}}", 19, "duplicate");
}

/* A number of opened brackets, closed again. */
static char *nested(size_t depth, size_t *length) {
    char *text = malloc(6 + 2 * depth);
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', depth);
    memset(text + 5 + depth, ']', depth);
    text[5 + 2 * depth] = '}';
    *length = 6 + 2 * depth;
    return text;
}

static void nesting_has_an_end(void **state) {
    struct error error;
    json_t *root;
    size_t length;
    char *text = nested(JSON_IN_DEPTH - 1, &length);
    (void)state;
    assert_true(json_in_read(text, length, false, &root, &error));
    json_decref(root);
    free(text);
    text = nested(JSON_IN_DEPTH, &length);
    refuses(text, length, "nested");
    free(text);
    text = nested(1 << 20, &length);
    refuses(text, length, "nested");
    free(text);
}

static void brackets_in_strings_are_text(void **state) {
    struct strbuf text = STRBUF_INIT;
    (void)state;
    strbuf_add_text(&text, "{\"a\":\"");
    for (int i = 0; i < 1000; i++)
        strbuf_add_text(&text, "[{\\\"[,");
    strbuf_add_text(&text, "\"}");
    json_decref(reads(strbuf_text(&text)));
    strbuf_free(&text);
}

static char *repeated(const char *part, size_t count, size_t *length) {
    size_t each = strlen(part);
    char *text = malloc(8 + count * each);
    memcpy(text, "{\"a\":[", 6);
    for (size_t i = 0; i < count; i++)
        memcpy(text + 6 + i * each, part, each);
    *length = 6 + count * each - 1; /* the last comma goes */
    text[(*length)++] = ']';
    text[(*length)++] = '}';
    return text;
}

static void many_small_things_are_refused_before_they_take_memory(void **state) {
    size_t length;
    char *text = repeated("[],", JSON_IN_LISTS + 1, &length);
    (void)state;
    refuses(text, length, "lists");
    free(text);
    text = repeated("1,", JSON_IN_VALUES + 2, &length);
    refuses(text, length, "values");
    free(text);
    text = repeated("\"b\":1,", JSON_IN_FIELDS, &length);
    text[5] = '{';
    text[length - 2] = '}';
    refuses(text, length, "fields");
    free(text);
}

static void an_empty_body_is_nothing_where_it_may_be(void **state) {
    struct error error;
    json_t *root;
    (void)state;
    assert_true(json_in_read("", 0, true, &root, &error));
    assert_int_equal(json_object_size(root), 0);
    json_decref(root);
    assert_false(json_in_read(" ", 1, true, &root, &error));
}

static void fields_have_types_and_ranges(void **state) {
    json_t *root = reads("{\"b\":true,\"s\":\"x\",\"i\":5,\"r\":5.0,\"n\":null}");
    struct error error = {0};
    bool flag = false;
    const char *string = "kept";
    int64_t integer = 7;
    double number = 7;
    (void)state;
    assert_true(json_in_bool(json_object_get(root, "b"), "b", &flag, &error) && flag);
    assert_true(json_in_string(json_object_get(root, "s"), "s", &string, &error) && !strcmp(string, "x"));
    assert_true(json_in_integer(json_object_get(root, "i"), "i", 0, 5, &integer, &error) && integer == 5);
    assert_true(json_in_number(json_object_get(root, "i"), "i", 0, 5, &number, &error) && number == 5);
    /* null and what is not there change nothing */
    assert_true(json_in_integer(json_object_get(root, "n"), "n", 0, 1, &integer, &error) && integer == 5);
    assert_true(json_in_string(json_object_get(root, "z"), "z", &string, &error) && !strcmp(string, "x"));
    assert_false(json_in_integer(json_object_get(root, "i"), "i", 0, 4, &integer, &error));
    assert_string_equal(error.param, "i");
    /* an integer that is written as a real is none */
    assert_false(json_in_integer(json_object_get(root, "r"), "r", 0, 9, &integer, &error));
    assert_false(json_in_bool(json_object_get(root, "i"), "i", &flag, &error));
    assert_false(json_in_string(json_object_get(root, "b"), "b", &string, &error));
    assert_false(json_in_number(json_object_get(root, "s"), "s", 0, 1, &number, &error));
    assert_int_equal(integer, 5);
    json_decref(root);
}

/* ---- out ---- */

static void writes(const char *bytes, size_t length, const char *expected) {
    struct strbuf out = STRBUF_INIT;
    json_out_string(&out, bytes, length);
    assert_string_equal(strbuf_text(&out), expected);
    strbuf_free(&out);
}

static void strings_are_escaped_and_mended(void **state) {
    (void)state;
    writes("", 0, "\"\"");
    writes("a\"b\\c\n\r\t\b\f\x01\x7f", 12, "\"a\\\"b\\\\c\\n\\r\\t\\b\\f\\u0001\x7f\"");
    writes("\0", 1, "\"\\u0000\"");
    writes("h\xc3\xa9\xf0\x9f\x98\x80", 7, "\"h\xc3\xa9\xf0\x9f\x98\x80\"");
    writes("\xff"
           "a\xe2\x82",
           4,
           "\"\xef\xbf\xbd"
           "a\xef\xbf\xbd\"");
}

static void a_float_comes_back(void **state) {
    (void)state;
    uint32_t bits = 1;
    for (int i = 0; i < 20000; i++, bits = bits * 1664525u + 1013904223u) {
        struct strbuf out = STRBUF_INIT;
        float value;
        memcpy(&value, &bits, sizeof value);
        json_out_float(&out, value);
        if (value - value == 0)
            assert_true(strtof(strbuf_text(&out), NULL) == value);
        else
            assert_string_equal(strbuf_text(&out), "null");
        strbuf_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_object_is_refused),
        cmocka_unit_test(a_nul_is_a_character_of_texts_and_of_no_name),
        cmocka_unit_test(a_key_stands_once),
        cmocka_unit_test(nesting_has_an_end),
        cmocka_unit_test(brackets_in_strings_are_text),
        cmocka_unit_test(many_small_things_are_refused_before_they_take_memory),
        cmocka_unit_test(an_empty_body_is_nothing_where_it_may_be),
        cmocka_unit_test(fields_have_types_and_ranges),
        cmocka_unit_test(strings_are_escaped_and_mended),
        cmocka_unit_test(a_float_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
