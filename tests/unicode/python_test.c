/* Strings equal what Python makes of random texts (../tasks/golden/strings.json, by tools/golden/eval_tasks.py). */
#include "support/test.h"
#include "unicode/python.h"

#include "base/base.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static void assert_text(const char *made, size_t length, const json_t *line, const char *key) {
    const json_t *expected = json_object_get(line, key);
    if (length != json_string_length(expected) || memcmp(made, json_string_value(expected), length))
        fail_msg("%s of \"%s\": made \"%.*s\", Python \"%s\"", key, json_string_value(json_object_get(line, "text")),
                 (int)length, made, json_string_value(expected));
}

static void compare(const json_t *line) {
    const json_t *source = json_object_get(line, "text");
    const char *text = json_string_value(source);
    size_t length = json_string_length(source), stripped_length = length;
    const char *stripped = text;
    struct strbuf capitalized = STRBUF_INIT;
    python_capitalize(text, length, &capitalized);
    assert_text(strbuf_text(&capitalized), capitalized.length, line, "capitalized");
    strbuf_free(&capitalized);
    assert_text(text, length - python_space_after(text, length), line, "rstripped");
    python_strip(&stripped, &stripped_length);
    assert_text(stripped, stripped_length, line, "stripped");
    assert_int_equal(python_length(text, length), json_integer_value(json_object_get(line, "length")));
}

static void strings_are_those_of_python(void **state) {
    (void)state;
    struct strbuf text = STRBUF_INIT;
    test_ok(file_read(TEST_DATA "/tasks/golden/strings.json", 1 << 24, &text));
    json_t *root = json_loads(strbuf_text(&text), JSON_ALLOW_NUL, NULL), *line;
    size_t i;
    json_array_foreach(json_object_get(root, "strings"), i, line) compare(line);
    assert_true(i >= 400);
    json_decref(root);
    strbuf_free(&text);
}

static void bytes_that_are_no_characters_count_one_each(void **state) {
    (void)state;
    struct strbuf out = STRBUF_INIT;
    assert_int_equal(python_length("a\xff\xe2\x82", 4), 4);
    assert_int_equal(python_space_after("\x80 \xe3\x80\x80", 5), 4);
    python_capitalize("\xff"
                      "A\xc3",
                      3, &out);
    assert_memory_equal(out.data,
                        "\xff"
                        "a\xc3",
                        3);
    strbuf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_are_those_of_python),
        cmocka_unit_test(bytes_that_are_no_characters_count_one_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
