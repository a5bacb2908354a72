/* Strings are copied in runs, because most texts have nothing to escape. */
#include "json_out.h"

#include "base/utf8.h"

#include <math.h>
#include <string.h>

static bool is_plain(unsigned char c) {
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

static void add_escaped(struct strbuf *out, unsigned char c) {
    static const char escaped[] = "\"\\\n\t\r\b\f", letters[] = "\"\\ntrbf";
    const char *found = c ? strchr(escaped, c) : NULL;
    if (found) {
        strbuf_add_char(out, '\\');
        strbuf_add_char(out, letters[found - escaped]);
    } else
        strbuf_format(out, "\\u%04x", c);
}

void json_out_string(struct strbuf *out, const void *bytes, size_t length) {
    const unsigned char *at = bytes, *end = at + length;
    strbuf_add_char(out, '"');
    while (at < end) {
        const unsigned char *run = at;
        while (at < end && (is_plain(*at) || (*at >= 0x80 && utf8_length(at, end))))
            at += utf8_length(at, end);
        if (at > run)
            strbuf_add(out, run, (size_t)(at - run));
        if (at == end)
            break;
        if (*at < 0x80)
            add_escaped(out, *at++);
        else {
            strbuf_add_text(out, "\xef\xbf\xbd");
            at += utf8_bad_length(at, end);
        }
    }
    strbuf_add_char(out, '"');
}

void json_out_text(struct strbuf *out, const char *text) {
    json_out_string(out, text, strlen(text));
}

void json_out_float(struct strbuf *out, float value) {
    if (isfinite(value))
        strbuf_format(out, "%.9g", value);
    else
        strbuf_add_text(out, "null");
}

void json_out_integer(struct strbuf *out, int64_t value) {
    strbuf_format(out, "%lld", (long long)value);
}
