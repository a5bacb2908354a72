/* Properties of characters by name: categories, scripts and binary properties, as ranges. */
#include "unicode/property.h"

#include "base/base.h"

#include "support/test.h"

static bool has(const char *name, uint32_t point) {
    struct unicode_range *ranges;
    size_t count;
    bool is_found = false;
    test_ok(unicode_find_property(name, strlen(name), &ranges, &count));
    for (size_t i = 0; i < count; i++) {
        assert_true(ranges[i].first <= ranges[i].last);
        if (i)
            assert_true(ranges[i - 1].last + 1 < ranges[i].first);
        is_found = is_found || (point >= ranges[i].first && point <= ranges[i].last);
    }
    free(ranges);
    return is_found;
}

static void properties_have_their_characters(void **state) {
    static const struct {
        const char *name;
        uint32_t inside, outside;
    } rows[] = {
        {"Lu", 'A', 'a'},
        {"Uppercase_Letter", 0xc9, 0xe9},
        {"gc=Nd", 0x661, 'a'},
        {"General_Category=Letter", 0x4e2d, '1'},
        {"LC", 'a', 0x4e2d},
        {"Script=Greek", 0x3b1, 'a'},
        {"sc=Grek", 0x3a9, 0x1f600},
        {"scx=Han", 0x3001, 'a'},
        {"Greek", 0x3b1, 'a'},
        {"Alphabetic", 0x5d0, '1'},
        {"Cn", 0x10ffff, 'a'},
        {"Co", 0x10fffd, 0x10ffff},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!has(rows[i].name, rows[i].inside) || has(rows[i].name, rows[i].outside))
            fail_msg("%s", rows[i].name);
    }
}

static void unknown_names_are_refused(void **state) {
    static const char *const names[] = {"", "Nope", "Script=Nope", "L}", "Lu+", "gc=", "\\p", "L L"};
    struct unicode_range *ranges;
    size_t count;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        test_fails(unicode_find_property(names[i], strlen(names[i]), &ranges, &count), STATUS_INVALID, "property");
        assert_null(ranges);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(properties_have_their_characters),
        cmocka_unit_test(unknown_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
