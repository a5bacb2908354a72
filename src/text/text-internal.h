/* Inside the room: what a tokenizer is made of.
 *
 *     tokenizer.c   the object: its tables, lookups, decoding
 *     read.c, merges.c, settings.c   a directory's files into one, and the checks of what they say
 *     save.c        the other way
 *     added.c, added_index.c   the tokens that are found in a text before it is split into words
 *     scan-internal.h, scan.c   the pre-tokenizers that have a scanner;  split.c, regex.c   the others
 *     bpe.c         the merges inside one word;  words.c the words that need none
 *     encode.c      a text into words, with caches and invalid UTF-8;  cut.c where a long one may be cut
 *     count.c       the distinct words of a corpus;  train.c the merges learned from them */
#ifndef CAMBIUM_TEXT_TEXT_INTERNAL_H
#define CAMBIUM_TEXT_TEXT_INTERNAL_H

#include "text.h"

#include "base/base.h"
#include "unicode/nfc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define END_OF_TEXT "<|endoftext|>"
/* What stands for a space in the names of a tokenizer whose words begin as characters: U+2581. Inside the room a space
 * stands for it, in the tokens' bytes as in the text. */
#define SPACE_MARK       "\xe2\x96\x81"
#define SPACE_MARK_BYTES 3

enum { TEXT_MAX_VOCAB = 1 << 24 };

enum token_kind {
    TOKEN_ADDED = 1 << 0,   /* listed as an added token: found in the text before it is split into words */
    TOKEN_SPECIAL = 1 << 1, /* an added token that is only found when asked for */
    TOKEN_RAW = 1 << 2,     /* its name in the files is its text, not its bytes in GPT-2's byte alphabet */
    /* of added tokens: */
    TOKEN_LSTRIP = 1 << 3,      /* takes the white space before it along */
    TOKEN_RSTRIP = 1 << 4,      /* and that behind it */
    TOKEN_SINGLE_WORD = 1 << 5, /* no character of a word may stand beside it */
    TOKEN_NORMALIZED = 1 << 6,  /* searched for in the normalized text, behind those that are not */
    TOKEN_BYTE = 1 << 7,        /* <0x00> to <0xFF>: a byte of a character that is no token */
    TOKEN_OUTSIDE = 1 << 9,     /* an added token that the vocabulary lacks: it is no word */
    TOKEN_WORD = 1 << 8,        /* a word of the same bytes becomes this token alone; words_index finds them */
};

/* The keys of an added token's flags in the files. */
enum { ADDED_FLAG_COUNT = 5 };
struct added_flag {
    const char *key;
    uint16_t kind; /* of enum token_kind */
};
extern const struct added_flag added_flags[ADDED_FLAG_COUNT];

/* Tokens that have a role in tokenizer_config.json; -1 where there is none. */
enum token_role { ROLE_EOS, ROLE_BOS, ROLE_UNK, ROLE_PAD, ROLE_COUNT };
extern const char *const token_role_names[ROLE_COUNT];

/* What splits a text into words; scan-internal.h has the patterns. ByteLevel has one of its own, which is GPT-2's.
 * WORDS_STEPS: several steps, or none. WORDS_WHOLE: none, where words begin as characters; WORDS_METASPACE: there, a
 * word begins with each space. */
enum word_pattern {
    WORDS_BYTE_LEVEL,
    WORDS_LLAMA3,
    WORDS_QWEN2,
    WORDS_O200K,
    WORDS_TEKKEN,
    WORDS_SMOLLM,
    WORDS_STEPS,
    WORDS_METASPACE,
    WORDS_WHOLE
};

/* Where a space is put before a text: nowhere; before its very beginning, or before each section, unless there is one;
 * or before each stretch between the tokens that are found in the text as it is. */
enum prefix_space { PREFIX_NEVER, PREFIX_FIRST, PREFIX_SECTIONS, PREFIX_ALWAYS };
/* The bytes that a decoded text loses at its beginning: nothing, a space, or all marks of spaces in its first token. */
enum stripped_space { STRIP_NOTHING, STRIP_SPACE, STRIP_FIRST_TOKEN };

/* One step of a pre-tokenizer: what it finds, and what becomes of that and of what lies between. */
enum split_kind { SPLIT_PATTERN, SPLIT_REGEX, SPLIT_STRING, SPLIT_DIGITS };
enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS
};
struct split_step {
    enum split_kind kind;
    enum split_behavior behavior;
    bool is_inverted;          /* what is found counts as what lies between, and the other way round */
    enum word_pattern pattern; /* SPLIT_PATTERN: its words are the pieces */
    struct text_regex *regex;  /* SPLIT_REGEX */
    char *string;              /* SPLIT_STRING */
};
void split_steps_free(struct split_step *steps, size_t count);

/* How a text becomes ids, beside the tokens and the merges. Zeroed it is GPT-2's way. */
struct tokenizer_rules {
    enum word_pattern pattern;
    struct split_step *steps; /* of WORDS_STEPS */
    size_t step_count;
    bool has_nfc; /* texts are normalized */
    enum prefix_space prefix;
    enum stripped_space stripped;
    bool is_by_characters; /* words begin as characters, not as bytes */
    bool has_early_mark; /* of these: the mark is a space already where added tokens are searched for the second time */
    bool has_byte_fallback;  /* a character that is no token becomes its bytes' tokens */
    bool shows_byte_names;   /* the decoder knows no bytes: <0x41> stays as it is */
    bool has_unk, fuses_unk; /* else it becomes the token unk, several in a row only one of them */
    int32_t unk;
    bool ignore_merges;             /* a word that is a token is that token */
    struct token_buffer begin, end; /* what the post-processor puts around a text */
};
void tokenizer_rules_free(struct tokenizer_rules *rules);

/* The parts of a tokenizer.json that are kept as they are written. */
enum json_part { JSON_NORMALIZER, JSON_PRE_TOKENIZER, JSON_DECODER, JSON_PART_COUNT };
extern const char *const json_part_names[JSON_PART_COUNT];

struct merge {
    int32_t left, right, result;
};

/* A pair of ids and what it merges to. `value` is rank << 32 | id: the smaller value is the earlier merge. */
struct merge_entry {
    uint64_t pair; /* left << 32 | right */
    uint64_t value;
};
#define MERGE_NONE UINT64_MAX
/* Most pairs do not merge. A bit for each hash, this much longer than what finds an entry, says so of nearly all of
 * them, and fits in the processor's caches where the entries do not. */
enum { SIEVE_BITS = 3 };

/* An added token as it is searched for. */
struct added_token {
    size_t start, length; /* in added_tokens.text */
    int32_t id;
    uint32_t prefix; /* 1 + the place in the list of the longest other token that this one begins with; 0: none */
};
/* A node of the automaton of their names, read from the end; the first is the root, of no bytes. */
struct added_node {
    uint32_t first;   /* of its children; they end where those of the next node begin */
    uint32_t shorter; /* the node of the most of its bytes that are another node's, without those nearest the end */
    uint32_t token;   /* 1 + the place in the list of the longest token that begins here; 0: none */
    unsigned char byte;
};
struct added_tokens {
    struct added_token *items; /* by id */
    size_t count, longest;     /* bytes of the longest */
    struct strbuf text;
    bool has_plain; /* some are not special: they are found in any text */
    struct added_node *nodes;
    uint32_t roots[256]; /* the root's children by their bytes; 0: none */
};

struct tokenizer {
    int32_t size;
    unsigned char *bytes;  /* of all tokens, one after the other */
    uint32_t *starts;      /* size + 1 offsets into bytes */
    uint16_t *kinds;       /* enum token_kind */
    int32_t byte_ids[256]; /* of the single bytes; by characters, of ASCII and of the bytes that stand for no token: */
    int32_t fallback_ids[256];
    uint8_t (*joins)[256]; /* by characters: whether any merge joins a token that ends with this byte and one that
                              begins with that; words are what is left apart elsewhere */
    bool has_lost_bytes;   /* some byte_ids, or fallback_ids, are -1 */

    struct merge *merges; /* in the order of their ranks */
    size_t merge_count;
    struct merge_entry *entries; /* open addressing; pair MERGE_NONE is empty */
    unsigned entry_bits;
    uint8_t *sieve;               /* 1 << (entry_bits + SIEVE_BITS) bits */
    uint64_t (*byte_merges)[256]; /* the values of the merges of two bytes; NULL by characters */

    int32_t *by_bytes; /* open addressing by the bytes of the tokens that are not raw; -1 is empty */
    unsigned by_bytes_bits;
    struct word_bucket *words; /* open addressing by the keys of those that are words */
    unsigned word_bits;

    struct added_tokens added[2]; /* those that are searched for in the text as it is, and in the normalized text */

    int32_t roles[ROLE_COUNT];
    struct tokenizer_rules rules;
    char *json_parts[JSON_PART_COUNT]; /* of the file that it was read from; NULL: as they are for a trained one */
};

/* A token as it is handed to tokenizer_new. */
struct token_source {
    const char *bytes; /* NULL: no token has this id */
    size_t length;
    uint16_t kind;       /* enum token_kind */
    const char *content; /* of an added token: what is found in a text; NULL: its bytes */
    size_t content_length;
};

/* A tokenizer of these tokens, their bytes copied; tokenizer_set_merges completes it. The tokens that are not raw must
 * be distinct, and must hold each single byte: STATUS_INVALID where one is missing. Takes over what `rules` holds,
 * which are zeroed then, unless it fails. */
int tokenizer_new(const struct token_source *tokens, int32_t size, struct tokenizer_rules *rules,
                  struct tokenizer **tokenizer);
/* Takes over `merges`, an array from malloc, also on failure; the ids must be of the vocabulary, the results right. */
int tokenizer_set_merges(struct tokenizer *tokenizer, struct merge *merges, size_t count);

static inline uint64_t text_hash_pair(uint64_t pair, unsigned bits) {
    uint64_t h = (pair ^ pair >> 29) * 0x9e3779b97f4a7c15u;
    return (h ^ h >> 32) * 0xd6e8feb86659fd93u >> (64 - bits);
}

/* The value of a merge's entry, MERGE_NONE where the pair does not merge. */
static inline uint64_t tokenizer_merge_of(const struct tokenizer *tokenizer, uint32_t left, uint32_t right) {
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t mask = ((size_t)1 << tokenizer->entry_bits) - 1,
           sieve = text_hash_pair(pair, tokenizer->entry_bits + SIEVE_BITS);
    if (!(tokenizer->sieve[sieve / 8] >> sieve % 8 & 1))
        return MERGE_NONE;
    for (size_t i = sieve >> SIEVE_BITS;; i = (i + 1) & mask) {
        if (tokenizer->entries[i].pair == pair)
            return tokenizer->entries[i].value;
        if (tokenizer->entries[i].pair == MERGE_NONE)
            return MERGE_NONE;
    }
}

/* The id of the token of the byte alphabet with these bytes; -1 when there is none. */
int32_t tokenizer_find_plain(const struct tokenizer *tokenizer, const void *bytes, size_t length);

/* A word of up to WORD_KEY_BYTES bytes as two machine words: its bytes, zeros, and its length in the highest byte. */
enum { WORD_KEY_BYTES = 15 };
struct word_key {
    uint64_t low, high;
};
/* `readable` bytes may be read at `word`. */
static inline struct word_key word_key_of(const unsigned char *word, size_t length, size_t readable) {
    struct word_key key;
    if (readable >= 16) {
        memcpy(&key.low, word, 8);
        memcpy(&key.high, word + 8, 8);
        if (length < 8) {
            key.low &= ((uint64_t)1 << 8 * length) - 1;
            key.high = 0;
        } else {
            key.high &= ((uint64_t)1 << 8 * (length - 8)) - 1;
        }
    } else {
        unsigned char padded[16] = {0};
        memcpy(padded, word, length);
        memcpy(&key.low, padded, 8);
        memcpy(&key.high, padded + 8, 8);
    }
    key.high |= (uint64_t)length << 56;
    return key;
}
static inline uint64_t word_key_hash(struct word_key key) {
    uint64_t hash = (key.low ^ key.high * 0xd6e8feb86659fd93u) * 0x9e3779b97f4a7c15u;
    return (hash ^ hash >> 32) * 0x9e3779b97f4a7c15u;
}
/* Words that are tokens, and begin their search here: one line of the processor's cache. */
enum { WORD_BUCKET = 3 };
struct word_bucket {
    struct word_key keys[WORD_BUCKET];
    int32_t ids[WORD_BUCKET];
    uint32_t count;
};
/* The token that a word becomes alone; -1: merges decide. */
static inline int32_t words_find(const struct tokenizer *tokenizer, struct word_key key, uint64_t hash) {
    size_t mask = ((size_t)1 << tokenizer->word_bits) - 1;
    for (size_t i = hash >> (64 - tokenizer->word_bits);; i = (i + 1) & mask) {
        const struct word_bucket *bucket = &tokenizer->words[i];
        for (uint32_t j = 0; j < bucket->count; j++)
            if (bucket->keys[j].low == key.low && bucket->keys[j].high == key.high)
                return bucket->ids[j];
        if (bucket->count < WORD_BUCKET)
            return -1;
    }
}

/* Finds the tokens that are words: all of them where merges are ignored, else those that their own merges make. */
int words_index(struct tokenizer *tokenizer);

uint64_t text_hash_bytes(const void *bytes, size_t length);

/* ---- added tokens: added.c, added_index.c ---- */

/* Lists the added tokens of a tokenizer whose tokens and rules are known. */
int added_tokens_index(struct tokenizer *tokenizer, const struct token_source *tokens);
/* Appends what the normalizer makes of a token's content: what is found in the normalized text. */
int added_token_normalize(const struct tokenizer_rules *rules, struct nfc_scratch *nfc, const char *content,
                          size_t length, struct strbuf *out);
void added_tokens_free(struct added_tokens *added);
/* The token of this id, which is of the list. */
const struct added_token *added_tokens_item(const struct added_tokens *added, int32_t id);
/* Whether any of them can be found in a text. */
bool added_tokens_are_sought(const struct added_tokens *added, unsigned flags);

/* Makes the automaton of a list whose items and text are there. */
int added_tokens_build(struct added_tokens *added);
/* Calls on_token, until it fails, for each place of a text where a token begins, the last place first, with the longest
 * token there (its place in the list). Adds the automaton's steps, at most two for each byte, to *steps. */
int added_tokens_each(const struct added_tokens *added, const unsigned char *bytes, size_t length,
                      int (*on_token)(void *context, size_t at, uint32_t token), void *context, uint64_t *steps);
/* The same places in a list, the last first; it starts zeroed, and ends with added_hits_free. */
struct added_hit {
    uint32_t at, token;
};
struct added_hits {
    struct added_hit *items;
    size_t count, capacity;
    uint64_t steps; /* of all calls */
};
int added_tokens_hits(const struct added_tokens *added, const unsigned char *bytes, size_t length,
                      struct added_hits *hits);
void added_hits_free(struct added_hits *hits);

/* A text in parts while it is searched; zeroed: it has none. */
struct added_place {
    const struct tokenizer_parts *parts;
    size_t first, last; /* of the text; where it was normalized, its bytes and those of the text differ in number */
    bool is_normalized;
    size_t plain;      /* the first part without special tokens that ends after the places searched so far */
    uint8_t *controls; /* [added_tokens.count] by the place in the list: 0 unknown, 1 no control, 2 a control */
};
/* A search for the tokens of one list, from the beginning of a text to its end. It starts zeroed for each encoder, and
 * ends with added_search_free. */
struct added_search {
    const struct tokenizer *tokenizer;
    const struct added_tokens *added;
    const unsigned char *bytes;
    size_t length;
    unsigned flags;
    struct added_hits hits;
    size_t from;                 /* the first place after the names of earlier tokens */
    size_t blank_from, blank_to; /* the blanks that were last looked at after a token */
    struct added_place place;
};
void added_search_free(struct added_search *search);
/* Begins a search in a text; `list` is that of tokenizer.added. */
int added_search_begin(struct added_search *search, const struct tokenizer *tokenizer, size_t list,
                       const unsigned char *bytes, size_t length, unsigned flags);
/* The next token. [start, stop) is what it takes away: with the blanks before it, from `taken` on, where the match
 * before stopped, and those after it. False: there is no more. */
struct added_match {
    size_t start, stop;
    int32_t id;
};
bool added_search_next(struct added_search *search, size_t taken, struct added_match *match);

/* Marks in forbidden[0 .. count - 1] the places from `from` on where a cut could hide an added token of any text, or
 * show one that the whole text hides. */
int added_tokens_mark_cuts(const struct tokenizer *tokenizer, const unsigned char *bytes, size_t length, size_t from,
                           size_t count, bool *forbidden);
/* The first place of a text where a special token begins, and the bytes of the longest of those there; SIZE_MAX where
 * there is none. */
size_t added_tokens_first_special(const struct tokenizer *tokenizer, const char *text, size_t length, size_t *bytes);

/* ---- steps: split.c, regex.c ---- */

/* Compiles a pattern. STATUS_UNSUPPORTED or STATUS_INVALID, with the pattern, where PCRE2 cannot stand for it. */
int text_regex_open(const char *pattern, struct text_regex **regex);
/* NULL is allowed. */
void text_regex_close(struct text_regex *regex);
/* Memory for matches. */
struct regex_scratch;
int regex_scratch_new(struct regex_scratch **scratch);
/* NULL is allowed. */
void regex_scratch_free(struct regex_scratch *scratch);
/* Begins a text of `length` bytes, which `patterns` patterns split one after the other: all matches in it may take
 * REGEX_STEPS, and REGEX_STEPS_OF_BYTE for each byte and pattern. Before the first text the steps have no bound. */
enum { REGEX_STEPS = 1 << 24, REGEX_STEPS_OF_BYTE = 500 };
void regex_scratch_begin(struct regex_scratch *scratch, size_t length, size_t patterns);
/* The steps since then. */
uint64_t regex_scratch_steps(const struct regex_scratch *scratch);
/* The first match from `from` on in a text that is UTF-8; STATUS_NOT_FOUND without a text: there is none. */
int text_regex_find(const struct text_regex *regex, struct regex_scratch *scratch, const unsigned char *text,
                    size_t length, size_t from, size_t *start, size_t *end);
/* Calls on_word for each word of a text that is UTF-8 by the rules' steps, until it fails. */
int split_text(const struct tokenizer_rules *rules, struct regex_scratch *scratch, const unsigned char *bytes,
               size_t length, int (*on_word)(void *context, const unsigned char *word, size_t length), void *context);

/* Memory for merging long words; starts zeroed, ends with bpe_scratch_free. */
struct bpe_scratch {
    void *block;
    size_t bytes;
};
void bpe_scratch_free(struct bpe_scratch *scratch);
/* Writes the ids of one word to `ids`, which holds `length` of them, and their number to *count. `length` is at least 1
 * and below 2^31. */
int bpe_encode_word(const struct tokenizer *tokenizer, struct bpe_scratch *scratch, const unsigned char *word,
                    size_t length, int32_t *ids, size_t *count);
/* The same without looking whether the word is a token with TOKEN_WORD. */
int bpe_merge_word(const struct tokenizer *tokenizer, struct bpe_scratch *scratch, const unsigned char *word,
                   size_t length, int32_t *ids, size_t *count);

/* Appends a text with spaces for its marks of spaces, and the other way round. */
void space_marks_add(const unsigned char *bytes, size_t length, struct strbuf *out);
void space_marks_write(const unsigned char *bytes, size_t length, struct strbuf *out);
/* The byte of a name <0x00> to <0xFF>; -1: it is none. */
int token_name_byte(const char *name);
/* Appends the bytes that a name in the files stands for, in the alphabet or with marks of spaces; false where it is
 * written in neither, which leaves some of them. */
bool tokenizer_name_bytes(const struct tokenizer_rules *rules, const char *name, size_t length, struct strbuf *out);

/* GPT-2's alphabet: each byte as a printable character, and its order in the vocabulary. */
/* The character of a byte. */
uint32_t byte_alphabet_character(unsigned char byte);
/* The byte of a character; -1 where it is not of the alphabet. */
int byte_alphabet_byte(uint32_t character);
/* The byte with id `rank` in the vocabularies of GPT-2 and of ours. */
unsigned char byte_alphabet_ranked(int rank);
/* Appends the bytes of a name written in the alphabet; false, with nothing appended, when it is not. */
bool byte_alphabet_decode(const char *name, size_t length, struct strbuf *out);
void byte_alphabet_encode(const unsigned char *bytes, size_t length, struct strbuf *out);

/* The distinct words of a corpus and how often each occurs. */
struct word_counts {
    unsigned char *bytes; /* of all words, one after the other */
    size_t byte_count, byte_capacity;
    struct word_count *words;
    size_t word_count, word_capacity;
    uint32_t *table; /* open addressing: 1 + index into words, 0 is empty */
    unsigned table_bits;
};
struct word_count {
    size_t start;
    uint32_t length;
    uint32_t hash;
    int64_t count;
};
void word_counts_free(struct word_counts *counts);
/* Counts the words of the files with `threads` threads. The order of the words depends on the threads; the words and
 * their counts do not. */
int word_counts_of_files(const char *const *paths, size_t path_count, int threads, struct word_counts *counts);

#endif
