/* The normal form NFC of texts (Unicode Standard Annex 15), in UTF-8. */
#pragma once

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns how many bytes stay in normal form whatever text follows: all of them, or those before a character that may
 * join the next one. Invalid UTF-8 stays unchanged. */
size_t nfc_normal_length(const unsigned char *bytes, size_t length);
/* True when the normal form of a text is that of its parts before and after `at`. */
bool nfc_is_border(const unsigned char *begin, const unsigned char *at, const unsigned char *end);
/* Memory for normalizing. Starts zeroed. */
struct nfc_scratch {
    int32_t *points, *sorted;
    size_t point_capacity, sorted_capacity;
};
/* Frees the memory. */
void nfc_scratch_free(struct nfc_scratch *scratch);
/* Appends the normal form. STATUS_INVALID for a character that libutf8proc refuses; STATUS_MEMORY. */
int nfc_append(struct nfc_scratch *scratch, const unsigned char *bytes, size_t length, struct strbuf *out);
