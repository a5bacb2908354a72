/* Where a text may be cut that is longer than its reader wants to hold. */
#include "text-internal.h"

#include "scan-internal.h"

/* Whether words end before `at`, a character's place, and nothing that is done to a text before it is split into words
 * looks across it. */
static bool is_place(const struct tokenizer *tokenizer, const unsigned char *bytes, size_t at, size_t valid,
                     size_t length) {
    const unsigned char *end = bytes + valid;
    return (bytes[at] & 0xc0) != 0x80 && scan_is_border(tokenizer->rules.pattern, bytes, bytes + at, end) &&
           (!tokenizer->rules.has_nfc || nfc_is_border(bytes, bytes + at, end)) &&
           !added_tokens_forbid_cut(tokenizer, bytes, at, length);
}

/* Tokens that are searched for in a normalized text may stand where the text as it is shows none, and a step may split
 * in any way. */
static bool has_places(const struct tokenizer *tokenizer) {
    return !(tokenizer->rules.has_nfc && tokenizer->added[1].has_plain) && tokenizer->rules.pattern != WORDS_STEPS;
}

static size_t longest_added(const struct tokenizer *tokenizer) {
    const struct added_tokens *added = tokenizer->added;
    if (!added[0].has_plain && !added[1].has_plain)
        return 0;
    return added[0].longest > added[1].longest ? added[0].longest : added[1].longest;
}

size_t tokenizer_find_cut(const struct tokenizer *tokenizer, struct tokenizer_cut *cut, const void *text,
                          size_t length) {
    const unsigned char *bytes = text;
    if (!has_places(tokenizer))
        return 0;
    if (!cut->is_broken)
        cut->valid += utf8_valid_length(bytes + cut->valid, length - cut->valid);
    cut->is_broken |= length - cut->valid >= 4; /* fewer bytes may be the beginning of a character */
    if (cut->is_broken)
        return 0;
    size_t longest = longest_added(tokenizer), known = cut->valid; /* the places before are decided */
    if (longest > 0 && known + longest > length)
        known = length >= longest ? length - longest + 1 : 0;
    size_t scanned = cut->scanned ? cut->scanned : 1, at = known ? known - 1 : 0;
    while (at >= scanned && !is_place(tokenizer, bytes, at, cut->valid, length))
        at--;
    if (at < scanned)
        at = 0;
    cut->scanned = known > scanned ? known - at : cut->scanned;
    cut->valid -= at;
    return at;
}
