/* Writes values as Python does, and reads numbers as Python does. */
#include "jinja-internal.h"

#include "base/utf8.h"
#include "unicode/python.h"
#include "unicode/unicode.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

/* Writes the fewest digits that restore the number; uses an exponent below 10^-4 and from 10^16 on. */
void jinja_write_float(double real, char text[JINJA_FLOAT_BYTES]) {
    char shortest[JINJA_FLOAT_BYTES], digits[JINJA_FLOAT_BYTES];
    int precision = 0, count = 0;
    if (isnan(real) || isinf(real)) {
        snprintf(text, JINJA_FLOAT_BYTES, "%s", isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
        return;
    }
    do
        snprintf(shortest, sizeof shortest, "%.*e", precision, real);
    while (precision++ < 17 && strtod(shortest, NULL) != real);
    int exponent = atoi(strchr(shortest, 'e') + 1);
    for (const char *at = shortest; *at != 'e'; at++)
        if (*at >= '0' && *at <= '9')
            digits[count++] = *at;
    while (count > 1 && digits[count - 1] == '0')
        count--;
    char *out = text;
    if (signbit(real))
        *out++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *out++ = digits[0];
        if (count > 1)
            out += sprintf(out, ".%.*s", count - 1, digits + 1);
        sprintf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        sprintf(out, "0.%.*s%.*s", -exponent - 1, "0000", count, digits);
    } else {
        int whole = exponent + 1, zeros = whole > count ? whole - count : 0;
        out += sprintf(out, "%.*s%.*s.", whole < count ? whole : count, digits, zeros, "0000000000000000");
        sprintf(out, "%.*s", count > whole ? count - whole : 1, count > whole ? digits + whole : "0");
    }
}

/* Copies the digits of a number as ASCII, without surrounding white space and single underscores; returns false when
 * there are too many. */
static bool copy_number(struct jinja_run *run, const struct jinja_string *string, char *text, size_t bytes) {
    const char *from = string->bytes, *to = from + string->length;
    size_t space, length = 0;
    while (from < to && jinja_charge_bytes(run, 1) && python_is_space(from, to, &space))
        from += space;
    while (to > from && jinja_charge_bytes(run, 1) && python_is_space(to - 1, to, &space))
        to--;
    for (; from < to; from++) {
        bool is_between = length && from + 1 < to && from[-1] != '_' && from[1] != '_';
        if (*from == '_' && is_between && from[-1] >= '0' && from[-1] <= '9')
            continue;
        if (length + 1 == bytes || !*from || *from == '_' || python_is_space(from, to, &space))
            return false;
        text[length++] = *from;
    }
    text[length] = 0;
    return length > 0;
}

bool jinja_read_integer(struct jinja_run *run, const struct jinja_string *string, int base, int64_t *integer) {
    char text[80], *end;
    if (base < 2 || base > 36 || !copy_number(run, string, text, sizeof text))
        return false;
    errno = 0;
    *integer = strtoll(text, &end, base);
    return !errno && end > text && !*end && (base != 10 || strspn(text, "+-0123456789") == strlen(text));
}

bool jinja_read_float(struct jinja_run *run, const struct jinja_string *string, double *real) {
    char text[512], *end;
    if (!copy_number(run, string, text, sizeof text) || strpbrk(text, "xXpP("))
        return false;
    *real = strtod(text, &end);
    return end > text && !*end;
}

/* ---- str() and repr() ---- */

static void build_escape(struct jinja_run *run, struct jinja_builder *builder, uint32_t point, unsigned marks) {
    char text[16];
    const char *named = point == '\n' ? "\\n" : point == '\r' ? "\\r" : point == '\t' ? "\\t" : NULL;
    if (named)
        snprintf(text, sizeof text, "%s", named);
    else if (point < 0x100)
        snprintf(text, sizeof text, "\\x%02x", (unsigned)point);
    else if (point < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", (unsigned)point);
    else
        snprintf(text, sizeof text, "\\U%08x", (unsigned)point);
    jinja_build(run, builder, text, strlen(text), marks);
}

static void build_quoted(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_string *string) {
    const char *end = string->bytes + string->length;
    bool has_single = jinja_find_byte(run, string, '\'', 0, string->length) < string->length,
         has_double = jinja_find_byte(run, string, '"', 0, string->length) < string->length;
    char quote = has_single && !has_double ? '"' : '\'';
    size_t done = 0;
    unsigned marks = string->length ? jinja_marks_at(string, 0) : 0;
    jinja_build(run, builder, &quote, 1, marks);
    for (size_t at = 0, bytes = 1; at < string->length && jinja_charge_bytes(run, bytes); at += bytes) {
        uint32_t point = (unsigned char)string->bytes[at];
        bytes = 1;
        if (point >= 0x80)
            bytes = utf8_decode((const unsigned char *)string->bytes + at, (const unsigned char *)end, &point);
        bytes = bytes ? bytes : 1;
        bool is_quoted = point == (unsigned char)quote || point == '\\';
        if (!is_quoted && !!unicode_is_printable(point))
            continue;
        jinja_build_part(run, builder, string, done, at);
        marks = jinja_marks_at(string, at);
        if (is_quoted)
            jinja_build(run, builder, (char[]){'\\', (char)point}, 2, marks);
        else
            build_escape(run, builder, point, marks);
        done = at + bytes;
    }
    jinja_build_part(run, builder, string, done, string->length);
    marks = string->length ? jinja_marks_at(string, string->length - 1) : 0;
    jinja_build(run, builder, &quote, 1, marks);
}

static void build_items(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_list *list,
                        const char *open, const char *close) {
    jinja_build_text(run, builder, open);
    for (size_t i = 0; i < list->count && !run->status; i++) {
        if (i)
            jinja_build_text(run, builder, ", ");
        jinja_build_repr(run, builder, &list->items[i]);
    }
    jinja_build_text(run, builder, close);
}

static void build_dict(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_dict *dict) {
    jinja_build_text(run, builder, "{");
    for (size_t i = 0; i < dict->count && !run->status; i++) {
        if (i)
            jinja_build_text(run, builder, ", ");
        jinja_build_repr(run, builder, &dict->entries[i].key);
        jinja_build_text(run, builder, ": ");
        jinja_build_repr(run, builder, &dict->entries[i].value);
    }
    jinja_build_text(run, builder, "}");
}

static void build_plain(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value) {
    char text[JINJA_FLOAT_BYTES];
    switch (value->kind) {
    case JINJA_NONE:
        jinja_build_text(run, builder, "None");
        return;
    case JINJA_BOOL:
        jinja_build_text(run, builder, value->truth ? "True" : "False");
        return;
    case JINJA_INTEGER:
        snprintf(text, sizeof text, "%lld", (long long)value->integer);
        jinja_build_text(run, builder, text);
        return;
    case JINJA_FLOAT:
        jinja_charge(run, JINJA_FLOAT_STEPS);
        jinja_write_float(value->real, text);
        jinja_build_text(run, builder, text);
        return;
    default:
        jinja_fail(run, "a %s cannot be written", jinja_type(value));
    }
}

void jinja_build_repr(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value) {
    if (!jinja_charge(run, 1) || !jinja_enter(run))
        return;
    switch (value->kind) {
    case JINJA_STRING:
        build_quoted(run, builder, value->string);
        break;
    case JINJA_LIST:
        build_items(run, builder, value->list, "[", "]");
        break;
    case JINJA_TUPLE:
        build_items(run, builder, value->list, "(", value->list->count == 1 ? ",)" : ")");
        break;
    case JINJA_VIEW:
        jinja_build_text(run, builder, value->list->name);
        build_items(run, builder, value->list, "([", "])");
        break;
    case JINJA_DICT:
        build_dict(run, builder, value->dict);
        break;
    case JINJA_UNDEFINED:
        jinja_build_text(run, builder, "Undefined");
        break;
    default:
        build_plain(run, builder, value);
    }
    jinja_leave(run);
}

void jinja_build_str(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value) {
    if (value->kind == JINJA_STRING)
        jinja_build_string(run, builder, value->string);
    else if (value->kind != JINJA_UNDEFINED)
        jinja_build_repr(run, builder, value);
}

struct jinja_value jinja_str(struct jinja_run *run, const struct jinja_value *value) {
    struct jinja_builder builder = {0};
    if (value->kind == JINJA_STRING)
        return *value;
    jinja_build_str(run, &builder, value);
    return jinja_built(run, &builder);
}
