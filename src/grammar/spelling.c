/* JSON's text as terms; see spelling-internal.h. Everything is bounded, so that no model writes digits or spaces for
 * ever. */
#include "spelling-internal.h"
#include "terms-internal.h"

#include "base/utf8.h"

enum { FIRST_PLAIN = 0x20, LAST_CHARACTER = 0x10ffff, DIGITS = 20, SPACES = 64, TABS = 16, LINES = 2 };

/* The escape of a character that json.dumps does not write as itself; 0: none. */
static size_t escape_of(uint32_t point, char out[8]) {
    static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (const char *pair = shorts; *pair; pair += 2)
        if (point == (uint32_t)*pair)
            return (size_t)snprintf(out, 8, "\\%c", pair[1]);
    return point < FIRST_PLAIN ? (size_t)snprintf(out, 8, "\\u%04x", point) : 0;
}

regex spell_characters(struct regexes *regexes, const struct regex_range *ranges, size_t count, bool is_json) {
    regex found = REGEX_NOTHING;
    if (!is_json)
        return regex_characters(regexes, ranges, count);
    for (size_t i = 0; i < count; i++) {
        uint32_t first = ranges[i].first;
        char escape[8];
        for (uint32_t point = first; point <= ranges[i].last && point <= '\\'; point++) {
            size_t length = escape_of(point, escape);
            if (!length)
                continue;
            found = regex_either(regexes, found, regex_text(regexes, escape, length));
            if (first < point)
                found =
                    regex_either(regexes, found, regex_characters(regexes, &(struct regex_range){first, point - 1}, 1));
            first = point + 1;
        }
        if (first <= ranges[i].last)
            found = regex_either(regexes, found,
                                 regex_characters(regexes, &(struct regex_range){first, ranges[i].last}, 1));
    }
    return found;
}

regex spell_any(struct regexes *regexes, bool is_json) {
    return spell_characters(regexes, &(struct regex_range){1, LAST_CHARACTER}, 1, is_json);
}

void spell_bytes(struct strbuf *out, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        char escape[8];
        size_t bytes = escape_of((unsigned char)text[i], escape);
        strbuf_add(out, bytes ? escape : text + i, bytes ? bytes : 1);
    }
}

regex spell_text(struct regexes *regexes, const char *text, size_t length, bool is_json) {
    if (!is_json)
        return regex_text(regexes, text, length);
    struct strbuf spelled = STRBUF_INIT;
    spell_bytes(&spelled, text, length);
    if (spelled.failed)
        regexes_fail(regexes, STATUS_MEMORY);
    regex term = spelled.failed ? REGEX_NOTHING : regex_text(regexes, strbuf_text(&spelled), spelled.length);
    strbuf_free(&spelled);
    return term;
}

/* One byte out of `bytes`, pairs of first and last. */
static regex bytes_of(struct regexes *regexes, const char *pairs) {
    regex found = REGEX_NOTHING;
    for (; *pairs; pairs += 2)
        found = regex_either(regexes, found, regex_byte(regexes, (uint8_t)pairs[0], (uint8_t)pairs[1]));
    return found;
}

regex spell_space(struct regexes *regexes, bool is_compact) {
    if (is_compact)
        return REGEX_EMPTY;
    regex space = regex_byte(regexes, ' ', ' '), feed = regex_byte(regexes, '\n', '\n');
    regex indent = regex_either(regexes, regex_repeat(regexes, space, 0, SPACES),
                                regex_repeat(regexes, regex_byte(regexes, '\t', '\t'), 0, TABS));
    regex line = regex_join(regexes, regex_either(regexes, feed, regex_text(regexes, "\r\n", 2)), indent);
    return regex_either(regexes, regex_either(regexes, REGEX_EMPTY, space), regex_repeat(regexes, line, 1, LINES));
}

regex spell_free_string(struct regexes *regexes) {
    regex hex = bytes_of(regexes, "09afAF"), zero = regex_byte(regexes, '0', '0'), some = bytes_of(regexes, "19afAF");
    regex any[4] = {REGEX_EMPTY, hex, regex_repeat(regexes, hex, 2, 2), regex_repeat(regexes, hex, 3, 3)};
    regex d = bytes_of(regexes, "ddDD");
    regex four = regex_join(regexes, bytes_of(regexes, "19acefACEF"), any[3]);
    four = regex_either(regexes, four, regex_sequence(regexes, (regex[]){d, bytes_of(regexes, "07"), any[2]}, 3));
    for (int32_t zeros = 1; zeros <= 3; zeros++)
        four = regex_either(
            regexes, four,
            regex_sequence(regexes, (regex[]){regex_repeat(regexes, zero, zeros, zeros), some, any[3 - zeros]}, 3));
    regex u = regex_text(regexes, "u", 1);
    regex pair[] = {
        u, d, bytes_of(regexes, "89abAB"), any[2], regex_text(regexes, "\\u", 2), d, bytes_of(regexes, "cfCF"), any[2]};
    regex escaped[] = {bytes_of(regexes, "\"\"\\\\//bbffnnrrtt"), regex_join(regexes, u, four),
                       regex_sequence(regexes, pair, sizeof pair / sizeof *pair)};
    struct regex_range plain[] = {{FIRST_PLAIN, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, LAST_CHARACTER}};
    regex one = regex_either(regexes, regex_characters(regexes, plain, 3),
                             regex_join(regexes, regex_text(regexes, "\\", 1), regex_any_of(regexes, escaped, 3)));
    regex quote = regex_byte(regexes, '"', '"');
    return regex_sequence(regexes, (regex[]){quote, regex_repeat(regexes, one, 0, REGEX_ENDLESS), quote}, 3);
}

static regex optional(struct regexes *regexes, regex one) {
    return regex_either(regexes, REGEX_EMPTY, one);
}

regex spell_plain_number(struct regexes *regexes, bool is_integer) {
    regex digit = regex_byte(regexes, '0', '9');
    regex whole = regex_join(regexes, regex_byte(regexes, '1', '9'), regex_repeat(regexes, digit, 0, DIGITS - 1));
    whole = regex_join(regexes, optional(regexes, regex_byte(regexes, '-', '-')),
                       regex_either(regexes, regex_byte(regexes, '0', '0'), whole));
    regex fraction = regex_join(regexes, regex_byte(regexes, '.', '.'), regex_repeat(regexes, digit, 1, DIGITS));
    return is_integer ? whole : regex_join(regexes, whole, optional(regexes, fraction));
}

regex spell_number(struct regexes *regexes) {
    regex digits = regex_repeat(regexes, regex_byte(regexes, '0', '9'), 1, 2);
    regex exponent[] = {bytes_of(regexes, "eeEE"), optional(regexes, bytes_of(regexes, "++--")), digits};
    return regex_join(regexes, spell_plain_number(regexes, false),
                      optional(regexes, regex_sequence(regexes, exponent, 3)));
}
