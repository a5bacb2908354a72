/* Sequences of the engine, and the pages that hold their keys and values. Only the leader calls these functions. */
#pragma once

#include "infer/engine.h"

/* Opens a sequence and returns its number. It starts with the longest cached beginning of virtual tokens and tokens,
 * which excludes the last token. *cached, which may be NULL, is the length of that beginning. STATUS_MEMORY when all
 * sequences are in use. */
int engine_sequence_open(struct engine *engine, const struct sequence_beginning *beginning, int64_t *cached);
/* Opens an empty sequence with the engine's opened slot. Errors as engine_sequence_open. */
int engine_sequence_new(struct engine *engine);
void engine_sequence_close(struct engine *engine, int sequence);
/* Returns the tokens of a sequence in the cache, including virtual tokens. */
int64_t engine_sequence_length(const struct engine *engine, int sequence);
/* Return the pages that no sequence holds; the pages that a sequence needs for `rows` more rows; and all pages. */
int64_t engine_pages_available(const struct engine *engine);
int64_t engine_pages_needed(const struct engine *engine, int sequence, int64_t rows);
int64_t engine_pages(const struct engine *engine);
