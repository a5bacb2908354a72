/* Strings equal what Python makes of random texts (../tasks/golden/strings.json, by tools/golden/eval_tasks.py). */
#include "support/test.h"
#include "unicode/case.h"
#include "unicode/python.h"

#include "base/base.h"
#include "base/utf8.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

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

/* Characters that become several, and their neighbours. Expected: zlib.crc32 in Python of
 * "".join(chr(p).upper() + chr(p).title() + chr(p).lower() for first, last in ranges for p in range(first, last + 1))
 */
static void cases_are_those_of_python(void **state) {
    static const uint32_t ranges[][2] = {{0xc0, 0x17f},    {0x1f0, 0x1f0},   {0x370, 0x3ff},  {0x531, 0x587},
                                         {0x1e90, 0x1fff}, {0x2160, 0x2188}, {0xfb00, 0xfb17}};
    struct strbuf all = STRBUF_INIT;
    (void)state;
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        for (uint32_t point = ranges[r][0]; point <= ranges[r][1]; point++)
            for (int which = 0; which < UNICODE_CASES; which++) {
                uint32_t to[3];
                unicode_change_case(point, (enum unicode_case)which, to);
                for (int i = 0; i < 3 && to[i]; i++) {
                    unsigned char encoded[4];
                    strbuf_add(&all, encoded, utf8_encode(to[i], encoded));
                }
            }
    assert_int_equal(crc32(0, (const unsigned char *)all.data, (unsigned)all.length), 0x6f95ef3a);
    strbuf_free(&all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_are_those_of_python),
        cmocka_unit_test(cases_are_those_of_python),
        cmocka_unit_test(bytes_that_are_no_characters_count_one_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
