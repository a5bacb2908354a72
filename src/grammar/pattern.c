/* Patterns of ECMA-262 with the u flag, as terms over the text or over its spelling in JSON.
 *
 * Anchors are no characters. So a part of a pattern is four languages: its matches must begin where the text begins
 * (`^`) or need not, and end where it ends (`$`) or need not. Joining parts joins their languages: only the empty text
 * may come before a `^` or after a `$`. At the end of the pattern the text before and after a match is free, or there
 * is none.
 *
 * A class is a set of ranges; complements are taken there, before a character is spelled. The parser has its own stack
 * of groups. */
#include "readers-internal.h"
#include "spelling-internal.h"

#include "base/utf8.h"
#include "unicode/case.h"
#include "unicode/property.h"

enum { MAX_GROUPS = 256, LAST_POINT = 0x10ffff, LAST_CASED = 0x1e943, UNROLLED = 16, MAX_COUNT = INT32_MAX - 1 };

struct part {
    regex of[2][2]; /* [from the text's begin][to its end] */
    bool is_anchor; /* it cannot be repeated */
};
static const struct part NO_PART = {{{REGEX_NOTHING, REGEX_NOTHING}, {REGEX_NOTHING, REGEX_NOTHING}}, false};
static const struct part EMPTY_PART = {{{REGEX_EMPTY, REGEX_NOTHING}, {REGEX_NOTHING, REGEX_NOTHING}}, false};

struct group {
    size_t first;         /* of its current alternative's parts */
    struct part branches; /* alternatives before */
    bool is_ahead;        /* a negative lookahead */
};
struct pattern {
    const unsigned char *begin, *at, *end;
    struct grammar_reading *reading;
    struct regexes *regexes;
    bool is_search, is_json, ignores_case, has_nul, left_nul; /* left_nul: U+0000 was left out of a class */
    regex any;                                                /* any text */
    regex texts, ahead;         /* texts of the alternatives before; what this one may not begin with */
    struct regex_range *ranges; /* of the class that is being read */
    size_t range_count, range_capacity;
    struct regex_range *cases; /* pairs of characters that differ in case */
    size_t case_count;
    bool has_cases;
    struct part *parts;
    size_t part_count, part_capacity;
    struct group groups[MAX_GROUPS + 1];
    size_t depth;
};

static int refuse(struct pattern *p, enum grammar_refusal why, const char *what) {
    size_t column = 1;
    for (const unsigned char *at = p->begin; at < p->at; at++)
        column += (*at & 0xc0) != 0x80;
    return grammar_refuse(p->reading->report, why, "%s at column %zu of the pattern", what, column);
}
static int invalid(struct pattern *p, const char *what) {
    return refuse(p, GRAMMAR_INVALID, what);
}
static int unsupported(struct pattern *p, const char *what) {
    return refuse(p, GRAMMAR_UNSUPPORTED, what);
}

static bool follows(const struct pattern *p, const char *text) {
    size_t length = strlen(text);
    return (size_t)(p->end - p->at) >= length && !memcmp(p->at, text, length);
}
static bool skip(struct pattern *p, const char *text) {
    bool does = follows(p, text);
    p->at += does ? strlen(text) : 0;
    return does;
}

/* ---- classes ---- */

static int add_range(struct pattern *p, uint32_t first, uint32_t last) {
    TRY(array_reserve(&p->ranges, &p->range_capacity, p->range_count + 1, sizeof *p->ranges));
    p->ranges[p->range_count++] = (struct regex_range){first, last};
    return STATUS_OK;
}

static int compare_ranges(const void *a, const void *b) {
    uint32_t left = ((const struct regex_range *)a)->first, right = ((const struct regex_range *)b)->first;
    return left < right ? -1 : left > right;
}

/* Sorts and merges the ranges from `from` on. */
static void merge_ranges(struct pattern *p, size_t from) {
    size_t made = from;
    if (p->range_count == from)
        return;
    qsort(p->ranges + from, p->range_count - from, sizeof *p->ranges, compare_ranges);
    for (size_t i = from; i < p->range_count; i++)
        if (made > from && p->ranges[i].first <= p->ranges[made - 1].last + 1) {
            if (p->ranges[i].last > p->ranges[made - 1].last)
                p->ranges[made - 1].last = p->ranges[i].last;
        } else {
            p->ranges[made++] = p->ranges[i];
        }
    p->range_count = made;
}

/* Replaces the ranges from `from` on by all other characters. */
static int invert_ranges(struct pattern *p, size_t from) {
    uint32_t next = 0;
    merge_ranges(p, from);
    size_t count = p->range_count;
    for (size_t i = from; i < count; i++) {
        struct regex_range range = p->ranges[i];
        if (next < range.first)
            TRY(add_range(p, next, range.first - 1));
        next = range.last + 1;
    }
    if (next <= LAST_POINT)
        TRY(add_range(p, next, LAST_POINT));
    memmove(p->ranges + from, p->ranges + count, (p->range_count - count) * sizeof *p->ranges);
    p->range_count -= count - from;
    return STATUS_OK;
}

/* Lists all characters with the others that they become in upper, title or lower case. */
static int read_cases(struct pattern *p) {
    size_t capacity = 0;
    for (uint32_t point = 0; point <= LAST_CASED && !p->has_cases; point++)
        for (enum unicode_case to = 0; to < UNICODE_CASES; to++) {
            uint32_t other[3];
            unicode_change_case(point, to, other);
            if (other[0] == point || other[1])
                continue;
            TRY(array_reserve(&p->cases, &capacity, p->case_count + 1, sizeof *p->cases));
            p->cases[p->case_count++] = (struct regex_range){point, other[0]};
        }
    p->has_cases = true;
    return STATUS_OK;
}

static bool has_point(const struct pattern *p, size_t count, uint32_t point) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (p->ranges[middle].last < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && p->ranges[low].first <= point;
}

/* Twice, as "k" and the sign of kelvin meet in "K". */
static int add_other_cases(struct pattern *p) {
    TRY(read_cases(p));
    for (int pass = 0; pass < 2; pass++) {
        size_t count = p->range_count;
        for (size_t i = 0; i < p->case_count; i++) {
            bool has_one = has_point(p, count, p->cases[i].first), has_other = has_point(p, count, p->cases[i].last);
            uint32_t missing = has_one ? p->cases[i].last : p->cases[i].first;
            if (has_one != has_other)
                TRY(add_range(p, missing, missing));
        }
        merge_ranges(p, 0);
    }
    return STATUS_OK;
}

/* Appends the class that has been read as a part. */
static int add_part(struct pattern *p, struct part part) {
    TRY(array_reserve(&p->parts, &p->part_capacity, p->part_count + 1, sizeof *p->parts));
    p->parts[p->part_count++] = part;
    return STATUS_OK;
}
static int add_class(struct pattern *p, bool is_inverted) {
    merge_ranges(p, 0);
    if (p->ignores_case)
        TRY(add_other_cases(p));
    if (is_inverted)
        TRY(invert_ranges(p, 0));
    struct regex_range *ranges = p->ranges;
    size_t count = p->range_count;
    struct regex_range first = count ? *ranges : (struct regex_range){1, 1};
    if (first.first == 0 && p->is_json && !p->has_nul) {
        p->left_nul = true;
        if (first.last == 0) {
            ranges++;
            count--;
        } else {
            ranges->first = 1;
        }
    }
    struct part part = NO_PART;
    part.of[0][0] = spell_characters(p->regexes, ranges, count, p->is_json);
    p->range_count = 0;
    return add_part(p, part);
}

/* The classes \d \s \w and the point; pairs of first and last. */
static const uint32_t DIGIT[] = {'0', '9'}, WORD[] = {'0', '9', 'A', 'Z', '_', '_', 'a', 'z'},
                      SPACE[] = {0x09,   0x0d,   0x20,   0x20,   0xa0,   0xa0,   0x1680, 0x1680, 0x2000, 0x200a,
                                 0x2028, 0x2029, 0x202f, 0x202f, 0x205f, 0x205f, 0x3000, 0x3000, 0xfeff, 0xfeff},
                      LINE_END[] = {'\n', '\n', '\r', '\r', 0x2028, 0x2029};
static const struct {
    char letter;
    unsigned char count;
    const uint32_t *points;
} CLASSES[] = {{'d', sizeof DIGIT / sizeof *DIGIT, DIGIT},
               {'s', sizeof SPACE / sizeof *SPACE, SPACE},
               {'w', sizeof WORD / sizeof *WORD, WORD},
               {'.', sizeof LINE_END / sizeof *LINE_END, LINE_END}};

/* Adds a class of the table, or all other characters. Returns STATUS_NOT_FOUND without a text for another letter. */
static int add_named_class(struct pattern *p, char letter, bool is_inverted) {
    for (size_t i = 0; i < sizeof CLASSES / sizeof *CLASSES; i++)
        if (CLASSES[i].letter == letter) {
            size_t from = p->range_count;
            for (size_t k = 0; k < CLASSES[i].count; k += 2)
                TRY(add_range(p, CLASSES[i].points[k], CLASSES[i].points[k + 1]));
            return is_inverted ? invert_ranges(p, from) : STATUS_OK;
        }
    return STATUS_NOT_FOUND;
}

/* ---- characters and escapes ---- */

static int read_point(struct pattern *p, uint32_t *point) {
    *point = *p->at;
    size_t length = *p->at < 0x80 ? 1 : utf8_decode(p->at, p->end, point);
    if (!length)
        return invalid(p, "bytes that are not UTF-8");
    p->at += length;
    return STATUS_OK;
}

/* Reads `count` hexadecimal digits, or up to "}" for a count of 0. */
static bool read_hex(struct pattern *p, size_t count, uint32_t *point) {
    uint32_t value = 0;
    size_t digits = 0;
    for (; p->at < p->end && (!count || digits < count) && value <= LAST_POINT; p->at++, digits++) {
        unsigned c = *p->at, lower = c | 0x20;
        if (c >= '0' && c <= '9')
            value = value * 16 + c - '0';
        else if (lower >= 'a' && lower <= 'f')
            value = value * 16 + lower - 'a' + 10;
        else
            break;
    }
    *point = value;
    return digits && value <= LAST_POINT && (count ? digits == count : skip(p, "}"));
}

/* Reads what follows \u; two surrogates are one character. */
static int read_unicode(struct pattern *p, int64_t *point) {
    uint32_t value, low;
    bool is_braced = skip(p, "{");
    if (!read_hex(p, is_braced ? 0 : 4, &value))
        return invalid(p, "\\u without a character");
    const unsigned char *after = p->at;
    if (!is_braced && value >= 0xd800 && value < 0xdc00 && skip(p, "\\u")) {
        if (read_hex(p, 4, &low) && low >= 0xdc00 && low < 0xe000)
            value = 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
        else
            p->at = after;
    }
    *point = value;
    return STATUS_OK;
}

static int read_property(struct pattern *p, bool is_inverted) {
    struct unicode_range *ranges;
    size_t count, from = p->range_count;
    const unsigned char *close = skip(p, "{") ? memchr(p->at, '}', (size_t)(p->end - p->at)) : NULL;
    if (!close)
        return invalid(p, "\\p without a property");
    int status = unicode_find_property((const char *)p->at, (size_t)(close - p->at), &ranges, &count);
    if (status == STATUS_INVALID)
        return invalid(p, "an unknown property");
    for (size_t i = 0; !status && i < count; i++)
        status = add_range(p, ranges[i].first, ranges[i].last);
    free(ranges);
    p->at = close + 1;
    THEN_IF(status, is_inverted, invert_ranges(p, from));
    return status;
}

/* Reads what follows a backslash: a character, or a class that is added to the ranges; *point is -1 then. */
static int read_escape(struct pattern *p, bool in_class, int64_t *point) {
    static const char controls[] = "t\tn\nv\vf\fr\r";
    uint32_t c;
    if (p->at == p->end)
        return invalid(p, "a backslash without a character");
    const unsigned char *start = p->at;
    TRY(read_point(p, &c));
    *point = -1;
    char lower = c < 0x80 ? (char)(c | 0x20) : 0;
    if (lower >= 'a' && lower <= 'z') {
        int status = add_named_class(p, lower, c != (uint32_t)lower);
        if (status != STATUS_NOT_FOUND)
            return status;
    }
    if (c == 'p' || c == 'P')
        return read_property(p, c == 'P');
    for (const char *pair = controls; *pair; pair += 2)
        if (c == (uint32_t)*pair) {
            *point = pair[1];
            return STATUS_OK;
        }
    if (c == 'u')
        return read_unicode(p, point);
    uint32_t hex = c;
    if (c == 'x' && !read_hex(p, 2, &hex))
        return invalid(p, "\\x without two hexadecimal digits");
    if (c == 'c') {
        unsigned letter = p->at < p->end ? *p->at | 0x20u : 0;
        if (letter < 'a' || letter > 'z')
            return invalid(p, "\\c without a letter");
        p->at++;
        hex = letter % 32;
    }
    if (c == 'b' && in_class)
        hex = '\b';
    *point = c == '0' ? 0 : hex;
    if (c == 'x' || c == 'c' || (c == 'b' && in_class) ||
        (c == '0' && (p->at == p->end || *p->at < '0' || *p->at > '9')))
        return STATUS_OK;
    if (c < 0x80 && c > ' ' && c != '_' && !(c >= '0' && c <= '9') && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        return STATUS_OK; /* punctuation stands for itself */
    p->at = start;
    if (c == '_')
        return ++p->at, STATUS_OK;
    if (!in_class && (c == 'b' || c == 'B'))
        return unsupported(p, "\\b or \\B (a boundary of words)");
    if (!in_class && (c == 'k' || (c >= '1' && c <= '9')))
        return unsupported(p, "a back-reference");
    return invalid(p, "an unknown escape");
}

/* Reads one item of a class into *point, or -1 when it was a class itself. */
static int read_class_item(struct pattern *p, int64_t *point) {
    uint32_t c;
    if (skip(p, "\\"))
        return read_escape(p, true, point);
    TRY(read_point(p, &c));
    *point = c;
    return STATUS_OK;
}

/* Reads a class after its "[". */
static int read_class(struct pattern *p) {
    bool is_inverted = skip(p, "^");
    while (p->at < p->end && *p->at != ']') {
        int64_t first, last;
        TRY(read_class_item(p, &first));
        last = first;
        const unsigned char *dash = p->at;
        bool is_range = first >= 0 && p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']';
        if (is_range) {
            p->at++;
            TRY(read_class_item(p, &last));
            if (last < 0) { /* "a-\d": the dash is a character */
                TRY(add_range(p, '-', '-'));
                last = first;
            } else if (last < first) {
                p->at = dash;
                return invalid(p, "a range that ends before it begins");
            }
        }
        if (first >= 0)
            TRY(add_range(p, (uint32_t)first, (uint32_t)last));
    }
    if (!skip(p, "]"))
        return invalid(p, "a class without ]");
    return add_class(p, is_inverted);
}

/* ---- parts ---- */

static struct part either(struct regexes *regexes, struct part a, struct part b) {
    for (int i = 0; i < 4; i++)
        a.of[i / 2][i % 2] = regex_either(regexes, a.of[i / 2][i % 2], b.of[i / 2][i % 2]);
    return a;
}

/* Beyond an anchor only the empty text of a language may stand. */
static regex only_empty(struct regexes *regexes, regex one, bool is_beyond) {
    return !is_beyond ? one : regex_accepts_empty(regexes, one) ? REGEX_EMPTY : REGEX_NOTHING;
}

static struct part join(struct regexes *regexes, struct part a, struct part b) {
    struct part joined = NO_PART;
    for (int i = 0; i < 16; i++) {
        int from_a = i & 1, to_a = i >> 1 & 1, from_b = i >> 2 & 1, to_b = i >> 3;
        regex left = a.of[from_a][to_a], right = b.of[from_b][to_b];
        if (left == REGEX_NOTHING || right == REGEX_NOTHING)
            continue;
        regex *into = &joined.of[from_a | from_b][to_a | to_b];
        regex both = regex_join(regexes, only_empty(regexes, left, from_b), only_empty(regexes, right, to_a));
        *into = regex_either(regexes, *into, both);
    }
    return joined;
}

static bool has_anchors(const struct part *part) {
    return part->of[0][1] != REGEX_NOTHING || part->of[1][0] != REGEX_NOTHING || part->of[1][1] != REGEX_NOTHING;
}

/* Repeats the last part. */
static int repeat(struct pattern *p, int32_t least, int32_t most) {
    struct regexes *regexes = p->regexes;
    struct part *part = &p->parts[p->part_count - 1];
    struct part once = *part, free_part = NO_PART, made = EMPTY_PART;
    if (!has_anchors(&once)) {
        part->of[0][0] = regex_repeat(regexes, once.of[0][0], least, most);
        return STATUS_OK;
    }
    if (least > UNROLLED || (most != REGEX_ENDLESS && most > UNROLLED))
        return unsupported(p, "an anchor in a counted repetition");
    /* Anchors count in the first and the last round only; those between are free. */
    for (int32_t i = 0; i < least; i++)
        made = join(regexes, made, once);
    if (most == REGEX_ENDLESS) {
        free_part.of[0][0] = regex_repeat(regexes, once.of[0][0], 0, REGEX_ENDLESS);
        struct part more = join(regexes, once, join(regexes, free_part, once));
        made = join(regexes, made, either(regexes, EMPTY_PART, either(regexes, once, more)));
    } else {
        struct part optional = either(regexes, EMPTY_PART, once);
        for (int32_t i = least; i < most; i++)
            made = join(regexes, made, optional);
    }
    *part = made;
    return STATUS_OK;
}

static int32_t read_count(struct pattern *p, int32_t absent) {
    int64_t value = 0;
    const unsigned char *start = p->at;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        value = value * 10 + *p->at - '0' > MAX_COUNT ? MAX_COUNT : value * 10 + *p->at - '0';
    return p->at == start ? absent : (int32_t)value;
}

/* Reads a quantifier, if one follows. Braces without a number are characters. */
static int read_quantifier(struct pattern *p, bool *found) {
    const unsigned char *start = p->at;
    int32_t least = 0, most = REGEX_ENDLESS;
    *found = true;
    if (skip(p, "+")) {
        least = 1;
    } else if (skip(p, "?")) {
        most = 1;
    } else if (skip(p, "{")) {
        least = read_count(p, -1);
        most = !skip(p, ",") ? least : read_count(p, REGEX_ENDLESS);
        if (!skip(p, "}") || (least < 0 && most < 0)) {
            p->at = start;
            *found = false;
            return STATUS_OK;
        }
        if (least < 0 || most < least) {
            p->at = start;
            return invalid(p, least < 0 ? "a quantifier without a minimum"
                                        : "a quantifier with its maximum below its minimum");
        }
    } else if (!skip(p, "*")) {
        *found = false;
        return STATUS_OK;
    }
    const unsigned char *after = p->at;
    p->at = start;
    if (p->part_count == p->groups[p->depth].first || p->parts[p->part_count - 1].is_anchor)
        return invalid(p, "a quantifier with nothing to repeat");
    TRY(repeat(p, least, most));
    p->at = after;
    skip(p, "?"); /* lazy: the same language */
    if (p->at < p->end && *p->at && strchr("*+?", *p->at))
        return invalid(p, "a quantifier with nothing to repeat");
    return STATUS_OK;
}

/* ---- groups ---- */

/* Returns the texts that a part allows, where a match may begin and end. */
static regex texts_of(struct pattern *p, const struct part *part, bool is_free_before, bool is_free_after) {
    regex found = REGEX_NOTHING;
    for (int i = 0; i < 4; i++) {
        regex one = part->of[i / 2][i % 2];
        if (is_free_before && i / 2 == 0)
            one = regex_join(p->regexes, p->any, one);
        if (is_free_after && i % 2 == 0)
            one = regex_join(p->regexes, one, p->any);
        found = regex_either(p->regexes, found, one);
    }
    return found;
}

/* Ends an alternative of the innermost group. */
static void end_branch(struct pattern *p) {
    struct group *group = &p->groups[p->depth];
    struct part whole = EMPTY_PART;
    for (size_t i = p->part_count; i-- > group->first;)
        whole = join(p->regexes, p->parts[i], whole);
    p->part_count = group->first;
    if (p->depth) {
        group->branches = either(p->regexes, group->branches, whole);
        return;
    }
    regex texts = texts_of(p, &whole, p->is_search, p->is_search);
    if (p->ahead != REGEX_NOTHING)
        texts = regex_both(p->regexes, texts, regex_not(p->regexes, p->ahead));
    p->texts = regex_either(p->regexes, p->texts, texts);
    p->ahead = REGEX_NOTHING;
}

/* True where only `^` has come in this alternative of the pattern, or nothing in a whole match. */
static bool is_at_start(const struct pattern *p) {
    for (size_t i = 0; i < p->part_count; i++)
        if (!p->parts[i].is_anchor || p->parts[i].of[1][0] != REGEX_EMPTY)
            return false;
    return p->depth == 0 && (p->part_count || !p->is_search);
}

/* Begins a group after its "(". */
static int begin_group(struct pattern *p) {
    bool is_ahead = false;
    if (follows(p, "?=") || (follows(p, "?!") && !is_at_start(p)))
        return unsupported(p, "a lookahead other than a negative one after ^");
    if (follows(p, "?<=") || follows(p, "?<!"))
        return unsupported(p, "a lookbehind");
    if (skip(p, "?!")) {
        is_ahead = true;
    } else if (skip(p, "?<")) {
        const unsigned char *close = memchr(p->at, '>', (size_t)(p->end - p->at));
        if (!close || close == p->at)
            return invalid(p, "a group without a name");
        p->at = close + 1;
    } else if (follows(p, "?") && !skip(p, "?:")) {
        return p->end - p->at > 1 && p->at[1] && strchr("imsxuU-", p->at[1])
                   ? unsupported(p, "an inline flag other than (?i) at the start")
                   : invalid(p, "an unknown kind of group");
    }
    if (p->depth == MAX_GROUPS)
        return refuse(p, GRAMMAR_TOO_LARGE, "more than 256 nested groups");
    p->groups[++p->depth] = (struct group){.first = p->part_count, .branches = NO_PART, .is_ahead = is_ahead};
    return STATUS_OK;
}

static int end_group(struct pattern *p) {
    if (!p->depth)
        return invalid(p, "a ) without (");
    p->at++;
    end_branch(p);
    struct group *group = &p->groups[p->depth--];
    if (!group->is_ahead)
        return add_part(p, group->branches);
    regex begins = texts_of(p, &group->branches, false, true);
    p->ahead = regex_either(p->regexes, p->ahead, begins);
    return STATUS_OK;
}

/* Reads one item: an anchor, a group's mark, a class, a character or a quantifier. */
static int read_item(struct pattern *p) {
    bool found;
    int64_t point;
    uint32_t c;
    TRY(read_quantifier(p, &found));
    if (found)
        return STATUS_OK;
    struct part anchor = NO_PART;
    anchor.is_anchor = true;
    switch (*p->at) {
    case '^':
        p->at++;
        anchor.of[1][0] = REGEX_EMPTY;
        return add_part(p, anchor);
    case '$':
        p->at++;
        anchor.of[0][1] = REGEX_EMPTY;
        return add_part(p, anchor);
    case '(':
        p->at++;
        return begin_group(p);
    case ')':
        return end_group(p);
    case '|':
        p->at++;
        end_branch(p);
        return STATUS_OK;
    case '[':
        p->at++;
        return read_class(p);
    case '.':
        p->at++;
        TRY(add_named_class(p, '.', true));
        return add_class(p, false);
    case '\\':
        p->at++;
        TRY(read_escape(p, false, &point));
        break;
    default:
        TRY(read_point(p, &c));
        point = c;
    }
    if (point >= 0)
        TRY(add_range(p, (uint32_t)point, (uint32_t)point));
    return add_class(p, false);
}

static int read_all(struct pattern *p) {
    regex one = p->has_nul ? spell_characters(p->regexes, &(struct regex_range){0, LAST_POINT}, 1, p->is_json)
                           : spell_any(p->regexes, p->is_json);
    p->any = regex_repeat(p->regexes, one, 0, REGEX_ENDLESS);
    p->at = p->begin;
    p->ignores_case = skip(p, "(?i)");
    while (p->at < p->end)
        TRY(read_item(p));
    if (p->depth)
        return invalid(p, "a ( without )");
    end_branch(p);
    return STATUS_OK;
}

int pattern_read(const char *pattern, size_t length, bool is_search, bool is_json, struct grammar_reading *reading,
                 regex *language) {
    const unsigned char *begin = (const unsigned char *)pattern;
    struct pattern *p = calloc(1, sizeof *p);
    TRY(status_allocated(p));
    *p = (struct pattern){.begin = begin,
                          .end = begin + length,
                          .reading = reading,
                          .regexes = rules_regexes(reading->rules),
                          .is_search = is_search,
                          .is_json = is_json,
                          .has_nul = !is_json};
    int status = read_all(p);
    *language = p->texts;
    /* U+0000 is left out, unless nothing else matches. */
    if (!status && p->left_nul && regex_is_nothing(p->regexes, p->texts)) {
        p->has_nul = true;
        p->texts = REGEX_NOTHING;
        status = read_all(p);
        *language = p->texts;
    }
    free(p->ranges);
    free(p->cases);
    free(p->parts);
    free(p);
    return status;
}
