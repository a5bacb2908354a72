/* Counts bodies that have arrived but were not read yet. All connections share one limit.
 *
 * A body may grow to eight times the free room, so a single body can take nearly everything. Unfinished bodies always
 * leave room for small ones: N of them leave an eighth of an N-th part. Everything runs on the loop's thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gathered {
    int64_t limit; /* bytes in total; 0: no limit */
    int64_t bytes; /* counted now */
    int64_t given; /* bytes of long bodies given back since the reader last set this to 0 */
};

/* Counts `more` bytes of a body of which `held` bytes are counted already. Returns false, and counts nothing, when
 * there is no room. `is_control`: the body arrives on the control listener, which may use an eighth more than the
 * limit. */
bool gathered_take(struct gathered *gathered, size_t held, size_t more, bool is_control);
/* Gives back the bytes of a body that was read or dropped. */
void gathered_give(struct gathered *gathered, size_t bytes);
