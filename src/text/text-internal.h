/* Inside the room: the parts of a tokenizer.
 *
 *     tokenizer.c   the object: its tables, decoding;  tokens.c   lookups, lists of ids
 *     vocabulary.c  its tokens for grammars
 *     read.c, draft.c, named.c, merges.c, settings.c   a directory's files into one, with their checks
 *     save.c        the other way;  lists.c, score_merges.c   files from another format's lists of tokens
 *     added.c, added_index.c   tokens that are found in a text before it is split into words
 *     scan-internal.h, scan.c   pre-tokenizers with a scanner;  split.c, regex.c   the others
 *     bpe.c         the merges inside one word;  words.c words that need none
 *     encode.c      a text into words, with caches and invalid UTF-8;  cut.c places to cut a long text
 *     spans.c       the bytes of a text that its tokens stand for
 *     count.c       the distinct words of a corpus;  train.c learns merges from them */
#pragma once

#include "text.h"

#include "base/base.h"
#include "unicode/nfc.h"

#define END_OF_TEXT "<|endoftext|>"
/* The mark of a space, U+2581, in the names of a tokenizer whose words begin as characters. Inside the room a space
 * replaces it, in the tokens' bytes and in the text. */
#define SPACE_MARK       "\xe2\x96\x81"
#define SPACE_MARK_BYTES 3

enum { TEXT_MAX_VOCAB = 1 << 24 };

enum token_kind {
    TOKEN_ADDED = 1 << 0,   /* listed as an added token: found in the text before it is split into words */
    TOKEN_SPECIAL = 1 << 1, /* an added token that is found only when requested */
    TOKEN_RAW = 1 << 2,     /* its name in the files is its text, not its bytes in GPT-2's byte alphabet */
    /* For added tokens: */
    TOKEN_LSTRIP = 1 << 3,      /* includes the white space before it */
    TOKEN_RSTRIP = 1 << 4,      /* and the white space after it */
    TOKEN_SINGLE_WORD = 1 << 5, /* must not be next to a character of a word */
    TOKEN_NORMALIZED = 1 << 6,  /* searched for in the normalized text, after those that are not */
    TOKEN_BYTE = 1 << 7,        /* <0x00> to <0xFF>: a byte of a character that is not a token */
    TOKEN_OUTSIDE = 1 << 9,     /* an added token that is missing in the vocabulary: it is not a word */
    TOKEN_WORD = 1 << 8, /* a word of the same bytes becomes this token by itself; words_index finds such tokens */
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

/* The pattern that splits a text into words; scan-internal.h has the patterns. WORDS_BYTE_LEVEL is GPT-2's.
 * WORDS_STEPS: several steps, or none. WORDS_WHOLE: no splitting, for words that begin as characters. WORDS_METASPACE:
 * the same, but a word begins at each space. */
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

/* The rule for putting a space before a text. PREFIX_FIRST: before its very beginning, and PREFIX_SECTIONS: before each
 * section, unless there is one. PREFIX_ALWAYS: before each stretch between the tokens found in the unnormalized text.
 */
enum prefix_space { PREFIX_NEVER, PREFIX_FIRST, PREFIX_SECTIONS, PREFIX_ALWAYS };
/* The bytes removed from the beginning of a decoded text: none, a space, or all marks of spaces in its first token. */
enum stripped_space { STRIP_NOTHING, STRIP_SPACE, STRIP_FIRST_TOKEN };

/* One step of a pre-tokenizer: what it finds, and what happens to matches and to the text between them. */
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
    bool is_inverted;          /* matches and the text between them exchange their roles */
    enum word_pattern pattern; /* SPLIT_PATTERN: its words are the pieces */
    struct text_regex *regex;  /* SPLIT_REGEX */
    char *string;              /* SPLIT_STRING */
};
void split_steps_free(struct split_step *steps, size_t count);

/* How a text becomes ids, besides the tokens and the merges. A zeroed struct gives GPT-2's way. */
struct tokenizer_rules {
    enum word_pattern pattern;
    struct split_step *steps; /* for WORDS_STEPS */
    size_t step_count;
    bool has_nfc; /* texts are normalized */
    enum prefix_space prefix;
    enum stripped_space stripped;
    bool is_by_characters;   /* words begin as characters, not as bytes */
    bool has_early_mark;     /* for these: the mark is already a space in the second search for added tokens */
    bool has_byte_fallback;  /* a character that is not a token becomes the tokens of its bytes */
    bool shows_byte_names;   /* the decoder leaves <0x41> as it is */
    bool has_unk, fuses_unk; /* else it becomes the token unk; fuses_unk: several in a row give only one */
    int32_t unk;
    bool ignore_merges;             /* a word that is a token is always that token */
    struct token_buffer begin, end; /* the tokens that the post-processor puts around a text */
};
void tokenizer_rules_free(struct tokenizer_rules *rules);

/* The parts of a tokenizer.json that are kept unchanged. */
enum json_part { JSON_NORMALIZER, JSON_PRE_TOKENIZER, JSON_DECODER, JSON_PART_COUNT };
extern const char *const json_part_names[JSON_PART_COUNT];

struct merge {
    int32_t left, right, result;
};

/* A pair of ids and its merge. `value` is rank << 32 | id: the smaller value is the earlier merge. */
struct merge_entry {
    uint64_t pair; /* left << 32 | right */
    uint64_t value;
};
#define MERGE_NONE UINT64_MAX
/* Most pairs do not merge. A bit table with this many more bits of hash excludes nearly all of them, and fits the
 * processor's caches when the entries do not. */
enum { SIEVE_BITS = 3 };

/* An added token as it is searched for. */
struct added_token {
    size_t start, length; /* in added_tokens.text */
    int32_t id;
    uint32_t prefix; /* 1 + the index of the longest other token that this one begins with; 0: none */
};
/* A node of the automaton of their names, read from the end. The first node is the root, for no bytes. */
struct added_node {
    uint32_t first;   /* of its children; they end where those of the next node begin */
    uint32_t shorter; /* the node for the longest part of its bytes, without those nearest the end, that has a node */
    uint32_t token;   /* 1 + the index of the longest token that begins here; 0: none */
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
    unsigned char *bytes; /* of all tokens, one after the other */
    uint32_t *starts;     /* size + 1 offsets into bytes */
    uint16_t *kinds;      /* enum token_kind */
    int32_t
        byte_ids[256]; /* of the single bytes; by characters, of ASCII and of the bytes that are not part of a token: */
    int32_t fallback_ids[256];
    uint8_t (*joins)[256]; /* by characters: whether any merge joins a token that ends with the first byte and one that
                              ⏎ begins with the second; text is cut into words where none does */
    bool has_lost_bytes;   /* some byte_ids, or fallback_ids, are -1 */

    struct merge *merges; /* in the order of their ranks */
    size_t merge_count;
    struct merge_entry *entries; /* open addressing; pair MERGE_NONE is empty */
    unsigned entry_bits;
    uint8_t *sieve;               /* 1 << (entry_bits + SIEVE_BITS) bits */
    uint64_t (*byte_merges)[256]; /* the values of the merges of two bytes; NULL by characters */

    int32_t *by_bytes; /* open addressing by the bytes of the tokens that are not raw; -1 is empty */
    unsigned by_bytes_bits;
    struct word_bucket *words; /* open addressing by the keys of tokens that are words */
    unsigned word_bits;

    struct added_tokens added[2]; /* searched for in the unnormalized text, and in the normalized text */

    int32_t roles[ROLE_COUNT];
    struct tokenizer_rules rules;
    char *json_parts[JSON_PART_COUNT]; /* from its file; NULL: as a trained tokenizer has them */
};

/* A token for tokenizer_new. */
struct token_source {
    const char *bytes; /* NULL: no token has this id */
    size_t length;
    uint16_t kind;       /* enum token_kind */
    const char *content; /* for an added token: the text to find; NULL: its bytes */
    size_t content_length;
};

/* Makes a tokenizer from tokens, whose bytes are copied; tokenizer_set_merges completes it. The tokens that are not raw
 * must be distinct, and must include each single byte, or STATUS_INVALID is returned. Takes over the contents of
 * `rules`, which is then zeroed, unless it fails. STATUS_MEMORY. */
int tokenizer_new(const struct token_source *tokens, int32_t size, struct tokenizer_rules *rules,
                  struct tokenizer **tokenizer);
/* Takes over `merges`, an array from malloc, even on failure. Its ids must be in the vocabulary, and its results
 * correct. STATUS_MEMORY. */
int tokenizer_set_merges(struct tokenizer *tokenizer, struct merge *merges, size_t count);

static inline uint64_t text_hash_pair(uint64_t pair, unsigned bits) {
    uint64_t h = (pair ^ pair >> 29) * 0x9e3779b97f4a7c15u;
    return (h ^ h >> 32) * 0xd6e8feb86659fd93u >> (64 - bits);
}

/* Returns the value of a pair's merge; MERGE_NONE when it does not merge. */
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

/* Returns the id of the token of the byte alphabet with these bytes; -1 when there is none. */
int32_t tokenizer_find_plain(const struct tokenizer *tokenizer, const void *bytes, size_t length);

/* A word of up to WORD_KEY_BYTES bytes as two machine words: its bytes, zeros, and the length in the highest byte. */
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
/* Words that are tokens and whose search begins here: one line of the processor's cache. */
enum { WORD_BUCKET = 3 };
struct word_bucket {
    struct word_key keys[WORD_BUCKET];
    int32_t ids[WORD_BUCKET];
    uint32_t count;
};
/* Returns the token that a word becomes by itself; -1: merges decide. */
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

/* Finds the tokens that are words: all of them when merges are ignored, else those that the merges of their bytes make.
 * STATUS_MEMORY. */
int words_index(struct tokenizer *tokenizer);

static inline int token_buffer_reserve(struct token_buffer *buffer, size_t more) {
    return buffer->capacity - buffer->count >= more
               ? STATUS_OK
               : array_reserve(&buffer->ids, &buffer->capacity, buffer->count + more, sizeof *buffer->ids);
}

uint64_t text_hash_bytes(const void *bytes, size_t length);

/* ---- added tokens: added.c, added_index.c ---- */

/* Lists the added tokens of a tokenizer with known tokens and rules. STATUS_MEMORY. */
int added_tokens_index(struct tokenizer *tokenizer, const struct token_source *tokens);
/* Appends the normalized form of a token's content, which is searched for in the normalized text. STATUS_MEMORY. */
int added_token_normalize(const struct tokenizer_rules *rules, struct nfc_scratch *nfc, const char *content,
                          size_t length, struct strbuf *out);
void added_tokens_free(struct added_tokens *added);
/* Returns the list's entry for this id, which is in the list. */
const struct added_token *added_tokens_item(const struct added_tokens *added, int32_t id);
/* True when any of them can be found in a text. */
bool added_tokens_are_sought(const struct added_tokens *added, unsigned flags);

/* Builds the automaton of a list with items and text. STATUS_MEMORY. */
int added_tokens_build(struct added_tokens *added);
/* Calls on_token for each place of a text at which a token begins, until it fails. The last place comes first. It gets
 * the index of the longest token there. Adds the automaton's steps, at most two per byte, to *steps. */
int added_tokens_each(const struct added_tokens *added, const unsigned char *bytes, size_t length,
                      int (*on_token)(void *context, size_t at, uint32_t token), void *context, uint64_t *steps);
/* The same places as a list, the last first. It starts zeroed, and ends with added_hits_free. STATUS_MEMORY. */
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

/* A text in parts during a search. Zeroed: it has no parts. */
struct span_source;
struct added_place {
    const struct tokenizer_parts *parts;
    const struct span_source *source; /* of the searched text; NULL: it is the whole */
    size_t plain;      /* the first part without special tokens that ends after the places searched so far */
    uint8_t *controls; /* [added_tokens.count] by the index in the list: 0 unknown, 1 no control, 2 a control */
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
    size_t blank_from, blank_to; /* the blanks that were last examined after a token */
    struct added_place place;
};
void added_search_free(struct added_search *search);
/* Begins a search in a text; `list` is an index of tokenizer.added. STATUS_MEMORY. */
int added_search_begin(struct added_search *search, const struct tokenizer *tokenizer, size_t list,
                       const unsigned char *bytes, size_t length, unsigned flags);
/* Finds the next token. It removes [start, stop): the token, the blanks before it from `taken` (the end of the match
 * before) on, and the blanks after it. Returns false when there is no more. */
struct added_match {
    size_t start, stop;
    struct token_span name; /* of the token, in a text in parts */
    int32_t id;
};
bool added_search_next(struct added_search *search, size_t taken, struct added_match *match);

/* Marks in forbidden[0 .. count - 1] the places from `from` on at which a cut could hide an added token, or reveal one
 * that the whole text hides. STATUS_MEMORY. */
int added_tokens_mark_cuts(const struct tokenizer *tokenizer, const unsigned char *bytes, size_t length, size_t from,
                           size_t count, bool *forbidden);
/* Returns the first place at which a special token begins, and the length of the longest one there; SIZE_MAX when there
 * is none. */
size_t added_tokens_first_special(const struct tokenizer *tokenizer, const char *text, size_t length, size_t *bytes);

/* ---- spans of tokens: spans.c ---- */

/* For each byte of a changed text, and for its end, the byte of the text before the change. Empty: nothing changed. */
struct byte_map {
    uint32_t *items; /* [count] */
    size_t count, capacity;
};
/* Maps a copy with a space before it and spaces for its marks. STATUS_MEMORY. */
int byte_map_copy(struct byte_map *map, const unsigned char *bytes, size_t length, bool has_space, bool has_marks);
/* Maps the normal form of a text, of which `valid` bytes are UTF-8. `normal` is scratch. The errors of nfc_append. */
int byte_map_normalize(struct byte_map *map, struct nfc_scratch *nfc, const unsigned char *bytes, size_t length,
                       size_t valid, struct strbuf *normal);
/* The origin of a section: its place in a stretch between added tokens that are searched for first, and the changes in
 * their order. Starts zeroed, apart from the tokenizer. */
enum { SPAN_NORMALIZED, SPAN_MARKED, SPAN_SECTION, SPAN_MAPS };
struct span_source {
    const struct tokenizer *tokenizer;
    size_t text;                  /* the stretch's place in the whole text */
    const unsigned char *stretch; /* after its changes */
    size_t section;               /* the section's place in it */
    struct byte_map maps[SPAN_MAPS];
};
void span_source_free(struct span_source *source);
/* Returns the bytes of the whole text from which [begin, end) came by the changes up to `last`. */
struct token_span span_source_find(const struct span_source *source, int last, size_t begin, size_t end);
/* token_spans_append adds a span, token_spans_add those of a section's ids from `first` on. STATUS_MEMORY. */
int token_spans_append(struct token_spans *spans, struct token_span span);
int token_spans_add(struct token_spans *spans, const struct span_source *source, const unsigned char *bytes,
                    size_t length, const struct token_buffer *ids, size_t first);

/* ---- steps: split.c, regex.c ---- */

/* Compiles a pattern. STATUS_UNSUPPORTED or STATUS_INVALID, with the pattern, when PCRE2 cannot represent it;
 * STATUS_MEMORY. */
int text_regex_open(const char *pattern, struct text_regex **regex);
/* NULL is allowed. */
void text_regex_close(struct text_regex *regex);
/* Memory for matches. STATUS_MEMORY. */
struct regex_scratch;
int regex_scratch_new(struct regex_scratch **scratch);
/* NULL is allowed. */
void regex_scratch_free(struct regex_scratch *scratch);
/* Begins a text of `length` bytes that `patterns` patterns split one after the other. All matches in it may take
 * REGEX_STEPS, plus REGEX_STEPS_OF_BYTE per byte and pattern. Before the first text the steps are unlimited. */
enum { REGEX_STEPS = 1 << 24, REGEX_STEPS_OF_BYTE = 500 };
void regex_scratch_begin(struct regex_scratch *scratch, size_t length, size_t patterns);
/* Returns the steps since then. */
uint64_t regex_scratch_steps(const struct regex_scratch *scratch);
/* Finds the first match from `from` on in a UTF-8 text. STATUS_NOT_FOUND, without a message, when there is none;
 * STATUS_UNSUPPORTED when a limit is exceeded. */
int text_regex_find(const struct text_regex *regex, struct regex_scratch *scratch, const unsigned char *text,
                    size_t length, size_t from, size_t *start, size_t *end);
/* Splits a UTF-8 text by the rules' steps, and calls on_word for each word until it fails. Returns its status, or the
 * errors of text_regex_find. */
int split_text(const struct tokenizer_rules *rules, struct regex_scratch *scratch, const unsigned char *bytes,
               size_t length, int (*on_word)(void *context, const unsigned char *word, size_t length), void *context);

/* Memory for merging long words; starts zeroed, ends with bpe_scratch_free. */
struct bpe_scratch {
    void *block;
    size_t bytes;
};
void bpe_scratch_free(struct bpe_scratch *scratch);
/* Writes the ids of one word to `ids`, which has room for `length` ids, and their number to *count. `length` is at
 * least 1 and below 2^31. STATUS_MEMORY. */
int bpe_encode_word(const struct tokenizer *tokenizer, struct bpe_scratch *scratch, const unsigned char *word,
                    size_t length, int32_t *ids, size_t *count);
/* The same without checking whether the word is a token with TOKEN_WORD. */
int bpe_merge_word(const struct tokenizer *tokenizer, struct bpe_scratch *scratch, const unsigned char *word,
                   size_t length, int32_t *ids, size_t *count);

/* Append a text with its marks of spaces replaced by spaces, and the reverse. */
void space_marks_add(const unsigned char *bytes, size_t length, struct strbuf *out);
void space_marks_write(const unsigned char *bytes, size_t length, struct strbuf *out);
/* Returns the byte of a name <0x00> to <0xFF>; -1 for other names. */
int token_name_byte(const char *name);
/* Appends the bytes that a name in the files stands for, in the alphabet or with marks of spaces. Returns false when it
 * is written in neither; some bytes may then have been appended. */
bool tokenizer_name_bytes(const struct tokenizer_rules *rules, const char *name, size_t length, struct strbuf *out);

/* Appends the name of a token in the files: listing.c. */
void token_name_write(const struct tokenizer *tokenizer, int32_t id, struct strbuf *out);

/* GPT-2's alphabet: each byte as a printable character, and its order in the vocabulary. */
/* Returns the byte with id `rank` in GPT-2's vocabulary and in ours. */
unsigned char byte_alphabet_ranked(int rank);
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
/* Counts the words of the files with `threads` threads. Only the order of the words depends on the threads. STATUS_IO,
 * STATUS_INVALID, STATUS_MEMORY. */
int word_counts_of_files(const char *const *paths, size_t path_count, int threads, struct word_counts *counts);
