/* The scanners of words against PCRE2: the compiled pattern of a tokenizer.json finds the same words in any characters.
 * Each pattern gets 1 M characters, and 100 M in the long run.
 *
 * PCRE2 reads only UTF-8, and the scanners any bytes: an invalid byte counts as a character that is neither letter nor
 * number nor space. A character of private use replaces it in the text for PCRE2. */
#include "base/base.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "scan-internal.h"
#include "text/text.h"

#include "support/test.h"

#include <jansson.h>

#define GOLDEN TEST_DATA "/text/golden"
/* A ByteLevel has its pattern in the library, not in the file. */
#define GPT2     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define STAND_IN "\xee\x80\x80"

enum { MOST_CHARACTERS = 240, POINTS = 0x110000, SURROGATES = 0xd800, BEHIND_SURROGATES = 0xe000 };

static uint32_t draw(uint32_t *draws, uint32_t below) {
    return (uint32_t)(((uint64_t)philox(13, (*draws)++, 0, 0, (uint32_t)RNG_TEST << 24).word[0] * below) >> 32);
}

/* ---- characters by their general category, as PCRE2 has them ---- */

static const char *const categories[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                         "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                         "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
enum { CATEGORIES = sizeof categories / sizeof *categories };

struct characters {
    uint32_t *points[CATEGORIES];
    uint32_t counts[CATEGORIES];
};

/* Returns what our tables must say about a category; spaces are not one. */
static bool is_known(const char *category, uint32_t point) {
    enum unicode_kind kind = unicode_kind_of(point);
    unsigned traits = unicode_traits_of(point) & (UNICODE_UPPER | UNICODE_LOWER);
    bool is_letter = *category == 'L', is_mark = *category == 'M';
    unsigned cased = !is_letter && !is_mark      ? 0
                     : strstr("Lu Lt", category) ? UNICODE_UPPER
                     : !strcmp(category, "Ll")   ? UNICODE_LOWER
                                                 : UNICODE_UPPER | UNICODE_LOWER;
    return (kind == UNICODE_LETTER) == is_letter && (kind == UNICODE_NUMBER) == (*category == 'N') && traits == cased;
}

/* All points that PCRE2 knows. Its Unicode may be another version than ours: a character that has changed its category
 * in between is left out, and there are few. */
static struct characters characters_read(void) {
    struct characters characters = {0};
    unsigned char *text = malloc((size_t)POINTS * 4);
    size_t length = 0, start, end, bytes;
    int changed = 0, known = 0;
    struct regex_scratch *scratch;
    test_ok(regex_scratch_new(&scratch));
    for (uint32_t point = 0; point < POINTS; point++)
        if (point < SURROGATES || point >= BEHIND_SURROGATES)
            length += utf8_encode(point, text + length);
    for (int i = 0; i < CATEGORIES; i++) {
        char pattern[16];
        struct text_regex *regex;
        size_t capacity = 0;
        snprintf(pattern, sizeof pattern, "\\p{%s}+", categories[i]);
        test_ok(text_regex_open(pattern, &regex));
        for (size_t at = 0; text_regex_find(regex, scratch, text, length, at, &start, &end) == STATUS_OK; at = end)
            for (; start < end; start += bytes) {
                uint32_t point = text[start];
                bytes = point < 0x80 ? 1 : utf8_decode(text + start, text + end, &point);
                if (!is_known(categories[i], point)) {
                    changed++;
                    continue;
                }
                test_ok(array_reserve(&characters.points[i], &capacity, characters.counts[i] + 1, 4));
                characters.points[i][characters.counts[i]++] = point;
                known++;
            }
        assert_true(characters.counts[i] > 0);
        text_regex_close(regex);
    }
    regex_scratch_free(scratch);
    free(text);
    assert_true(known > 250000 && changed < 100);
    return characters;
}

static void characters_free(struct characters *characters) {
    for (int i = 0; i < CATEGORIES; i++)
        free(characters->points[i]);
}

/* ---- texts ---- */

/* A text as the scanners get it, and as PCRE2 does, with the place in the first for each byte of the second. */
struct twins {
    unsigned char bytes[MOST_CHARACTERS * 6], valid[MOST_CHARACTERS * 12];
    uint16_t places[MOST_CHARACTERS * 12 + 1];
    size_t length, valid_length;
    uint32_t characters;
};

static void add(struct twins *twins, const void *bytes, size_t length, bool is_valid) {
    memcpy(twins->bytes + twins->length, bytes, length);
    for (size_t i = 0; i < length; i++) {
        const char *piece = is_valid ? (const char *)bytes + i : STAND_IN;
        size_t count = is_valid ? 1 : strlen(STAND_IN);
        memcpy(twins->valid + twins->valid_length, piece, count);
        for (size_t k = 0; k < count; k++)
            twins->places[twins->valid_length++] = (uint16_t)(twins->length + i);
        twins->characters += !is_valid || (((const unsigned char *)bytes)[i] & 0xc0) != 0x80;
    }
    twins->length += length;
    twins->places[twins->valid_length] = (uint16_t)twins->length;
}

static void add_text(struct twins *twins, const char *text) {
    add(twins, text, strlen(text), true);
}

/* Pieces that the patterns examine twice: apostrophes and their successors in either case, blanks, line ends, slashes,
 * digits, and letters of both cases and of none. */
static void add_piece(struct twins *twins, uint32_t *draws) {
    static const char *const contractions[] = {"s", "t", "re", "ve", "m", "ll", "d", "\xc5\xbf", "l", "r", "v", "k"};
    static const char *const blanks[] = {" ",
                                         " ",
                                         " ",
                                         "  ",
                                         "\n",
                                         "\r\n",
                                         "\t",
                                         "\xc2\x85",
                                         "\xc2\xa0",
                                         "\xe3\x80\x80",
                                         "\xe2\x80\xa8",
                                         "\xe2\x80\xa9",
                                         "\r",
                                         "\v",
                                         "\xe1\xa0\x8e",
                                         "\x1c"};
    static const char *const others[] = {
        "a",  "b",        "A",        "Z",           "s",  "1",        "23",       "\xd9\xa3",     "!",
        ".",  "/",        "_",        "'",           "''", "\xcc\x81", "\xcc\xa3", "\xe2\x80\x99", "\xe2\x80\x8d",
        "\"", "\xc7\x85", "\xca\xb0", "\xe4\xb8\xad"};
    uint32_t kind = draw(draws, 4);
    if (kind == 0) {
        const char *contraction = contractions[draw(draws, sizeof contractions / sizeof *contractions)];
        char text[8] = "'";
        for (size_t i = 0; i <= strlen(contraction); i++) {
            bool is_ascii = (unsigned char)contraction[i] < 0x80 && contraction[i];
            text[i + 1] = (char)(contraction[i] & (is_ascii && draw(draws, 2) ? ~0x20 : ~0));
        }
        add_text(twins, text);
    } else if (kind == 1) {
        add_text(twins, blanks[draw(draws, sizeof blanks / sizeof *blanks)]);
    } else {
        add_text(twins, others[draw(draws, sizeof others / sizeof *others)]);
    }
}

/* Adds bytes that no continuation completes: the beginning of a character comes before no continuation. */
static void add_broken(struct twins *twins, uint32_t *draws) {
    static const char *const broken[] = {"\xff", "\xc0\xaf",     "\xe6\xbc", "\xf0\x9f\x98", "\xed\xa0\x80",
                                         "\xc5", "\xf5\x80\x80", "\xc1",     "\xe1\xa0",     "\xfe\x80"};
    const char *bytes = broken[draw(draws, sizeof broken / sizeof *broken)];
    add(twins, bytes, strlen(bytes), false);
}

/* Up to MOST_CHARACTERS, or few: what stands at the end of a text is split in another way. */
static void write_text(const struct characters *characters, bool is_broken, uint32_t *draws, struct twins *twins) {
    uint32_t most = 1 + draw(draws, draw(draws, 4) ? 12 : MOST_CHARACTERS - 8);
    uint32_t weight = draw(draws, 8); /* of characters of any category */
    twins->length = twins->valid_length = 0;
    twins->characters = 0;
    while (twins->characters < most) {
        if (is_broken && draw(draws, 6) == 0) {
            add_broken(twins, draws);
        } else if (draw(draws, 8) < weight) {
            uint32_t category = draw(draws, CATEGORIES);
            unsigned char character[4];
            uint32_t point = characters->points[category][draw(draws, characters->counts[category])];
            add(twins, character, utf8_encode(point, character), true);
        } else {
            add_piece(twins, draws);
        }
    }
}

/* ---- words ---- */

struct words {
    uint16_t ends[MOST_CHARACTERS * 2];
    size_t count, length;
};

static int add_word(void *context, const unsigned char *word, size_t length) {
    struct words *words = context;
    (void)word;
    words->length += length;
    assert_true(words->count < sizeof words->ends / sizeof *words->ends);
    words->ends[words->count++] = (uint16_t)words->length;
    return STATUS_OK;
}

static struct words words_of(const struct tokenizer_rules *rules, struct regex_scratch *scratch,
                             const unsigned char *bytes, size_t length) {
    struct words words = {.count = 0};
    test_ok(split_text(rules, scratch, bytes, length, add_word, &words));
    assert_int_equal(words.length, length);
    return words;
}

static void fail_words(const char *name, const struct twins *twins, const struct words *words, size_t word) {
    struct strbuf text = STRBUF_INIT;
    for (size_t i = 0; i < twins->length; i++)
        strbuf_format(&text, "\\x%02x", twins->bytes[i]);
    fail_msg("%s: word %zu ends at byte %d in %s", name, word, word < words->count ? words->ends[word] : -1,
             strbuf_text(&text));
}

/* A place where words end whatever follows is one where a word ends. */
static void check_borders(const char *name, enum word_pattern pattern, const unsigned char *bytes,
                          const struct twins *twins, const struct words *words) {
    size_t word = 0;
    for (size_t at = 1; at < twins->length; at++) {
        if ((bytes[at] & 0xc0) == 0x80)
            continue;
        while (words->ends[word] < at)
            word++;
        if (scan_is_border(pattern, bytes, bytes + at, bytes + twins->length) && words->ends[word] != at)
            fail_words(name, twins, words, word);
    }
}

static void check_text(const char *name, const struct tokenizer_rules *scanned, const struct tokenizer_rules *matched,
                       struct regex_scratch *scratch, const struct twins *twins, bool is_broken) {
    unsigned char *bytes = malloc(twins->length); /* exactly: a sanitizer sees a read past it */
    memcpy(bytes, twins->bytes, twins->length);
    struct words ours = words_of(scanned, scratch, bytes, twins->length);
    struct words theirs = words_of(matched, scratch, twins->valid, twins->valid_length);
    for (size_t word = 0; word < theirs.count; word++)
        if (word >= ours.count || ours.ends[word] != twins->places[theirs.ends[word]])
            fail_words(name, twins, &ours, word);
    if (!is_broken)
        check_borders(name, scanned->steps->pattern, bytes, twins, &ours);
    free(bytes);
}

/* ---- tokenizers ---- */

/* The scanner that the room chooses for a golden tokenizer. */
static enum word_pattern pattern_of(const char *directory) {
    struct tokenizer *tokenizer;
    test_ok(tokenizer_open(directory, &tokenizer));
    enum word_pattern pattern = tokenizer->rules.pattern;
    tokenizer_close(tokenizer);
    return pattern;
}

static void match_step(struct tokenizer_rules *rules, const char *pattern) {
    struct split_step *step = &rules->steps[rules->step_count++];
    step->kind = SPLIT_REGEX;
    test_ok(text_regex_open(pattern, &step->regex));
}

/* The steps of its file, each by PCRE2. */
static void read_steps(const char *name, struct tokenizer_rules *rules) {
    char path[256];
    snprintf(path, sizeof path, GOLDEN "/%s/tokenizer.json", name);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    const json_t *words = json_object_get(root, "pre_tokenizer"), *steps = json_object_get(words, "pretokenizers");
    size_t count = steps ? json_array_size(steps) : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *step = steps ? json_array_get(steps, i) : words;
        const char *type = json_string_value(json_object_get(step, "type"));
        if (!strcmp(type, "Digits"))
            match_step(rules, "\\p{N}");
        else if (!strcmp(type, "Split"))
            match_step(rules, json_string_value(json_object_get(json_object_get(step, "pattern"), "Regex")));
        else if (json_is_true(json_object_get(step, "use_regex")))
            match_step(rules, GPT2);
    }
    json_decref(root);
}

static void check_pattern(const char *name, enum word_pattern pattern, const struct characters *characters) {
    char directory[256];
    snprintf(directory, sizeof directory, GOLDEN "/%s", name);
    assert_int_equal(pattern_of(directory), pattern);
    struct split_step scan = {.kind = SPLIT_PATTERN, .pattern = pattern}, match[2] = {{0}};
    struct tokenizer_rules scanned = {.steps = &scan, .step_count = 1}, matched = {.steps = match};
    struct regex_scratch *scratch;
    struct twins *twins = malloc(sizeof *twins);
    uint32_t draws = 0;
    read_steps(name, &matched);
    test_ok(regex_scratch_new(&scratch));
    for (long seen = 0, wanted = test_is_long() ? 100000000 : 1000000; seen < wanted; seen += twins->characters) {
        bool is_broken = draw(&draws, 4) == 0;
        write_text(characters, is_broken, &draws, twins);
        check_text(name, &scanned, &matched, scratch, twins, is_broken);
    }
    for (size_t i = 0; i < matched.step_count; i++)
        text_regex_close(match[i].regex);
    regex_scratch_free(scratch);
    free(twins);
}

static void scanners_find_the_words_of_pcre2(void **state) {
    (void)state;
    struct characters characters = characters_read();
    check_pattern("small", WORDS_BYTE_LEVEL, &characters);
    check_pattern("llama3", WORDS_LLAMA3, &characters);
    check_pattern("qwen2", WORDS_QWEN2, &characters);
    check_pattern("o200k", WORDS_O200K, &characters);
    check_pattern("tekken", WORDS_TEKKEN, &characters);
    check_pattern("smollm", WORDS_SMOLLM, &characters);
    characters_free(&characters);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scanners_find_the_words_of_pcre2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
