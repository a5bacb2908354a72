/* The part of a call that belongs to the loop's thread. */
#ifndef CAMBIUM_SERVE_CALL_LOOP_H
#define CAMBIUM_SERVE_CALL_LOOP_H

#include "call_shared.h"

struct call_loop {
    struct call *call;
    struct call_shared *shared;
    bool is_linked;    /* in the server's list of calls */
    bool is_submitted; /* the engine has it, until is_done */
    bool is_abandoned; /* nobody waits for it any more: freed when it is done */
    bool was_not_read; /* the reason for that */
    bool is_paused, is_failing, is_failed;
    bool must_stop;             /* the server's time is over: cancelled when the engine has it */
    bool has_entered, has_left; /* counted by the server */
    bool has_started;           /* one of its prompts began to run */
    bool has_yielded;           /* its places in the queue were already given away */
    int64_t queued_tokens;      /* its places in the queue of tokens */
    int64_t texts_left;         /* not tokenized yet */
    struct error failure;       /* an error before the engine had the call */
    double submitted;           /* time */
    struct call_counts *counts; /* call_count.c */
    struct call_update *reading;
    struct call_loop *next, *previous; /* list of all calls */
};

/* ---- call_count.c: metrics, the log and the registry's counts ---- */

/* Begins to count a call. STATUS_MEMORY. */
int call_count_begin(struct call_loop *self);
/* Counts an update, and the end of the call; `error` has ERROR_NONE after a success. */
void call_count_update(struct call_loop *self, const struct call_update *update);
void call_count_done(struct call_loop *self, const struct error *error);
void call_count_close(struct call_loop *self);

#endif
