/* Shared by read.c, which makes a tokenizer from a directory's files, and its helpers.
 *
 *     draft.c     the tokens of the files;  named.c   those that only the small files name
 *     merges.c    merges;  settings.c   the other settings of a tokenizer.json
 *
 * The file lists.c makes a tokenizer.json. */
#pragma once

#include "base/json.h"
#include "text-internal.h"

/* ---- draft.c, named.c ---- */

struct draft_token {
    size_t start, length;                 /* in draft.bytes */
    size_t content_start, content_length; /* for an added token, in the same buffer */
    uint16_t kind;
    bool is_set;
};

/* The contents of the files, collected before the tokenizer is made. */
struct draft {
    const struct tokenizer_files *files;
    json_t *config, *special; /* tokenizer_config.json and special_tokens_map.json; NULL: not there */
    json_t *added;            /* the ids of the added tokens by their contents */
    json_t *named;            /* contents of special tokens in these files: true for additional ones, false for roles */
    struct strbuf bytes, name; /* of all tokens; scratch */
    struct draft_token *tokens;
    size_t capacity, size; /* ids below `size` are known; at most `capacity` ids are possible */
    struct tokenizer_rules rules;
    bool adds_bos,
        adds_eos; /* for every text: requested next to a vocab.json; a tokenizer.json has its post-processor */
    const char *roles[ROLE_COUNT]; /* contents of the tokens with a role, in these objects; NULL: none */
};

/* Makes room for `more` tokens. STATUS_INVALID when they are too many, STATUS_MEMORY. */
int draft_reserve(struct draft *draft, size_t more);
/* Adds the tokens of a vocabulary, an object of names and ids. STATUS_INVALID, STATUS_MEMORY. */
int draft_add_vocab(struct draft *draft, json_t *vocab);
/* Adds an added token: a new token, one of the vocabulary, or one that was added before, whose flags are replaced.
 * `kind` is the kind in its entry. STATUS_INVALID for an id of another token; STATUS_UNSUPPORTED, STATUS_MEMORY. */
int draft_add_added(struct draft *draft, const json_t *vocab, const char *content, const json_t *id, uint16_t kind);
/* Parses a whole file as a JSON object; STATUS_INVALID with line and column. *root is NULL when the file does not
 * exist. Messages use `path`. */
int draft_load_json(const struct draft *draft, enum tokenizer_file file, size_t flags, json_t **root,
                    char path[PATH_MAX]);
/* Opens the small files, and keeps the contents of the tokens with a role. STATUS_INVALID, STATUS_MEMORY. */
int draft_read_settings(struct draft *draft);
/* Adds the tokens that tokenizer_config.json, special_tokens_map.json and added_tokens.json name, as transformers does.
 * The same errors as draft_add_added's. */
int draft_add_named(struct draft *draft, const json_t *vocab);

/* ---- settings.c ---- */

/* Reads the rules. STATUS_UNSUPPORTED, with the key's name, for every setting that would give other ids than this room.
 * The caller owns the contents of `rules` even on failure. */
int tokenizer_read_rules(const json_t *root, struct tokenizer_rules *rules);

/* ---- between settings.c and settings_words.c ---- */

/* settings_refuse returns STATUS_UNSUPPORTED for a setting that is not supported. */
int settings_refuse(const char *key, const char *value);
bool settings_is_absent(const json_t *value);
/* Returns the `type` of an object; any text when it has none. */
const char *settings_type(const json_t *value);
/* Reads a boolean, with a default when the key is absent; STATUS_INVALID for other types. */
int settings_bool(const json_t *object, const char *key, bool fallback, bool *value);
/* Reads where a Metaspace puts a space: its prepend_scheme. */
int settings_read_scheme(const json_t *metaspace, enum prefix_space *prefix);
/* Reads the pre_tokenizer, which splits a text into words. */
int settings_read_words(const json_t *value, struct tokenizer_rules *rules);

/* Returns the regular expression of a pattern that a single step has, as files spell it. */
const char *settings_pattern_text(enum word_pattern pattern);

/* Reads the flags of an added token's object, as enum token_kind; a string leaves *kind, whose TOKEN_SPECIAL is the
 * default, as it is. A special token is not normalized unless it says so. STATUS_INVALID. */
int tokenizer_read_added_kind(const json_t *token, uint16_t *kind);

/* Returns the string of a token: itself, or the `content` of an object; NULL when it is neither. */
const char *tokenizer_json_token(const json_t *value);

/* Reads `model.merges`. STATUS_INVALID, STATUS_MEMORY. */
int tokenizer_read_json_merges(struct tokenizer *tokenizer, const json_t *values);
/* Finds the parts of a text that can be encoded separately, once the merges are known. STATUS_MEMORY. */
int tokenizer_find_joins(struct tokenizer *tokenizer);
/* Reads merges.txt. A "#version" line may come first; empty lines are skipped. STATUS_INVALID, STATUS_MEMORY. */
int tokenizer_read_merge_lines(struct tokenizer *tokenizer, const struct strbuf *text);
