/* RFC 8259 as a table-free automaton: a state for the place in a value, and a bit for each open object or list. */
#include "json_scan.h"

#include <string.h>

enum state {
    VALUE, /* a value begins; FIRST_: it may be the closing bracket instead */
    FIRST_VALUE,
    FIRST_KEY,
    KEY,
    COLON,
    AFTER, /* a value inside a list or an object has ended */
    STRING,
    ESCAPE,
    HEX, /* `count` digits follow */
    KEY_STRING,
    KEY_ESCAPE,
    KEY_HEX,
    MINUS,
    ZERO,
    DIGITS,
    POINT,
    FRACTION,
    E,
    SIGN,
    EXPONENT,
    TRUE, /* `count` letters have come */
    FALSE,
    NULL_,
};

static bool is_digit(uint8_t byte) {
    return byte >= '0' && byte <= '9';
}

static bool is_hex(uint8_t byte) {
    return is_digit(byte) || ((byte | 32) >= 'a' && (byte | 32) <= 'f');
}

static enum json_scan_result go(struct json_scan *scan, enum state state) {
    scan->state = (uint8_t)state;
    return JSON_SCAN_MORE;
}

/* The value has ended with this byte. */
static enum json_scan_result end_value(struct json_scan *scan) {
    return scan->depth ? go(scan, AFTER) : JSON_SCAN_ENDS;
}

static enum json_scan_result open_level(struct json_scan *scan, bool is_object) {
    if (scan->depth == JSON_SCAN_DEPTH)
        return JSON_SCAN_FAILS;
    uint64_t bit = (uint64_t)1 << scan->depth++;
    scan->objects = is_object ? scan->objects | bit : scan->objects & ~bit;
    return go(scan, is_object ? FIRST_KEY : FIRST_VALUE);
}

static bool is_in_object(const struct json_scan *scan) {
    return scan->objects >> (scan->depth - 1) & 1;
}

static enum json_scan_result close_level(struct json_scan *scan, uint8_t byte) {
    if (byte != (is_in_object(scan) ? '}' : ']'))
        return JSON_SCAN_FAILS;
    scan->depth--;
    return end_value(scan);
}

static enum json_scan_result begin_value(struct json_scan *scan, uint8_t byte) {
    scan->count = 1;
    switch (byte) {
    case '{':
    case '[':
        return open_level(scan, byte == '{');
    case '"':
        return go(scan, STRING);
    case '-':
        return go(scan, MINUS);
    case 't':
        return go(scan, TRUE);
    case 'f':
        return go(scan, FALSE);
    case 'n':
        return go(scan, NULL_);
    default:
        return is_digit(byte) ? go(scan, byte == '0' ? ZERO : DIGITS) : JSON_SCAN_FAILS;
    }
}

static enum json_scan_result in_string(struct json_scan *scan, uint8_t byte) {
    enum state base = scan->state >= KEY_STRING ? KEY_STRING : STRING, at = scan->state - base + STRING;
    if (at == HEX) {
        if (!is_hex(byte))
            return JSON_SCAN_FAILS;
        return --scan->count ? JSON_SCAN_MORE : go(scan, base);
    }
    if (at == ESCAPE) {
        scan->count = 4;
        if (byte == 'u')
            return go(scan, base + HEX - STRING);
        return byte && strchr("\"\\/bfnrt", byte) ? go(scan, base) : JSON_SCAN_FAILS;
    }
    if (byte == '\\')
        return go(scan, base + ESCAPE - STRING);
    if (byte == '"')
        return base == KEY_STRING ? go(scan, COLON) : end_value(scan);
    return byte < 0x20 ? JSON_SCAN_FAILS : JSON_SCAN_MORE;
}

static enum json_scan_result in_word(struct json_scan *scan, uint8_t byte) {
    static const char *const words[] = {"true", "false", "null"};
    const char *word = words[scan->state - TRUE];
    if (byte != (uint8_t)word[scan->count])
        return JSON_SCAN_FAILS;
    return word[++scan->count] ? JSON_SCAN_MORE : end_value(scan);
}

bool json_scan_is_number(const struct json_scan *scan) {
    return scan->state == ZERO || scan->state == DIGITS || scan->state == FRACTION || scan->state == EXPONENT;
}

static enum json_scan_result in_number(struct json_scan *scan, uint8_t byte) {
    enum state at = scan->state;
    if (is_digit(byte)) {
        if (at == ZERO)
            return JSON_SCAN_FAILS;
        return go(scan, at == MINUS             ? (byte == '0' ? ZERO : DIGITS)
                        : at == POINT           ? FRACTION
                        : at == E || at == SIGN ? EXPONENT
                                                : at);
    }
    if (byte == '.' && (at == ZERO || at == DIGITS))
        return go(scan, POINT);
    if ((byte | 32) == 'e' && (at == ZERO || at == DIGITS || at == FRACTION))
        return go(scan, E);
    if ((byte == '+' || byte == '-') && at == E)
        return go(scan, SIGN);
    return json_scan_is_number(scan) ? JSON_SCAN_ENDED : JSON_SCAN_FAILS;
}

enum json_scan_result json_scan_next(struct json_scan *scan, uint8_t byte) {
    enum state at = scan->state;
    bool is_space = byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
    if (at >= STRING && at <= KEY_HEX)
        return in_string(scan, byte);
    if (at >= MINUS && at <= EXPONENT) {
        enum json_scan_result result = in_number(scan, byte);
        if (result != JSON_SCAN_ENDED || !scan->depth)
            return result;
        at = scan->state = AFTER;
    }
    if (at >= TRUE)
        return in_word(scan, byte);
    if (is_space)
        return JSON_SCAN_MORE;
    switch (at) {
    case FIRST_VALUE:
        return byte == ']' ? close_level(scan, byte) : begin_value(scan, byte);
    case VALUE:
        return begin_value(scan, byte);
    case FIRST_KEY:
        if (byte == '}')
            return close_level(scan, byte);
        __attribute__((fallthrough));
    case KEY:
        return byte == '"' ? go(scan, KEY_STRING) : JSON_SCAN_FAILS;
    case COLON:
        return byte == ':' ? go(scan, VALUE) : JSON_SCAN_FAILS;
    default:
        if (byte == ',')
            return go(scan, is_in_object(scan) ? KEY : VALUE);
        return close_level(scan, byte);
    }
}
