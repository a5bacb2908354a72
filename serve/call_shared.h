/* The part of a call that both the loop's thread and the engine's thread use, and the updates that pass between them.
 * Each thread has its own part: struct call_loop (call_loop.h) and struct call_engine (call_engine.h). No file
 * includes both.
 *
 * The engine's thread collects an update in `making`. Under the driver's lock it is exchanged with `published`, and
 * from there with `reading` on the loop's thread. With three blocks nobody copies or waits. */
#pragma once

#include "call.h"
#include "loop.h"

#include <sys/queue.h>

struct driver;
struct call_engine;
struct call_loop;

/* CALL_STOP: cancelled because the server drains. CALL_YIELD: its place in the queue goes to another client. */
enum call_command {
    CALL_SUBMIT = 1,
    CALL_CANCEL = 2,
    CALL_PAUSE = 4,
    CALL_RESUME = 8,
    CALL_STOP = 16,
    CALL_YIELD = 32
};
#define CALL_GIVES_WAY                                                                                                 \
    "the queue is full, this client has more than its share of it, and another client needed the place of this "       \
    "request"

/* Set by the loop before it submits the call. It does not change while the engine has the call. */
struct call_asked {
    char names[ASK_MAX_ADAPTERS][72];
    struct chat_template *chat_template;             /* used to render a chat; NULL: none */
    uint64_t template_generations[ASK_MAX_ADAPTERS]; /* of the adapters whose templates were considered for it */
    uint64_t salt;
    struct ask_ends ends;
    struct grammar *grammar; /* of the constraint; NULL: none */
};

struct call_shared {
    struct driver *driver;
    struct call_loop *loop;     /* only the loop's thread reads it */
    struct call_engine *engine; /* only the engine's thread reads it, from submission to the last update */
    struct call_asked asked;
    /* ---- under the driver's lock ---- */
    unsigned commands; /* enum call_command */
    STAILQ_ENTRY(call_shared) commanded;
    bool is_listed; /* in the list of commands */
    bool is_posted; /* `published` has an update that the loop has not taken */
    bool is_over;   /* the last update is published: the engine ignores further commands */
    struct call_update *published;
    struct loop_note note;
};

/* ---- the driver, for the loop's thread ---- */

/* Makes the engine's part of a call, and frees it. NULL: no memory. */
struct call_engine *call_engine_new(const struct call *call, struct call_shared *shared);
void call_engine_free(struct call_engine *engine);
/* Lets a call whose last update was taken be submitted once more. */
void driver_take_back(struct driver *driver, struct call_shared *shared);
/* Returns the published update, and takes `read`, an empty one, in its place. */
struct call_update *driver_take_update(struct driver *driver, struct call_shared *shared, struct call_update *read);

/* ---- call.c ---- */

/* End every call. call_stop_all asks the engine to end them, because the server drains. call_fail_all ends them at once
 * with an error, without waiting for the engine. */
void call_stop_all(struct server *server);
void call_fail_all(struct server *server, const struct error *error);
