/* Regular expressions over bytes, as hash-consed terms with derivatives: union, intersection, complement and counted
 * repetition are operators. A term's number is a state of its automaton; equal languages often have equal numbers.
 *
 * A failure (memory, time, more terms than allowed) stays in the set: constructors then return REGEX_NOTHING, and the
 * caller asks regexes_status once at the end. */
#pragma once

#include "base/base.h"

typedef uint32_t regex;
enum {
    REGEX_NOTHING = 0, /* the empty language */
    REGEX_EMPTY = 1,   /* the empty text */
    REGEX_ANY = 2,     /* any bytes, of any length */
    REGEX_ENDLESS = INT32_MAX,
};

struct regexes;
struct regex_range {
    uint32_t first, last; /* code points; surrogates are left out by themselves */
};

/* `bytes` is the maximum that all terms may take; `deadline` is a time of base/clock.h, or 0. */
int regexes_open(size_t bytes, double deadline, struct regexes **regexes);
/* NULL is allowed. */
void regexes_close(struct regexes *regexes);
/* STATUS_OK, STATUS_MEMORY, or STATUS_UNSUPPORTED (too large). The error text tells which. */
int regexes_status(const struct regexes *regexes);

regex regex_text(struct regexes *regexes, const void *bytes, size_t length);
/* One byte out of first to last. */
regex regex_byte(struct regexes *regexes, uint8_t first, uint8_t last);
/* One character, as its UTF-8, out of sorted disjoint ranges [count]. */
regex regex_characters(struct regexes *regexes, const struct regex_range *ranges, size_t count);
regex regex_join(struct regexes *regexes, regex left, regex right);
regex regex_either(struct regexes *regexes, regex left, regex right);
regex regex_both(struct regexes *regexes, regex left, regex right);
/* All texts of bytes that are not in the language. Intersect it with what a text may be. */
regex regex_not(struct regexes *regexes, regex one);
/* Repeats within these bounds; the upper one may be REGEX_ENDLESS. Counted, not copied. */
regex regex_repeat(struct regexes *regexes, regex one, int32_t least, int32_t most);
/* Digits that continue a number with this remainder to a multiple of `modulus`. Points between them do not count. */
regex regex_multiple(struct regexes *regexes, uint32_t modulus, uint32_t remainder);
/* Shorthands of the above: union and concatenation of [count]. */
regex regex_any_of(struct regexes *regexes, const regex *list, size_t count);
regex regex_sequence(struct regexes *regexes, const regex *list, size_t count);

/* True when the empty text is in the language. */
bool regex_accepts_empty(const struct regexes *regexes, regex one);
/* The texts that may follow the byte. */
regex regex_after(struct regexes *regexes, regex one, uint8_t byte);
/* True when the language has no text. Exact; bounded work, and then a failure stays. */
bool regex_is_nothing(struct regexes *regexes, regex one);
/* True when the text is in the language. */
bool regex_matches(struct regexes *regexes, regex one, const void *bytes, size_t length);
