/* The loop: a thread with libevent's base, and the way for other threads to have something done on it.
 *
 * A note is a piece of work with a function; whoever posts it owns its memory until the function runs. Notes run in the
 * order in which they came, once each; a note that waits may not be posted again. Workers are threads with a bounded
 * queue of jobs, whose second half runs on the loop. The loop counts what each of its turns costs. */
#ifndef CAMBIUM_SERVE_LOOP_H
#define CAMBIUM_SERVE_LOOP_H

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

/* The base is there; nothing runs yet. STATUS_MEMORY, STATUS_IO. */
int loop_open(struct loop **loop);
struct event_base *loop_base(struct loop *loop);
/* Starts the thread. */
int loop_start(struct loop *loop);
/* Any thread. */
void loop_post(struct loop *loop, struct loop_note *note);
/* Any thread. Notes that are linked by `next`, at least one, with one waking for them all; *last: the last one's, NULL.
 */
void loop_post_all(struct loop *loop, struct loop_note *first, struct loop_note **last);
/* What is posted still runs, then the thread ends. Not the loop's thread. */
void loop_stop(struct loop *loop);
/* Behind loop_stop, or instead of loop_start. NULL is allowed. */
void loop_close(struct loop *loop);

/* The cost of its turns so far. The loop's thread. */
const struct loop_turns *loop_turns(const struct loop *loop);

/* ---- workers: worker.c ---- */

struct worker;

struct worker_job {
    struct worker_job *next;
    void (*work)(struct worker_job *job); /* on the worker's thread */
    /* On the loop's thread, after it; the job is its owner's again. NULL: the job ends with its work, which frees it.
     */
    void (*done)(struct worker_job *job);
    uint64_t owner; /* whose job it is: owners take turns. 0: nobody's */
    uint64_t turn;  /* the worker's */
    struct loop_note note;
};

/* Starts a thread for at most `capacity` jobs that wait. */
int worker_open(struct loop *loop, size_t capacity, struct worker **worker);
/* Any thread. false: the queue is full, and nothing has happened. An owner may have as many jobs in it as there are
 * places left, so that one alone never fills it. */
bool worker_add(struct worker *worker, struct worker_job *job);
/* Any thread. A job that has no `done` and only frees memory: it always finds a place, and runs here and now where
 * `worker` is NULL or has been stopped. */
void worker_drop(struct worker *worker, struct worker_job *job);
/* Jobs that wait are done first, then the thread ends. While the loop still runs. NULL is allowed. */
void worker_stop(struct worker *worker);
/* After worker_stop, when no job can come any more. NULL is allowed. */
void worker_close(struct worker *worker);

#endif
