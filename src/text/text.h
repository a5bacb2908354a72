/* Text to token ids and back: BPE whose words begin as bytes (GPT-2, Llama 3, Qwen2) or as characters (Llama 2,
 * Mistral).
 *
 * A `struct tokenizer` never changes once it is opened or trained, and any number of threads may share it. Each thread
 * encodes with its own `struct tokenizer_encoder`, which holds its word cache and scratch memory and borrows the
 * tokenizer.
 *
 * Ids are 0 to tokenizer_vocab_size() - 1 without gaps. Any bytes can be encoded. Decoding restores them, with four
 * exceptions: bytes without a token, a space that is put before a text, the normal form NFC, and tokens that include
 * white space around them.
 *
 * Ids equal those of Hugging Face `tokenizers` and of `tiktoken`. `tokenizers` is called with add_special_tokens=False
 * unless TOKENIZER_ADD_SPECIAL is set, and with encode_special_tokens=True unless special tokens are allowed.
 *
 * Only `tiktoken` defines ids for invalid UTF-8; they equal its `_encode_bytes`. The text before the first invalid byte
 * is encoded separately. Its last word, with the white space before it if the word begins with a token of white space,
 * forms one unsplit word with everything after it. If words begin as characters, an invalid byte is a character without
 * a token. */
#pragma once

#include "base/base.h"

struct tokenizer;

/* ---- files ---- */

/* The files of a tokenizer's directory that belong to it, and that a model's directory receives. */
enum tokenizer_file {
    TOKENIZER_JSON,
    TOKENIZER_VOCAB,
    TOKENIZER_MERGES,
    TOKENIZER_CONFIG,
    TOKENIZER_SPECIAL,
    TOKENIZER_ADDED,
    TOKENIZER_TEMPLATE,
    TOKENIZER_GENERATION, /* the settings by which `transformers` generates */
    TOKENIZER_FILE_COUNT,
};
extern const char *const tokenizer_file_names[TOKENIZER_FILE_COUNT];

/* The contents of the files when they were read; later changes of the directory do not matter. */
struct tokenizer_files {
    char *directory; /* for messages */
    struct strbuf texts[TOKENIZER_FILE_COUNT];
    bool is_there[TOKENIZER_FILE_COUNT];
};
/* Reads the files that exist. STATUS_NOT_FOUND when the directory does not exist; STATUS_IO, STATUS_INVALID,
 * STATUS_MEMORY. On failure there is nothing to free. */
int tokenizer_files_read(const char *directory, struct tokenizer_files *files);
/* Zeroed files are allowed. */
void tokenizer_files_free(struct tokenizer_files *files);
/* Writes the files into an existing directory, each whole and synced. STATUS_IO. */
int tokenizer_files_write(const struct tokenizer_files *files, const char *directory);
/* Adds the facts that ranks with the same encoding share. STATUS_MEMORY. */
int tokenizer_files_facts(const struct tokenizer_files *files, struct facts *facts);

/* ---- opening ---- */

/* Opens a directory with `tokenizer.json`, or else `vocab.json` and `merges.txt`. Reads `tokenizer_config.json`,
 * `special_tokens_map.json` and `added_tokens.json` if they exist.
 *
 * STATUS_NOT_FOUND when there are no such files, STATUS_INVALID when one is damaged. STATUS_UNSUPPORTED, with the key's
 * name, for a setting that would give other ids (another model, an unsupported normalizer, dropout, ...). STATUS_IO,
 * STATUS_MEMORY. */
int tokenizer_open(const char *directory, struct tokenizer **tokenizer);
/* The same for files that were read; they may be freed afterwards. */
int tokenizer_open_files(const struct tokenizer_files *files, struct tokenizer **tokenizer);
/* NULL is allowed. */
void tokenizer_close(struct tokenizer *tokenizer);
/* True when the directory has a tokenizer's files. */
bool tokenizer_is_present(const char *directory);

/* tokenizer_save writes tokenizer.json, tokenizer_config.json and, for byte-level BPE, vocab.json and merges.txt into
 * `directory`, which appears whole. `transformers` and `tokenizers` open it with equal ids. It refuses a directory with
 * other contents, as the check does by itself. STATUS_INVALID, STATUS_IO, STATUS_MEMORY. */
int tokenizer_check_output(const char *directory);
int tokenizer_save(const struct tokenizer *tokenizer, const char *directory);

/* Returns the number of ids, including special tokens. */
int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer);
/* Returns the end-of-text token: eos_token of the files, else <|endoftext|>; -1 when there is neither. */
int32_t tokenizer_eos_id(const struct tokenizer *tokenizer);
/* Returns bos_token of the files, which may begin a text; -1 when there is none. */
int32_t tokenizer_bos_id(const struct tokenizer *tokenizer);
/* True for a special token, which is part of a text only when requested. */
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);
/* True when encoding a text can take much longer than a pass over it, because the pre-tokenizer has a regular
 * expression without a scanner of ours. A thread that must answer soon passes every text of such a tokenizer, however
 * short, to another thread. */
bool tokenizer_may_be_slow(const struct tokenizer *tokenizer);
/* Returns the bytes of `id` within a text, owned by the tokenizer, and their number; NULL when there is no such id. */
const unsigned char *tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *length);
/* The same for the first token of a text that is decoded on its own: without the spaces that the decoder removes there.
 */
const unsigned char *tokenizer_first_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *length);
/* Returns the id of the token with exactly these bytes, special tokens included; -1 when there is none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const void *bytes, size_t length);

/* Builds the vocabulary of grammars (grammar/grammar.h): what each id adds to a text, wherever it stands, and the ids
 * that end a completion. The caller closes it; it is large, and one is enough for a tokenizer. STATUS_MEMORY. */
struct grammar_vocabulary;
int tokenizer_vocabulary(const struct tokenizer *tokenizer, const int32_t *ends, size_t end_count,
                         struct grammar_vocabulary **vocabulary);

/* Appends the bytes of a whole text's ids to `out`, without the space that was put before it. STATUS_INVALID, with
 * nothing appended, when an id is not in the vocabulary; STATUS_MEMORY. */
int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, struct strbuf *out);

/* A growing array of ids. It starts as TOKEN_BUFFER_INIT and ends with token_buffer_free; `count` may be reset to 0. */
struct token_buffer {
    int32_t *ids;
    size_t count, capacity;
};
#define TOKEN_BUFFER_INIT ((struct token_buffer){0})
/* token_buffer_add appends an id. STATUS_MEMORY. */
void token_buffer_free(struct token_buffer *buffer);
int token_buffer_add(struct token_buffer *buffer, int32_t id);

struct tokenizer_encoder;
/* Makes an encoder. STATUS_MEMORY. */
int tokenizer_encoder_new(const struct tokenizer *tokenizer, struct tokenizer_encoder **encoder);
/* NULL is allowed. */
void tokenizer_encoder_free(struct tokenizer_encoder *encoder);

enum tokenizer_flags {
    TOKENIZER_PLAIN = 0,              /* names of special tokens in the text are ordinary text */
    TOKENIZER_ALLOW_SPECIAL = 1 << 0, /* they are the special tokens */
    TOKENIZER_CONTINUED = 1 << 1,     /* the text continues where a longer one was cut: no space is put before it */
    TOKENIZER_AFTER_TOKEN = 1 << 4,   /* the text follows a special token of a longer one */
    TOKENIZER_ADD_BEGIN = 1 << 2,     /* adds the tokens that the files' post-processor puts before every text, */
    TOKENIZER_ADD_END = 1 << 3,       /* and those that it puts after every text; */
    TOKENIZER_ADD_SPECIAL = TOKENIZER_ADD_BEGIN | TOKENIZER_ADD_END /* both, except for texts that a template made */
};

/* Appends the ids of a complete text to `out`. The ids of two parts are those of the whole only where
 * tokenizer_find_cut cut it. `length` is below 2^31 (STATUS_UNSUPPORTED); STATUS_MEMORY. Time is O(n log n) in the
 * longest word. On failure `out` is unchanged. */
int tokenizer_encode(struct tokenizer_encoder *encoder, const void *bytes, size_t length, unsigned flags,
                     struct token_buffer *out);

/* Parts of a text. In a part that must not hold special tokens, no token is found that has a byte there and is special,
 * or belongs to the caller (`is_control`). */
struct tokenizer_part {
    size_t end; /* end of the part in the text, in bytes */
    bool has_special;
};
/* The bytes [begin, end) of a text that a token stands for: of an added token its name, without the white space around
 * it. The span of a space that is put before a text is empty. */
struct token_span {
    size_t begin, end;
};
/* Spans of a text's tokens. Starts zeroed, ends with token_spans_free. */
struct token_spans {
    struct token_span *items; /* [count] */
    size_t count, capacity;
};
/* Frees the list. */
void token_spans_free(struct token_spans *spans);
struct tokenizer_parts {
    const struct tokenizer_part *items; /* [count] */
    size_t count;
    bool (*is_control)(const void *context, const void *bytes, size_t length);
    const void *context;
    struct token_spans *spans; /* receives the spans of the tokens */
};
/* The same for a text in parts. No tokens are added around it. */
int tokenizer_encode_parts(struct tokenizer_encoder *encoder, const void *bytes, size_t length, unsigned flags,
                           const struct tokenizer_parts *parts, struct token_buffer *out);

/* State for cutting a text that is longer than its reader wants to hold. The ids of the part before the cut, and those
 * of the rest with TOKENIZER_CONTINUED, are the ids of the whole (special tokens being ordinary text). Starts zeroed
 * for each text. */
struct tokenizer_cut {
    size_t valid;   /* bytes known to be UTF-8 */
    size_t scanned; /* bytes without a place for a cut */
    bool is_broken; /* there were invalid bytes: everything from the last word on is one word, and there are no more
                       cuts */
};
/* Returns the last place for a cut in the known part of the text; 0 when there is none. The next call passes the bytes
 * after that place again, and more. A text without such places is a single word, or not UTF-8. */
size_t tokenizer_find_cut(const struct tokenizer *tokenizer, struct tokenizer_cut *cut, const void *bytes,
                          size_t length);

/* The texts to learn a vocabulary from, and the settings. */
struct tokenizer_training {
    const char *const *inputs; /* text files, each one text; *.gz files are unpacked */
    size_t input_count;
    int64_t vocab_size;    /* 256 bytes, the merges, and <|endoftext|> as the last id: at least 257 */
    int64_t min_frequency; /* less frequent pairs are not merged; below 1 means 1 */
    int threads;           /* for counting words; below 1: the processors of this process */
};

/* Learns the merges that the BpeTrainer of `tokenizers` learns from the files, each as one text: the most frequent pair
 * first, among equals the one with the smaller ids. The result does not depend on the number of threads. Memory grows
 * with the number of distinct words. A text too small for `vocab_size` gives a smaller vocabulary; the caller compares.
 * STATUS_INVALID when the files hold no text; STATUS_IO, STATUS_MEMORY. */
int tokenizer_train(const struct tokenizer_training *training, struct tokenizer **tokenizer);
