/* The pre-tokenizer of GPT-2, written by hand. It splits a text into words as this pattern does, match after match:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * Every character belongs to exactly one word. Bytes that are no UTF-8 count as characters of their own, neither letter
 * nor number nor space. Inline, because encoding and counting words both spend much of their time here. */
#ifndef CAMBIUM_TEXT_SCAN_INTERNAL_H
#define CAMBIUM_TEXT_SCAN_INTERNAL_H

#include "base/utf8.h"
#include "unicode-internal.h"

#include <stdbool.h>

enum { SCAN_MULTIBYTE = 4 }; /* first byte of no ASCII character */
/* An enum unicode_kind for each ASCII byte, SCAN_MULTIBYTE for the others. */
extern const uint8_t scan_byte_kinds[256];

/* Kind and bytes of the character at `at`. */
static inline enum unicode_kind scan_character(const unsigned char *at, const unsigned char *end, size_t *bytes) {
    uint8_t kind = scan_byte_kinds[*at];
    *bytes = 1;
    if (kind != SCAN_MULTIBYTE)
        return (enum unicode_kind)kind;
    uint32_t point = 0;
    size_t length = utf8_decode(at, end, &point);
    if (length == 0)
        return UNICODE_OTHER;
    *bytes = length;
    return unicode_kind_of(point);
}

/* Whether a word ends before `at`, a character's place after `begin`, whatever follows: where the kind changes from
 * anything but white space, which could lend its last character to the next word, and but for an apostrophe before
 * letters. */
static inline bool scan_is_border(const unsigned char *begin, const unsigned char *at, const unsigned char *end) {
    const unsigned char *before = at - 1;
    while (before > begin && at - before < 4 && (*before & 0xc0) == 0x80)
        before--;
    size_t bytes;
    enum unicode_kind last = scan_character(before, at, &bytes), next = scan_character(at, end, &bytes);
    return last != UNICODE_SPACE && last != next && !(*before == '\'' && next == UNICODE_LETTER);
}

/* The end of the run of characters of one kind. */
static inline const unsigned char *scan_run(const unsigned char *at, const unsigned char *end, enum unicode_kind kind) {
    while (at < end) {
        uint8_t found = scan_byte_kinds[*at];
        if (found == (uint8_t)kind) {
            at++;
            continue;
        }
        size_t bytes;
        if (found != SCAN_MULTIBYTE || scan_character(at, end, &bytes) != kind)
            break;
        at += bytes;
    }
    return at;
}

/* The end of the white space word at `at`: the whole run at the end of the text, else all but its last character, which
 * the next word may want, unless that is the only one. */
static inline const unsigned char *scan_space(const unsigned char *at, const unsigned char *end) {
    const unsigned char *begin = at, *last = at;
    size_t bytes;
    while (at < end && scan_character(at, end, &bytes) == UNICODE_SPACE) {
        last = at;
        at += bytes;
    }
    return at == end || last == begin ? at : last;
}

/* The end of the word that begins at `at`, which is before `end`. */
static inline const unsigned char *scan_word(const unsigned char *at, const unsigned char *end) {
    if (*at == '\'' && at + 1 < end) {
        unsigned char a = at[1], b = at + 2 < end ? at[2] : 0;
        if (a == 's' || a == 't' || a == 'm' || a == 'd')
            return at + 2;
        if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
            return at + 3;
    }
    size_t bytes;
    const unsigned char *first = at + (*at == ' ' && at + 1 < end);
    enum unicode_kind kind = scan_character(first, end, &bytes);
    return kind == UNICODE_SPACE ? scan_space(at, end) : scan_run(first + bytes, end, kind);
}

#endif
