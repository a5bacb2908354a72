/* Counts bodies that have arrived but were not read yet. All connections share one limit.
 *
 * A body may grow to eight times the room that is left. A single body can have nearly everything. However many
 * unfinished bodies there are, they leave room for small ones: N of them leave an eighth of an N-th part. The loop's
 * thread. */
#ifndef CAMBIUM_HTTP_GATHERED_H
#define CAMBIUM_HTTP_GATHERED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gathered {
    int64_t limit; /* bytes in total; 0: no limit */
    int64_t bytes; /* counted now */
    int64_t given; /* bytes of long bodies that were given back since this was last set to 0 */
};

/* Counts `more` bytes of a body that already has `own`. Returns false, and counts nothing, when there is no room.
 * `is_control`: the body arrives on the control listener, which may use an eighth more than the limit. */
bool gathered_take(struct gathered *gathered, size_t own, size_t more, bool is_control);
/* Gives back the bytes of a body that was read or dropped. */
void gathered_give(struct gathered *gathered, size_t bytes);

#endif
