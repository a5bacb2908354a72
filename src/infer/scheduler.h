/* The scheduler: which rows of which texts each step of an engine has.
 *
 * It knows no model. An engine is a small table of calls; requests come in by scheduler_submit, and whoever owns the
 * engine calls scheduler_step again and again. A step mixes decode rows (the next token of a text) and chunks of
 * prompts, under a budget of rows, of sequences and of rows with logits. The client that has had least is next (virtual
 * token counters, Sheng et al., "Fairness in serving large language models", arXiv 2401.00588). Of its texts, the next
 * is chosen by priority, then by what their adapter has had, then by age: a priority orders one client's texts and
 * never costs another client its turn. When pages run out, the least important text gives its pages back and is
 * prefilled again later; it resumes where it was, with the same tokens. Texts are important by age; a client's urgent
 * ones stand at the places of its older ones. While texts are being written, chunks are so long that a step lasts at
 * most prefill_stretch times one that writes all texts that can run; where nobody knows how long that is, or not of
 * late, a step goes without.
 *
 * Memory is allocated by scheduler_open and scheduler_submit alone. One thread at a time. Callbacks come from
 * scheduler_step (and scheduler_close), and may call scheduler_cancel, scheduler_pause and scheduler_resume. */
#ifndef CAMBIUM_INFER_SCHEDULER_H
#define CAMBIUM_INFER_SCHEDULER_H

#include "infer/row.h"

/* ---- the engine ---- */

/* Calls return 0 or a negative status, which is the end of all requests, except where they say something else. */
struct scheduler_engine {
    void *self;
    /* A sequence number with the longest cached beginning of the slot's stem and these tokens, or STATUS_MEMORY when
     * there is none now. `cached`: rows of that beginning, a multiple of a page, fewer than stem and tokens; 0 with
     * reads_cache false. Full pages of submitted rows may be cached for sequences that are opened later, as steps run
     * in order. */
    int (*sequence_open)(void *self, int slot, const int32_t *tokens, int64_t count, uint64_t salt, bool reads_cache,
                         int64_t *cached);
    /* None of its rows is under way. */
    void (*sequence_close)(void *self, int sequence);
    /* Pages that nobody holds. */
    int64_t (*pages_available)(void *self);
    /* The number of them that `rows` more of a sequence take. */
    int64_t (*pages_needed)(void *self, int sequence, int64_t rows);
    /* Starts a step; at most `depth` are under way. */
    int (*submit)(void *self, const struct engine_row *rows, int64_t count);
    /* Waits for the oldest step under way; results[i] belongs to its row i. */
    int (*collect)(void *self, struct engine_result *results);
    /* Seconds of a monotonic clock. */
    double (*now)(void *self);
};

/* ---- requests ---- */

enum scheduler_end {
    SCHEDULER_STOP,      /* an end id, a stop id, or on_token said so */
    SCHEDULER_LENGTH,    /* max_tokens */
    SCHEDULER_CANCELLED, /* scheduler_cancel, scheduler_close */
    SCHEDULER_DEADLINE,
    SCHEDULER_FAILED, /* the engine, or this text alone where its logits are no numbers */
};

/* A drawn token, or one of the prompt. */
struct scheduler_token {
    int32_t token;
    bool is_end; /* drawn, and an end id or a stop id: the text ends before it */
    float logprob;
    int32_t top_count;
    const int32_t *top_token; /* [top_count] valid during the call */
    const float *top_logprob;
};

/* Any of them may be NULL. `context` is the request's. */
struct scheduler_calls {
    /* The first choice is taken up, once a request; `cached` tokens of its prompt were cached. */
    void (*on_start)(void *context, int64_t cached);
    /* Returns whether the text ends here. */
    bool (*on_token)(void *context, int64_t choice, const struct scheduler_token *token);
    /* The log-probability of prompt token `index`: from 1, or from 0 where the stem predicts the first. Each once, in
     * order, before the first token of choice 0. */
    void (*on_prompt_logprob)(void *context, int64_t index, const struct scheduler_token *token);
    /* Once for each choice. */
    void (*on_end)(void *context, int64_t choice, enum scheduler_end reason);
    /* Once, at last: the request is gone. */
    void (*on_done)(void *context);
};

/* Zero is the default of what is not said otherwise. Arrays are copied. */
struct scheduler_request {
    const int32_t *prompt; /* [prompt_length] at least one */
    int64_t prompt_length;
    int slot;            /* of adapters; -1: the base */
    int64_t stem_tokens; /* rows before each text of the slot */
    bool stem_predicts;  /* the stem's last row has logits, those of a text's first token */
    uint64_t salt;
    int64_t max_tokens; /* -1: as many as there is room for. 0: the prompt alone */
    int64_t min_tokens;
    int64_t choices;          /* texts to write; 0: one */
    struct sampling sampling; /* `choice` is that of the first; the others count up */
    const struct logit_bias *bias;
    int64_t bias_count;
    const int32_t *end_ids, *stop_ids; /* either ends a text; ignore_eos takes back the end ids */
    int64_t end_count, stop_count;
    bool ignore_eos;
    int32_t top_count; /* of each drawn token */
    bool wants_prompt_logprobs;
    int32_t prompt_top_count;
    int32_t priority; /* among the client's own; lower numbers first */
    uint64_t client;
    double weight;    /* of the client: its share is in proportion; 0: 1 */
    uint64_t adapter; /* identity for fairness among the client's requests */
    double deadline;  /* of the engine's clock, also while the request waits; 0: none */
    struct scheduler_calls calls;
    void *context;
};

/* Why a request was not taken. */
enum scheduler_refusal {
    SCHEDULER_TAKEN,
    SCHEDULER_WRONG,           /* a value that no request may have */
    SCHEDULER_TOO_LONG,        /* more tokens than the context has */
    SCHEDULER_TOO_LARGE,       /* more tokens than all pages hold */
    SCHEDULER_QUEUED_REQUESTS, /* there are max_requests texts: later, perhaps */
    SCHEDULER_QUEUED_TOKENS,   /* too many tokens wait to be prefilled: later, perhaps */
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
    int64_t max_requests;         /* texts that wait or run (a request counts its choices); 0: any number */
    int64_t max_queued_tokens;    /* of prompts that are not prefilled; 0: any number */
    int depth;                    /* steps under way at once, 1 .. SCHEDULER_MAX_DEPTH */
    double prefill_stretch;       /* at least 1; 0: chunks as long as a step has rows */
    double row_growth;            /* part of itself by which a prefill row costs more for each row before it */
    double in_weight, out_weight; /* virtual cost of a row prefilled for the first time and not cached, and of a token
                                     written; both 0: 1 and 2 */
};
enum { SCHEDULER_MAX_DEPTH = 64 };

struct scheduler_stats {
    int64_t waiting, running;                              /* texts */
    int64_t queued_tokens;                                 /* of prompts that are not prefilled */
    int64_t steps, decode_rows, prefill_rows, preemptions; /* since the opening */
    double prefill_row_seconds;                            /* with no row before it; 0: not known yet */
};

struct scheduler;

/* STATUS_INVALID, STATUS_MEMORY. */
int scheduler_open(const struct scheduler_engine *engine, const struct scheduler_options *options,
                   struct scheduler **scheduler);
/* Ends what is left (SCHEDULER_CANCELLED) and frees all. Steps under way are collected first. */
void scheduler_close(struct scheduler *scheduler);

/* Takes a request; `number` names it from now on and is never used again. Or a negative status with its text, and why:
 * STATUS_INVALID for what can never run, STATUS_MEMORY for what might later. No call of the request comes before the
 * next scheduler_step. Not from a callback. */
int scheduler_submit(struct scheduler *scheduler, const struct scheduler_request *request, uint64_t *number,
                     enum scheduler_refusal *refusal);
/* Ends a request at the next scheduler_step, where its pages are free as soon as no row of it is under way; no token
 * comes any more. A request that is gone already is no error. */
void scheduler_cancel(struct scheduler *scheduler, uint64_t number);
/* A paused request has no rows in further steps; tokens under way still come. Its pages may be taken from it. */
void scheduler_pause(struct scheduler *scheduler, uint64_t number);
void scheduler_resume(struct scheduler *scheduler, uint64_t number);

/* Submits steps until `depth` are under way or nothing more can run, and gives out the results of the oldest. Returns 1
 * when there was something to do, 0 when nothing can run until a call changes that or a deadline passes, or the status
 * of the engine, whose failure ends all requests. */
int scheduler_step(struct scheduler *scheduler);
/* The next deadline; 0: none. */
double scheduler_next_deadline(const struct scheduler *scheduler);
void scheduler_read_stats(const struct scheduler *scheduler, struct scheduler_stats *stats);

#endif
