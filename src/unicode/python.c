/* Strings as Python's str has them. */
#include "python.h"

#include "base/utf8.h"
#include "case.h"

#include <utf8proc.h>

uint32_t python_character(const char *at, const char *end, size_t *bytes) {
    uint32_t point = (unsigned char)*at;
    *bytes = point < 0x80 ? 1 : utf8_decode((const unsigned char *)at, (const unsigned char *)end, &point);
    *bytes = *bytes ? *bytes : 1;
    return point;
}

bool python_is_space(const char *at, const char *end, size_t *bytes) {
    uint32_t point = python_character(at, end, bytes);
    if (*bytes == 1)
        return point == ' ' || (point >= '\t' && point <= '\r') || (point >= 0x1c && point <= 0x1f);
    return point == 0x85 || point == 0xa0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200a) ||
           point == 0x2028 || point == 0x2029 || point == 0x202f || point == 0x205f || point == 0x3000;
}

size_t python_length(const char *text, size_t length) {
    size_t count = 0, bytes;
    for (const char *at = text, *end = text + length; at < end; at += bytes, count++)
        python_character(at, end, &bytes);
    return count;
}

/* Returns the first byte of the character that ends before `at`. */
static const char *character_before(const char *text, const char *at) {
    const char *first = at - 1;
    size_t bytes;
    while (first > text && at - first < 4 && ((unsigned char)*first & 0xc0) == 0x80)
        first--;
    python_character(first, at, &bytes);
    return first + bytes == at ? first : at - 1;
}

size_t python_space_after(const char *text, size_t length) {
    const char *at = text + length;
    while (at > text) {
        const char *before = character_before(text, at);
        size_t bytes;
        if (!python_is_space(before, at, &bytes))
            break;
        at = before;
    }
    return (size_t)(text + length - at);
}

void python_strip(const char **text, size_t *length) {
    const char *at = *text, *end = at + *length;
    for (size_t bytes; at < end && python_is_space(at, end, &bytes); at += bytes)
        ;
    *text = at;
    *length = (size_t)(end - at);
    *length -= python_space_after(at, *length);
}

/* ---- capitals ---- */

/* Unicode's Case_Ignorable: marks, formats, modifiers, and what may stand within a word. */
static bool is_ignorable(uint32_t point) {
    static const uint16_t within_words[] = {0x27,   0x2e,   0x3a,   0xb7,   0x387,  0x55f,  0x5f4,  0x2018, 0x2019,
                                            0x2024, 0x2027, 0xfe13, 0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a};
    for (size_t i = 0; i < sizeof within_words / sizeof *within_words; i++)
        if (point == within_words[i])
            return true;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)point);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME || category == UTF8PROC_CATEGORY_CF ||
           category == UTF8PROC_CATEGORY_LM || category == UTF8PROC_CATEGORY_SK;
}

/* Unicode's Cased, of characters that are not ignorable. */
static bool is_cased(uint32_t point) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)point);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT ||
           point == 0xaa || point == 0xba || (point >= 0x2160 && point <= 0x217f) ||
           (point >= 0x24b6 && point <= 0x24e9) || (point >= 0x1f130 && point <= 0x1f149) ||
           (point >= 0x1f150 && point <= 0x1f169) || (point >= 0x1f170 && point <= 0x1f189);
}

bool python_sigma_is_final(const char *text, size_t length, size_t at) {
    const char *end = text + length, *before = text + at, *after = text + at;
    uint32_t point = 0;
    size_t bytes;
    bool is_letter = false;
    while (before > text && !is_letter) {
        before = character_before(text, before);
        point = python_character(before, end, &bytes);
        if (!is_ignorable(point) && !is_cased(point))
            return false;
        is_letter = !is_ignorable(point);
    }
    if (!is_letter)
        return false;
    python_character(after, end, &bytes);
    for (after += bytes; after < end; after += bytes) {
        point = python_character(after, end, &bytes);
        if (!is_ignorable(point))
            return !is_cased(point);
    }
    return true;
}

void python_capitalize(const char *text, size_t length, struct strbuf *out) {
    size_t bytes;
    for (size_t at = 0; at < length; at += bytes) {
        uint32_t point = python_character(text + at, text + length, &bytes), changed[3];
        if (bytes == 1 && point >= 0x80) { /* no character */
            strbuf_add_char(out, text[at]);
            continue;
        }
        unicode_change_case(point, at == 0 ? UNICODE_TO_TITLE : UNICODE_TO_LOWER, changed);
        if (point == 0x3a3 && at > 0 && python_sigma_is_final(text, length, at))
            changed[0] = 0x3c2;
        for (int i = 0; i < 3 && (changed[i] || i == 0); i++) {
            unsigned char encoded[4];
            strbuf_add(out, (const char *)encoded, utf8_encode(changed[i], encoded));
        }
    }
}
