/* Sequences of the engine, and the pages that hold their keys and values. The leader calls. */
#ifndef CAMBIUM_INFER_SEQUENCES_H
#define CAMBIUM_INFER_SEQUENCES_H

#include "infer/engine.h"

/* A text that is to come. */
struct engine_text {
    int slot;              /* -1: the bare base */
    const int32_t *tokens; /* [count] to be found in the cache */
    int64_t count;
    uint64_t salt; /* texts of different salts share no pages */
    bool reads_cache;
};
/* A sequence (its number) with the longest beginning of stem and tokens that pages have, but for the last token: in
 * *cached, which may be NULL, how many tokens that is. STATUS_MEMORY when all sequences are in use. */
int engine_sequence_open(struct engine *engine, const struct engine_text *text, int64_t *cached);
/* An empty one of the opened slot. */
int engine_sequence_new(struct engine *engine);
void engine_sequence_close(struct engine *engine, int sequence);
/* Tokens in the cache, the stem's with them. */
int64_t engine_sequence_length(const struct engine *engine, int sequence);
/* Pages that nobody holds; the number of them that `rows` more of a sequence take; and all there are. */
int64_t engine_pages_available(const struct engine *engine);
int64_t engine_pages_needed(const struct engine *engine, int sequence, int64_t rows);
int64_t engine_pages(const struct engine *engine);

#endif
