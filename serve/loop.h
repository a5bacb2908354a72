/* The loop: a thread with libevent's base. Other threads have work done on it.
 *
 * A note is a piece of work with a function. Whoever posts it owns its memory until the function runs. Notes run once
 * each, in order of arrival; a waiting note must not be posted again. Workers are threads with a bounded queue of jobs;
 * the second half of a job runs on the loop. The loop measures the cost of each of its turns. */
#pragma once

#include "loop_turns.h"

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loop;

struct loop_note {
    struct loop_note *next;
    void (*run)(struct loop_note *note);
};

/* Makes the loop and its base; nothing runs yet. STATUS_MEMORY, STATUS_IO. */
int loop_open(struct loop **loop);
struct event_base *loop_base(struct loop *loop);
/* Starts the thread. STATUS_MEMORY. */
int loop_start(struct loop *loop);
/* Posts a note. Any thread. */
void loop_post(struct loop *loop, struct loop_note *note);
/* Posts at least one note, linked by `next`, and wakes the loop once. *last is the last note's `next`, which is NULL.
 * Any thread. */
void loop_post_all(struct loop *loop, struct loop_note *first, struct loop_note **last);
/* Ends the thread after all posted notes have run. Not from the loop's thread. */
void loop_stop(struct loop *loop);
/* Frees the loop, after loop_stop or without loop_start. NULL is allowed. */
void loop_close(struct loop *loop);

/* Returns the cost of its turns so far. The loop's thread. */
const struct loop_turns *loop_turns(const struct loop *loop);

/* ---- workers: worker.c ---- */

struct worker;

struct worker_job {
    struct worker_job *next;
    void (*work)(struct worker_job *job); /* on the worker's thread */
    /* On the loop's thread, after `work`; the job then belongs to its owner again. NULL: the job ends with `work`,
     * which may free it. */
    void (*done)(struct worker_job *job);
    uint64_t owner; /* the job's client: clients take turns. 0: none */
    uint64_t turn;  /* set by the worker */
    struct loop_note note;
};

/* Starts a thread with room for `capacity` waiting jobs. STATUS_MEMORY. */
int worker_open(struct loop *loop, size_t capacity, struct worker **worker);
/* Adds a job. Returns false, and does nothing, when the queue is full. An owner may have as many jobs in it as places
 * are free, so a single one never fills it. Any thread. */
bool worker_add(struct worker *worker, struct worker_job *job);
/* Adds a job without `done`, such as freeing memory. It always finds room. It runs at once in this thread when `worker`
 * is NULL or was stopped. Any thread. */
void worker_drop(struct worker *worker, struct worker_job *job);
/* Finishes the waiting jobs, then ends the thread; the loop must still run. NULL is allowed. */
void worker_stop(struct worker *worker);
/* Frees the worker after worker_stop, when no more jobs can come. NULL is allowed. */
void worker_close(struct worker *worker);
