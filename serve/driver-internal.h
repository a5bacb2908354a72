/* The driver as its own files see it. */
#pragma once

#include "call_engine.h"
#include "driver.h"
#include "tuning.h"

#include <stdatomic.h>

STAILQ_HEAD(driver_commands, call_shared);
STAILQ_HEAD(driver_changes, driver_change);
STAILQ_HEAD(driver_asks, tuning_ask);
TAILQ_HEAD(driver_waiting, call_engine);

/* Both threads use it, under its lock. */
struct driver_shared {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    struct driver_commands commands;
    struct driver_changes new_changes;
    struct driver_asks new_asks;
    struct driver_name *new_names; /* in no particular order */
    bool must_end;
    bool has_more;  /* an update waits until the loop has taken the previous one */
    bool has_taken; /* the loop has taken some since the last publication */
    struct driver_stats stats;
    struct metrics_steps steps;
};

/* The loop's thread uses `shared`, `options` and `progress` only; the rest is the engine's. */
struct driver {
    struct driver_options options;
    struct driver_shared shared;
    _Atomic uint64_t progress;
    struct scheduler *scheduler;
    int64_t calls;                 /* calls that the engine has now */
    struct call_engine *changed;   /* calls with an update to publish */
    struct driver_waiting waiting; /* calls that wait for adapters, in order of arrival */
    struct driver_changes changes;
    bool adapters_changed, has_room; /* has_room: a call released adapters, or a change ended */
    int64_t holders, gives;          /* calls that hold adapters; how often one released them */
    int64_t drawn;                   /* tokens drawn in this step */
    struct driver_asks asks;         /* of tuning runs, in order of arrival */
    struct tuning_turns turns;
    struct tuning_spent tuned;
    int status; /* the engine's failure */
};

/* ---- driver_call.c ---- */

/* Carries out the loop's commands for a call. */
void driver_do(struct driver *driver, struct call_engine *self, unsigned commands);
/* Retries calls that wait for adapters. */
void driver_retry(struct driver *driver);
/* Marks the call as having an update to publish. */
void driver_note(struct driver *driver, struct call_engine *self);
/* Lists the adapters that a call names, and returns their number. */
int driver_adapters_of(const struct call_engine *self, const char *names[ASK_MAX_ADAPTERS]);
/* Returns the first waiting call that names the adapter, or NULL. */
struct call_engine *driver_first_waiting(const struct driver *driver, const char *name);
/* Ends a waiting call with this error. */
void driver_fail_one(struct driver *driver, struct call_engine *self, const struct error *error);
/* Ends all calls that wait for the adapter with this error. */
void driver_fail_waiting(struct driver *driver, const char *name, const struct error *error);
/* After a step: completes the calls whose last completion has ended. */
void driver_settle(struct driver *driver);
/* After a failure of the engine: fails the waiting calls too. */
void driver_fail_all(struct driver *driver);

/* ---- driver_change.c ---- */

/* Continues the changes of adapters for a bounded time. Returns whether there was work. */
bool driver_continue(struct driver *driver);
/* True when an adapter has waited long for memory: calls that would use more of it must let it go first. */
bool driver_is_starving(const struct driver *driver);
/* Makes names known from here on. */
void driver_take_names(struct driver *driver, struct driver_name *names);
/* Posts the list of adapters if it has changed. */
void driver_publish_adapters(struct driver *driver);

/* ---- driver_tuning.c ---- */

/* Does asks of tuning runs, or a slice of one, for a bounded time. `has_stepped`: after a step. `must_end`: passes and
 * updates fail. Returns whether there was work. */
bool driver_tune_on(struct driver *driver, bool has_stepped, bool must_end);
