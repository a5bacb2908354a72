/* The driver: the engine's thread, between a queue and the scheduler.
 *
 * The loop passes it calls and changes of adapters. It answers with updates and notes. Neither waits for the other.
 * driver.c has the thread's loop and its queue, driver_call.c handles calls, and driver_change.c handles adapters. */
#pragma once

#include "call_shared.h"
#include "metrics.h"
#include "server.h"

#include "infer/tuning.h"

#include <pthread.h>

/* ---- adapters ---- */

enum { ADAPTER_NAME_BYTES = 256, ADAPTER_METHODS_BYTES = 96 };

/* Sets the error of an adapter that could not be loaded, by its status and the status text, without paths of the
 * server. */
static inline void adapter_error(struct error *error, int status, const char *root) {
    error_of_status(error,
                    status == STATUS_NOT_FOUND ? ERROR_ADAPTER_NOT_FOUND
                    : status == STATUS_MEMORY  ? ERROR_ADAPTER_MEMORY
                                               : ERROR_ADAPTER_INVALID,
                    NULL);
    error_hide_paths(error, root);
}

/* Facts about an adapter from its files, besides its image. */
struct adapter_facts {
    char methods[ADAPTER_METHODS_BYTES];
    int64_t parameters;
    struct chat_template *chat_template; /* a reference; NULL: none */
};

/* A change that the engine's thread makes. Its owner gets it back when the note runs. */
enum change_kind { CHANGE_BRING, CHANGE_LOAD, CHANGE_REPLACE, CHANGE_UNLOAD };
struct driver_change {
    enum change_kind kind;
    char name[ADAPTER_NAME_BYTES];
    struct adapter_files files; /* except for CHANGE_UNLOAD */
    struct adapter_facts facts;
    bool is_pinned, in_place;
    uint64_t if_generation; /* for CHANGE_BRING: the generation for which its files were read */
    struct error error;     /* result; an error that is set before fails the change and the calls that wait for it */
    int status;             /* result: the engine's status, with its own error; 0 when the engine was not asked */
    uint64_t generation;    /* result: the name's new generation; not set by CHANGE_UNLOAD */
    bool is_moot;           /* result of CHANGE_BRING: it is no longer needed, or must read its files again */
    /* The driver's: */
    STAILQ_ENTRY(driver_change) all;
    bool is_under_way, is_new,
        is_aside;          /* is_new: the name was added for it; is_aside: it waits until completions have ended */
    int64_t gives;         /* the driver's count when the change was put aside */
    double since;          /* time when it was first put aside */
    struct loop_note note; /* `run` is the owner's */
};

/* A name that calls may use from here on. Its owner gets it back when the note runs. */
struct driver_name {
    struct loop_note note; /* `run` is the owner's */
    struct driver_name *next;
    struct server *server; /* the owner's */
    char name[ADAPTER_NAME_BYTES], directory[PATH_MAX];
};

/* The current state of a name: a copy for the loop. */
struct driver_adapter {
    char name[ADAPTER_NAME_BYTES], digest[PEFT_SHA256_BYTES];
    enum adapter_state state;
    uint64_t generation;
    size_t bytes;
    int64_t virtual_tokens;
    bool is_pinned;
    struct receipt_result receipt;
};
/* The whole list, posted when it has changed; the receiver frees it. */
struct driver_adapters {
    struct loop_note note;
    struct driver *driver;
    int count;
    struct driver_adapter items[];
};

/* ---- numbers ---- */

struct driver_stats {
    struct scheduler_stats scheduler;
    int64_t deferred; /* completions that wait for their adapters and are not in the scheduler yet */
    int64_t pages, pages_free;
    size_t adapter_bytes, tuning_bytes;
    struct tuning_spent tuning;
    uint64_t receipts[RECEIPT_WORDS]; /* results of replays */
};

/* ---- the driver ---- */

struct driver_options {
    struct server *server;
    struct loop *loop;
    struct engine *engine;
    struct adapters *adapters;
    const struct tokenizer *tokenizer;
    /* Called in the loop's thread: */
    void (*on_adapters)(struct server *server, struct driver_adapters *adapters);
    void (*on_absent)(struct server *server, const char *name); /* a call waits for it: a CHANGE_BRING is needed */
};

/* Makes a driver. STATUS_MEMORY. */
int driver_open(const struct driver_options *options, struct driver **driver);
/* Runs the engine's thread until driver_end and the last call, or until the engine fails. Returns the engine's
 * status. */
int driver_run(struct driver *driver);
/* Frees the driver. NULL is allowed. */
void driver_close(struct driver *driver);

/* Pass commands for a call, or a change of adapters, to the driver. Only the loop's thread calls them. */
void driver_tell(struct driver *driver, struct call_shared *shared, unsigned commands);
/* Takes back a call that the driver has not begun; false: it has, and the call must be cancelled. */
bool driver_withdraw(struct driver *driver, struct call_shared *shared);
void driver_change(struct driver *driver, struct driver_change *change);
/* Lets later calls use this name. */
void driver_know(struct driver *driver, struct driver_name *name);
/* Makes driver_run return when all calls and changes have ended. */
void driver_end(struct driver *driver);
/* Returns a counter that grows while the thread works or idles. When it does not change for long, the thread hangs. */
uint64_t driver_progress(const struct driver *driver);
/* Copies the latest statistics. */
void driver_read_stats(struct driver *driver, struct driver_stats *stats);
/* Takes the steps since the last call of this function. */
void driver_take_steps(struct driver *driver, struct metrics_steps *steps);
