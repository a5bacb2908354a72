/* The part of a call that belongs to the engine's thread: its prompts in the scheduler, and the update being
 * collected. */
#pragma once

#include "call_shared.h"

/* A drawn token whose last byte was not sent yet. */
struct call_held {
    struct call_token token;
    size_t end; /* bytes of the text up to its end */
    struct call_top tops[ASK_MAX_TOP];
};

/* A completion. */
struct call_completion {
    struct writer writer;
    struct call_held *held; /* [held_count] */
    int64_t held_count, held_capacity;
    struct call_held end; /* with has_end: the id that ended it */
    bool has_end;
    int64_t drawn;
};

/* A prompt and its completions, in the scheduler. */
struct call_run {
    struct call_engine *owner;
    int64_t prompt;
    uint64_t number;                     /* the scheduler's number */
    bool is_running;                     /* the scheduler has it */
    bool has_prompt;                     /* a token of the prompt was reported */
    struct call_completion *completions; /* [ask.choices] */
};

struct call_engine {
    const struct call *call; /* the request */
    struct call_shared *shared;
    TAILQ_ENTRY(call_engine) waits; /* list of calls that wait for adapters */
    struct call_run *runs;          /* [prompt_count] */
    int64_t running;
    int slot;
    bool has_slot, is_waiting, is_cancelled, is_ended, is_changed, must_pause;
    bool has_begun;        /* one of its prompts began to run */
    bool has_cleared;      /* it has evicted all idle adapters once, to make room for its adapters together */
    enum error_case cause; /* why it is cancelled, unless its client did so */
    struct call_engine *next_changed; /* list of calls with an unpublished update */
    struct error error;
    struct call_update *making;
};
