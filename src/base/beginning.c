#include "beginning.h"

#include "base.h"

#include <string.h>

#define AS_LINES "write its rows as JSON lines, as to_json(..., orient=\"records\", lines=True) of pandas does"

/* Longer signatures stand before those that they begin with. */
static const struct signature {
    const char *bytes;
    size_t length;
    const char *what, *advice;
    bool is_of_json; /* a text could begin with it */
} signatures[] = {
    {"\xff\xfe\0\0", 4, "UTF-32 text (it begins with FF FE 00 00)", "convert it to UTF-8", false},
    {"\0\0\xfe\xff", 4, "UTF-32 text (it begins with 00 00 FE FF)", "convert it to UTF-8", false},
    {"\xff\xfe", 2, "UTF-16 text (it begins with FF FE)", "convert it to UTF-8", false},
    {"\xfe\xff", 2, "UTF-16 text (it begins with FE FF)", "convert it to UTF-8", false},
    {"\x28\xb5\x2f\xfd", 4, "packed by zstd", "unpack it, or pack it by gzip", false},
    {"\xfd\x37zXZ", 5, "packed by xz", "unpack it, or pack it by gzip", false},
    {"PAR1", 4, "a Parquet file", AS_LINES, true},
    {"ARROW1", 6, "an Arrow file", AS_LINES, true},
    {"PK\3\4", 4, "a zip archive or a workbook", "unpack it, or save it as CSV", true},
};

size_t beginning_mark(const void *bytes, size_t length) {
    return length >= 3 && !memcmp(bytes, "\xef\xbb\xbf", 3) ? 3 : 0;
}

/* True for ASCII characters of two bytes each, without a mark. */
static bool is_wide(const unsigned char *bytes, size_t length) {
    return length >= 4 && !bytes[0] == !bytes[2] && !bytes[1] == !bytes[3] && !bytes[0] != !bytes[1];
}

int beginning_check(const char *name, const void *bytes, size_t length, bool holds_json) {
    for (size_t i = 0; i < sizeof signatures / sizeof *signatures; i++) {
        const struct signature *known = &signatures[i];
        if (length >= known->length && !memcmp(bytes, known->bytes, known->length) && holds_json >= known->is_of_json)
            return status_fail(STATUS_INVALID, "%s is %s: %s", name, known->what, known->advice);
    }
    return is_wide(bytes, length) ? status_fail(STATUS_INVALID,
                                                "%s is UTF-16 text (every other byte is 00): convert it "
                                                "to UTF-8",
                                                name)
                                  : STATUS_OK;
}
