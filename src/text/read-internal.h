/* Between read.c, which makes a tokenizer of a directory's files, merges.c, which reads its merges, and settings.c,
 * which reads what else a tokenizer.json asks for. */
#ifndef CAMBIUM_TEXT_READ_INTERNAL_H
#define CAMBIUM_TEXT_READ_INTERNAL_H

#include "base/json.h"
#include "text-internal.h"

#include <stdbool.h>

/* STATUS_UNSUPPORTED, with the key's name, for every setting that would give other ids than this room does. What
 * `rules` holds is the caller's also on failure. */
int tokenizer_read_rules(const json_t *root, struct tokenizer_rules *rules);

/* ---- between settings.c and settings_words.c ---- */

/* STATUS_UNSUPPORTED for a setting that is not built. */
int settings_refuse(const char *key, const char *value);
bool settings_is_absent(const json_t *value);
/* The `type` of an object; some text where it has none. */
const char *settings_type(const json_t *value);
/* A boolean with a default where the key is absent; STATUS_INVALID where it is something else. */
int settings_bool(const json_t *object, const char *key, bool fallback, bool *value);
/* Where a Metaspace puts a space: its prepend_scheme. */
int settings_read_scheme(const json_t *metaspace, enum prefix_space *prefix);
/* The pre_tokenizer: what splits a text into words. */
int settings_read_words(const json_t *value, struct tokenizer_rules *rules);

/* The flags of an entry of added_tokens or added_tokens_decoder, as enum token_kind. */
int tokenizer_read_added_kind(const json_t *token, uint16_t *kind);

/* The string of a token: itself, or the `content` of an object; NULL when it is neither. */
const char *tokenizer_json_token(const json_t *value);

/* `model.merges`. */
int tokenizer_read_json_merges(struct tokenizer *tokenizer, const json_t *values);
/* What of a text may be encoded apart: once the merges are known. */
int tokenizer_find_joins(struct tokenizer *tokenizer);
/* merges.txt: a "#version" line may come first; empty lines are passed over. */
int tokenizer_read_merge_lines(struct tokenizer *tokenizer, const struct strbuf *text);

#endif
