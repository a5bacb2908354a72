/* One limit for all bodies that handlers have not read yet. */
#include "gathered.h"

enum { SHARE = 8, RESERVE = 8, LONG_BYTES = 1 << 16 };

bool gathered_take(struct gathered *gathered, size_t held, size_t more, bool is_control) {
    int64_t room = gathered->limit + (is_control ? gathered->limit / RESERVE : 0) - gathered->bytes;
    if (gathered->limit && ((int64_t)more > room || (int64_t)(held + more) / SHARE > room))
        return false;
    gathered->bytes += (int64_t)more;
    return true;
}

void gathered_give(struct gathered *gathered, size_t bytes) {
    gathered->bytes -= (int64_t)bytes;
    if (bytes >= LONG_BYTES)
        gathered->given += (int64_t)bytes;
}
