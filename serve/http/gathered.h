/* Bodies that have not been read yet: all connections share one bound for them.
 *
 * A body may grow to eight times the room that is left. One alone can have nearly everything. Many that are never whole
 * leave room for small ones, however many they are: N of them leave an eighth of an N-th part. The loop's thread. */
#ifndef CAMBIUM_HTTP_GATHERED_H
#define CAMBIUM_HTTP_GATHERED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gathered {
    int64_t limit; /* bytes of all; 0: none */
    int64_t bytes; /* that wait */
    int64_t given; /* bytes of long bodies that were given back, since somebody set it to 0 */
};

/* Counts `more` bytes of a body that has `own` already; false: there is no room, and nothing is counted. `is_control`:
 * the body comes on the control listener, which has an eighth of the limit beyond it. */
bool gathered_take(struct gathered *gathered, size_t own, size_t more, bool is_control);
/* Gives back the bytes of a body that is gone. */
void gathered_give(struct gathered *gathered, size_t bytes);

#endif
