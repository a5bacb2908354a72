/* The driver: the engine's thread, between a queue and the scheduler.
 *
 * The loop tells it of calls and of changes of adapters, and is told by news and notes; neither waits for the other.
 * driver.c has the thread's loop and its queue, driver_call.c what becomes of a call, driver_change.c adapters. */
#ifndef CAMBIUM_SERVE_DRIVER_H
#define CAMBIUM_SERVE_DRIVER_H

#include "call_own.h"
#include "metrics.h"
#include "server.h"

#include <limits.h>
#include <pthread.h>

/* ---- adapters ---- */

enum { ADAPTER_NAME_BYTES = 65, ADAPTER_METHODS_BYTES = 96 };

/* What files say of an adapter beside its image. */
struct adapter_facts {
    char methods[ADAPTER_METHODS_BYTES];
    int64_t parameters;
    struct chat_template *chat_template; /* a reference; NULL: none */
};

/* A change that the engine's thread makes. Its owner has it back when the note runs. */
enum change_kind { CHANGE_BRING, CHANGE_LOAD, CHANGE_REPLACE, CHANGE_UNLOAD };
struct driver_change {
    enum change_kind kind;
    char name[ADAPTER_NAME_BYTES];
    struct adapter_files files; /* not of an unloading */
    struct adapter_facts facts;
    bool is_pinned, in_place;
    uint64_t if_generation; /* of a bringing: that its files were read for */
    struct error error;     /* told; one that is set before fails the change, and the calls that wait for it */
    int status;             /* told: the engine's, with an error of its own; 0 where it was not asked */
    uint64_t generation;    /* told: that the name has by it; not of an unloading */
    bool is_moot;           /* told: a bringing that nobody needs any more, or that must read its files again */
    /* the driver's */
    struct driver_change *next;
    bool is_under_way, is_new, is_aside; /* is_new: the name was added for it; is_aside: until texts have ended */
    int64_t gives;                       /* of the driver, when it was put aside */
    double since;                        /* it was put aside for the first time */
    struct loop_note note;               /* run: the owner's */
};

/* A name that calls may have from here on: its owner has it back when the note runs. */
struct driver_name {
    struct loop_note note; /* run: the owner's */
    struct driver_name *next;
    struct server *server; /* the owner's */
    char name[ADAPTER_NAME_BYTES], directory[PATH_MAX];
};

/* What a name stands for now: a copy for the loop. */
struct driver_adapter {
    char name[ADAPTER_NAME_BYTES], digest[PEFT_SHA256_BYTES];
    enum adapter_state state;
    uint64_t generation;
    size_t bytes;
    int64_t virtual_tokens;
    bool is_pinned;
};
/* All of them, posted when they have changed; the receiver frees it. */
struct driver_adapters {
    struct loop_note note;
    struct driver *driver;
    int count;
    struct driver_adapter items[];
};

/* ---- numbers ---- */

struct driver_stats {
    struct scheduler_stats scheduler;
    int64_t deferred; /* texts that wait for their adapters, and are not in the scheduler yet */
    int64_t pages, pages_free;
    size_t adapter_bytes;
};

/* ---- the driver ---- */

struct driver_options {
    struct server *server;
    struct loop *loop;
    struct engine *engine;
    struct adapters *adapters;
    const struct tokenizer *tokenizer;
    /* all in the loop's thread */
    void (*on_adapters)(struct server *server, struct driver_adapters *adapters);
    void (*on_absent)(struct server *server, const char *name); /* a call waits for it: CHANGE_BRING is wanted */
};

int driver_open(const struct driver_options *options, struct driver **driver);
/* The engine's thread, until driver_end and the last call, or a failure of the engine. */
int driver_run(struct driver *driver);
void driver_close(struct driver *driver);

/* Any thread; the loop's. */
void driver_tell(struct driver *driver, struct call_own *own, unsigned commands);
void driver_change(struct driver *driver, struct driver_change *change);
/* Calls that come later may have this name. */
void driver_know(struct driver *driver, struct driver_name *name);
/* driver_run returns as soon as there are no calls and no changes. */
void driver_end(struct driver *driver);
/* Grows while the thread works or idles: what does not change for long hangs. */
uint64_t driver_progress(const struct driver *driver);
void driver_read_stats(struct driver *driver, struct driver_stats *stats);
/* The steps since the last call. */
void driver_take_steps(struct driver *driver, struct metrics_steps *steps);

#endif
