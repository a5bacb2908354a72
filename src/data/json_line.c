/* Replaces text that jansson would refuse by other text of the same length, so that columns stay right. */
#include "json_line.h"

#include "base/base.h"
#include "base/json.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>

bool json_line_is_blank(const char *line, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!strchr(" \t\r\n", line[i]) || !line[i])
            return false;
    return true;
}

/* Returns the code unit of an escape \uXXXX, or -1. */
static int code_unit(const char *at, const char *end) {
    int unit = 0;
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        if (!isxdigit((unsigned char)at[i]))
            return -1;
        unit = unit * 16 + (isdigit((unsigned char)at[i]) ? at[i] - '0' : (at[i] | 32) - 'a' + 10);
    }
    return unit;
}

/* jansson has no keys with NUL; no reader asks for one. */
static void mend_key(char *at, const char *end) {
    for (; at < end; at += *at == '\\' && code_unit(at, end) < 0 ? 2 : 1)
        if (code_unit(at, end) == 0)
            memcpy(at + 2, "fffd", 4);
}

/* Mends a string that starts at its quotation mark; returns the place after it. */
static char *mend_string(char *begin, char *end) {
    char *at = begin + 1;
    while (at < end && *at != '"') {
        int unit = *at == '\\' ? code_unit(at, end) : -1;
        bool is_pair = false;
        if (unit >= 0xd800 && unit < 0xdc00) {
            int next = code_unit(at + 6, end);
            is_pair = next >= 0xdc00 && next < 0xe000;
        }
        if (unit >= 0xd800 && unit < 0xe000 && !is_pair)
            memcpy(at + 2, "fffd", 4);
        at += is_pair ? 12 : unit >= 0 ? 6 : *at == '\\' ? 2 : 1;
    }
    if (at >= end)
        return end;
    char *after = ++at;
    while (after < end && memchr(" \t\r\n", *after, 4))
        after++;
    if (after < end && *after == ':')
        mend_key(begin + 1, at - 1);
    return at;
}

static const char *skip_digits(const char *at, const char *end) {
    while (at < end && isdigit((unsigned char)*at))
        at++;
    return at;
}

/* Finds the end of a JSON number that is too large for jansson, or of NaN or an infinity. Returns NULL for anything
 * else. A zero byte ends the text. */
static const char *find_number_end(const char *begin, const char *end) {
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if ((size_t)(end - begin) >= strlen(words[i]) && !memcmp(begin, words[i], strlen(words[i])))
            return begin + strlen(words[i]);
    const char *digits = begin + (*begin == '-'), *at = skip_digits(digits, end), *integer_end = at;
    if (at == digits || (*digits == '0' && at - digits > 1))
        return NULL;
    if (at < end && *at == '.') {
        const char *fraction = at + 1;
        if ((at = skip_digits(fraction, end)) == fraction)
            return NULL;
    }
    if (at < end && (*at | 32) == 'e') {
        const char *exponent = at + 1 + (at + 1 < end && (at[1] == '+' || at[1] == '-'));
        if ((at = skip_digits(exponent, end)) == exponent)
            return NULL;
    }
    errno = 0;
    bool is_too_large = at == integer_end ? strtoll(begin, NULL, 10), errno == ERANGE : isinf(strtod(begin, NULL));
    return is_too_large ? at : NULL;
}

static char *mend_number(char *begin, char *end) {
    const char *number_end = find_number_end(begin, end);
    if (!number_end) { /* to the end of its characters, or its own digits would be taken for another number */
        do
            begin++;
        while (begin < end && memchr("+-.0123456789eE", *begin, 15));
        return begin;
    }
    memset(begin, ' ', (size_t)(number_end - begin)); /* three or more characters */
    memcpy(begin, "\"?\"", 3);                        /* no number, so that a reader who wants one refuses it */
    return begin + (number_end - begin);
}

static void mend(char *at, char *end) {
    while (at < end)
        at = *at == '"'                                                              ? mend_string(at, end)
             : *at == '-' || isdigit((unsigned char)*at) || *at == 'N' || *at == 'I' ? mend_number(at, end)
                                                                                     : at + 1;
}

int json_line_read(const char *line, size_t length, json_t **root) {
    json_error_t error;
    char *copy = malloc(length + 1);
    *root = NULL;
    TRY(status_allocated(copy));
    memcpy(copy, line, length);
    copy[length] = 0;
    mend(copy, copy + length);
    int status = json_read(copy, length, JSON_ALLOW_NUL | JSON_DECODE_ANY, root, &error);
    free(copy);
    return status == STATUS_INVALID ? status_fail(status, "column %d: bad JSON: %s", error.column, error.text) : status;
}
