/* Regular expressions of Python's, with which PEFT names modules, by the ones that libc has. What has another meaning
 * there, or none, is not read at all: it would match something else in silence. */
#include "method-internal.h"

#include <ctype.h>
#include <regex.h>
#include <string.h>

enum { LONGEST = 2048, REPEATS = 2, REPEAT_DIGITS = 2 };

/* [...]: in Python a backslash begins an escape there, in POSIX it is a character. *at: at its first byte, then at its
 * last. */
static bool translate_class(const char **at, struct strbuf *out) {
    const char *p = *at + 1;
    strbuf_add_char(out, '[');
    if (*p == '^')
        strbuf_add_char(out, *p++);
    for (const char *first = p; *p && (*p != ']' || p == first); p++) {
        if (*p == '[' && p[1] && strchr(":.=", p[1]))
            return false;
        bool is_escape = *p == '\\';
        p += is_escape;
        if (!is_escape || (*p && !isalnum((unsigned char)*p) && !strchr("]^-[\\", *p)))
            strbuf_add_char(out, *p);
        else if (*p == 'd' || *p == 'w')
            strbuf_add_text(out, *p == 'd' ? "0-9" : "A-Za-z0-9_");
        else
            return false;
    }
    strbuf_add_char(out, ']');
    *at = p;
    return *p == ']';
}

/* {n}, {n,m}: small ones, as the compiled form grows by their product. */
static bool is_repeat(const char *at) {
    size_t digits = 0;
    while (*++at && *at != '}') {
        digits = isdigit((unsigned char)*at) ? digits + 1 : 0;
        if ((!digits && *at != ',') || digits > REPEAT_DIGITS)
            return false;
    }
    return *at == '}';
}

/* A lazy *? needs no other word, as whole paths are matched. */
static bool translate(const char *expression, struct strbuf *out) {
    int repeats = 0;
    for (const char *at = expression; *at; at++) {
        bool is_good = true;
        if (*at == '[')
            is_good = translate_class(&at, out);
        else if (at[0] == '(' && at[1] == '?') {
            is_good = at[2] == ':';
            strbuf_add_char(out, '(');
            at += 2;
        } else if (*at == '\\') {
            at++;
            is_good = *at && (!isalnum((unsigned char)*at) || strchr("dDwWsSbB", *at));
            if (*at == 'd' || *at == 'D')
                strbuf_add_text(out, *at == 'd' ? "[0-9]" : "[^0-9]");
            else
                strbuf_add(out, at - 1, 2);
        } else {
            is_good = *at != '{' || (is_repeat(at) && ++repeats <= REPEATS);
            strbuf_add_char(out, *at);
        }
        if (!is_good)
            return false;
    }
    return true;
}

/* `prefix` and the expression for whole paths; the caller ends *compiled. */
static bool compile(const char *prefix, const char *expression, regex_t *compiled) {
    struct strbuf own = STRBUF_INIT, whole = STRBUF_INIT;
    bool is_good = strnlen(expression, LONGEST) < LONGEST && translate(expression, &own);
    strbuf_format(&whole, "^%s(%s)$", prefix, strbuf_text(&own));
    is_good = is_good && !strbuf_status(&own) && !strbuf_status(&whole) &&
              !regcomp(compiled, strbuf_text(&whole), REG_EXTENDED | REG_NOSUB);
    strbuf_free(&own);
    strbuf_free(&whole);
    return is_good;
}

bool peft_expression_matches(const char *path, const char *prefix, const char *expression) {
    regex_t compiled;
    if (!compile(prefix, expression, &compiled))
        return false;
    bool is_match = !regexec(&compiled, path, 0, NULL, 0);
    regfree(&compiled);
    return is_match;
}

int peft_expression_check(const char *what, const char *expression) {
    regex_t compiled;
    if (!compile("", expression, &compiled))
        return status_fail(STATUS_USAGE, "peft.%s \"%.200s\": an expression that cannot be read here", what,
                           expression);
    regfree(&compiled);
    return STATUS_OK;
}
