/* The normal form NFC of texts (Unicode Standard Annex 15), in UTF-8. */
#ifndef CAMBIUM_UNICODE_NFC_H
#define CAMBIUM_UNICODE_NFC_H

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that are known to be in the form whatever follows; all of them, or up to a character that may join the next.
 * What is no UTF-8 stays as it is. */
size_t nfc_normal_length(const unsigned char *bytes, size_t length);
/* Whether the form of a text is that of the part before `at` and that of the part from there on. */
bool nfc_is_border(const unsigned char *begin, const unsigned char *at, const unsigned char *end);
/* Memory for it; starts zeroed, ends with nfc_scratch_free. */
struct nfc_scratch {
    int32_t *points, *sorted;
    size_t point_capacity, sorted_capacity;
};
void nfc_scratch_free(struct nfc_scratch *scratch);
/* Appends the normal form. STATUS_INVALID for a character that libutf8proc refuses; STATUS_MEMORY. */
int nfc_append(struct nfc_scratch *scratch, const unsigned char *bytes, size_t length, struct strbuf *out);

#endif
