/* Tuning runs beside the serving: what the loop's thread asks of them, and what it gets back.
 *
 * A run trains adapters on the engine's own base, on the engine's thread and on the ranks that follow it. It works in
 * slices between steps of completions (infer/tuning.h). An ask is one thing that a client wants of a run. Asks of a run
 * are done in the order in which they were passed; runs take turns by their weights.
 *
 * The loop's thread fills an ask and passes it with driver_tune. From then on it belongs to the engine's thread, until
 * `note.run` is called on the loop's thread. Everything that an ask points to lives as long. Only `is_unwanted` may be
 * set meanwhile, by any thread. */
#pragma once

#include "infer/tuning.h"

#include "driver.h"

#include <stdatomic.h>

enum tuning_kind {
    TUNING_OPEN,     /* makes a run */
    TUNING_PASS,     /* forward, and backward, of global batches */
    TUNING_UPDATE,   /* of what trains, by the gradients of the passes since the last update */
    TUNING_SNAPSHOT, /* the adapter's files as they are now, in memory */
    TUNING_PUBLISH,  /* files in memory become a generation of a name */
    TUNING_CLOSE     /* frees a run; asks of it that are under way or wait are done before */
};

struct tuning_ask {
    enum tuning_kind kind;
    struct tuning_run
        *run; /* result of TUNING_OPEN, NULL after an error; in the others, without TUNING_PUBLISH: given */
    /* Set it, at any time, to end a pass between two slices, or to skip an ask that waits. The ask then fails with
     * ERROR_CANCELLED. Gradients of a pass that was ended count for nothing: the next pass must not add to them. */
    _Atomic bool is_unwanted;
    union {
        struct tuning_run_options open;
        struct tuning_pass pass;
        struct tuning_update update;
        struct tuning_snapshot snapshot;
        struct driver_change publish; /* CHANGE_LOAD, in_place for a new generation; the files are given away, and the
                                         error is set in `error`. Its own note is the driver's */
    };
    /* Results. */
    struct error error; /* ERROR_ARGUMENT for what a client can mend: a run that does not fit, with the bytes; a loss or
                           a norm that is not finite. ERROR_CANCELLED; ERROR_INTERNAL */
    int status;         /* the engine's, whose text `error` has; 0 when the engine was not asked */
    struct tuning_spent spent; /* on this ask */
    struct loop_note note;     /* `run` is the owner's */
    /* The driver's: */
    STAILQ_ENTRY(tuning_ask) all;
    bool is_under_way;
};

/* Passes an ask to the engine's thread. Only the loop's thread calls this. Without --tuning-memory, and on an engine
 * of several stages, TUNING_OPEN fails. */
void driver_tune(struct driver *driver, struct tuning_ask *ask);
