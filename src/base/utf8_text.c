/* Texts whose bytes are perhaps no characters. Apart from utf8.c, which errors and growing strings build on. */
#include "utf8.h"

void utf8_add_repaired(struct strbuf *out, const void *bytes, size_t length) {
    const unsigned char *at = bytes, *end = at + length;
    while (at < end) {
        size_t valid = utf8_valid_length(at, (size_t)(end - at));
        strbuf_add(out, at, valid);
        at += valid;
        if (at < end) {
            strbuf_add_text(out, "\xef\xbf\xbd");
            at += utf8_bad_length(at, end);
        }
    }
}
