/* Properties by PCRE2: its pattern \p{NAME}+ runs over all characters, a chunk at a time, and its matches are the
 * ranges. PCRE2 knows short names of categories only; the long ones stand here. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "property.h"

#include "base/base.h"
#include "base/utf8.h"

#include <pcre2.h>

enum { CHUNK = 4096, END = 0x110000, SURROGATES = 0xd800, SURROGATES_END = 0xe000 };

static const struct {
    const char *name, *known;
} CATEGORIES[] = {
    {"Cased_Letter", "L&"},
    {"Close_Punctuation", "Pe"},
    {"Connector_Punctuation", "Pc"},
    {"Control", "Cc"},
    {"Currency_Symbol", "Sc"},
    {"Dash_Punctuation", "Pd"},
    {"Decimal_Number", "Nd"},
    {"Enclosing_Mark", "Me"},
    {"Final_Punctuation", "Pf"},
    {"Format", "Cf"},
    {"LC", "L&"},
    {"Initial_Punctuation", "Pi"},
    {"Letter", "L"},
    {"Letter_Number", "Nl"},
    {"Line_Separator", "Zl"},
    {"Lowercase_Letter", "Ll"},
    {"Mark", "M"},
    {"Math_Symbol", "Sm"},
    {"Modifier_Letter", "Lm"},
    {"Modifier_Symbol", "Sk"},
    {"Nonspacing_Mark", "Mn"},
    {"Number", "N"},
    {"Open_Punctuation", "Ps"},
    {"Other", "C"},
    {"Other_Letter", "Lo"},
    {"Other_Number", "No"},
    {"Other_Punctuation", "Po"},
    {"Other_Symbol", "So"},
    {"Paragraph_Separator", "Zp"},
    {"Private_Use", "Co"},
    {"Punctuation", "P"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Spacing_Mark", "Mc"},
    {"Surrogate", "Cs"},
    {"Symbol", "S"},
    {"Titlecase_Letter", "Lt"},
    {"Unassigned", "Cn"},
    {"Uppercase_Letter", "Lu"},
};
/* Prefixes of names, and what PCRE2 calls them. */
static const struct {
    const char *prefix, *known;
} PREFIXES[] = {{"General_Category=", ""},     {"gc=", ""}, {"Script=", "sc:"}, {"sc=", "sc:"}, {"scx=", "scx:"},
                {"Script_Extensions=", "scx:"}};

/* Makes PCRE2's pattern of a name of letters, digits and "_". Returns false for another name. */
static bool make_pattern(const char *name, size_t length, char *pattern, size_t size) {
    const char *kind = "";
    for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++) {
        size_t prefix = strlen(PREFIXES[i].prefix);
        if (length > prefix && !memcmp(name, PREFIXES[i].prefix, prefix)) {
            kind = PREFIXES[i].known;
            name += prefix;
            length -= prefix;
            break;
        }
    }
    for (size_t i = 0; i < length; i++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_", name[i]) || !name[i])
            return false;
    char copy[64];
    if (!length || length >= sizeof copy)
        return false;
    snprintf(copy, sizeof copy, "%.*s", (int)length, name);
    const char *known = copy;
    for (size_t i = 0; !*kind && i < sizeof CATEGORIES / sizeof *CATEGORIES; i++)
        if (!strcmp(copy, CATEGORIES[i].name))
            known = CATEGORIES[i].known;
    snprintf(pattern, size, "\\p{%s%s}+", kind, known);
    return true;
}

/* Writes characters [first, first + CHUNK) as UTF-8, without surrogates. Returns their length. */
static size_t write_chunk(uint32_t first, unsigned char *bytes) {
    size_t length = 0;
    for (uint32_t point = first; point < first + CHUNK; point++)
        if (point < SURROGATES || point >= SURROGATES_END)
            length += utf8_encode(point, bytes + length);
    return length;
}

static uint32_t point_at(const unsigned char *at, const unsigned char *end) {
    uint32_t point = *at;
    if (point >= 0x80)
        utf8_decode(at, end, &point);
    return point;
}

struct search {
    pcre2_code *code;
    pcre2_match_data *match;
    struct unicode_range *ranges;
    size_t count, capacity;
};

/* Adds the matches in a chunk to the ranges. */
static int add_matches(struct search *search, const unsigned char *bytes, size_t length) {
    size_t at = 0;
    while (at < length && pcre2_match(search->code, bytes, length, at, PCRE2_NO_UTF_CHECK, search->match, NULL) > 0) {
        const size_t *span = pcre2_get_ovector_pointer(search->match);
        size_t final = span[1] - 1;
        while ((bytes[final] & 0xc0) == 0x80)
            final--;
        struct unicode_range found = {point_at(bytes + span[0], bytes + length),
                                      point_at(bytes + final, bytes + length)};
        at = span[1];
        if (search->count && search->ranges[search->count - 1].last + 1 == found.first) {
            search->ranges[search->count - 1].last = found.last;
            continue;
        }
        TRY(array_reserve(&search->ranges, &search->capacity, search->count + 1, sizeof found));
        search->ranges[search->count++] = found;
    }
    return STATUS_OK;
}

int unicode_find_property(const char *name, size_t length, struct unicode_range **ranges, size_t *count) {
    struct search search = {0};
    char pattern[128];
    int error;
    size_t offset;
    *ranges = NULL;
    *count = 0;
    if (!make_pattern(name, length, pattern, sizeof pattern))
        return status_fail(STATUS_INVALID, "unknown property '%.*s'", (int)(length < 80 ? length : 80), name);
    search.code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &offset, NULL);
    if (!search.code)
        return error == PCRE2_ERROR_NOMEMORY || error == PCRE2_ERROR_HEAP_FAILED
                   ? status_no_memory()
                   : status_fail(STATUS_INVALID, "unknown property '%.*s'", (int)length, name);
    pcre2_jit_compile(search.code, PCRE2_JIT_COMPLETE); /* only for speed */
    search.match = pcre2_match_data_create_from_pattern(search.code, NULL);
    unsigned char *bytes = malloc((size_t)CHUNK * 4);
    int status = status_allocated(search.match && bytes);
    for (uint32_t first = 0; !status && first < END; first += CHUNK)
        status = add_matches(&search, bytes, write_chunk(first, bytes));
    pcre2_match_data_free(search.match);
    pcre2_code_free(search.code);
    free(bytes);
    if (status) {
        free(search.ranges);
        return status;
    }
    *ranges = search.ranges;
    *count = search.count;
    return STATUS_OK;
}
