/* UTF-8: characters read and written, and where bytes are none. Any thread. */
#ifndef CAMBIUM_BASE_UTF8_H
#define CAMBIUM_BASE_UTF8_H

#include "strbuf.h"

#include <stddef.h>
#include <stdint.h>

/* Decodes the character at `at` (before `end`, not ASCII) and returns its bytes, 2 to 4; 0 where there is no valid
 * one: overlong forms, surrogates, numbers above 0x10ffff, a cut end. */
static inline size_t utf8_decode(const unsigned char *at, const unsigned char *end, uint32_t *point) {
    size_t left = (size_t)(end - at);
    unsigned a = at[0];
    if (a < 0xc2 || a > 0xf4 || left < 2 || (at[1] & 0xc0) != 0x80)
        return 0;
    if (a < 0xe0) {
        *point = (a & 0x1f) << 6 | (at[1] & 0x3f);
        return 2;
    }
    if (left < 3 || (at[2] & 0xc0) != 0x80)
        return 0;
    if (a < 0xf0) {
        *point = (a & 0x0f) << 12 | (at[1] & 0x3fu) << 6 | (at[2] & 0x3f);
        return *point >= 0x800 && (*point < 0xd800 || *point >= 0xe000) ? 3 : 0;
    }
    if (left < 4 || (at[3] & 0xc0) != 0x80)
        return 0;
    *point = (a & 0x07) << 18 | (at[1] & 0x3fu) << 12 | (at[2] & 0x3fu) << 6 | (at[3] & 0x3f);
    return *point >= 0x10000 && *point < 0x110000 ? 4 : 0;
}

/* The bytes of the character at `at`, ASCII or not; 0 where there is no valid one. */
static inline size_t utf8_length(const unsigned char *at, const unsigned char *end) {
    uint32_t point;
    return *at < 0x80 ? 1 : utf8_decode(at, end, &point);
}

/* Writes the character as 1 to 4 bytes and returns their number. */
static inline size_t utf8_encode(uint32_t point, unsigned char out[4]) {
    if (point < 0x80) {
        out[0] = (unsigned char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (unsigned char)(0xc0 | point >> 6);
        out[1] = (unsigned char)(0x80 | (point & 0x3f));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (unsigned char)(0xe0 | point >> 12);
        out[1] = (unsigned char)(0x80 | (point >> 6 & 0x3f));
        out[2] = (unsigned char)(0x80 | (point & 0x3f));
        return 3;
    }
    out[0] = (unsigned char)(0xf0 | point >> 18);
    out[1] = (unsigned char)(0x80 | (point >> 12 & 0x3f));
    out[2] = (unsigned char)(0x80 | (point >> 6 & 0x3f));
    out[3] = (unsigned char)(0x80 | (point & 0x3f));
    return 4;
}

/* Bytes before the first that is not part of a valid character. */
size_t utf8_valid_length(const unsigned char *bytes, size_t length);
/* Where there is no valid character: the bytes that one U+FFFD stands for, as Unicode advises. They are the longest
 * beginning of a character, or one byte. */
size_t utf8_bad_length(const unsigned char *at, const unsigned char *end);
/* Appends the bytes as characters: what is none becomes U+FFFD. */
void utf8_add_repaired(struct strbuf *out, const void *bytes, size_t length);
/* Bytes at the end of a text that may begin a character whose rest has yet to come. */
size_t utf8_unfinished_length(const unsigned char *bytes, size_t length);

#endif
