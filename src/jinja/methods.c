/* The methods of strings. */
#include "jinja-internal.h"

#include <string.h>

/* Returns a required string. */
static const struct jinja_string *need_string(struct jinja_run *run, struct jinja_call *call, size_t index,
                                              const char *what) {
    const struct jinja_string *string = jinja_string_argument(run, call, index, NULL, what);
    if (!string)
        jinja_fail(run, "%s: expected a string", what);
    return string;
}

static struct jinja_value strip(struct jinja_run *run, const struct jinja_value *self, struct jinja_call *call,
                                enum jinja_sides sides, const char *what) {
    const struct jinja_string *characters = jinja_string_argument(run, call, 0, NULL, what);
    return jinja_call_end(run, call, 1, what) ? jinja_strip(run, self->string, characters, sides)
                                              : jinja_undefined(NULL);
}

static struct jinja_value string_strip(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return strip(run, &self, call, JINJA_BOTH, "strip()");
}

static struct jinja_value string_lstrip(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return strip(run, &self, call, JINJA_LEFT, "lstrip()");
}

static struct jinja_value string_rstrip(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return strip(run, &self, call, JINJA_RIGHT, "rstrip()");
}

static struct jinja_value string_split(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    const struct jinja_string *separator = jinja_string_argument(run, call, 0, "sep", "split()");
    int64_t most = jinja_integer_argument(run, call, 1, "maxsplit", -1);
    return jinja_call_end(run, call, 2, "split()") ? jinja_split(run, self.string, separator, most)
                                                   : jinja_undefined(NULL);
}

static struct jinja_value string_rsplit(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    const struct jinja_string *separator = jinja_string_argument(run, call, 0, "sep", "rsplit()");
    int64_t most = jinja_integer_argument(run, call, 1, "maxsplit", -1);
    if (!separator && most >= 0)
        return jinja_fail(run, "rsplit() without a separator is not supported");
    if (!jinja_call_end(run, call, 2, "rsplit()"))
        return jinja_undefined(NULL);
    return separator ? jinja_split_right(run, self.string, separator, most) : jinja_split(run, self.string, NULL, -1);
}

static struct jinja_value string_splitlines(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return jinja_call_end(run, call, 0, "splitlines()") ? jinja_lines(run, self.string) : jinja_undefined(NULL);
}

static bool has_end(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *part,
                    bool is_start) {
    return part->length <= string->length &&
           jinja_same(run, string->bytes + (is_start ? 0 : string->length - part->length), part->bytes, part->length);
}

/* Takes a string, or a tuple of alternatives. */
static struct jinja_value starts_or_ends(struct jinja_run *run, const struct jinja_value *self, struct jinja_call *call,
                                         bool is_start) {
    const char *what = is_start ? "startswith()" : "endswith()";
    struct jinja_value part = jinja_argument(run, call, 0, NULL);
    if (!jinja_call_end(run, call, 1, what))
        return jinja_undefined(NULL);
    if (part.kind == JINJA_STRING)
        return jinja_bool(has_end(run, self->string, part.string, is_start));
    if (part.kind != JINJA_TUPLE)
        return jinja_fail(run, "%s: expected a string or a tuple of strings, found a %s", what, jinja_type(&part));
    bool is_found = false;
    for (size_t i = 0; i < part.list->count && jinja_charge(run, 1); i++) {
        if (part.list->items[i].kind != JINJA_STRING)
            return jinja_fail(run, "%s: a tuple that holds not only strings", what);
        is_found |= has_end(run, self->string, part.list->items[i].string, is_start);
    }
    return jinja_bool(is_found);
}

static struct jinja_value string_startswith(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return starts_or_ends(run, &self, call, true);
}

static struct jinja_value string_endswith(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return starts_or_ends(run, &self, call, false);
}

static struct jinja_value change_case(struct jinja_run *run, const struct jinja_value *self, struct jinja_call *call,
                                      enum jinja_case to) {
    return jinja_call_end(run, call, 0, "a method of a string") ? jinja_change_case(run, self->string, to)
                                                                : jinja_undefined(NULL);
}

static struct jinja_value string_upper(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return change_case(run, &self, call, JINJA_UPPER);
}

static struct jinja_value string_lower(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return change_case(run, &self, call, JINJA_LOWER);
}

static struct jinja_value string_title(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return change_case(run, &self, call, JINJA_TITLE);
}

static struct jinja_value string_capitalize(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    return change_case(run, &self, call, JINJA_CAPITALIZED);
}

static struct jinja_value string_replace(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    const struct jinja_string *from = need_string(run, call, 0, "replace()"),
                              *to = need_string(run, call, 1, "replace()");
    int64_t most = jinja_integer_argument(run, call, 2, NULL, -1);
    return jinja_call_end(run, call, 3, "replace()") ? jinja_replace(run, self.string, from, to, most)
                                                     : jinja_undefined(NULL);
}

/* Returns the index of the first or last character at which `part` begins; -1: not found. */
static int64_t find(struct jinja_run *run, const struct jinja_string *string, const struct jinja_string *part,
                    bool is_last) {
    size_t found = is_last ? jinja_find_last(run, string, part, string->length) : jinja_find(run, string, part, 0);
    return found == SIZE_MAX
               ? -1
               : (int64_t)jinja_characters(run, &(struct jinja_string){.bytes = string->bytes, .length = found});
}

static struct jinja_value string_find(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    const struct jinja_string *part = need_string(run, call, 0, "find()");
    return jinja_call_end(run, call, 1, "find()") ? jinja_integer(find(run, self.string, part, false))
                                                  : jinja_undefined(NULL);
}

static struct jinja_value string_rfind(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    const struct jinja_string *part = need_string(run, call, 0, "rfind()");
    return jinja_call_end(run, call, 1, "rfind()") ? jinja_integer(find(run, self.string, part, true))
                                                   : jinja_undefined(NULL);
}

static struct jinja_value string_count(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    const struct jinja_string *part = need_string(run, call, 0, "count()");
    int64_t count = 0;
    if (!jinja_call_end(run, call, 1, "count()"))
        return jinja_undefined(NULL);
    if (!part->length)
        return jinja_integer((int64_t)jinja_characters(run, self.string) + 1);
    for (size_t at = 0; jinja_charge(run, 1) && (at = jinja_find(run, self.string, part, at)) != SIZE_MAX;
         at += part->length)
        count++;
    return jinja_integer(count);
}

static struct jinja_value string_removeprefix(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    const struct jinja_string *part = need_string(run, call, 0, "removeprefix()");
    if (!jinja_call_end(run, call, 1, "removeprefix()") || !has_end(run, self.string, part, true))
        return self;
    return jinja_part(run, self.string, part->length, self.string->length);
}

static struct jinja_value string_removesuffix(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    const struct jinja_string *part = need_string(run, call, 0, "removesuffix()");
    if (!jinja_call_end(run, call, 1, "removesuffix()") || !has_end(run, self.string, part, false))
        return self;
    return jinja_part(run, self.string, 0, self.string->length - part->length);
}

static struct jinja_value string_join(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    struct jinja_value over = jinja_argument(run, call, 0, NULL);
    struct jinja_builder builder = {0};
    if (!jinja_call_end(run, call, 1, "join()"))
        return jinja_undefined(NULL);
    const struct jinja_list *items = jinja_iterate(run, &over);
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
static struct jinja_value string_isdigit(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
    bool is_digit = self.string->length > 0;
    for (size_t i = 0; i < self.string->length && is_digit && jinja_charge_bytes(run, 1); i++) {
        if (self.string->bytes[i] & 0x80)
            return jinja_fail(run, "isdigit() of other characters than ASCII is not supported");
        is_digit = self.string->bytes[i] >= '0' && self.string->bytes[i] <= '9';
    }
    return jinja_call_end(run, call, 0, "isdigit()") ? jinja_bool(is_digit) : jinja_undefined(NULL);
}

/* Supports "{}", "{0}" and "{name}", without formats. */
static struct jinja_value string_format(struct jinja_run *run, struct jinja_value self, struct jinja_call *call) {
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
        for (size_t i = 0; i < call->keyword_count && jinja_charge_bytes(run, sizeof *call->keywords); i++)
            call->keywords[i].is_taken = false; /* a name may occur several times */
        jinja_build_str(run, &builder, &value);
        at = (size_t)(end - string->bytes);
        done = at + 1;
    }
    jinja_build_part(run, &builder, string, done, string->length);
    return jinja_built(run, &builder);
}

const struct jinja_method jinja_string_methods[] = {
    {"capitalize", JINJA_COST_WALK, string_capitalize},
    {"count", JINJA_COST_WALK, string_count},
    {"endswith", JINJA_COST_WALK, string_endswith},
    {"find", JINJA_COST_WALK, string_find},
    {"format", JINJA_COST_WALK, string_format},
    {"isdigit", JINJA_COST_WALK, string_isdigit},
    {"join", JINJA_COST_WALK, string_join},
    {"lower", JINJA_COST_WALK, string_lower},
    {"lstrip", JINJA_COST_WALK, string_lstrip},
    {"removeprefix", JINJA_COST_WALK, string_removeprefix},
    {"removesuffix", JINJA_COST_WALK, string_removesuffix},
    {"replace", JINJA_COST_WALK, string_replace},
    {"rfind", JINJA_COST_WALK, string_rfind},
    {"rsplit", JINJA_COST_WALK, string_rsplit},
    {"rstrip", JINJA_COST_WALK, string_rstrip},
    {"split", JINJA_COST_WALK, string_split},
    {"splitlines", JINJA_COST_WALK, string_splitlines},
    {"startswith", JINJA_COST_WALK, string_startswith},
    {"strip", JINJA_COST_WALK, string_strip},
    {"title", JINJA_COST_WALK, string_title},
    {"upper", JINJA_COST_WALK, string_upper},
    {NULL, JINJA_COST_NOTHING, NULL},
};
/* Python's other string methods. Using one is an error, unlike an undefined value. */
const char *const jinja_other_string_methods[] = {
    "casefold",  "center",       "encode",  "expandtabs", "format_map",  "index",    "isalnum",   "isalpha", "isascii",
    "isdecimal", "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",  "istitle",   "isupper", "ljust",
    "maketrans", "partition",    "rindex",  "rjust",      "rpartition",  "swapcase", "translate", "zfill",   NULL};
