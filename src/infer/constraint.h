/* Constraints of completions: their places in their grammars, and the masks of their next tokens.
 *
 * A pool of threads takes each drawn token and makes the next mask, while a step runs that may draw under it. A mask
 * that takes long goes to a thread for such masks, so that it delays no other. Where a mask has one id, that id is
 * forced, whatever the model says: the thread takes it at once and makes the next mask. The pool is used by any
 * threads; a constraint by one at a time, beside the pool's. */
#pragma once

#include "grammar/grammar.h"

#define CONSTRAINT_MASK_SECONDS 1.0 /* limit of a mask */

struct constraint_pool;
struct constraint_pool_options {
    int threads; /* for masks that take no time to speak of; one more is for the others */
    /* Called by the pool's threads for each mask that was made; NULL: no one wants to know. */
    void (*on_mask)(void *self, double seconds);
    void *self;
};
/* Opens a pool. STATUS_MEMORY, also when a thread cannot start. */
int constraint_pool_open(const struct constraint_pool_options *options, struct constraint_pool **pool);
/* Closes a pool whose constraints are closed; waits for the masks in the making. NULL is allowed. */
void constraint_pool_close(struct constraint_pool *pool);

struct constraint;
struct constraint_options {
    struct grammar *grammar; /* the constraint takes its own reference */
    int64_t words;           /* of the grammar's masks */
    int64_t vocab;           /* ids of the model; no other is allowed */
    bool draws_all;          /* no token is forced: the log-probability of each is wanted */
};
/* Begins a text, and starts to make its first mask. STATUS_MEMORY. */
int constraint_open(struct constraint_pool *pool, const struct constraint_options *options,
                    struct constraint **constraint);
/* Closes a constraint, whatever the pool does with it at the moment. NULL is allowed. */
void constraint_close(struct constraint *constraint);

/* The facts about the next token. */
enum constraint_next {
    CONSTRAINT_UNKNOWN, /* the mask is being made */
    CONSTRAINT_DRAWS,   /* it is drawn under the mask */
    CONSTRAINT_FORCED,  /* one id is allowed */
    CONSTRAINT_OVER,    /* only the end may follow */
    CONSTRAINT_FAILED,  /* the mask took more than CONSTRAINT_MASK_SECONDS, or memory */
};
/* Returns what is known; waits for it until then (clock_seconds; 0: does not wait). `forced` receives the id, or -1. */
enum constraint_next constraint_find(struct constraint *constraint, double until, int32_t *forced);
/* Takes the next token, drawn under the mask or forced, and starts to make the mask after it. */
void constraint_take(struct constraint *constraint, int32_t token);
/* Writes the mask of the next token [sample_mask_words(vocab)]. It allows nothing if the token is neither drawn nor
 * forced, or if the mask is not there at `until`: it is late. */
void constraint_write_mask(struct constraint *constraint, double until, uint32_t *mask);
