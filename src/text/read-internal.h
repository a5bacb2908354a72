/* Shared by read.c, which makes a tokenizer from a directory's files, and its helpers: merges.c reads merges,
 * settings.c the other settings of a tokenizer.json. lists.c makes such a file. */
#ifndef CAMBIUM_TEXT_READ_INTERNAL_H
#define CAMBIUM_TEXT_READ_INTERNAL_H

#include "base/json.h"
#include "text-internal.h"

#include <stdbool.h>

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

/* Reads the flags of an entry of added_tokens or added_tokens_decoder, as enum token_kind. STATUS_INVALID. */
int tokenizer_read_added_kind(const json_t *token, uint16_t *kind);

/* Returns the string of a token: itself, or the `content` of an object; NULL when it is neither. */
const char *tokenizer_json_token(const json_t *value);

/* Reads `model.merges`. STATUS_INVALID, STATUS_MEMORY. */
int tokenizer_read_json_merges(struct tokenizer *tokenizer, const json_t *values);
/* Finds the parts of a text that can be encoded separately, once the merges are known. STATUS_MEMORY. */
int tokenizer_find_joins(struct tokenizer *tokenizer);
/* Reads merges.txt. A "#version" line may come first; empty lines are skipped. STATUS_INVALID, STATUS_MEMORY. */
int tokenizer_read_merge_lines(struct tokenizer *tokenizer, const struct strbuf *text);

#endif
