/* Splits a template's text into tokens, with Jinja2's rules for white space: trim_blocks, lstrip_blocks, the marks -
 * and + of tags, and removal of the last line end. */
#include "parse-internal.h"

#include "base/utf8.h"
#include "unicode/python.h"
#include "unicode/unicode.h"

#include <errno.h>

struct lexer {
    struct jinja_arena *arena;
    const char *at, *end;
    int line;
    bool is_line_start; /* the text so far ends with a line end */
    struct jinja_token *tokens;
    size_t count, capacity;
    char closing[JINJA_PARSE_DEPTH]; /* the closing brackets that are expected */
    size_t open;
    int status;
};

static void fail(struct lexer *lexer, const char *what) {
    if (!lexer->status)
        lexer->status = status_fail(STATUS_INVALID, "line %d: %s", lexer->line, what);
}

static struct jinja_token *add(struct lexer *lexer, enum jinja_token_kind kind, const char *bytes, size_t length) {
    if (lexer->count == lexer->capacity) {
        size_t capacity = lexer->capacity ? 2 * lexer->capacity : 256;
        struct jinja_token *grown = realloc(lexer->tokens, capacity * sizeof *grown);
        THEN(lexer->status, status_allocated(grown));
        if (!grown)
            return NULL;
        lexer->tokens = grown;
        lexer->capacity = capacity;
    }
    struct jinja_token *token = &lexer->tokens[lexer->count++];
    *token = (struct jinja_token){.kind = kind, .line = lexer->line, .bytes = bytes, .length = length};
    return token;
}

/* Continues after these bytes. */
static void advance(struct lexer *lexer, const char *to) {
    for (const char *at = lexer->at; at < to; at++)
        lexer->line += *at == '\n';
    if (to > lexer->at)
        lexer->is_line_start = to[-1] == '\n';
    lexer->at = to;
}

static const char *after_space(const char *at, const char *end) {
    size_t bytes;
    while (at < end && python_is_space(at, end, &bytes))
        at += bytes;
    return at;
}

static bool starts(const char *at, const char *end, const char *text) {
    size_t length = strlen(text);
    return (size_t)(end - at) >= length && !memcmp(at, text, length);
}

/* Returns the place after a tag's end, "%}" or "#}" with its mark and the white space that goes with it; NULL when
 * there is none here. */
static const char *after_end(const struct lexer *lexer, const char *at, const char *closing, bool is_block) {
    char mark = at < lexer->end ? *at : 0;
    bool has_mark = mark == '-' || (mark == '+' && is_block);
    if (!starts(at + has_mark, lexer->end, closing))
        return NULL;
    at += (size_t)has_mark + 2;
    if (has_mark && mark == '-')
        return after_space(at, lexer->end);
    return is_block && !has_mark && at < lexer->end && *at == '\n' ? at + 1 : at;
}

/* Returns the place after "{%- raw %}" and similar tags; NULL when there is none here. */
static const char *after_raw_tag(const struct lexer *lexer, const char *at, const char *name, bool is_end) {
    if (!starts(at, lexer->end, "{%"))
        return NULL;
    at += 2;
    at += at < lexer->end && (*at == '-' || *at == '+');
    at = after_space(at, lexer->end);
    if (!starts(at, lexer->end, name))
        return NULL;
    at = after_space(at + strlen(name), lexer->end);
    if (is_end)
        return after_end(lexer, at, "%}", true);
    if (starts(at, lexer->end, "-%}"))
        return after_space(at + 3, lexer->end);
    return starts(at, lexer->end, "%}") ? at + 2 : NULL;
}

/* Adds the text before a tag, without what the tag removes. `sign` is the character after its "{%". */
static void add_text(struct lexer *lexer, const char *stop, char sign, bool is_print) {
    const char *from = lexer->at, *to = stop;
    if (sign == '-') {
        const char *kept = from;
        for (const char *at = from; at < to;) {
            size_t bytes;
            bool is_space = python_is_space(at, to, &bytes);
            at += bytes;
            if (!is_space)
                kept = at;
        }
        to = kept;
    } else if (sign != '+' && !is_print) {
        const char *line = to;
        while (line > from && line[-1] != '\n')
            line--;
        if ((line > from || lexer->is_line_start) && line < to && after_space(line, to) == to)
            to = line;
    }
    if (to > from)
        add(lexer, TOKEN_TEXT, from, (size_t)(to - from));
    advance(lexer, stop);
}

static char sign_at(const struct lexer *lexer, const char *at) {
    return at < lexer->end && (*at == '-' || *at == '+') ? *at : 0;
}

/* Reads raw text or a comment, with its end. */
static void read_to_end(struct lexer *lexer, bool is_raw) {
    for (const char *at = lexer->at; at < lexer->end; at++) {
        const char *after = !is_raw      ? after_end(lexer, at, "#}", true)
                            : *at == '{' ? after_raw_tag(lexer, at, "endraw", true)
                                         : NULL;
        if (!after)
            continue;
        if (is_raw)
            add_text(lexer, at, sign_at(lexer, at + 2), false);
        advance(lexer, after);
        return;
    }
    fail(lexer, is_raw ? "{% raw %} without its {% endraw %}" : "a comment {# without its end #}");
}

/* ---- inside tags ---- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Returns the place after digits, which single underscores may separate. */
static const char *after_digits(const char *at, const char *end) {
    while (at < end && (is_digit(*at) || (*at == '_' && end - at > 1 && is_digit(at[1]) && is_digit(at[-1]))))
        at++;
    return at;
}

static void read_number(struct lexer *lexer) {
    const char *from = lexer->at, *end = lexer->end, *at = after_digits(from, end);
    bool is_real = false;
    if (starts(from, end, "0x") || starts(from, end, "0X") || starts(from, end, "0b") || starts(from, end, "0o")) {
        fail(lexer, "numbers in other bases than ten are not supported");
        return;
    }
    if (end - at > 1 && *at == '.' && is_digit(at[1])) {
        is_real = true;
        at = after_digits(at + 1, end);
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        const char *digits = at + 1;
        digits += digits < end && (*digits == '+' || *digits == '-');
        if (digits < end && is_digit(*digits)) {
            is_real = true;
            at = after_digits(digits, end);
        }
    }
    char text[64];
    size_t length = 0;
    for (const char *c = from; c < at && length < sizeof text - 1; c++)
        if (*c != '_')
            text[length++] = *c;
    text[length] = 0;
    struct jinja_token *token = add(lexer, is_real ? TOKEN_FLOAT : TOKEN_INTEGER, from, (size_t)(at - from));
    if (!token)
        return;
    errno = 0;
    if (is_real)
        token->real = strtod(text, NULL);
    else
        token->integer = strtoll(text, NULL, 10);
    if (length == sizeof text - 1 || (!is_real && (errno || (length > 1 && *text == '0' && token->integer))))
        fail(lexer, "a number that cannot be read");
    advance(lexer, at);
}

/* Writes the escape after a backslash to `out`; returns the place after it. */
static const char *unescape(struct lexer *lexer, const char *at, const char *end, char **out) {
    static const char names[] = "\\'\"abfnrtv", meanings[] = "\\'\"\a\b\f\n\r\t\v";
    const char *known = *at ? strchr(names, *at) : NULL;
    int64_t point = -1;
    if (*at == '\n')
        return at + 1;
    if (known) {
        *(*out)++ = meanings[known - names];
        return at + 1;
    }
    bool is_octal = *at >= '0' && *at <= '7';
    if (is_octal || *at == 'x' || *at == 'u' || *at == 'U') {
        size_t most = is_octal ? 3 : *at == 'x' ? 2 : *at == 'u' ? 4 : 8, digits;
        char text[9] = "";
        at += !is_octal;
        memcpy(text, at, (size_t)(end - at) < most ? (size_t)(end - at) : most);
        digits = strspn(text, is_octal ? "01234567" : "0123456789abcdefABCDEF");
        text[digits] = 0;
        point = is_octal || digits == most ? (int64_t)strtoul(text, NULL, is_octal ? 8 : 16) : -1;
        at += digits;
        if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
            point = -1;
    } else if (*at == 'N') {
        fail(lexer, "names of characters (\\N) are not supported");
        return end;
    } else {
        *(*out)++ = '\\';
        return at;
    }
    if (point < 0) {
        fail(lexer, "a string has an escape that is no character");
        return end;
    }
    *out += utf8_encode((uint32_t)point, (unsigned char *)*out);
    return at;
}

static void read_string(struct lexer *lexer) {
    char quote = *lexer->at;
    const char *from = lexer->at + 1, *to = from;
    while (to < lexer->end && *to != quote)
        to += *to == '\\' ? 2 : 1;
    if (to >= lexer->end) {
        fail(lexer, "a string without its end");
        return;
    }
    char *text = jinja_take(lexer->arena, (size_t)(to - from) + 1, 1), *out = text;
    THEN(lexer->status, status_allocated(text));
    if (!text)
        return;
    for (const char *at = from; at < to && !lexer->status;)
        if (*at == '\\')
            at = unescape(lexer, at + 1, to, &out);
        else
            *out++ = *at++;
    add(lexer, TOKEN_STRING, text, (size_t)(out - text));
    advance(lexer, to + 1);
}

static const char *after_name(const char *at, const char *end) {
    while (at < end) {
        uint32_t point;
        size_t bytes = 1;
        bool is_letter = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || *at == '_' || is_digit(*at);
        if (!is_letter && (unsigned char)*at >= 0x80) {
            bytes = utf8_decode((const unsigned char *)at, (const unsigned char *)end, &point);
            is_letter = bytes && unicode_kind_of(point) == UNICODE_LETTER;
        }
        if (!is_letter)
            break;
        at += bytes;
    }
    return at;
}

/* Brackets must match; inside them the end of a tag is not recognised. */
static void balance(struct lexer *lexer, char c) {
    static const char opening[] = "([{", closing[] = ")]}";
    const char *open = strchr(opening, c), *close = strchr(closing, c);
    if (open && lexer->open == sizeof lexer->closing)
        fail(lexer, "too many brackets inside each other");
    else if (open)
        lexer->closing[lexer->open++] = closing[open - opening];
    else if (close && (!lexer->open || lexer->closing[--lexer->open] != c))
        fail(lexer, "a closing bracket that none opens");
}

static void read_operator(struct lexer *lexer) {
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (starts(lexer->at, lexer->end, operators[i])) {
            size_t length = strlen(operators[i]);
            if (length == 1)
                balance(lexer, *lexer->at);
            add(lexer, TOKEN_OPERATOR, operators[i], length);
            advance(lexer, lexer->at + length);
            return;
        }
    fail(lexer, "a character that has no meaning here");
}

static void read_tag(struct lexer *lexer, bool is_print) {
    const char *closing = is_print ? "}}" : "%}";
    lexer->open = 0;
    add(lexer, TOKEN_TAG, is_print ? "{{" : "{%", 2);
    advance(lexer, lexer->at + 2 + (sign_at(lexer, lexer->at + 2) != 0));
    while (!lexer->status) {
        advance(lexer, after_space(lexer->at, lexer->end));
        const char *after = lexer->open ? NULL : after_end(lexer, lexer->at, closing, !is_print);
        const char *name = after_name(lexer->at, lexer->end);
        if (after) {
            add(lexer, TOKEN_TAG, closing, 2);
            advance(lexer, after);
            return;
        }
        if (lexer->at == lexer->end)
            fail(lexer, is_print ? "{{ without its }}" : "{% without its %}");
        else if (is_digit(*lexer->at))
            read_number(lexer);
        else if (name > lexer->at) {
            add(lexer, TOKEN_NAME, lexer->at, (size_t)(name - lexer->at));
            advance(lexer, name);
        } else if (*lexer->at == '"' || *lexer->at == '\'')
            read_string(lexer);
        else
            read_operator(lexer);
    }
}

/* ---- the whole ---- */

static const char *find_tag(const char *at, const char *end) {
    for (; end - at >= 2; at++)
        if (*at == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#'))
            return at;
    return NULL;
}

static void read_all(struct lexer *lexer) {
    while (!lexer->status && lexer->at < lexer->end) {
        const char *tag = find_tag(lexer->at, lexer->end);
        if (!tag) {
            add(lexer, TOKEN_TEXT, lexer->at, (size_t)(lexer->end - lexer->at));
            advance(lexer, lexer->end);
            break;
        }
        const char *raw = after_raw_tag(lexer, tag, "raw", false);
        add_text(lexer, tag, sign_at(lexer, tag + 2), tag[1] == '{');
        if (raw) {
            advance(lexer, raw);
            read_to_end(lexer, true);
        } else if (tag[1] == '#') {
            advance(lexer, tag + 2 + (sign_at(lexer, tag + 2) != 0));
            read_to_end(lexer, false);
        } else {
            read_tag(lexer, tag[1] == '{');
        }
    }
    static const char end[] = "the end of the template"; /* as messages show it */
    add(lexer, TOKEN_END, end, sizeof end - 1);
}

/* Returns a copy in which every line end is \n, without the last one. */
static char *copy_lines(struct jinja_arena *arena, const char *text, size_t *length) {
    char *copy = jinja_take(arena, *length + 1, 1), *out = copy;
    if (!copy)
        return NULL;
    for (size_t i = 0; i < *length; i++)
        if (text[i] != '\r')
            *out++ = text[i];
        else if (i + 1 == *length || text[i + 1] != '\n')
            *out++ = '\n';
    if (out > copy && out[-1] == '\n')
        out--;
    *length = (size_t)(out - copy);
    return copy;
}

int jinja_lex(struct jinja_arena *arena, const char *text, size_t length, struct jinja_token **tokens) {
    *tokens = NULL;
    if (length > JINJA_TEMPLATE_BYTES)
        return status_fail(STATUS_INVALID, "a template of %zu bytes: at most %d are read", length,
                           JINJA_TEMPLATE_BYTES);
    if (utf8_valid_length((const unsigned char *)text, length) != length)
        return status_fail(STATUS_INVALID, "a template that is not UTF-8");
    const char *copy = copy_lines(arena, text, &length);
    TRY(status_allocated(copy));
    struct lexer lexer = {.arena = arena, .at = copy, .end = copy + length, .line = 1, .is_line_start = true};
    read_all(&lexer);
    if (lexer.status)
        free(lexer.tokens);
    else
        *tokens = lexer.tokens;
    return lexer.status;
}
