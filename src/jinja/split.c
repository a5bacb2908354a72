/* Strings into parts: split(), rsplit(), splitlines(). */
#include "jinja-internal.h"

#include "base/utf8.h"
#include "unicode/python.h"

static struct jinja_value split_at_space(struct jinja_run *run, const struct jinja_string *string, int64_t most) {
    struct jinja_value parts = jinja_list_new(run, JINJA_LIST, 4);
    const char *at = string->bytes, *end = at + string->length;
    size_t bytes;
    while (jinja_charge(run, 1)) {
        while (at < end && python_is_space(at, end, &bytes) && jinja_charge_bytes(run, bytes))
            at += bytes;
        if (at == end || run->status)
            break;
        const char *from = at;
        bool is_last = most >= 0 && (int64_t)parts.list->count == most;
        for (const char *to = at; to < end && jinja_charge_bytes(run, 1); to += bytes) {
            bool is_space = python_is_space(to, end, &bytes);
            if (is_space && !is_last)
                break;
            if (!is_space)
                at = to + bytes;
        }
        if (is_last && at < end) /* the rest keeps its trailing white space */
            at = end;
        jinja_list_add(run, parts.list,
                       jinja_part(run, string, (size_t)(from - string->bytes), (size_t)(at - string->bytes)));
    }
    return parts;
}

struct jinja_value jinja_split(struct jinja_run *run, const struct jinja_string *string,
                               const struct jinja_string *separator, int64_t most) {
    if (!separator)
        return split_at_space(run, string, most);
    if (!separator->length)
        return jinja_fail(run, "split() by an empty separator");
    struct jinja_value parts = jinja_list_new(run, JINJA_LIST, 4);
    size_t at = 0, found;
    while ((most < 0 || (int64_t)parts.list->count < most) && jinja_charge(run, 1) &&
           (found = jinja_find(run, string, separator, at)) != SIZE_MAX) {
        jinja_list_add(run, parts.list, jinja_part(run, string, at, found));
        at = found + separator->length;
    }
    jinja_list_add(run, parts.list, jinja_part(run, string, at, string->length));
    return parts;
}

struct jinja_value jinja_split_right(struct jinja_run *run, const struct jinja_string *string,
                                     const struct jinja_string *separator, int64_t most) {
    if (!separator->length)
        return jinja_fail(run, "rsplit() by an empty separator");
    struct jinja_value parts = jinja_list_new(run, JINJA_LIST, 4);
    size_t end = string->length;
    while ((most < 0 || (int64_t)parts.list->count < most) && jinja_charge(run, 1)) {
        size_t at = jinja_find_last(run, string, separator, end);
        if (at == SIZE_MAX)
            break;
        jinja_list_add(run, parts.list, jinja_part(run, string, at + separator->length, end));
        end = at;
    }
    jinja_list_add(run, parts.list, jinja_part(run, string, 0, end));
    for (size_t i = 0; i < parts.list->count / 2; i++) {
        struct jinja_value *left = &parts.list->items[i], *right = &parts.list->items[parts.list->count - 1 - i];
        struct jinja_value moved = *left;
        *left = *right;
        *right = moved;
    }
    return parts;
}

/* Returns the length of a line end as str.splitlines() knows them; 0: there is none here. */
static size_t line_end(const char *at, const char *end) {
    uint32_t point = (unsigned char)*at;
    size_t bytes = 1;
    if (point == '\r' && end - at > 1 && at[1] == '\n')
        return 2;
    if (point >= 0x80)
        bytes = utf8_decode((const unsigned char *)at, (const unsigned char *)end, &point);
    return (point >= '\n' && point <= '\r') || (point >= 0x1c && point <= 0x1e) || point == 0x85 || point == 0x2028 ||
                   point == 0x2029
               ? bytes
               : 0;
}

struct jinja_value jinja_lines(struct jinja_run *run, const struct jinja_string *string) {
    struct jinja_value lines = jinja_list_new(run, JINJA_LIST, 4);
    size_t from = 0;
    for (size_t at = 0; at < string->length && jinja_charge_bytes(run, 1);) {
        size_t bytes = line_end(string->bytes + at, string->bytes + string->length);
        if (bytes && jinja_charge(run, 1)) {
            jinja_list_add(run, lines.list, jinja_part(run, string, from, at));
            from = at + bytes;
        }
        at += bytes ? bytes : 1;
    }
    if (from < string->length)
        jinja_list_add(run, lines.list, jinja_part(run, string, from, string->length));
    return lines;
}
