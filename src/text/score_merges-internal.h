/* Merges from the scores of tokens, for words that begin as characters: score_merges.c. */
#pragma once

#include "lists.h"

/* Appends the merges to the list of a tokenizer.json, in the order in which the converters of `transformers` put them.
 * STATUS_INVALID for a token that is too long, STATUS_MEMORY. */
int score_merges_add(const struct tokenizer_lists *lists, struct strbuf *out);
