/* The pre-tokenizers, written by hand. They split a text into words as these patterns do, match after match. GPT-2's:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * Llama 3's, and Qwen2's, which has \p{N} in place of \p{N}{1,3}:
 *
 *     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
 *     \s+(?!\S)|\s+
 *
 * SmolLM's is GPT-2's between single \p{N}. o200k's is below: C are the contractions above, and U and W the classes of
 * the first and second part of a word (unicode.h). Tekken's is the same without C, and with \p{N}:
 *
 *     [^\r\n\p{L}\p{N}]?U*W+C?|[^\r\n\p{L}\p{N}]?U+W*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|
 *     \s+(?!\S)|\s+
 *
 * Every character belongs to exactly one word. A byte that is not UTF-8 counts as one character, which is neither a
 * letter nor a number nor a space. Inline, because encoding and counting words both spend much of their time here. */
#pragma once

#include "base/utf8.h"
#include "text-internal.h"
#include "unicode/unicode.h"

enum { SCAN_MULTIBYTE = 4 }; /* the first byte of a character outside ASCII */
/* An enum unicode_kind for each ASCII byte, SCAN_MULTIBYTE for the others. */
extern const uint8_t scan_byte_kinds[256];
extern const uint8_t scan_byte_traits[128];

/* Returns the traits of the character at `at` (a set of enum unicode_trait) and its length. */
static inline unsigned scan_traits(const unsigned char *at, const unsigned char *end, size_t *bytes) {
    uint32_t point = *at;
    *bytes = 1;
    if (point < 0x80)
        return scan_byte_traits[point];
    size_t length = utf8_decode(at, end, &point);
    if (length == 0)
        return 0;
    *bytes = length;
    return unicode_traits_of(point);
}

/* Returns the kind and the length of the character at `at`. */
static inline enum unicode_kind scan_character(const unsigned char *at, const unsigned char *end, size_t *bytes) {
    uint8_t kind = scan_byte_kinds[*at];
    *bytes = 1;
    if (kind != SCAN_MULTIBYTE)
        return (enum unicode_kind)kind;
    uint32_t point = 0;
    size_t length = utf8_decode(at, end, &point);
    if (length == 0)
        return UNICODE_OTHER;
    *bytes = length;
    return unicode_kind_of(point);
}

/* Returns the start of the character before `at`, which is after `begin`; an invalid byte counts as one. */
static inline const unsigned char *scan_character_before(const unsigned char *begin, const unsigned char *at) {
    const unsigned char *before = at - 1;
    while (before > begin && at - before < 4 && (*before & 0xc0) == 0x80)
        before--;
    size_t bytes;
    scan_character(before, at, &bytes);
    return before + bytes == at ? before : at - 1;
}

static inline bool scan_is_newline(unsigned char byte) {
    return byte == '\n' || byte == '\r';
}

/* The borders of o200k and Tekken: marks are symbols that may occur in words, and a slash goes with the line ends after
 * symbols. */
static inline bool scan_is_cased_border(enum unicode_kind last, enum unicode_kind next, const unsigned char *before,
                                        const unsigned char *at, const unsigned char *end) {
    size_t bytes;
    if (last == UNICODE_SPACE)
        return scan_is_newline(*before) && *at != '/';
    if (last == UNICODE_OTHER)
        return next != UNICODE_LETTER && !scan_is_newline(*at);
    return next != UNICODE_OTHER || (*at != '\'' && !(scan_traits(at, end, &bytes) & UNICODE_UPPER));
}

/* True when a word ends before `at` (the start of a character after `begin`), whatever follows. By GPT-2's pattern a
 * word ends when the kind changes, with two exceptions: white space, whose last character may belong to the next word,
 * and an apostrophe before letters. By the other patterns a line end never joins the next word, but belongs to symbols
 * before it, and any symbol joins letters after it. */
static inline bool scan_is_border(enum word_pattern pattern, const unsigned char *begin, const unsigned char *at,
                                  const unsigned char *end) {
    const unsigned char *before = at - 1;
    while (before > begin && at - before < 4 && (*before & 0xc0) == 0x80)
        before--;
    size_t bytes;
    enum unicode_kind last = scan_character(before, at, &bytes), next = scan_character(at, end, &bytes);
    if (pattern == WORDS_SMOLLM && (last == UNICODE_NUMBER || next == UNICODE_NUMBER))
        return true;
    if (last == next)
        return false;
    if (pattern == WORDS_BYTE_LEVEL || pattern == WORDS_SMOLLM)
        return last != UNICODE_SPACE && !(*before == '\'' && next == UNICODE_LETTER);
    if (pattern == WORDS_O200K || pattern == WORDS_TEKKEN)
        return scan_is_cased_border(last, next, before, at, end);
    if (last == UNICODE_OTHER)
        return next != UNICODE_LETTER && !scan_is_newline(*at);
    return last != UNICODE_SPACE || scan_is_newline(*before);
}

/* Returns the end of a run of characters of one kind. */
static inline const unsigned char *scan_run(const unsigned char *at, const unsigned char *end, enum unicode_kind kind) {
    while (at < end) {
        uint8_t found = scan_byte_kinds[*at];
        if (found == (uint8_t)kind) {
            at++;
            continue;
        }
        size_t bytes;
        if (found != SCAN_MULTIBYTE || scan_character(at, end, &bytes) != kind)
            break;
        at += bytes;
    }
    return at;
}

/* Returns the end of the white space word at `at` by GPT-2's pattern. At the end of the text it is the whole run.
 * Otherwise it excludes the last character, which the next word may take, unless that is the only one. */
static inline const unsigned char *scan_space(const unsigned char *at, const unsigned char *end) {
    const unsigned char *begin = at, *last = at;
    size_t bytes;
    while (at < end && scan_character(at, end, &bytes) == UNICODE_SPACE) {
        last = at;
        at += bytes;
    }
    return at == end || last == begin ? at : last;
}

/* Returns the end of the word that begins at `at`, by GPT-2's pattern; `at` is before `end`. */
static inline const unsigned char *scan_byte_level_word(const unsigned char *at, const unsigned char *end) {
    if (*at == '\'' && at + 1 < end) {
        unsigned char a = at[1], b = at + 2 < end ? at[2] : 0;
        if (a == 's' || a == 't' || a == 'm' || a == 'd')
            return at + 2;
        if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
            return at + 3;
    }
    size_t bytes;
    const unsigned char *first = at + (*at == ' ' && at + 1 < end);
    enum unicode_kind kind = scan_character(first, end, &bytes);
    return kind == UNICODE_SPACE ? scan_space(at, end) : scan_run(first + bytes, end, kind);
}

/* Returns the end of the contraction, in either case, at the apostrophe `at`; NULL when there is none. A pattern that
 * ignores case takes the long s, U+017F, for an s. */
static inline const unsigned char *scan_contraction(const unsigned char *at, const unsigned char *end) {
    unsigned char a = at + 1 < end ? at[1] : 0, b = at + 2 < end ? at[2] : 0;
    if (a == 0xc5 && b == 0xbf)
        return at + 3;
    a |= 0x20; /* maps only a letter's two cases to that letter */
    b |= 0x20;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return at + 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? at + 3 : NULL;
}

/* Returns the end of up to `most` numbers. */
static inline const unsigned char *scan_numbers(const unsigned char *at, const unsigned char *end, int most) {
    size_t bytes;
    for (; most > 0 && at < end && scan_character(at, end, &bytes) == UNICODE_NUMBER; most--)
        at += bytes;
    return at;
}

/* Returns the end of the white space word at `at`: after the last line end in the run, else as scan_space. */
static inline const unsigned char *scan_lines(const unsigned char *at, const unsigned char *end) {
    const unsigned char *begin = at, *last = at, *line = NULL;
    size_t bytes;
    while (at < end && scan_character(at, end, &bytes) == UNICODE_SPACE) {
        last = at;
        at += bytes;
        if (scan_is_newline(*last))
            line = at;
    }
    if (line)
        return line;
    return at == end || last == begin ? at : last;
}

/* Returns the end of the word that begins at `at`, by Llama 3's or Qwen2's pattern; `at` is before `end`. A word has up
 * to `most_numbers` numbers. */
static inline const unsigned char *scan_llama3_word(const unsigned char *at, const unsigned char *end,
                                                    int most_numbers) {
    if (*at == '\'') {
        const unsigned char *contraction = scan_contraction(at, end);
        if (contraction)
            return contraction;
    }
    size_t bytes, next_bytes = 0;
    enum unicode_kind kind = scan_character(at, end, &bytes), next_kind = UNICODE_SPACE;
    const unsigned char *next = at + bytes;
    if (kind == UNICODE_LETTER)
        return scan_run(next, end, UNICODE_LETTER);
    if (kind == UNICODE_NUMBER)
        return scan_numbers(next, end, most_numbers - 1);
    if (next < end)
        next_kind = scan_character(next, end, &next_bytes);
    if (next_kind == UNICODE_LETTER && !scan_is_newline(*at))
        return scan_run(next + next_bytes, end, UNICODE_LETTER);
    if (kind == UNICODE_SPACE && !(*at == ' ' && next_kind == UNICODE_OTHER))
        return scan_lines(at, end);
    at = scan_run(next, end, UNICODE_OTHER);
    while (at < end && scan_is_newline(*at))
        at++;
    return at;
}

/* Returns the end of SmolLM's word that begins at `at`, which is before `end`. For GPT-2's pattern, a number counts as
 * the end of the text. */
static inline const unsigned char *scan_smollm_word(const unsigned char *at, const unsigned char *end) {
    size_t bytes;
    enum unicode_kind kind = scan_character(at, end, &bytes);
    if (kind == UNICODE_NUMBER)
        return at + bytes;
    if (kind == UNICODE_SPACE) {
        const unsigned char *stop = scan_run(at, end, UNICODE_SPACE);
        if (stop < end && scan_character(stop, end, &bytes) == UNICODE_NUMBER)
            return stop;
    }
    return scan_byte_level_word(at, end);
}

/* Returns the end of the longest U*W+ at `at`; NULL: there is none. When no W follows the run of U, the word ends with
 * the last character that is both. */
static inline const unsigned char *scan_lower_word(const unsigned char *at, const unsigned char *end) {
    const unsigned char *last = NULL;
    size_t bytes;
    unsigned traits = 0;
    for (; at < end; at += bytes) {
        traits = scan_traits(at, end, &bytes);
        if (!(traits & UNICODE_UPPER))
            break;
        if (traits & UNICODE_LOWER)
            last = at + bytes;
    }
    for (; at < end && (traits = scan_traits(at, end, &bytes)) & UNICODE_LOWER; at += bytes)
        last = at + bytes;
    return last;
}

/* Returns the end of the longest U+W* at `at`, where no U*W+ begins: a run of only U. NULL: there is none. */
static inline const unsigned char *scan_upper_word(const unsigned char *at, const unsigned char *end) {
    const unsigned char *begin = at;
    size_t bytes;
    while (at < end && scan_traits(at, end, &bytes) & UNICODE_UPPER)
        at += bytes;
    return at > begin ? at : NULL;
}

/* Returns the end of the word that begins at `at`, by o200k's or Tekken's pattern; `at` is before `end`. */
static inline const unsigned char *scan_cased_word(const unsigned char *at, const unsigned char *end, int most_numbers,
                                                   bool has_contractions) {
    size_t bytes, next_bytes = 0;
    enum unicode_kind kind = scan_character(at, end, &bytes), next_kind = UNICODE_SPACE;
    const unsigned char *next = at + bytes, *word = NULL;
    if (kind == UNICODE_NUMBER)
        return scan_numbers(next, end, most_numbers - 1);
    bool may_lead = kind != UNICODE_LETTER && !scan_is_newline(*at);
    if (may_lead)
        word = scan_lower_word(next, end);
    if (!word)
        word = scan_lower_word(at, end);
    if (!word && may_lead)
        word = scan_upper_word(next, end);
    if (!word)
        word = scan_upper_word(at, end);
    if (word) {
        const unsigned char *after =
            has_contractions && word < end && *word == '\'' ? scan_contraction(word, end) : NULL;
        return after ? after : word;
    }
    if (next < end)
        next_kind = scan_character(next, end, &next_bytes);
    if (kind == UNICODE_SPACE && !(*at == ' ' && next_kind == UNICODE_OTHER))
        return scan_lines(at, end);
    at = scan_run(next, end, UNICODE_OTHER);
    while (at < end && (scan_is_newline(*at) || *at == '/'))
        at++;
    return at;
}

/* Returns the end of the word that begins at `at`, which is before `end`. */
static inline const unsigned char *scan_word(enum word_pattern pattern, const unsigned char *at,
                                             const unsigned char *end) {
    switch (pattern) {
    case WORDS_BYTE_LEVEL:
        return scan_byte_level_word(at, end);
    case WORDS_LLAMA3:
        return scan_llama3_word(at, end, 3);
    case WORDS_QWEN2:
        return scan_llama3_word(at, end, 1);
    case WORDS_O200K:
        return scan_cased_word(at, end, 3, true);
    case WORDS_TEKKEN:
        return scan_cased_word(at, end, 1, false);
    case WORDS_SMOLLM:
        return scan_smollm_word(at, end);
    case WORDS_METASPACE:
    case WORDS_STEPS:
    case WORDS_WHOLE:
        break;
    }
    return end;
}
