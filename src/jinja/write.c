/* Writes values as Python does, and as JSON; reads numbers as Python does. */
#include "jinja-internal.h"

#include "base/utf8.h"
#include "unicode/python.h"
#include "unicode/unicode.h"

#include <errno.h>
#include <math.h>

/* ---- numbers ---- */

enum { FLOAT_BYTES = 40, FLOAT_STEPS = 64 /* the output and the cost of write_float */ };

/* Writes the fewest digits that restore the number; uses an exponent below 10^-4 and from 10^16 on. */
static void write_float(double real, char text[FLOAT_BYTES]) {
    char shortest[FLOAT_BYTES], digits[FLOAT_BYTES];
    int precision = 0, count = 0;
    if (isnan(real) || isinf(real)) {
        snprintf(text, FLOAT_BYTES, "%s", isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
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

/* ---- str(), repr() and tojson ---- */

/* Writes a value as repr() or, for the filter tojson of `transformers`, as json.dumps(): non-ASCII characters stay, and
 * HTML is not escaped. */
struct writer {
    struct jinja_run *run;
    struct jinja_builder *out;
    bool is_json, is_ascii, is_sorted;
    const struct jinja_string *indent; /* NULL: everything on one line */
    const struct jinja_string *item_separator, *key_separator;
};
static const struct jinja_string wide = {.bytes = ", ", .length = 2}, narrow = {.bytes = ",", .length = 1},
                                 colon = {.bytes = ": ", .length = 2};

static void write_value(const struct writer *writer, const struct jinja_value *value, int level);

static void write_text(const struct writer *writer, const char *text) {
    jinja_build_text(writer->run, writer->out, text);
}

/* Writes the escape of a character; returns false when it needs none. `quote`: what surrounds the string. */
static bool escape(const struct writer *writer, uint32_t point, char quote, char text[16]) {
    static const char plain[] = "\\\n\r\t\f\b", letters[] = "\\nrtfb";
    const char *found = point && point < 0x80 ? strchr(plain, (int)point) : NULL;
    size_t known = writer->is_json ? sizeof letters - 1 : 4; /* repr() names only these */
    if (point == (unsigned char)quote)
        snprintf(text, 16, "\\%c", quote);
    else if (found && (size_t)(found - plain) < known)
        snprintf(text, 16, "\\%c", letters[found - plain]);
    else if (writer->is_json && !(point < 0x20 || (point >= 0x7f && writer->is_ascii)))
        return false;
    else if (!writer->is_json && unicode_is_printable(point))
        return false;
    else if (!writer->is_json && point < 0x100)
        snprintf(text, 16, "\\x%02x", (unsigned)point);
    else if (point < 0x10000)
        snprintf(text, 16, "\\u%04x", (unsigned)point);
    else if (!writer->is_json)
        snprintf(text, 16, "\\U%08x", (unsigned)point);
    else
        snprintf(text, 16, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((point - 0x10000) >> 10)),
                 (unsigned)(0xdc00 + ((point - 0x10000) & 0x3ff)));
    return true;
}

static void write_string(const struct writer *writer, const struct jinja_string *string) {
    struct jinja_run *run = writer->run;
    const unsigned char *bytes = (const unsigned char *)string->bytes;
    size_t done = 0, last = string->length ? string->length - 1 : 0;
    bool has_marks = !writer->is_json && string->length; /* repr()'s quotes have those of the characters beside them */
    char quote = '"';
    if (!writer->is_json && (jinja_find_byte(run, string, '\'', 0, string->length) == string->length ||
                             jinja_find_byte(run, string, '"', 0, string->length) < string->length))
        quote = '\'';
    jinja_build(run, writer->out, &quote, 1, has_marks ? jinja_marks_at(string, 0) : 0);
    for (size_t at = 0, length = 1; at < string->length && jinja_charge_bytes(run, length); at += length) {
        uint32_t point = bytes[at];
        char text[16];
        length = point < 0x80 ? 1 : utf8_decode(bytes + at, bytes + string->length, &point);
        length = length ? length : 1;
        bool is_plain = point >= ' ' && point < 0x7f && point != (unsigned char)quote && point != '\\';
        if (is_plain || !escape(writer, point, quote, text))
            continue;
        jinja_build_part(run, writer->out, string, done, at);
        jinja_build(run, writer->out, text, strlen(text), jinja_marks_at(string, at));
        done = at + length;
    }
    jinja_build_part(run, writer->out, string, done, string->length);
    jinja_build(run, writer->out, &quote, 1, has_marks ? jinja_marks_at(string, last) : 0);
}

static void write_line(const struct writer *writer, int level) {
    if (!writer->indent)
        return;
    write_text(writer, "\n");
    for (int i = 0; i < level && !writer->run->status; i++)
        jinja_build_string(writer->run, writer->out, writer->indent);
}

static void begin_item(const struct writer *writer, bool is_first, int level) {
    if (!is_first)
        jinja_build_string(writer->run, writer->out, writer->item_separator);
    write_line(writer, level + 1);
}

static void write_list(const struct writer *writer, const struct jinja_value *value, int level) {
    const struct jinja_list *list = value->list;
    bool is_tuple = value->kind == JINJA_TUPLE && !writer->is_json, is_view = value->kind == JINJA_VIEW;
    if (is_view)
        write_text(writer, list->name);
    write_text(writer, is_tuple ? "(" : is_view ? "([" : "[");
    for (size_t i = 0; i < list->count && !writer->run->status; i++) {
        begin_item(writer, i == 0, level);
        write_value(writer, &list->items[i], level + 1);
    }
    if (list->count)
        write_line(writer, level);
    write_text(writer, is_tuple ? list->count == 1 ? ",)" : ")" : is_view ? "])" : "]");
}

/* Writes a key; JSON has only strings, and converts numbers and none to them. */
static void write_key(const struct writer *writer, const struct jinja_value *key, int level) {
    bool is_converted = writer->is_json && key->kind != JINJA_STRING;
    if (is_converted && !jinja_is_number(key) && key->kind != JINJA_NONE)
        jinja_fail(writer->run, "tojson: a %s is not a key of JSON", jinja_type(key));
    if (is_converted)
        write_text(writer, "\"");
    write_value(writer, key, level);
    if (is_converted)
        write_text(writer, "\"");
}

static const struct jinja_entry *sort_entries(const struct writer *writer, const struct jinja_dict *dict) {
    struct jinja_entry *entries = jinja_object(writer->run, (dict->count + 1) * sizeof *entries);
    for (size_t i = 0; entries && i < dict->count && jinja_charge(writer->run, 1); i++) {
        size_t at = i;
        for (; at > 0 && jinja_order(writer->run, &dict->entries[i].key, &entries[at - 1].key) < 0; at--)
            entries[at] = entries[at - 1];
        entries[at] = dict->entries[i];
    }
    return entries;
}

static void write_dict(const struct writer *writer, const struct jinja_dict *dict, int level) {
    const struct jinja_entry *entries = writer->is_sorted ? sort_entries(writer, dict) : dict->entries;
    write_text(writer, "{");
    for (size_t i = 0; i < dict->count && !writer->run->status; i++) {
        begin_item(writer, i == 0, level);
        write_key(writer, &entries[i].key, level + 1);
        jinja_build_string(writer->run, writer->out, writer->key_separator);
        write_value(writer, &entries[i].value, level + 1);
    }
    if (dict->count)
        write_line(writer, level);
    write_text(writer, "}");
}

static void write_number(const struct writer *writer, const struct jinja_value *value) {
    char text[FLOAT_BYTES];
    if (value->kind == JINJA_INTEGER) {
        snprintf(text, sizeof text, "%lld", (long long)value->integer);
    } else if (writer->is_json && !isfinite(value->real)) {
        snprintf(text, sizeof text, "%s", isnan(value->real) ? "NaN" : value->real > 0 ? "Infinity" : "-Infinity");
    } else {
        jinja_charge(writer->run, FLOAT_STEPS);
        write_float(value->real, text);
    }
    write_text(writer, text);
}

static void write_value(const struct writer *writer, const struct jinja_value *value, int level) {
    bool is_json = writer->is_json;
    if (!jinja_charge(writer->run, 1) || !jinja_enter(writer->run))
        return;
    switch (is_json && value->kind == JINJA_VIEW ? JINJA_MISSING : value->kind) {
    case JINJA_NONE:
        write_text(writer, is_json ? "null" : "None");
        break;
    case JINJA_BOOL:
        write_text(writer, value->truth ? is_json ? "true" : "True" : is_json ? "false" : "False");
        break;
    case JINJA_INTEGER:
    case JINJA_FLOAT:
        write_number(writer, value);
        break;
    case JINJA_STRING:
        write_string(writer, value->string);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
    case JINJA_VIEW:
        write_list(writer, value, level);
        break;
    case JINJA_DICT:
        write_dict(writer, value->dict, level);
        break;
    case JINJA_UNDEFINED:
        if (is_json)
            jinja_fail_undefined(writer->run, value);
        else
            write_text(writer, "Undefined");
        break;
    default:
        jinja_fail(writer->run, is_json ? "tojson: a %s is no JSON" : "a %s cannot be written", jinja_type(value));
    }
    jinja_leave(writer->run);
}

void jinja_build_str(struct jinja_run *run, struct jinja_builder *builder, const struct jinja_value *value) {
    if (value->kind == JINJA_STRING)
        jinja_build_string(run, builder, value->string);
    else if (value->kind != JINJA_UNDEFINED)
        write_value(&(struct writer){.run = run, .out = builder, .item_separator = &wide, .key_separator = &colon},
                    value, 0);
}

struct jinja_value jinja_str(struct jinja_run *run, const struct jinja_value *value) {
    struct jinja_builder builder = {0};
    if (value->kind == JINJA_STRING)
        return *value;
    jinja_build_str(run, &builder, value);
    return jinja_built(run, &builder);
}

struct jinja_value jinja_to_json(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    struct jinja_value indent = call->given[1];
    const struct jinja_value *separators = &call->given[2];
    struct jinja_builder out = {0}, spaces = {0};
    struct writer writer = {.run = run,
                            .out = &out,
                            .is_json = true,
                            .is_ascii = call->given[0].truth,
                            .is_sorted = call->given[3].truth,
                            .item_separator = &wide,
                            .key_separator = &colon};
    if (indent.kind != JINJA_MISSING && indent.kind != JINJA_NONE) {
        if (indent.kind == JINJA_INTEGER || indent.kind == JINJA_BOOL) {
            jinja_build_spaces(run, &spaces, jinja_as_integer(&indent));
            indent = jinja_built(run, &spaces);
        }
        if (indent.kind != JINJA_STRING)
            return jinja_fail(run, "tojson: the indent is a number or a string, not a %s", jinja_type(&indent));
        writer.indent = indent.string;
        writer.item_separator = &narrow;
    }
    if (separators->kind != JINJA_MISSING && separators->kind != JINJA_NONE) {
        bool is_list = separators->kind == JINJA_TUPLE || separators->kind == JINJA_LIST;
        const struct jinja_value *pair = is_list && separators->list->count == 2 ? separators->list->items : NULL;
        if (!pair || pair[0].kind != JINJA_STRING || pair[1].kind != JINJA_STRING)
            return jinja_fail(run, "tojson: the separators are a pair of strings");
        writer.item_separator = pair[0].string;
        writer.key_separator = pair[1].string;
    }
    write_value(&writer, &self, 0);
    return jinja_built(run, &out);
}
