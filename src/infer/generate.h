/* Generation: completions of prompts. Only the leader calls these functions. */
#pragma once

#include "infer/ask.h"

enum finish_reason { FINISH_STOP, FINISH_LENGTH, FINISH_INTERRUPTED };

struct generate_options {
    const int32_t *prompt; /* ids, at least one */
    int64_t prompt_length;
    int slot; /* of adapters; -1: the bare base */
    /* How many completions, how long, and how tokens are drawn. Nothing is reported of log-probabilities. */
    const struct ask *ask;
    const struct ask_ends *ends; /* of each completion; NULL: none */
    /* Called with new bytes of a sample, once they cannot be part of a stop string or of an incomplete character. A
     * status other than 0 ends the generation. May be NULL. */
    int (*on_text)(void *context, int64_t sample, const char *bytes, size_t length);
    /* Asked between steps. True ends all completions, with FINISH_INTERRUPTED. May be NULL. */
    bool (*is_interrupted)(void *context);
    void *context;
};

struct generated {
    struct token_buffer tokens; /* the new ids, without the one that ended it */
    struct strbuf text;
    enum finish_reason reason;
};

/* Checks that the engine can run the prompt of these options; their other members do not count. STATUS_INVALID. */
int generate_check(const struct engine *engine, const struct generate_options *options);
/* Generates the completions into out[ask->choices]; the caller frees each with generated_free. They share the pages of
 * the prompt, and as many run together as the engine has sequences. STATUS_INVALID when a token's probability
 * is not finite; STATUS_MEMORY; errors of the engine and of on_text. */
int generate(struct engine *engine, const struct tokenizer *tokenizer, const struct generate_options *options,
             struct generated *out);
/* The same for options[count], whose completions follow each other in `out`; all of them run together. */
int generate_all(struct engine *engine, const struct tokenizer *tokenizer, const struct generate_options *options,
                 int64_t count, struct generated *out);
void generated_free(struct generated *generated);
