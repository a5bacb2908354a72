/* Properties of characters by name, as \p{...} of ECMA-262 has them. It wraps PCRE2, whose tables have scripts. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct unicode_range {
    uint32_t first, last;
};
/* Finds the characters of a property: a general category ("Lu", "Uppercase_Letter", "gc=Lu"), a script ("Greek",
 * "Script=Greek", "scx=Grek"), or a binary property ("Alphabetic"). Puts sorted disjoint ranges without surrogates into
 * *ranges, for free(). STATUS_INVALID for an unknown name, STATUS_MEMORY. */
int unicode_find_property(const char *name, size_t length, struct unicode_range **ranges, size_t *count);
