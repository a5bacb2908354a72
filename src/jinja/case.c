/* Upper and lower case of strings, as in Python. */
#include "jinja-internal.h"

#include "base/utf8.h"
#include "unicode/case.h"
#include "unicode/python.h"

static bool has_case(uint32_t point) {
    uint32_t upper[3], lower[3];
    unicode_change_case(point, UNICODE_TO_UPPER, upper);
    unicode_change_case(point, UNICODE_TO_LOWER, lower);
    return upper[0] != point || lower[0] != point;
}

/* Characters that separate words for the filter `title`. */
static bool parts_words(const char *at, const char *end) {
    size_t bytes;
    return strchr("-({[<", *at ? *at : 'a') || python_is_space(at, end, &bytes);
}

static enum unicode_case case_at(enum jinja_case to, bool is_first, bool is_in_word) {
    switch (to) {
    case JINJA_UPPER:
        return UNICODE_TO_UPPER;
    case JINJA_LOWER:
        return UNICODE_TO_LOWER;
    case JINJA_CAPITALIZED:
        return is_first ? UNICODE_TO_TITLE : UNICODE_TO_LOWER;
    case JINJA_TITLE:
        return is_in_word ? UNICODE_TO_LOWER : UNICODE_TO_TITLE;
    default:
        return is_in_word ? UNICODE_TO_LOWER : UNICODE_TO_UPPER;
    }
}

struct jinja_value jinja_change_case(struct jinja_run *run, const struct jinja_string *string, enum jinja_case to) {
    struct jinja_builder builder = {0};
    const char *end = string->bytes + string->length;
    bool is_in_word = false;
    size_t bytes, done = 0;
    for (size_t at = 0; at < string->length && jinja_charge(run, 1); at += bytes) {
        uint32_t point = python_character(string->bytes + at, end, &bytes), changed[3];
        unicode_change_case(point, case_at(to, at == 0, is_in_word), changed);
        if (point == 0x3a3 && changed[0] == 0x3c3 && python_sigma_is_final(string->bytes, string->length, at))
            changed[0] = 0x3c2;
        is_in_word = to == JINJA_WORDS ? !parts_words(string->bytes + at, end) : has_case(point);
        if (changed[0] == point && !changed[1])
            continue;
        jinja_build_part(run, &builder, string, done, at);
        for (int i = 0; i < 3 && changed[i]; i++) {
            unsigned char text[4];
            jinja_build(run, &builder, text, utf8_encode(changed[i], text), jinja_marks_at(string, at));
        }
        done = at + bytes;
    }
    if (!done)
        return run->status ? jinja_undefined(NULL) : jinja_string_value(string);
    jinja_build_part(run, &builder, string, done, string->length);
    return jinja_set_safe(run, jinja_built(run, &builder), string->is_safe);
}
