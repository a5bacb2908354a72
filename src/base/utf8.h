/* UTF-8: characters read, written and checked. Any thread. */
#pragma once

#include "strbuf.h"

#include <stddef.h>
#include <stdint.h>

/* Decodes the character at `at`, which lies before `end` and is not ASCII. Returns its length, 2 to 4 bytes, or 0 when
 * it is not valid: an overlong form, a surrogate, a number above 0x10ffff, or a cut end. */
static inline size_t utf8_decode(const unsigned char *at, const unsigned char *end, uint32_t *point) {
    size_t available = (size_t)(end - at);
    unsigned a = at[0];
    if (a < 0xc2 || a > 0xf4 || available < 2 || (at[1] & 0xc0) != 0x80)
        return 0;
    if (a < 0xe0) {
        *point = (a & 0x1f) << 6 | (at[1] & 0x3f);
        return 2;
    }
    if (available < 3 || (at[2] & 0xc0) != 0x80)
        return 0;
    if (a < 0xf0) {
        *point = (a & 0x0f) << 12 | (at[1] & 0x3fu) << 6 | (at[2] & 0x3f);
        return *point >= 0x800 && (*point < 0xd800 || *point >= 0xe000) ? 3 : 0;
    }
    if (available < 4 || (at[3] & 0xc0) != 0x80)
        return 0;
    *point = (a & 0x07) << 18 | (at[1] & 0x3fu) << 12 | (at[2] & 0x3fu) << 6 | (at[3] & 0x3f);
    return *point >= 0x10000 && *point < 0x110000 ? 4 : 0;
}

/* Returns the length of the character at `at`, ASCII or not; 0 when it is not valid. */
static inline size_t utf8_length(const unsigned char *at, const unsigned char *end) {
    uint32_t point;
    return *at < 0x80 ? 1 : utf8_decode(at, end, &point);
}

/* Writes a character as 1 to 4 bytes and returns their number. */
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

/* Returns the number of bytes before the first that is not part of a valid character. */
size_t utf8_valid_length(const unsigned char *bytes, size_t length);
/* For a place without a valid character: returns the number of bytes that one U+FFFD replaces, as Unicode advises. They
 * are the longest beginning of a character, or one byte. */
size_t utf8_bad_length(const unsigned char *at, const unsigned char *end);
/* Appends the bytes as characters; invalid ones become U+FFFD. */
void utf8_add_repaired(struct strbuf *out, const void *bytes, size_t length);
/* Returns the number of bytes at the end of a text that may begin a character whose rest has yet to come. */
size_t utf8_unfinished_length(const unsigned char *bytes, size_t length);
