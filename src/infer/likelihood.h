/* Log-probabilities of continuations after contexts, and of whole texts in windows. Only the leader computes them.
 *
 * Tokens and windows are those of EleutherAI's lm_eval 0.4.13 for models of Hugging Face. Both texts are encoded with
 * the tokens that the tokenizer puts around every text, and names of special tokens are these tokens, unless the
 * encoder keeps them as text. White space at the end of a context belongs to the continuation. */
#pragma once

#include "infer/engine.h"

/* A request: tokens, of which those from `first` on are the continuation. */
struct likelihood {
    int64_t start;        /* its first token in likelihood_list.ids */
    int64_t count, first; /* 1 <= first < count; first == count: a prompt, which is completed (likelihood_add_prompt) */
    double logprob;       /* result: the sum over the continuation */
    bool is_greedy;       /* result: each token of the continuation is the likeliest */
    bool is_turn;         /* of a prompt, for the caller: it ends with the header of a turn */
    int64_t cached;       /* result: tokens at its beginning that were found in the prefix cache */
};
/* Requests and their tokens. Starts zeroed. */
struct likelihood_list {
    struct token_buffer ids;
    struct likelihood *items; /* [count] */
    int64_t count;
    size_t capacity;
};
/* Makes room for `count` items. STATUS_MEMORY. */
int likelihood_list_reserve(struct likelihood_list *list, int64_t count);
void likelihood_list_free(struct likelihood_list *list);

/* ---- making requests ---- */

struct likelihood_encoder;
/* Opens an encoder for a model that sees `max_length` tokens. The tokenizer must outlive it. `flag`:
 * TOKENIZER_ALLOW_SPECIAL or TOKENIZER_PLAIN. STATUS_INVALID when it has neither a BOS nor an EOS; STATUS_MEMORY. */
int likelihood_encoder_open(const struct tokenizer *tokenizer, int64_t max_length, unsigned flag,
                            struct likelihood_encoder **encoder);
/* NULL is allowed. */
void likelihood_encoder_close(struct likelihood_encoder *encoder);

struct likelihood_text {
    const char *bytes;
    size_t length;
};
/* Adds a request. The model sees the last max_length tokens before the continuation's last one. The BOS, else the EOS,
 * stands for an empty context. STATUS_INVALID: the continuation has no tokens, or more than max_length; STATUS_MEMORY,
 * STATUS_UNSUPPORTED. */
int likelihood_add(struct likelihood_encoder *encoder, struct likelihood_text context,
                   struct likelihood_text continuation, struct likelihood_list *list);
/* Adds a prompt: the last tokens of a text, at most max_length - `room`. STATUS_MEMORY, STATUS_UNSUPPORTED. */
int likelihood_add_prompt(struct likelihood_encoder *encoder, struct likelihood_text context, int64_t room,
                          struct likelihood_list *list);
/* Adds the windows of a whole text: each scores up to max_length tokens after those that the last one scored. The last
 * window sees max_length tokens, the ones before it only one token of context. STATUS_MEMORY, STATUS_UNSUPPORTED. */
int likelihood_add_rolling(struct likelihood_encoder *encoder, struct likelihood_text text,
                           struct likelihood_list *list);

/* ---- computing ---- */

/* Computes the results of requests[count], whose tokens are in `ids`, with a slot of adapters. Requests that begin with
 * the same tokens should follow each other: such a beginning runs once. STATUS_INVALID for a token outside the
 * vocabulary, or a result that is not finite; errors of the engine. */
int likelihood_compute(struct engine *engine, int slot, const int32_t *ids, struct likelihood *const *requests,
                       int64_t count);
