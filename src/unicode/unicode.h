/* Kinds and traits of characters, for scanners of text: tables of all code points, read without a call. The room also
 * has case.h (upper, title and lower case), nfc.h (the normal form) and what is printable. It wraps libutf8proc.
 *
 * Everything here is constant: any thread may use it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* \p{L}, \p{N} and \s of the regular expressions, in the Unicode version of `tokenizers` and `tiktoken`. The numbers
 * are those of the generated table. */
enum unicode_kind { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };

enum unicode_trait {
    UNICODE_UPPER = 1 << 0, /* Lu, Lt, Lm, Lo or M: the first part of a word of o200k */
    UNICODE_LOWER = 1 << 1, /* Ll, Lm, Lo or M: its second part */
    UNICODE_WORD = 1 << 2,  /* \w */
    UNICODE_PLAIN = 1 << 3, /* for NFC it starts anew: it neither changes nor joins the text before it. (Of these,
                               only U+2000 and U+2001 change.) */
};

/* The table gives the class of a code point: a kind and a set of traits. A block is of words, a word of 16 points. */
enum { UNICODE_BLOCK = 128, UNICODE_BLOCK_WORDS = UNICODE_BLOCK / 16, UNICODE_TABLE_END = 0x32400 };
extern const uint8_t unicode_pages[UNICODE_TABLE_END / UNICODE_BLOCK];
extern const uint16_t unicode_blocks[]; /* [block][UNICODE_BLOCK_WORDS] */
extern const uint64_t unicode_words[];
/* For each class, two bits of its kind and four of its traits. */
#define UNICODE_CLASS_KINDS  0x458e1168u
#define UNICODE_CLASS_TRAITS 0xffedcc8887765400u

/* Returns the class of a code point below UNICODE_TABLE_END. */
static inline unsigned unicode_class_of(uint32_t point) {
    size_t block = unicode_pages[point / UNICODE_BLOCK];
    uint64_t word = unicode_words[unicode_blocks[block * UNICODE_BLOCK_WORDS + point % UNICODE_BLOCK / 16]];
    return word >> point % 16 * 4 & 15;
}

/* Returns the kind of a code point. */
static inline enum unicode_kind unicode_kind_of(uint32_t point) {
    return point < UNICODE_TABLE_END ? (enum unicode_kind)(UNICODE_CLASS_KINDS >> unicode_class_of(point) * 2 & 3)
                                     : UNICODE_OTHER;
}

/* A set of enum unicode_trait. Above the letters, only the variation selectors are marks. */
static inline unsigned unicode_traits_of(uint32_t point) {
    if (point >= UNICODE_TABLE_END)
        return point >= 0xe0100 && point < 0xe01f0 ? UNICODE_UPPER | UNICODE_LOWER | UNICODE_WORD : 0;
    return UNICODE_CLASS_TRAITS >> unicode_class_of(point) * 4 & 15;
}

/* False for characters that Python's repr() escapes: controls, white space other than " ", formats, surrogates, private
 * and unassigned code points. */
bool unicode_is_printable(uint32_t point);
