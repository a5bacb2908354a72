/* The part of a call that belongs to the loop's thread. */
#pragma once

#include "call_shared.h"

#include "infer/grammars.h"

#include <stdatomic.h>
#include <sys/queue.h>

struct call_loop {
    struct call *call;
    struct call_shared *shared;
    bool is_linked;    /* in the server's list of calls */
    bool is_submitted; /* the engine has the call, until is_done */
    /* call_free was called: it is freed when it is done. The worker for texts reads it, too, and drops the call's. */
    atomic_bool is_abandoned;
    bool was_not_read; /* it was abandoned because the client did not read */
    bool is_paused, is_failing, is_failed;
    bool must_stop;                   /* the drain's time is over: it is cancelled when it is submitted */
    bool has_entered, has_left;       /* the server has begun and ended counting it */
    bool has_started;                 /* one of its prompts began to run */
    bool has_yielded;                 /* it has given up its places in the queue */
    int64_t queued_tokens;            /* its places in the queue of tokens */
    int64_t untokenized;              /* prompts that are not tokenized yet, and a grammar that is not compiled yet */
    struct ask_constraint constraint; /* of the answers, with calls and after reasoning */
    struct grammar_order grammar;
    struct loop_note grammar_note;
    struct error failure;       /* an error before the engine had the call */
    double submitted;           /* time of submission */
    struct call_counts *counts; /* call_count.c */
    struct call_update *reading;
    LIST_ENTRY(call_loop) all; /* the server's list of calls */
};

/* ---- call_count.c: metrics, the log and the registry's counts ---- */

/* Begins to count a call. STATUS_MEMORY. */
int call_count_begin(struct call_loop *self);
/* Counts an update, and the end of the call; `error` has ERROR_NONE after a success. */
void call_count_update(struct call_loop *self, const struct call_update *update);
void call_count_done(struct call_loop *self, const struct error *error);
void call_count_close(struct call_loop *self);
