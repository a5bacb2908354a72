/* The cost of the loop's turns. A turn lasts from one wait to the next and handles everything that arrived. Its time is
 * the thread's CPU time, which does not depend on other programs. A request that arrives during a turn waits at least
 * that long. */
#pragma once

#include <stdint.h>

enum { LOOP_TURN_BOUNDS = 12 };
extern const double loop_turn_bounds[LOOP_TURN_BOUNDS]; /* seconds, ascending */

struct loop_turns {
    uint64_t counts[LOOP_TURN_BOUNDS + 1]; /* by bounds; the last: above all bounds */
    double seconds, longest;
};
/* Counts one turn. */
void loop_turns_count(struct loop_turns *turns, double seconds);
