/* Text to token ids and back: BPE whose words begin as bytes, as GPT-2, Llama 3 and Qwen2 have it, or as characters, as
 * Llama 2 and Mistral have it.
 *
 * A `struct tokenizer` never changes after it was opened or trained, and any number of threads may share it. Each
 * thread encodes with a `struct tokenizer_encoder` of its own, which holds its word cache and scratch memory and
 * borrows the tokenizer.
 *
 * Ids are 0 to tokenizer_vocab_size() - 1 without holes. Any bytes can be encoded, and decoding gives the same bytes
 * back, unless the tokenizer has no token for some of them, asks for a space before a text or for the normal form
 * NFC, or has tokens that take white space along. Ids equal those of Hugging Face `tokenizers` (called with
 * add_special_tokens=False unless TOKENIZER_ADD_SPECIAL is asked for; encode_special_tokens=True unless special tokens
 * are allowed) and of `tiktoken`. Where the bytes are not UTF-8, which only `tiktoken` defines, they equal its
 * `_encode_bytes`: what stands before the first invalid byte is encoded as a text of its own, and its last word (with
 * the white space before it, where the word begins with a token of white space) and everything after it are one word
 * without splits. Where words begin as characters, such a byte is a character that is no token. */
#ifndef CAMBIUM_TEXT_TEXT_H
#define CAMBIUM_TEXT_TEXT_H

#include "base/base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* ---- files ---- */

/* All that a tokenizer's directory holds of it, and what a model's directory takes from it. */
enum tokenizer_file {
    TOKENIZER_JSON,
    TOKENIZER_VOCAB,
    TOKENIZER_MERGES,
    TOKENIZER_CONFIG,
    TOKENIZER_SPECIAL,
    TOKENIZER_ADDED,
    TOKENIZER_TEMPLATE,
    TOKENIZER_GENERATION, /* how `transformers` writes with the model */
    TOKENIZER_FILE_COUNT,
};
extern const char *const tokenizer_file_names[TOKENIZER_FILE_COUNT];

/* The files as they were when they were read: what happens to the directory later does not matter. */
struct tokenizer_files {
    char *directory; /* for messages */
    struct strbuf texts[TOKENIZER_FILE_COUNT];
    bool is_there[TOKENIZER_FILE_COUNT];
};
/* Reads those that are there. STATUS_NOT_FOUND where there is no such directory. On failure there is nothing to free.
 */
int tokenizer_files_read(const char *directory, struct tokenizer_files *files);
/* Zeroed files are allowed. */
void tokenizer_files_free(struct tokenizer_files *files);
/* Writes them into a directory that exists, each whole and on the disk. */
int tokenizer_files_write(const struct tokenizer_files *files, const char *directory);
/* Adds what ranks that encode alike have in common. */
int tokenizer_files_facts(const struct tokenizer_files *files, struct facts *facts);

/* ---- opening ---- */

/* Opens a directory with `tokenizer.json`, or else `vocab.json` and `merges.txt`; reads
 * `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` where present. STATUS_NOT_FOUND when there
 * are no such files, STATUS_INVALID when one is damaged, STATUS_UNSUPPORTED, with the key's name, when it asks for what
 * would give other ids (another model, a normalizer that is not built, dropout, ...). */
int tokenizer_open(const char *directory, struct tokenizer **tokenizer);
/* The same from files that were read; they may be freed afterwards. */
int tokenizer_open_files(const struct tokenizer_files *files, struct tokenizer **tokenizer);
/* NULL is allowed. */
void tokenizer_close(struct tokenizer *tokenizer);
/* Whether tokenizer_open would find a tokenizer's files in the directory. */
bool tokenizer_is_present(const char *directory);

/* Writes tokenizer.json, tokenizer_config.json and, of byte-level BPE, vocab.json and merges.txt into `directory`,
 * which appears whole: what `transformers` and `tokenizers` open with equal ids. Whatever else stands there is refused,
 * as by the check alone. */
int tokenizer_check_output(const char *directory);
int tokenizer_save(const struct tokenizer *tokenizer, const char *directory);

/* Number of ids, special tokens included. */
int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer);
/* The end-of-text token: eos_token of the files, else <|endoftext|>; -1 when there is neither. */
int32_t tokenizer_eos_id(const struct tokenizer *tokenizer);
/* Whether the id is a special token: part of a text only when asked for. */
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);
/* True when encoding a text can take much longer than a pass over it: the pre-tokenizer has a regular expression
 * without a scanner of ours. A thread that must answer soon hands any text of such a tokenizer, however short, to
 * another. */
bool tokenizer_may_be_slow(const struct tokenizer *tokenizer);
/* The bytes that `id` stands for within a text (owned by the tokenizer) and their number; NULL when there is no such
 * id. */
const unsigned char *tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *length);
/* The id of the token with exactly these bytes, special tokens included; -1 when there is none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const void *bytes, size_t length);

/* Appends the bytes of the ids of a whole text to `out`: less the space that was put before it. STATUS_INVALID, with
 * nothing appended, when an id is not of the vocabulary. */
int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, struct strbuf *out);

/* A growing array of ids; starts as TOKEN_BUFFER_INIT, ends with token_buffer_free; `count` may be set back to 0. */
struct token_buffer {
    int32_t *ids;
    size_t count, capacity;
};
#define TOKEN_BUFFER_INIT ((struct token_buffer){0})
void token_buffer_free(struct token_buffer *buffer);
int token_buffer_add(struct token_buffer *buffer, int32_t id);

struct tokenizer_encoder;
int tokenizer_encoder_new(const struct tokenizer *tokenizer, struct tokenizer_encoder **encoder);
/* NULL is allowed. */
void tokenizer_encoder_free(struct tokenizer_encoder *encoder);

enum tokenizer_flags {
    TOKENIZER_PLAIN = 0,              /* the names of special tokens in the text are ordinary text */
    TOKENIZER_ALLOW_SPECIAL = 1 << 0, /* they are the special tokens */
    TOKENIZER_CONTINUED = 1 << 1,     /* the text goes on where a longer one was cut: no space is put before it */
    TOKENIZER_BEHIND_TOKEN = 1 << 4,  /* the text goes on behind a special token of a longer one */
    TOKENIZER_ADD_BEGIN = 1 << 2,     /* with the tokens that the files' post-processor puts before every text, */
    TOKENIZER_ADD_END = 1 << 3,       /* with those that it puts behind every text; */
    TOKENIZER_ADD_SPECIAL = TOKENIZER_ADD_BEGIN | TOKENIZER_ADD_END /* both, but for texts that a template made */
};

/* Appends the ids of a text to `out`. The text is complete in itself: the ids of two halves are those of the whole only
 * where tokenizer_find_cut cut it.
 * `length` is below 2^31 (STATUS_UNSUPPORTED). Time is O(n log n) in the longest word. On failure `out` keeps what it
 * held before. */
int tokenizer_encode(struct tokenizer_encoder *encoder, const void *bytes, size_t length, unsigned flags,
                     struct token_buffer *out);

/* Parts of a text: where one may not hold special tokens, and those of the caller's (`is_control`), a token of which
 * any byte lies there is not found. */
struct tokenizer_part {
    size_t end; /* bytes of the text up to its end */
    bool has_special;
};
struct tokenizer_parts {
    const struct tokenizer_part *items; /* [count] */
    size_t count;
    bool (*is_control)(const void *context, const void *bytes, size_t length);
    const void *context;
};
/* The same of a text in parts. */
int tokenizer_encode_parts(struct tokenizer_encoder *encoder, const void *bytes, size_t length, unsigned flags,
                           const struct tokenizer_parts *parts, struct token_buffer *out);

/* Where a text may be cut that is longer than its reader wants to hold: the ids of the part before, and those of the
 * rest with TOKENIZER_CONTINUED, are the ids of the whole (special tokens being ordinary text). Starts zeroed for each
 * text.
 */
struct tokenizer_cut {
    size_t valid;   /* bytes that are known to be UTF-8 */
    size_t scanned; /* bytes that hold no place for a cut */
    bool is_broken; /* invalid bytes were met: everything from the last word on is one word, and there is no more cut */
};
/* The last place in what is known of the text, whose next call gives the same bytes and more; 0 when there is none. The
 * bytes before a place are not given again. Texts without such places are single words, or not UTF-8. */
size_t tokenizer_find_cut(const struct tokenizer *tokenizer, struct tokenizer_cut *cut, const void *bytes,
                          size_t length);

/* The texts to learn a vocabulary from, and how. */
struct tokenizer_training {
    const char *const *inputs; /* text files, each one text; those named *.gz are gzip files */
    size_t input_count;
    int64_t vocab_size;    /* 256 bytes, the merges, and <|endoftext|> as the last id: at least 257 */
    int64_t min_frequency; /* pairs seen less often are not merged; below 1 means 1 */
    int threads;           /* for counting words; below 1: the processors of this process */
};

/* Learns the merges that the BpeTrainer of `tokenizers` learns from the files, each as one text: the most frequent pair
 * first, of equals the one with the smaller ids. The result does not depend on the number of threads. Memory grows with
 * the distinct words. A text too small for `vocab_size` gives a smaller vocabulary; the caller compares. STATUS_INVALID
 * when the files hold no text. */
int tokenizer_train(const struct tokenizer_training *training, struct tokenizer **tokenizer);

#endif
