/* Filters and methods of strings. */
#include "jinja-internal.h"

#include "base/utf8.h"
#include "unicode/python.h"

/* ---- split(), rsplit(), splitlines() ---- */

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
        if (most >= 0 && (int64_t)parts.list->count == most)
            at = end; /* the rest keeps its trailing white space */
        for (; at < end && jinja_charge_bytes(run, 1) && !python_is_space(at, end, &bytes);)
            at += bytes;
        jinja_list_add(run, parts.list,
                       jinja_part(run, string, (size_t)(from - string->bytes), (size_t)(at - string->bytes)));
    }
    return parts;
}

struct jinja_value jinja_split(struct jinja_run *run, const struct jinja_string *string,
                               const struct jinja_string *separator, int64_t most, bool is_from_right) {
    const char *name = is_from_right ? "rsplit" : "split";
    if (!separator && is_from_right && most >= 0)
        return jinja_fail(run, "rsplit() without a separator is not supported");
    if (!separator)
        return split_at_space(run, string, most);
    if (!separator->length)
        return jinja_fail(run, "%s() by an empty separator", name);
    struct jinja_value parts = jinja_list_new(run, JINJA_LIST, 4);
    size_t from = 0, to = string->length;
    while ((most < 0 || (int64_t)parts.list->count < most) && jinja_charge(run, 1)) {
        size_t found =
            is_from_right ? jinja_find_last(run, string, separator, to) : jinja_find(run, string, separator, from);
        if (found == SIZE_MAX)
            break;
        size_t after = found + separator->length;
        jinja_list_add(run, parts.list,
                       is_from_right ? jinja_part(run, string, after, to) : jinja_part(run, string, from, found));
        *(is_from_right ? &to : &from) = is_from_right ? found : after;
    }
    jinja_list_add(run, parts.list, jinja_part(run, string, from, to));
    for (size_t i = 0; is_from_right && i < parts.list->count / 2; i++) {
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

static struct jinja_value jinja_lines(struct jinja_run *run, const struct jinja_string *string) {
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

/* ---- filters ---- */

JINJA_OPERATION(change_case) {
    return jinja_change_case(run, self.string, (enum jinja_case)call->operation->variant);
}

JINJA_OPERATION(strip) {
    return jinja_strip(run, self.string, jinja_string_of(&call->given[0]), (enum jinja_sides)call->operation->variant);
}

/* `variant`: the result of a filter is never safe. */
JINJA_OPERATION(replace) {
    const struct jinja_value *given = call->given;
    if (given[0].kind == JINJA_MISSING || given[1].kind == JINJA_MISSING)
        return jinja_fail(run, "replace: expected the old and the new text");
    struct jinja_value text = jinja_replace(run, self.string, given[0].string, given[1].string, given[2].integer);
    return call->operation->variant ? jinja_set_safe(run, text, false) : text;
}

JINJA_OPERATION(return_self) {
    return self;
}

JINJA_OPERATION(make_safe) {
    return jinja_set_safe(run, self, true);
}

JINJA_OPERATION(escape) {
    return self.string->is_safe ? self : jinja_escape(run, self.string);
}

JINJA_OPERATION(indent) {
    struct jinja_value width = call->given[0];
    bool is_first = call->given[1].truth, is_blank = call->given[2].truth;
    struct jinja_builder builder = {0}, spaces = {0};
    if (width.kind == JINJA_MISSING)
        width = jinja_integer(4);
    if (width.kind == JINJA_INTEGER || width.kind == JINJA_BOOL) {
        jinja_build_spaces(run, &spaces, jinja_as_integer(&width));
        width = jinja_built(run, &spaces);
    }
    if (width.kind != JINJA_STRING)
        return jinja_fail(run, "indent: expected a number or a string as the width, found a %s", jinja_type(&width));
    struct jinja_value newline = jinja_text_value(run, "\n"), text = jinja_binary(run, OPERATOR_ADD, &self, &newline);
    if (text.kind != JINJA_STRING)
        return text;
    struct jinja_value lines = jinja_lines(run, text.string);
    if (is_first)
        jinja_build_string(run, &builder, width.string);
    for (size_t i = 0; i < lines.list->count && jinja_charge(run, 1); i++) {
        const struct jinja_string *line = lines.list->items[i].string;
        if (i)
            jinja_build_text(run, &builder, "\n");
        if (i && (is_blank || line->length))
            jinja_build_string(run, &builder, width.string);
        jinja_build_string(run, &builder, line);
    }
    return jinja_built(run, &builder);
}

const struct jinja_operation jinja_text_filters[] = {
    ROW("capitalize", WANTS_TEXT, change_case, JINJA_CAPITALIZED),
    ROW("e", WANTS_TEXT, escape, 0),
    ROW("escape", WANTS_TEXT, escape, 0),
    ROW("indent", WANTS_STRING, indent, 0, {"width", WANTS_VALUE, 0}, {"first", WANTS_TRUTH, false},
        {"blank", WANTS_TRUTH, false}),
    ROW("lower", WANTS_TEXT, change_case, JINJA_LOWER),
    ROW("replace", WANTS_TEXT, replace, true, {"old", WANTS_TEXT, 0}, {"new", WANTS_TEXT, 0},
        {"count", WANTS_INTEGER, -1}),
    ROW("safe", WANTS_TEXT, make_safe, 0),
    ROW("string", WANTS_TEXT, return_self, 0),
    ROW("title", WANTS_TEXT, change_case, JINJA_WORDS),
    ROW("trim", WANTS_TEXT, strip, JINJA_BOTH, {"chars", WANTS_STRING, 0}),
    ROW("upper", WANTS_TEXT, change_case, JINJA_UPPER),
    ROW(NULL, WANTS_NOTHING, NULL, 0),
};

/* ---- methods ---- */

JINJA_OPERATION(split) {
    return jinja_split(run, self.string, jinja_string_of(&call->given[0]), call->given[1].integer,
                       call->operation->variant);
}

JINJA_OPERATION(split_lines) {
    return jinja_lines(run, self.string);
}

static bool has_end(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *part,
                    bool is_start) {
    return part->length <= string->length &&
           jinja_same(run, string->bytes + (is_start ? 0 : string->length - part->length), part->bytes, part->length);
}

/* Takes a string, or a tuple of alternatives. */
JINJA_OPERATION(starts_or_ends) {
    const char *what = call->operation->name;
    bool is_start = call->operation->variant, is_found = false;
    const struct jinja_value *part = &call->given[0];
    if (part->kind == JINJA_STRING)
        return jinja_bool(has_end(run, self.string, part->string, is_start));
    if (part->kind != JINJA_TUPLE)
        return jinja_fail(run, "%s(): expected a string or a tuple of strings, found a %s", what, jinja_type(part));
    for (size_t i = 0; i < part->list->count && jinja_charge(run, 1); i++) {
        if (part->list->items[i].kind != JINJA_STRING)
            return jinja_fail(run, "%s(): a tuple that holds not only strings", what);
        is_found |= has_end(run, self.string, part->list->items[i].string, is_start);
    }
    return jinja_bool(is_found);
}

JINJA_OPERATION(remove_end) {
    const struct jinja_string *string = self.string, *part = call->given[0].string;
    bool is_start = call->operation->variant;
    if (!has_end(run, string, part, is_start))
        return self;
    return jinja_part(run, string, is_start ? part->length : 0, string->length - (is_start ? 0 : part->length));
}

/* Returns the index of the first or last character at which the part begins; -1: not found. */
JINJA_OPERATION(find) {
    const struct jinja_string *string = self.string, *part = call->given[0].string;
    size_t found = call->operation->variant ? jinja_find_last(run, string, part, string->length)
                                            : jinja_find(run, string, part, 0);
    const struct jinja_string before = {.bytes = string->bytes, .length = found};
    return jinja_integer(found == SIZE_MAX ? -1 : (int64_t)jinja_characters(run, &before));
}

JINJA_OPERATION(count) {
    const struct jinja_string *part = call->given[0].string;
    int64_t found = 0;
    if (!part->length)
        return jinja_integer((int64_t)jinja_characters(run, self.string) + 1);
    for (size_t at = 0; jinja_charge(run, 1) && (at = jinja_find(run, self.string, part, at)) != SIZE_MAX;
         at += part->length)
        found++;
    return jinja_integer(found);
}

JINJA_OPERATION(join) {
    struct jinja_builder builder = {0};
    const struct jinja_list *items = jinja_iterate(run, &call->given[0]);
    for (size_t i = 0; i < items->count && jinja_charge(run, 1); i++) {
        if (items->items[i].kind != JINJA_STRING)
            return jinja_fail(run, "join() wants strings, not a %s", jinja_type(&items->items[i]));
        if (i)
            jinja_build_string(run, &builder, self.string);
        jinja_build_string(run, &builder, items->items[i].string);
    }
    return jinja_built(run, &builder);
}

/* True when all characters are ASCII digits, and there is at least one. */
JINJA_OPERATION(is_digit) {
    bool is_digits = self.string->length > 0;
    for (size_t i = 0; i < self.string->length && is_digits && jinja_charge_bytes(run, 1); i++) {
        if (self.string->bytes[i] & 0x80)
            return jinja_fail(run, "isdigit() of other characters than ASCII is not supported");
        is_digits = self.string->bytes[i] >= '0' && self.string->bytes[i] <= '9';
    }
    return jinja_bool(is_digits);
}

/* Supports "{}", "{0}" and "{name}", without formats. */
JINJA_OPERATION(format) {
    struct jinja_builder builder = {0};
    const struct jinja_string *string = self.string;
    size_t next = 0, done = 0;
    for (size_t at = 0; at < string->length && jinja_charge(run, 1); at++) {
        char c = string->bytes[at];
        if (c != '{' && c != '}')
            continue;
        jinja_build_part(run, &builder, string, done, at);
        done = at + 1;
        if (at + 1 < string->length && string->bytes[at + 1] == c) {
            at++;
            continue;
        }
        char keyword[64];
        size_t rest = string->length - at - 1;
        const char *name = string->bytes + at + 1,
                   *end = memchr(name, '}', rest < sizeof keyword ? rest : sizeof keyword);
        size_t length = end ? (size_t)(end - name) : sizeof keyword;
        if (c == '}' || length >= sizeof keyword)
            return jinja_fail(run, "format(): braces that do not match");
        memcpy(keyword, name, length);
        keyword[length] = 0;
        bool is_number = strspn(keyword, "0123456789") == length;
        int64_t index = -1;
        if (strpbrk(keyword, ":!.[{"))
            return jinja_fail(run, "format(): only {}, {0} and {name} are supported");
        if (is_number && length)
            jinja_read_integer(run, &(struct jinja_string){.bytes = keyword, .length = length}, 10, &index);
        struct jinja_value value = jinja_argument(run, call,
                                                  !length     ? next++
                                                  : is_number ? (size_t)index
                                                              : SIZE_MAX,
                                                  is_number ? NULL : keyword);
        if (value.kind == JINJA_MISSING)
            return jinja_fail(run, "format(): there is no value for {%s}", keyword);
        jinja_build_str(run, &builder, &value);
        at = (size_t)(end - string->bytes);
        done = at + 1;
    }
    jinja_build_part(run, &builder, string, done, string->length);
    return jinja_built(run, &builder);
}

const struct jinja_operation jinja_string_methods[] = {
    ROW("capitalize", WANTS_VALUE, change_case, JINJA_CAPITALIZED),
    ROW("count", WANTS_VALUE, count, 0, {NULL, WANTS_NEEDED, 0}),
    ROW("endswith", WANTS_VALUE, starts_or_ends, false, {NULL, WANTS_VALUE, 0}),
    ROW("find", WANTS_VALUE, find, false, {NULL, WANTS_NEEDED, 0}),
    ROW("format", WANTS_VALUE, format, 0, {NULL, WANTS_CALL, 0}),
    ROW("isdigit", WANTS_VALUE, is_digit, 0),
    ROW("join", WANTS_VALUE, join, 0, {NULL, WANTS_VALUE, 0}),
    ROW("lower", WANTS_VALUE, change_case, JINJA_LOWER),
    ROW("lstrip", WANTS_VALUE, strip, JINJA_LEFT, {NULL, WANTS_STRING, 0}),
    ROW("removeprefix", WANTS_VALUE, remove_end, true, {NULL, WANTS_NEEDED, 0}),
    ROW("removesuffix", WANTS_VALUE, remove_end, false, {NULL, WANTS_NEEDED, 0}),
    ROW("replace", WANTS_VALUE, replace, false, {NULL, WANTS_NEEDED, 0}, {NULL, WANTS_NEEDED, 0},
        {NULL, WANTS_INTEGER, -1}),
    ROW("rfind", WANTS_VALUE, find, true, {NULL, WANTS_NEEDED, 0}),
    ROW("rsplit", WANTS_VALUE, split, true, {"sep", WANTS_STRING, 0}, {"maxsplit", WANTS_INTEGER, -1}),
    ROW("rstrip", WANTS_VALUE, strip, JINJA_RIGHT, {NULL, WANTS_STRING, 0}),
    ROW("split", WANTS_VALUE, split, false, {"sep", WANTS_STRING, 0}, {"maxsplit", WANTS_INTEGER, -1}),
    ROW("splitlines", WANTS_VALUE, split_lines, 0),
    ROW("startswith", WANTS_VALUE, starts_or_ends, true, {NULL, WANTS_VALUE, 0}),
    ROW("strip", WANTS_VALUE, strip, JINJA_BOTH, {NULL, WANTS_STRING, 0}),
    ROW("title", WANTS_VALUE, change_case, JINJA_TITLE),
    ROW("upper", WANTS_VALUE, change_case, JINJA_UPPER),
    ROW(NULL, WANTS_NOTHING, NULL, 0),
};
/* Python's other string methods. Using one is an error, unlike an undefined value. */
const char *const jinja_other_string_methods[] = {
    "casefold",  "center",       "encode",  "expandtabs", "format_map",  "index",    "isalnum",   "isalpha", "isascii",
    "isdecimal", "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",  "istitle",   "isupper", "ljust",
    "maketrans", "partition",    "rindex",  "rjust",      "rpartition",  "swapcase", "translate", "zfill",   NULL};
