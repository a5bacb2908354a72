/* The filter tojson of `transformers`: Python's json.dumps, which keeps non-ASCII characters and does not escape
 * HTML. */
#include "jinja-internal.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct writer {
    struct jinja_run *run;
    struct jinja_builder out;
    const struct jinja_string *indent; /* NULL: everything on one line */
    const struct jinja_string *item_separator, *key_separator;
    bool is_ascii, is_sorted;
};

static void write_value(struct writer *writer, const struct jinja_value *value, int level);

static void write_text(struct writer *writer, const char *text) {
    jinja_build_text(writer->run, &writer->out, text);
}

/* Writes the escape of a character; returns false when it needs none. */
static bool escape(const struct writer *writer, uint32_t point, char text[16]) {
    static const char plain[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    const char *found = point && point < 0x80 ? strchr(plain, (int)point) : NULL;
    if (found)
        snprintf(text, 16, "\\%c", letters[found - plain]);
    else if (point >= 0x10000 && writer->is_ascii)
        snprintf(text, 16, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((point - 0x10000) >> 10)),
                 (unsigned)(0xdc00 + ((point - 0x10000) & 0x3ff)));
    else if (point < 0x20 || (point >= 0x7f && writer->is_ascii))
        snprintf(text, 16, "\\u%04x", (unsigned)point);
    else
        return false;
    return true;
}

static void write_string(struct writer *writer, const struct jinja_string *string) {
    struct jinja_run *run = writer->run;
    const unsigned char *bytes = (const unsigned char *)string->bytes;
    size_t done = 0;
    write_text(writer, "\"");
    for (size_t at = 0, length = 1; at < string->length && jinja_charge_bytes(run, length); at += length) {
        uint32_t point = bytes[at];
        char text[16];
        length = point < 0x80 ? 1 : utf8_decode(bytes + at, bytes + string->length, &point);
        length = length ? length : 1;
        if (!escape(writer, point, text))
            continue;
        jinja_build_part(run, &writer->out, string, done, at);
        jinja_build(run, &writer->out, text, strlen(text), jinja_marks_at(string, at));
        done = at + length;
    }
    jinja_build_part(run, &writer->out, string, done, string->length);
    write_text(writer, "\"");
}

static void write_line(struct writer *writer, int level) {
    if (!writer->indent)
        return;
    write_text(writer, "\n");
    for (int i = 0; i < level && !writer->run->status; i++)
        jinja_build_string(writer->run, &writer->out, writer->indent);
}

static void write_list(struct writer *writer, const struct jinja_list *list, int level) {
    write_text(writer, "[");
    for (size_t i = 0; i < list->count && !writer->run->status; i++) {
        if (i)
            jinja_build_string(writer->run, &writer->out, writer->item_separator);
        write_line(writer, level + 1);
        write_value(writer, &list->items[i], level + 1);
    }
    if (list->count)
        write_line(writer, level);
    write_text(writer, "]");
}

/* Writes a key: a string, or a value converted to one. */
static void write_key(struct writer *writer, const struct jinja_value *key) {
    if (key->kind == JINJA_STRING) {
        write_string(writer, key->string);
        return;
    }
    if (!jinja_is_number(key) && key->kind != JINJA_NONE)
        jinja_fail(writer->run, "tojson: a %s is not a key of JSON", jinja_type(key));
    write_text(writer, "\"");
    write_value(writer, key, 0);
    write_text(writer, "\"");
}

static const struct jinja_entry *sort_entries(struct writer *writer, const struct jinja_dict *dict) {
    struct jinja_entry *entries = jinja_object(writer->run, (dict->count + 1) * sizeof *entries);
    for (size_t i = 0; entries && i < dict->count && jinja_charge(writer->run, 1); i++) {
        size_t at = i;
        for (; at > 0 && jinja_order(writer->run, &dict->entries[i].key, &entries[at - 1].key) < 0; at--)
            entries[at] = entries[at - 1];
        entries[at] = dict->entries[i];
    }
    return entries;
}

static void write_dict(struct writer *writer, const struct jinja_dict *dict, int level) {
    const struct jinja_entry *entries = writer->is_sorted ? sort_entries(writer, dict) : dict->entries;
    write_text(writer, "{");
    for (size_t i = 0; i < dict->count && !writer->run->status; i++) {
        if (i)
            jinja_build_string(writer->run, &writer->out, writer->item_separator);
        write_line(writer, level + 1);
        write_key(writer, &entries[i].key);
        jinja_build_string(writer->run, &writer->out, writer->key_separator);
        write_value(writer, &entries[i].value, level + 1);
    }
    if (dict->count)
        write_line(writer, level);
    write_text(writer, "}");
}

static void write_value(struct writer *writer, const struct jinja_value *value, int level) {
    char text[JINJA_FLOAT_BYTES];
    if (!jinja_charge(writer->run, 1) || !jinja_enter(writer->run))
        return;
    switch (value->kind) {
    case JINJA_NONE:
        write_text(writer, "null");
        break;
    case JINJA_BOOL:
        write_text(writer, value->truth ? "true" : "false");
        break;
    case JINJA_INTEGER:
        snprintf(text, sizeof text, "%lld", (long long)value->integer);
        write_text(writer, text);
        break;
    case JINJA_FLOAT:
        jinja_charge(writer->run, JINJA_FLOAT_STEPS);
        jinja_write_float(value->real, text);
        write_text(writer, isnan(value->real)   ? "NaN"
                           : isinf(value->real) ? (value->real > 0 ? "Infinity" : "-Infinity")
                                                : text);
        break;
    case JINJA_STRING:
        write_string(writer, value->string);
        break;
    case JINJA_LIST:
    case JINJA_TUPLE:
        write_list(writer, value->list, level);
        break;
    case JINJA_DICT:
        write_dict(writer, value->dict, level);
        break;
    case JINJA_UNDEFINED:
        jinja_fail_undefined(writer->run, value);
        break;
    default:
        jinja_fail(writer->run, "tojson: a %s is no JSON", jinja_type(value));
    }
    jinja_leave(writer->run);
}

static const struct jinja_string *read_indent(struct jinja_run *run, const struct jinja_value *indent) {
    struct jinja_builder spaces = {0};
    struct jinja_value made;
    if (indent->kind == JINJA_STRING)
        return indent->string;
    if (indent->kind != JINJA_INTEGER && indent->kind != JINJA_BOOL)
        jinja_fail(run, "tojson: the indent is a number or a string, not a %s", jinja_type(indent));
    for (int64_t i = 0; !run->status && i < jinja_as_integer(indent) && jinja_charge(run, 1); i++)
        jinja_build_text(run, &spaces, " ");
    made = jinja_built(run, &spaces);
    return made.kind == JINJA_STRING ? made.string : NULL;
}

static void read_separators(struct writer *writer, const struct jinja_value *given) {
    if (given->kind == JINJA_MISSING || given->kind == JINJA_NONE)
        return;
    bool is_pair = (given->kind == JINJA_TUPLE || given->kind == JINJA_LIST) && given->list->count == 2 &&
                   given->list->items[0].kind == JINJA_STRING && given->list->items[1].kind == JINJA_STRING;
    if (!is_pair) {
        jinja_fail(writer->run, "tojson: the separators are a pair of strings");
        return;
    }
    writer->item_separator = given->list->items[0].string;
    writer->key_separator = given->list->items[1].string;
}

struct jinja_value jinja_to_json(struct jinja_run *run, struct jinja_value value, struct jinja_call *call) {
    static const struct jinja_string wide = {.bytes = ", ", .length = 2}, narrow = {.bytes = ",", .length = 1},
                                     colon = {.bytes = ": ", .length = 2};
    struct writer writer = {.run = run, .key_separator = &colon};
    writer.is_ascii = jinja_bool_argument(run, call, 0, "ensure_ascii", false);
    struct jinja_value indent = jinja_argument(run, call, 1, "indent");
    struct jinja_value separators = jinja_argument(run, call, 2, "separators");
    writer.is_sorted = jinja_bool_argument(run, call, 3, "sort_keys", false);
    if (!jinja_call_end(run, call, 4, "tojson"))
        return jinja_undefined(NULL);
    if (indent.kind != JINJA_MISSING && indent.kind != JINJA_NONE)
        writer.indent = read_indent(run, &indent);
    writer.item_separator = writer.indent ? &narrow : &wide;
    read_separators(&writer, &separators);
    if (run->status)
        return jinja_undefined(NULL);
    write_value(&writer, &value, 0);
    return jinja_built(run, &writer.out);
}
