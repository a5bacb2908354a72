/* Cases of characters by libutf8proc; ASCII is arithmetic.
 *
 * The library maps a character to one other. Those that become several in upper or title case do so by their case
 * folding, whose parts then change one by one; a test compares them with Python. */
#include "case.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

enum { SHARP_S = 0xdf, N_APOSTROPHE = 0x149, DOTTED_I = 0x130, IOTA = 0x3b9, IOTA_BELOW = 0x345, DOT_ABOVE = 0x307 };

/* Changes characters that become several. Returns false for all others. */
static bool change_to_many(int32_t point, enum unicode_case which, uint32_t to[3]) {
    int32_t parts[3];
    int no_class = 0;
    utf8proc_category_t category = utf8proc_category(point);
    bool has_title = category == UTF8PROC_CATEGORY_LL && (utf8proc_totitle(point) == point || point == SHARP_S);
    if (which == UNICODE_TO_LOWER || (which == UNICODE_TO_TITLE ? !has_title : category == UTF8PROC_CATEGORY_LU))
        return false;
    utf8proc_ssize_t count = utf8proc_decompose_char(point, parts, 3, UTF8PROC_CASEFOLD, &no_class);
    for (utf8proc_ssize_t i = 0; count > 1 && i < count; i++)
        if (which == UNICODE_TO_UPPER || i == 0 || point == N_APOSTROPHE)
            to[i] = (uint32_t)(which == UNICODE_TO_UPPER ? utf8proc_toupper(parts[i]) : utf8proc_totitle(parts[i]));
        else
            to[i] = parts[i] == IOTA ? IOTA_BELOW : (uint32_t)parts[i];
    return count > 1;
}

void unicode_change_case(uint32_t point, enum unicode_case which, uint32_t to[3]) {
    static utf8proc_int32_t (*const change[UNICODE_CASES])(utf8proc_int32_t) = {utf8proc_toupper, utf8proc_totitle,
                                                                                utf8proc_tolower};
    memset(to, 0, 3 * sizeof *to);
    if (point >= 0x80 && change_to_many((int32_t)point, which, to))
        return;
    if (point >= 0x80)
        to[0] = (uint32_t)change[which]((int32_t)point);
    else if (which == UNICODE_TO_LOWER)
        to[0] = point >= 'A' && point <= 'Z' ? point + 32 : point;
    else
        to[0] = point >= 'a' && point <= 'z' ? point - 32 : point;
    if (point == DOTTED_I && which == UNICODE_TO_LOWER)
        to[1] = DOT_ABOVE;
}
