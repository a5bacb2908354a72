/* The store of compiled grammars.
 *
 * Equal constraints share one grammar. The store's own threads compile new ones. Clients take turns: one with many
 * constraints delays another by at most one of them. Grammars and their caches stay within the memory. Unused ones make
 * room, the least recently used ones first. Where those in use leave no room, an order waits until one is released.
 * Any thread may call these functions. */
#pragma once

#include "infer/constraint.h"
#include "infer/scheduler.h"

#include <stdatomic.h>

enum { GRAMMARS_BUCKETS = 16, GRAMMARS_SHARE = 8 }; /* a grammar may take this part of the memory */
/* Upper ends of the buckets of times in seconds. */
extern const double grammars_bounds[GRAMMARS_BUCKETS];

struct grammars_options {
    int64_t threads; /* that compile, and as many that make masks; 0: half of the cores, at least 1 */
    double seconds;  /* limit of compiling one */
    int64_t memory;  /* bytes of all */
};
struct grammars;
/* Opens a store. STATUS_MEMORY, also when a thread cannot start. */
int grammars_open(const struct grammars_options *options, struct grammars **grammars);
/* Ends its threads that compile: orders that wait fail with STATUS_INTERRUPTED, and so do later ones. NULL is allowed.
 */
void grammars_stop(struct grammars *grammars);
/* Stops and closes it, when all constraints are closed. NULL is allowed. */
void grammars_close(struct grammars *grammars);
/* Lets a scheduler take requests with its grammars of this vocabulary. NULL: with none. */
void grammars_schedule(struct grammars *grammars, const struct grammar_vocabulary *vocabulary,
                       struct scheduler_options *options);

/* An order for a grammar, in the caller's memory until it is done. Starts zeroed, but for the first part. */
struct grammar_order {
    struct grammar_source source; /* the text is copied */
    const struct grammar_vocabulary *vocabulary;
    uint64_t client;
    const atomic_bool *is_unwanted; /* set when nobody waits any more: it then need not be compiled. NULL: never */
    void (*on_done)(struct grammar_order *order); /* called once, on a thread of the store */
    void *context;
    /* The result. STATUS_INVALID, STATUS_UNSUPPORTED: refused as the report says. STATUS_MEMORY. After a success, the
     * caller releases the grammar. The caller frees the report. */
    int status;
    struct grammar_report report;
    struct grammar *grammar;
    struct grammar_order *next; /* of the store */
    bool is_done;               /* with grammars_begin */
    bool is_urgent;             /* somebody waits for it in grammars_end */
};
/* Orders a grammar. Returns true when the result is there at once; on_done is then not called. */
bool grammars_order(struct grammars *grammars, struct grammar_order *order);
/* For a caller that looks now and then: orders a grammar, with on_done of these functions. Returns true when it is
 * done. */
bool grammars_begin(struct grammars *grammars, struct grammar_order *order);
/* Returns true when the order is done; waits for that if asked to. It then gets room in any case: whoever waits may
 * have what would make room. */
bool grammars_end(struct grammars *grammars, struct grammar_order *order, bool waits);
/* Returns the status of an order that is done, with its text. */
int grammars_verdict(const struct grammar_order *order);

struct grammars_times {
    uint64_t counts[GRAMMARS_BUCKETS + 1]; /* of each bucket by itself; the last: above all bounds */
    double sum;
};
struct grammars_figures {
    struct grammars_times compile, mask;
    uint64_t hits, misses;
    size_t bytes; /* of the grammars that the store has */
};
/* Copies the figures since the opening. */
void grammars_read(struct grammars *grammars, struct grammars_figures *figures);
