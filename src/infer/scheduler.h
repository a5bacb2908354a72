/* The scheduler chooses the rows of each step of an engine.
 *
 * It knows no model; an engine is a table of calls. Requests come in by scheduler_submit, and the engine's owner calls
 * scheduler_step repeatedly. A step mixes decode rows (the next token of a completion) and chunks of prompts. It is
 * limited in rows, sequences and rows with logits.
 *
 * Fairness: the client with the minimum service so far is next (virtual token counters, Sheng et al., "Fairness in
 * serving large language models", arXiv 2401.00588). Among that client's completions the order is priority, then the
 * service of their adapter, then age. A priority thus orders one client's completions and never costs another client
 * its turn. Prompts of several clients share the rows of a step by weight, so a short one never waits for a long one.
 * Rows are charged as they run.
 *
 * Preemption: when pages run out, the least important completion gives its pages back. It is prefilled again later and
 * resumes with the same tokens. Older completions are more important; a client's urgent ones take the places of its
 * older ones.
 *
 * Prefill: while completions are decoding, a step takes at most prefill_stretch times as long as a step that decodes
 * all of them. A step has no prefill when that time is unknown or was not measured recently.
 *
 * Constraints: a completion with a grammar draws under the mask of what it allows. Threads make the masks while steps
 * run; a completion whose mask is late runs its row once more. Forced tokens are not drawn, and run as rows of a chunk.
 * A completion ends as soon as only its end may follow.
 *
 * Only scheduler_open and scheduler_submit allocate memory. One thread at a time may call. Callbacks are made by
 * scheduler_step and scheduler_close; they may call scheduler_cancel, scheduler_pause and scheduler_resume. */
#pragma once

#include "infer/row.h"
#include "parallel/slice.h"

/* ---- the engine ---- */

/* The beginning of a sequence. */
struct sequence_beginning {
    int slot;              /* -1: the bare base */
    const int32_t *tokens; /* [count] to look up in the cache; the row of the last one must run. NULL: no look-up */
    int64_t count;
    uint64_t salt; /* sequences of different salts share no pages */
};

/* Calls return 0 or a negative status. A failure ends all requests, unless a call says otherwise. */
struct scheduler_engine {
    void *self;
    /* Opens a sequence and returns its number; STATUS_MEMORY when none is free now, which ends no request. The sequence
     * starts with the longest cached beginning of the slot's virtual tokens and these tokens. `cached`: rows of that
     * beginning, a multiple of a page, fewer than all. Full pages of submitted rows may be cached for sequences that
     * are opened later, because steps run in order. */
    int (*sequence_open)(void *self, const struct sequence_beginning *beginning, int64_t *cached);
    /* Closes a sequence; none of its rows is in a step under way. */
    void (*sequence_close)(void *self, int sequence);
    /* Returns how many pages no sequence holds. */
    int64_t (*pages_available)(void *self);
    /* Returns how many more pages a sequence needs for `rows` more rows. */
    int64_t (*pages_needed)(void *self, int sequence, int64_t rows);
    /* Starts a step; at most `depth` are under way. */
    int (*submit)(void *self, const struct engine_row *rows, int64_t count);
    /* Waits for the oldest step under way; results[i] belongs to its row i. */
    int (*collect)(void *self, struct engine_result *results);
    /* Returns the seconds of a monotonic clock. */
    double (*now)(void *self);
};

/* ---- the cost of slices: scheduler_cost.c ---- */

/* Seconds and work of recent slices by kind. Zero-initialise it. */
struct slice_cost {
    double seconds[SLICE_KINDS], work[SLICE_KINDS];
};
/* Learns from a slice. */
void slice_cost_learn(struct slice_cost *cost, const struct slice *slice);
/* Returns the seconds of a unit of work; 0: not known yet. */
double slice_cost_rate(const struct slice_cost *cost, enum slice_kind kind);

/* ---- requests ---- */

enum scheduler_end {
    SCHEDULER_STOP,      /* an end id, a stop id, or the result of on_token */
    SCHEDULER_LENGTH,    /* max_tokens */
    SCHEDULER_CANCELLED, /* scheduler_cancel, scheduler_close */
    SCHEDULER_DEADLINE,
    SCHEDULER_FAILED, /* the engine failed, or this completion's logits are not finite */
    SCHEDULER_MASK,   /* a mask of its constraint took more than CONSTRAINT_MASK_SECONDS, or memory */
};

/* The error message for SCHEDULER_MASK. */
#define SCHEDULER_NO_MASK "the constraint: its allowed tokens took more than a second to find, or too much memory"

/* A drawn token, or one of the prompt. */
struct scheduler_token {
    int32_t token;
    bool is_end; /* a drawn end id or stop id; the completion ends before it */
    float logprob;
    bool is_greedy; /* of a prompt token: it is the likeliest, and has the lowest id of equal ones */
    int32_t top_count;
    const int32_t *top_token; /* [top_count] valid during the call */
    const float *top_logprob;
};

/* Callbacks of a request. Each may be NULL. `context` is the request's. */
struct scheduler_calls {
    /* Called once, when the first choice starts. `cached`: tokens of the prompt that were found in the cache. */
    void (*on_start)(void *context, int64_t cached);
    /* Called for each drawn token. Returns true to end the completion here. */
    bool (*on_token)(void *context, int64_t choice, const struct scheduler_token *token);
    /* Called with the log-probability of prompt token `index`, once for each, in order, before the first token of
     * choice 0. Starts at the request's first_prompt_logprob, or at the first token that anything predicts: 1, or 0
     * where virtual tokens predict the first token. */
    void (*on_prompt_logprob)(void *context, int64_t index, const struct scheduler_token *token);
    /* Called once for each choice. */
    void (*on_end)(void *context, int64_t choice, enum scheduler_end reason);
    /* The last call, made once. The request no longer exists. */
    void (*on_done)(void *context);
};

/* A request. Arrays are copied. Members are 0 by default. */
struct scheduler_request {
    const int32_t *prompt; /* [prompt_length] at least one */
    int64_t prompt_length;
    int slot;                    /* of adapters; -1: the base */
    int64_t virtual_tokens;      /* of the slot: rows before the prompt */
    bool virtual_tokens_predict; /* the last of them predicts the prompt's first token */
    uint64_t salt;
    int64_t max_tokens; /* -1: up to the end of the context; 0: only the prompt runs */
    int64_t min_tokens;
    int64_t choices;          /* completions; 0 means one */
    struct sampling sampling; /* sampling.choice is the number of the first choice */
    const struct logit_bias *bias;
    int64_t bias_count;
    const int32_t *end_ids, *stop_ids; /* either ends a completion; ignore_eos disables the end ids */
    int64_t end_count, stop_count;
    bool ignore_eos;
    struct grammar *grammar; /* of each completion, whose tokens count from its first; shared. NULL: none. It ends
                                completions, so that ignore_eos is refused, and min_tokens only where it allows more */
    bool wants_logprobs;     /* each token is drawn, also a forced one, whose log-probability is else 0 */
    int32_t top_count;       /* likeliest tokens to report for each drawn token */
    bool wants_prompt_logprobs;
    int64_t first_prompt_logprob; /* index of the first token that wants one; rows before it may come from the cache */
    int32_t prompt_top_count;
    int32_t priority; /* among this client's requests; lower numbers first */
    uint64_t client;
    double weight;    /* of the client, whose share is proportional to it; 0 means 1 */
    uint64_t adapter; /* groups the client's requests for fairness among adapters */
    double deadline;  /* time of the engine's clock; applies to waiting requests too; 0: none */
    struct scheduler_calls calls;
    void *context;
};

/* The reason why a request was not accepted. */
enum scheduler_refusal {
    SCHEDULER_TAKEN,
    SCHEDULER_WRONG,           /* a value that no request may have */
    SCHEDULER_TOO_LONG,        /* more tokens than the context has */
    SCHEDULER_TOO_LARGE,       /* more tokens than all pages hold */
    SCHEDULER_QUEUED_REQUESTS, /* there are max_requests completions; a later attempt may succeed */
    SCHEDULER_QUEUED_TOKENS,   /* too many tokens wait to be prefilled; a later attempt may succeed */
    SCHEDULER_NO_MEMORY,
    SCHEDULER_ENGINE_FAILED,
};

struct scheduler_options {
    int64_t max_rows;       /* of a step */
    int64_t max_logit_rows; /* of a step */
    int64_t max_sequences;  /* open at once */
    int64_t max_positions;  /* rows of a sequence */
    int64_t page_tokens, pages;
    int64_t vocab;
    int64_t max_requests;                /* limit of completions that wait or run; 0: none */
    int64_t max_queued_tokens;           /* limit of prompt tokens that wait to be prefilled; 0: none */
    int depth;                           /* steps under way at once, 1 .. SCHEDULER_MAX_DEPTH */
    double prefill_stretch;              /* at least 1; 0: prefill is limited by max_rows only */
    double slice_share;                  /* of a decode step: what scheduler_spare gives while completions decode */
    double slice_seconds;                /* the same while nothing runs */
    double row_growth;                   /* relative cost that each earlier row of the sequence adds to a prefill row */
    struct constraint_pool *constraints; /* for requests with a grammar; NULL: there are none */
    int64_t mask_words;                  /* of their masks: grammar_vocabulary_words */
    double in_weight, out_weight; /* virtual cost of an uncached row that is prefilled for the first time, and of a
                                     drawn token; both 0: 1 and 2 */
};
enum { SCHEDULER_MAX_DEPTH = 64 };

struct scheduler_stats {
    int64_t waiting, running;                              /* completions */
    int64_t queued_tokens;                                 /* of prompts, not yet prefilled */
    int64_t steps, decode_rows, prefill_rows, preemptions; /* since the opening */
    int64_t late_masks;                                    /* draws that were repeated */
    double prefill_row_seconds;                            /* of a row without earlier rows; 0: not known yet */
};

struct scheduler;

/* Makes a scheduler for an engine, whose table is copied. STATUS_INVALID, STATUS_MEMORY. */
int scheduler_open(const struct scheduler_engine *engine, const struct scheduler_options *options,
                   struct scheduler **scheduler);
/* Collects the steps under way, ends the remaining requests (SCHEDULER_CANCELLED) and frees the scheduler. */
void scheduler_close(struct scheduler *scheduler);

/* Submits a request. `number` identifies it and is never used again. STATUS_INVALID: it can never run. STATUS_MEMORY:
 * it may be accepted later. *refusal is the reason. Callbacks come from the next scheduler_step on. Do not call this
 * from a callback. */
int scheduler_submit(struct scheduler *scheduler, const struct scheduler_request *request, uint64_t *number,
                     enum scheduler_refusal *refusal);
/* Cancels a request: no further token is reported. The next scheduler_step ends it and frees its pages as soon as none
 * of its rows is under way. An unknown number is ignored. */
void scheduler_cancel(struct scheduler *scheduler, uint64_t number);
/* Pauses a request: it gets no rows in further steps, but tokens under way are still reported. It may lose its
 * pages. */
void scheduler_pause(struct scheduler *scheduler, uint64_t number);
/* Resumes a paused request. */
void scheduler_resume(struct scheduler *scheduler, uint64_t number);

/* Submits steps until `depth` are under way or nothing more can run; then collects the oldest and reports its results.
 * Returns 1 when it did something. Returns 0 when nothing can run until another call or a deadline. Returns the
 * engine's status when it failed, which ends all requests. */
int scheduler_step(struct scheduler *scheduler);
/* Returns the seconds that other work on the engine may take before the next step. 0: a prompt waits for that step. */
double scheduler_spare(struct scheduler *scheduler);
/* Returns the earliest deadline of all requests; 0: none. */
double scheduler_next_deadline(const struct scheduler *scheduler);
/* Copies the current counters. */
void scheduler_read_stats(const struct scheduler *scheduler, struct scheduler_stats *stats);
