/* Kinds and traits of characters, for scanners of text: tables of all code points, read without a call. The room also
 * has case.h (upper, title and lower case), nfc.h (the normal form) and what is printable. It wraps libutf8proc.
 *
 * Everything here is constant: any thread may use it. */
#ifndef CAMBIUM_UNICODE_UNICODE_H
#define CAMBIUM_UNICODE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* \p{L}, \p{N} and \s of the regular expressions, in the Unicode version of `tokenizers` and `tiktoken`. The numbers
 * are those of the generated table. */
enum unicode_kind { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };

enum { UNICODE_BLOCK = 128, UNICODE_TABLE_END = 0x32400 };
extern const uint8_t unicode_pages[UNICODE_TABLE_END / UNICODE_BLOCK];
extern const uint8_t unicode_blocks[][UNICODE_BLOCK / 4];

/* Returns the kind of a code point. */
static inline enum unicode_kind unicode_kind_of(uint32_t point) {
    if (point >= UNICODE_TABLE_END)
        return UNICODE_OTHER;
    const uint8_t *block = unicode_blocks[unicode_pages[point / UNICODE_BLOCK]];
    uint32_t within = point % UNICODE_BLOCK;
    return (enum unicode_kind)(block[within / 4] >> within % 4 * 2 & 3);
}

enum unicode_trait {
    UNICODE_UPPER = 1 << 0, /* Lu, Lt, Lm, Lo or M: the first part of a word of o200k */
    UNICODE_LOWER = 1 << 1, /* Ll, Lm, Lo or M: its second part */
    UNICODE_WORD = 1 << 2,  /* \w */
    UNICODE_PLAIN = 1 << 3, /* for NFC it starts anew: it neither changes nor joins the text before it */
};

enum { UNICODE_TRAITS_END = 0x32400 };
extern const uint8_t unicode_trait_pages[UNICODE_TRAITS_END / UNICODE_BLOCK];
extern const uint64_t unicode_trait_blocks[][UNICODE_BLOCK / 16];

/* A set of enum unicode_trait. Above the letters, only the variation selectors are marks. */
static inline unsigned unicode_traits_of(uint32_t point) {
    if (point >= UNICODE_TRAITS_END)
        return point >= 0xe0100 && point < 0xe01f0 ? UNICODE_UPPER | UNICODE_LOWER | UNICODE_WORD : 0;
    const uint64_t *block = unicode_trait_blocks[unicode_trait_pages[point / UNICODE_BLOCK]];
    uint32_t within = point % UNICODE_BLOCK;
    return block[within / 16] >> within % 16 * 4 & 15;
}

/* False for characters that Python's repr() escapes: controls, white space other than " ", formats, surrogates, private
 * and unassigned code points. */
bool unicode_is_printable(uint32_t point);

#endif
