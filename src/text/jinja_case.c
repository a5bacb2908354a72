/* Strings in upper and lower case, as Python changes them. */
#include "jinja-internal.h"

#include "base/utf8.h"
#include "unicode_cases-internal.h"

#include <string.h>

static const struct unicode_case_many *find_many(const struct unicode_case_table *table, uint32_t point) {
    size_t low = 0, high = table->many_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table->many[middle].point < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < table->many_count && table->many[low].point == point ? &table->many[low] : NULL;
}

static uint32_t find_one(const struct unicode_case_table *table, uint32_t point) {
    size_t low = 0, high = table->run_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table->runs[middle].last < point)
            low = middle + 1;
        else
            high = middle;
    }
    const struct unicode_case_run *run = low < table->run_count ? &table->runs[low] : NULL;
    bool is_in = run && point >= run->first && (point - run->first) % run->step == 0;
    return is_in ? (uint32_t)((int32_t)point + run->difference) : point;
}

/* The case of a character: one to three, zeros behind them. */
static void change(uint32_t point, int which, uint32_t to[3]) {
    const struct unicode_case_table *table = &unicode_cases[which];
    const struct unicode_case_many *many = point >= 0x80 ? find_many(table, point) : NULL;
    memset(to, 0, 3 * sizeof *to);
    if (many)
        memcpy(to, many->to, sizeof many->to);
    else if (point >= 0x80)
        to[0] = find_one(table, point);
    else if (which == UNICODE_LOWER)
        to[0] = point >= 'A' && point <= 'Z' ? point + 32 : point;
    else
        to[0] = point >= 'a' && point <= 'z' ? point - 32 : point;
}

static bool has_case(uint32_t point) {
    uint32_t upper[3], lower[3];
    change(point, UNICODE_UPPER, upper);
    change(point, UNICODE_LOWER, lower);
    return upper[0] != point || lower[0] != point;
}

static uint32_t decode(const char *at, const char *end, size_t *bytes) {
    uint32_t point = (unsigned char)*at;
    *bytes = point < 0x80 ? 1 : utf8_decode((const unsigned char *)at, (const unsigned char *)end, &point);
    *bytes = *bytes ? *bytes : 1;
    return point;
}

/* A sigma behind a letter is a final one where no letter follows. */
static bool is_final(const char *at, const char *end, bool is_in_word) {
    size_t bytes;
    return is_in_word && (at == end || !has_case(decode(at, end, &bytes)));
}

/* Characters that the filter `title` takes for the beginning of a word's surroundings. */
static bool parts_words(const char *at, const char *end) {
    size_t bytes;
    return strchr("-({[<", *at ? *at : 'a') || jinja_is_space(at, end, &bytes);
}

static int case_at(enum jinja_case to, bool is_first, bool is_in_word) {
    switch (to) {
    case JINJA_UPPER:
        return UNICODE_UPPER;
    case JINJA_LOWER:
        return UNICODE_LOWER;
    case JINJA_CAPITALIZED:
        return is_first ? UNICODE_TITLE : UNICODE_LOWER;
    case JINJA_TITLE:
        return is_in_word ? UNICODE_LOWER : UNICODE_TITLE;
    default:
        return is_in_word ? UNICODE_LOWER : UNICODE_UPPER;
    }
}

struct jinja_value jinja_change_case(struct jinja_run *run, const struct jinja_string *string, enum jinja_case to) {
    struct jinja_builder builder = {0};
    const char *end = string->bytes + string->length;
    bool is_in_word = false, was_cased = false;
    size_t bytes, done = 0;
    for (size_t at = 0; at < string->length && jinja_charge(run, 1); at += bytes) {
        uint32_t point = decode(string->bytes + at, end, &bytes), changed[3];
        change(point, case_at(to, at == 0, is_in_word), changed);
        if (point == 0x3a3 && changed[0] == 0x3c3 && is_final(string->bytes + at + bytes, end, was_cased))
            changed[0] = 0x3c2;
        was_cased = has_case(point);
        is_in_word = to == JINJA_WORDS ? !parts_words(string->bytes + at, end) : was_cased;
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
        return run->status ? jinja_undefined(NULL) : (struct jinja_value){.kind = JINJA_STRING, .string = string};
    jinja_build_part(run, &builder, string, done, string->length);
    struct jinja_value value = jinja_built(run, &builder);
    if (string->is_safe && value.kind == JINJA_STRING)
        ((struct jinja_string *)value.string)->is_safe = true;
    return value;
}
