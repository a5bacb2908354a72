/* Where a text may be cut that is longer than its reader wants to hold. */
#include "text-internal.h"

#include "scan-internal.h"

#include <string.h>

/* Whether a space stands at `at`, and neither white space, which a token may take along, nor a mark before it. */
static bool begins_spaces(const unsigned char *bytes, size_t at) {
    const unsigned char *before = scan_character_before(bytes, bytes + at);
    size_t length;
    return bytes[at] == ' ' && scan_character(before, bytes + at, &length) != UNICODE_SPACE &&
           (at < SPACE_MARK_BYTES || memcmp(bytes + at - SPACE_MARK_BYTES, SPACE_MARK, SPACE_MARK_BYTES) != 0);
}

/* Whether words end before `at`, a character's place, and nothing that is done to a text before it is split into words
 * looks across it. */
static bool is_place(const struct tokenizer *tokenizer, const unsigned char *bytes, size_t at, size_t valid,
                     size_t length) {
    const unsigned char *end = bytes + valid;
    bool is_border =
        tokenizer->rules.is_by_characters
            ? begins_spaces(bytes, at)
            : (bytes[at] & 0xc0) != 0x80 && scan_is_border(tokenizer->rules.pattern, bytes, bytes + at, end);
    return is_border && (!tokenizer->rules.has_nfc || nfc_is_border(bytes, bytes + at, end)) &&
           !added_tokens_forbid_cut(tokenizer, bytes, at, length);
}

/* Whether some character and a space behind it may be of one word. */
static bool can_join_spaces(const struct tokenizer *tokenizer) {
    for (int byte = 0; byte < 256; byte++)
        if (byte != ' ' && tokenizer->joins[byte][' '])
            return true;
    return false;
}

/* Tokens that are searched for in a normalized text may stand where the text as it is shows none, and steps may split
 * in any way. */
static bool has_places(const struct tokenizer *tokenizer) {
    const struct tokenizer_rules *rules = &tokenizer->rules;
    bool is_changed = rules->has_nfc || rules->has_early_mark || rules->prefix == PREFIX_ALWAYS;
    return !(is_changed && tokenizer->added[1].has_plain) && rules->pattern != WORDS_STEPS &&
           (!rules->is_by_characters || !can_join_spaces(tokenizer));
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
    if (tokenizer->rules.is_by_characters)
        cut->valid = length; /* a byte that is no UTF-8 is part of a word like any other */
    else if (!cut->is_broken)
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
