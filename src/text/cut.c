/* Finds places where a text can be cut that is longer than its reader wants to hold. */
#include "text-internal.h"

#include "scan-internal.h"

enum { PLACE_BLOCK = 4096 };

/* True when there is a space at `at`, and before it neither white space, which a token may include, nor a mark. */
static bool begins_spaces(const unsigned char *bytes, size_t at) {
    const unsigned char *before = scan_character_before(bytes, bytes + at);
    size_t length;
    return bytes[at] == ' ' && scan_character(before, bytes + at, &length) != UNICODE_SPACE &&
           (at < SPACE_MARK_BYTES || memcmp(bytes + at - SPACE_MARK_BYTES, SPACE_MARK, SPACE_MARK_BYTES) != 0);
}

/* True when a word ends before `at`, the start of a character, and no normalizer looks across it. */
static bool is_place(const struct tokenizer *tokenizer, const unsigned char *bytes, size_t at, size_t valid) {
    const unsigned char *end = bytes + valid;
    bool is_border =
        tokenizer->rules.is_by_characters
            ? begins_spaces(bytes, at)
            : (bytes[at] & 0xc0) != 0x80 && scan_is_border(tokenizer->rules.pattern, bytes, bytes + at, end);
    return is_border && (!tokenizer->rules.has_nfc || nfc_is_border(bytes, bytes + at, end));
}

/* Returns the last place below `known`, from `scanned` on, that no added token forbids; 0: there is none, or no memory
 * for the search. The longest token has `longest` bytes; 0 when none is found in any text. The text is searched in
 * blocks longer than that, so each byte is read only a few times. */
static size_t last_place(const struct tokenizer *tokenizer, const unsigned char *bytes, size_t length, size_t valid,
                         size_t scanned, size_t known, size_t longest) {
    size_t block = longest + PLACE_BLOCK, place = 0;
    bool *forbidden = malloc(block * sizeof *forbidden);
    if (!forbidden)
        return 0;
    memset(forbidden, 0, block * sizeof *forbidden);
    for (size_t end = known; end > scanned && !place;) {
        size_t from = end - scanned > block ? end - block : scanned;
        if (longest > 0 && added_tokens_mark_cuts(tokenizer, bytes, length, from, end - from, forbidden))
            break;
        for (; end > from && !place; end--)
            if (!forbidden[end - 1 - from] && is_place(tokenizer, bytes, end - 1, valid))
                place = end - 1;
    }
    free(forbidden);
    return place;
}

/* True when a word may contain a character followed by a space. */
static bool can_join_spaces(const struct tokenizer *tokenizer) {
    for (int byte = 0; byte < 256; byte++)
        if (byte != ' ' && tokenizer->joins[byte][' '])
            return true;
    return false;
}

/* Tokens that are searched for in a normalized text may occur where the original text shows none, and steps may split
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
        cut->valid = length; /* an invalid byte is part of a word like any other */
    else if (!cut->is_broken)
        cut->valid += utf8_valid_length(bytes + cut->valid, length - cut->valid);
    cut->is_broken |= length - cut->valid >= 4; /* fewer bytes may be the beginning of a character */
    if (cut->is_broken)
        return 0;
    size_t longest = longest_added(tokenizer), known = cut->valid; /* earlier places are decided */
    if (longest > 0 && known + longest > length)
        known = length >= longest ? length - longest + 1 : 0;
    size_t scanned = cut->scanned ? cut->scanned : 1;
    size_t at = last_place(tokenizer, bytes, length, cut->valid, scanned, known, longest);
    cut->scanned = known > scanned ? known - at : cut->scanned;
    cut->valid -= at;
    return at;
}
