/* Opening as a table of steps, which closing undoes in reverse.
 *
 * An object that opens in several steps lists them once, in a const table. A step that fails undoes its own part, and
 * the steps before it are closed in reverse. Closing an open object goes through the same table.
 *
 * Ranks may open together. After a step marked `agrees`, every rank calls the table's `agree`, and either all continue
 * or none does. A rank that has failed opens nothing more, but still calls `agree` at the next of these steps. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct opening_step {
    int (*open)(void *self);   /* after an error there is nothing to close; its text stays */
    void (*close)(void *self); /* does not change the thread's error text; NULL: nothing to undo */
    bool agrees;               /* all ranks agree after it */
    bool is_shared;            /* it opens what all objects of a list share: it runs for the first one only */
};

struct opening {
    const struct opening_step *steps; /* [count] */
    size_t count;
    int (*agree)(void *self, int status); /* as comm_agree; NULL: `agrees` has no effect */
    void *(*next)(void *self);            /* the object after this one in a list, or NULL; itself NULL: no list */
};

/* Opens `self`, the first of its list, step by step: each step opens all objects before the next one begins, and
 * ranks agree after each object. Returns the first failure of a step or an agreement, with every opened step closed.
 * `agree` gets the object that was opened last, or failed. */
int opening_run(const struct opening *opening, void *self);
/* Closes, in reverse, every step of a `self` that opening_run has opened. */
void opening_undo(const struct opening *opening, void *self);
