/* Inside the room: what a tokenizer is made of.
 *
 *     tokenizer.c   the object: its tables, lookups, decoding
 *     files.c       a directory's files into one, and the checks of what they say;  save.c the other way
 *     scan-internal.h, unicode*   the pre-tokenizers
 *     bpe.c         the merges inside one word
 *     encode.c      a text into words, with caches, special tokens and invalid UTF-8
 *     count.c       the distinct words of a corpus;  train.c the merges learned from them */
#ifndef CAMBIUM_TEXT_TEXT_INTERNAL_H
#define CAMBIUM_TEXT_TEXT_INTERNAL_H

#include "text.h"

#include "base/base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define END_OF_TEXT "<|endoftext|>"

enum { TEXT_MAX_VOCAB = 1 << 24 };

enum token_kind {
    TOKEN_ADDED = 1 << 0,   /* listed as an added token: found in the text before it is split into words */
    TOKEN_SPECIAL = 1 << 1, /* an added token that is only found when asked for */
    TOKEN_RAW = 1 << 2,     /* its name in the files is its text, not its bytes in GPT-2's byte alphabet */
};

/* Tokens that have a role in tokenizer_config.json; -1 where there is none. */
enum token_role { ROLE_EOS, ROLE_BOS, ROLE_UNK, ROLE_PAD, ROLE_COUNT };
extern const char *const token_role_names[ROLE_COUNT];

/* What splits a text into words; scan-internal.h has the patterns. ByteLevel has one of its own, which is GPT-2's. */
enum word_pattern { WORDS_BYTE_LEVEL, WORDS_LLAMA3, WORDS_QWEN2 };
/* The pattern as tokenizer.json has it. */
const char *word_pattern_text(enum word_pattern pattern);

struct merge {
    int32_t left, right, result;
};

/* A pair of ids and what it merges to. `value` is rank << 32 | id: the smaller value is the earlier merge. */
struct merge_entry {
    uint64_t pair; /* left << 32 | right */
    uint64_t value;
};
#define MERGE_NONE UINT64_MAX

struct tokenizer {
    int32_t size;
    unsigned char *bytes; /* of all tokens, one after the other */
    uint32_t *starts;     /* size + 1 offsets into bytes */
    uint8_t *kinds;       /* enum token_kind */
    int32_t byte_ids[256];

    struct merge *merges; /* in the order of their ranks */
    size_t merge_count;
    struct merge_entry *entries; /* open addressing; pair MERGE_NONE is empty */
    unsigned entry_bits;

    int32_t *by_bytes; /* open addressing by the bytes of the tokens that are not raw; -1 is empty */
    unsigned by_bytes_bits;

    int32_t *added; /* ids of added tokens by first byte, the longest first */
    uint32_t added_starts[257];
    bool has_plain_added; /* some added token is not special */

    int32_t roles[ROLE_COUNT];
    enum word_pattern pattern;
    bool add_prefix_space, ignore_merges;
};

/* A token as it is handed to tokenizer_new. */
struct token_source {
    const char *bytes; /* NULL: no token has this id */
    size_t length;
    uint8_t kind; /* enum token_kind */
};

/* A tokenizer of these tokens, their bytes copied, without merges. The tokens that are not raw must be distinct, and
 * must hold each single byte: STATUS_INVALID where one is missing. */
int tokenizer_new(const struct token_source *tokens, int32_t size, struct tokenizer **tokenizer);
/* Takes over `merges`, an array from malloc, also on failure; the ids must be of the vocabulary, the results right. */
int tokenizer_set_merges(struct tokenizer *tokenizer, struct merge *merges, size_t count);

static inline uint64_t text_hash_pair(uint64_t pair, unsigned bits) {
    uint64_t h = (pair ^ pair >> 29) * 0x9e3779b97f4a7c15u;
    return (h ^ h >> 32) * 0xd6e8feb86659fd93u >> (64 - bits);
}

/* The value of a merge's entry, MERGE_NONE where the pair does not merge. */
static inline uint64_t tokenizer_merge_of(const struct tokenizer *tokenizer, uint32_t left, uint32_t right) {
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t mask = ((size_t)1 << tokenizer->entry_bits) - 1;
    for (size_t i = text_hash_pair(pair, tokenizer->entry_bits);; i = (i + 1) & mask) {
        if (tokenizer->entries[i].pair == pair)
            return tokenizer->entries[i].value;
        if (tokenizer->entries[i].pair == MERGE_NONE)
            return MERGE_NONE;
    }
}

/* The id of the token of the byte alphabet with these bytes; -1 when there is none. */
int32_t tokenizer_find_plain(const struct tokenizer *tokenizer, const void *bytes, size_t length);

uint64_t text_hash_bytes(const void *bytes, size_t length);

/* An array with room for `needed` elements (at least one), doubled where it must grow; the old one while there is room.
 * NULL, with the text set and the old array as it was, when there is no memory: STATUS_MEMORY. */
void *text_grow(void *array, size_t *capacity, size_t needed, size_t element);

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
