/* Literals of Python's syntax, as ast.literal_eval reads them, into JSON. A recursive descent of bounded depth over
 * text that is never executed. */
#include "tasks.h"

#include "base/utf8.h"
#include "unicode/python.h"

#include <math.h>

enum { MOST_DEPTH = 64, NUMBER_BYTES = 400 };

struct literal {
    const char *text, *at, *end;
    int depth;
    bool has_comma; /* before the closing bracket that was taken last */
    int status;
};

static json_t *fail(struct literal *l, const char *expected) {
    if (!l->status)
        l->status = status_fail(STATUS_INVALID, "byte %lld: expected %s", (long long)(l->at - l->text), expected);
    return NULL;
}

/* Returns the value, or reports the lack of memory when it is NULL. */
static json_t *made(struct literal *l, json_t *value) {
    if (!value && !l->status)
        l->status = status_no_memory();
    return value;
}

/* Skips white space, line ends and comments. */
static void skip(struct literal *l) {
    while (l->at < l->end && strchr(" \t\n\r\f#", *l->at)) {
        if (*l->at == '#')
            while (l->at < l->end && *l->at != '\n')
                l->at++;
        else
            l->at++;
    }
}

static bool begins_with(const struct literal *l, const char *word) {
    size_t length = strlen(word);
    return (size_t)(l->end - l->at) >= length && !memcmp(l->at, word, length);
}

static bool take(struct literal *l, const char *word) {
    bool is_there = begins_with(l, word);
    l->at += is_there ? strlen(word) : 0;
    return is_there;
}

/* ---- texts ---- */

static void add_character(struct strbuf *out, uint32_t point) {
    unsigned char bytes[4];
    bool is_surrogate = point >= 0xd800 && point < 0xe000; /* which UTF-8 cannot hold */
    strbuf_add(out, bytes, utf8_encode(is_surrogate ? 0xfffd : point, bytes));
}

/* Reads `count` hexadecimal digits of an escape. */
static void read_hexadecimal(struct literal *l, int count, struct strbuf *out) {
    static const char digits[] = "0123456789abcdefABCDEF";
    uint32_t point = 0;
    for (int i = 0; i < count; i++, l->at++) {
        const char *digit = l->at < l->end ? strchr(digits, *l->at) : NULL;
        if (!digit) {
            fail(l, "a hexadecimal digit");
            return;
        }
        uint32_t value = (uint32_t)(digit - digits);
        point = point << 4 | (value < 16 ? value : value - 6);
    }
    if (point > 0x10ffff)
        fail(l, "a character up to \\U0010ffff before this place");
    else
        add_character(out, point);
}

static void read_octal(struct literal *l, struct strbuf *out) {
    uint32_t point = 0;
    for (int i = 0; i < 3 && l->at < l->end && *l->at >= '0' && *l->at <= '7'; i++, l->at++)
        point = point * 8 + (uint32_t)(*l->at - '0');
    add_character(out, point);
}

/* Reads an escape, whose backslash was taken. An unknown one is text, backslash included. */
static void read_escape(struct literal *l, struct strbuf *out) {
    static const char names[] = "\\'\"abfnrtv", values[] = "\\'\"\a\b\f\n\r\t\v";
    const char *name = l->at < l->end ? strchr(names, *l->at) : NULL;
    if (l->at == l->end)
        fail(l, "an escape");
    else if (name) {
        strbuf_add_char(out, values[name - names]);
        l->at++;
    } else if (*l->at >= '0' && *l->at <= '7')
        read_octal(l, out);
    else if (take(l, "x"))
        read_hexadecimal(l, 2, out);
    else if (take(l, "u"))
        read_hexadecimal(l, 4, out);
    else if (take(l, "U"))
        read_hexadecimal(l, 8, out);
    else if (*l->at == 'N')
        fail(l, "an escape without a name of Unicode");
    else if (!take(l, "\r\n") && !take(l, "\n")) /* a line end is left out */
        strbuf_add_char(out, '\\');
}

/* Appends the text between quotes at this place. */
static void read_quoted(struct literal *l, bool is_raw, struct strbuf *out) {
    char quote[4] = {*l->at, *l->at, *l->at, 0};
    bool is_long = take(l, quote);
    if (!is_long) {
        quote[1] = 0;
        l->at++;
    }
    while (!l->status && !take(l, quote)) {
        if (l->at == l->end || (*l->at == '\n' && !is_long)) {
            fail(l, "the closing quote");
        } else if (*l->at != '\\') {
            strbuf_add_char(out, *l->at++);
        } else if (is_raw) {
            strbuf_add_char(out, *l->at++);
            if (l->at < l->end)
                strbuf_add_char(out, *l->at++);
        } else {
            l->at++;
            read_escape(l, out);
        }
    }
}

/* Takes a text's prefix and returns true when a quote follows. */
static bool begins_text(struct literal *l, bool *is_raw) {
    const char *at = l->at;
    *is_raw = at < l->end && (*at == 'r' || *at == 'R');
    if (at < l->end && strchr("rRuU", *at))
        at++;
    if (at == l->end || (*at != '\'' && *at != '"'))
        return false;
    l->at = at;
    return true;
}

/* Reads a text; texts one after the other are one. */
static json_t *read_text(struct literal *l) {
    struct strbuf out = STRBUF_INIT;
    bool is_raw;
    json_t *value = NULL;
    for (skip(l); !l->status && begins_text(l, &is_raw); skip(l))
        read_quoted(l, is_raw, &out);
    if (!l->status)
        l->status = strbuf_status(&out);
    if (!l->status)
        value = made(l, json_stringn(strbuf_text(&out), out.length));
    strbuf_free(&out);
    return value;
}

/* ---- numbers ---- */

static json_t *read_number(struct literal *l) {
    char digits[NUMBER_BYTES + 1];
    size_t length = 0;
    bool is_real = false;
    for (; l->at < l->end && length < NUMBER_BYTES; l->at++) {
        bool is_sign = length == 0 || digits[length - 1] == 'e' || digits[length - 1] == 'E';
        bool is_digit = *l->at >= '0' && *l->at <= '9';
        if (!is_digit && !(is_sign && (*l->at == '-' || *l->at == '+')) && !strchr(".eE", *l->at))
            break;
        is_real |= strchr(".eE", *l->at) != NULL;
        digits[length++] = *l->at;
    }
    digits[length] = 0;
    char *end;
    double real = strtod(digits, &end);
    if (!length || *end || length == NUMBER_BYTES || !isfinite(real) || (!is_real && fabs(real) >= 9e18))
        return fail(l, "a number, a text, a list, a tuple or a dict");
    return made(l, is_real ? json_real(real) : json_integer(strtoll(digits, NULL, 10)));
}

/* ---- lists and dicts ---- */

static json_t *read_value(struct literal *l);

/* Takes a comma, or the end. Returns true when another item follows. */
static bool continues(struct literal *l, const char *close) {
    skip(l);
    l->has_comma = take(l, ",");
    skip(l);
    if (l->status || take(l, close))
        return false;
    if (!l->has_comma)
        fail(l, "a comma or the closing bracket");
    return l->has_comma;
}

static json_t *read_list(struct literal *l, const char *close) {
    json_t *list = made(l, json_array());
    skip(l);
    bool has_more = list && !take(l, close);
    while (has_more) {
        json_t *item = read_value(l);
        if (item && json_array_append_new(list, item))
            made(l, NULL);
        has_more = !l->status && continues(l, close);
    }
    return list;
}

/* Reads what stands between parentheses: a tuple, or a value only. */
static json_t *read_parenthesis(struct literal *l) {
    json_t *list = read_list(l, ")");
    if (l->status || json_array_size(list) != 1 || l->has_comma)
        return list;
    json_t *value = json_incref(json_array_get(list, 0));
    json_decref(list);
    return value;
}

static json_t *read_dict(struct literal *l) {
    json_t *dict = made(l, json_object());
    skip(l);
    bool has_more = dict && !take(l, "}");
    while (has_more) {
        json_t *key = read_value(l), *value = NULL;
        skip(l);
        if (!l->status && !json_is_string(key))
            fail(l, "a text as the key before this place");
        if (!l->status && !take(l, ":"))
            fail(l, "a colon");
        if (!l->status)
            value = read_value(l);
        if (value && json_object_setn_new(dict, json_string_value(key), json_string_length(key), value))
            made(l, NULL);
        json_decref(key);
        has_more = !l->status && continues(l, "}");
    }
    return dict;
}

/* Reads a value other than a text. */
static json_t *read_other(struct literal *l) {
    if (take(l, "["))
        return read_list(l, "]");
    if (take(l, "("))
        return read_parenthesis(l);
    if (take(l, "{"))
        return read_dict(l);
    if (take(l, "True"))
        return json_true();
    if (take(l, "False"))
        return json_false();
    if (take(l, "None"))
        return json_null();
    return read_number(l);
}

static json_t *read_value(struct literal *l) {
    bool is_raw;
    skip(l);
    if (++l->depth > MOST_DEPTH)
        return fail(l, "at most 64 brackets within each other");
    const char *at = l->at;
    bool is_text = begins_text(l, &is_raw);
    l->at = at;
    json_t *value = is_text ? read_text(l) : read_other(l);
    l->depth--;
    if (l->status) {
        json_decref(value);
        return NULL;
    }
    return value;
}

int python_literal_read(const char *text, size_t length, json_t **value) {
    struct literal l = {.text = text, .at = text, .end = text + length};
    size_t valid = utf8_valid_length((const unsigned char *)text, length);
    const char *zero = length ? memchr(text, 0, length) : NULL;
    *value = NULL;
    if (valid < length)
        return status_fail(STATUS_INVALID, "byte %zu: expected UTF-8", valid);
    if (zero)
        return status_fail(STATUS_INVALID, "byte %lld: expected no zero byte", (long long)(zero - text));
    *value = read_value(&l);
    skip(&l);
    if (!l.status && l.at < l.end)
        fail(&l, "nothing more");
    if (l.status) {
        json_decref(*value);
        *value = NULL;
    }
    return l.status;
}
