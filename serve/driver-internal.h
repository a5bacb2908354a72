/* The driver as its own files see it. Everything but what stands under the lock is the engine's thread's. */
#ifndef CAMBIUM_SERVE_DRIVER_INTERNAL_H
#define CAMBIUM_SERVE_DRIVER_INTERNAL_H

#include "driver.h"

#include <stdatomic.h>

struct driver {
    struct driver_options options;
    struct scheduler *scheduler;
    int64_t calls;            /* that it has */
    struct call_own *changed; /* with news to publish */
    struct call_own *waiting; /* for adapters, in the order in which they came */
    struct driver_change *changes, **last_change;
    bool adapters_changed, has_room; /* has_room: a call gave adapters back, or a change ended */
    int64_t holders, gives;          /* calls that have adapters; how often one gave them back */
    int64_t drawn;                   /* tokens of this step */
    int status;                      /* the engine's failure */
    _Atomic uint64_t progress;

    pthread_mutex_t lock;
    pthread_cond_t told;
    struct call_own *commands, *last_command;
    struct driver_change *new_changes, **last_new_change;
    struct driver_name *new_names; /* in any order */
    bool must_end;
    bool has_more, has_taken; /* news waits until the loop has taken the last; it has taken some since */
    struct driver_stats stats;
    struct metrics_steps steps;
};

/* ---- driver_call.c ---- */

/* Does what the loop has told of a call. */
void driver_do(struct driver *driver, struct call_own *own, unsigned commands);
/* Tries again with calls that wait for adapters. */
void driver_retry(struct driver *driver);
/* The call has news. */
void driver_note(struct driver *driver, struct call_own *own);
/* The first call that waits and names the adapter, or NULL. */
struct call_own *driver_first_waiting(const struct driver *driver, const char *name);
/* A call that waits ends with this. */
void driver_fail_one(struct driver *driver, struct call_own *own, const struct error *error);
/* Calls that wait for the adapter fail with it. */
void driver_fail_waiting(struct driver *driver, const char *name, const struct error *error);
/* Behind a step: calls whose last text has ended are done. */
void driver_settle(struct driver *driver);
/* The engine has failed: calls that wait fail, too. */
void driver_fail_all(struct driver *driver);

/* ---- driver_change.c ---- */

/* Goes on with the changes of adapters, for a bounded time. Whether there was something to do. */
bool driver_go_on(struct driver *driver);
/* An adapter has waited long for memory: calls that would take more of it let it go first. */
bool driver_is_starving(const struct driver *driver);
/* Names that are known from here on. */
void driver_take_names(struct driver *driver, struct driver_name *names);
/* Posts the list of adapters where it has changed. */
void driver_publish_adapters(struct driver *driver);

#endif
