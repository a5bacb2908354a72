/* The four kinds of characters that the pre-tokenizers know. */
#ifndef CAMBIUM_TEXT_UNICODE_INTERNAL_H
#define CAMBIUM_TEXT_UNICODE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

/* \p{L}, \p{N} and \s of the regular expressions, in the Unicode version of `tokenizers` and `tiktoken`. The numbers
 * are those of the generated table. */
enum unicode_kind { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };

enum { UNICODE_BLOCK = 128, UNICODE_TABLE_END = 0x32400 };
extern const uint8_t unicode_pages[UNICODE_TABLE_END / UNICODE_BLOCK];
extern const uint8_t unicode_blocks[][UNICODE_BLOCK / 4];

static inline enum unicode_kind unicode_kind_of(uint32_t point) {
    if (point >= UNICODE_TABLE_END)
        return UNICODE_OTHER;
    const uint8_t *block = unicode_blocks[unicode_pages[point / UNICODE_BLOCK]];
    uint32_t within = point % UNICODE_BLOCK;
    return (enum unicode_kind)(block[within / 4] >> within % 4 * 2 & 3);
}

#endif
