/* Between read.c, which makes a tokenizer of a directory's files, and settings.c, which decides whether a
 * tokenizer.json asks for nothing but byte-level BPE. */
#ifndef CAMBIUM_TEXT_READ_INTERNAL_H
#define CAMBIUM_TEXT_READ_INTERNAL_H

#include "base/json.h"
#include "text-internal.h"

#include <stdbool.h>

/* The choices that tokenizer.json has. */
struct tokenizer_settings {
    enum word_pattern pattern;
    bool add_prefix_space, ignore_merges;
};

/* STATUS_UNSUPPORTED, with the key's name, for every setting that would give other ids than this room does. */
int tokenizer_check_settings(const json_t *root, struct tokenizer_settings *settings);

/* STATUS_UNSUPPORTED for an entry of added_tokens or added_tokens_decoder that strips spaces or wants whole words. */
int tokenizer_check_added_token(const json_t *token);

/* The string of a token: itself, or the `content` of an object; NULL when it is neither. */
const char *tokenizer_json_token(const json_t *value);

#endif
