/* Generation: texts from one prompt. The leader calls. */
#ifndef CAMBIUM_INFER_GENERATE_H
#define CAMBIUM_INFER_GENERATE_H

#include "infer/engine.h"

enum finish_reason { FINISH_STOP, FINISH_LENGTH };

struct generate_options {
    const int32_t *prompt; /* ids, at least one */
    int64_t prompt_length;
    int64_t max_new_tokens;
    int64_t samples; /* texts to write, choices 0 .. samples-1 */
    struct sampling sampling;
    const char *const *stop; /* strings; the text ends before the first of them (writer.h) */
    size_t stop_count;
    const int32_t *end_ids; /* tokens, each of which ends a text */
    size_t end_count;
    /* New text of a sample, as soon as no stop string and no half character can be in it; `context` is the caller's.
     * A status other than 0 ends the generation. May be NULL. */
    int (*on_text)(void *context, int64_t sample, const char *bytes, size_t length);
    void *context;
};

struct generated {
    struct token_buffer tokens; /* the new ids; one that ends the text is not among them */
    struct strbuf text;
    enum finish_reason reason;
};

/* Whether a text can have these stop strings. */
int generate_check_stops(const char *const *stop, size_t count);
/* Whether the engine can begin with the prompt, in the opened slot as all that follows. */
int generate_check(const struct engine *engine, const int32_t *prompt, int64_t prompt_length);
/* Writes `samples` texts into `out` [samples] (the caller frees each with generated_free). All samples share the pages
 * of the prompt and are written together as far as the engine has sequences. STATUS_INVALID where a token has no
 * probability. */
int generate(struct engine *engine, const struct tokenizer *tokenizer, const struct generate_options *options,
             struct generated *out);
void generated_free(struct generated *generated);

#endif
