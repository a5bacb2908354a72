/* The cost of the loop's turns. A turn goes from waiting to waiting, with all that had come in between. Its time is
 * what the thread computed, so that it says the same on a busy machine; whoever asks meanwhile waits at least so long.
 */
#ifndef CAMBIUM_SERVE_LOOP_TURNS_H
#define CAMBIUM_SERVE_LOOP_TURNS_H

#include <stdint.h>

enum { LOOP_TURN_BOUNDS = 12 };
extern const double loop_turn_bounds[LOOP_TURN_BOUNDS]; /* seconds, rising */

struct loop_turns {
    uint64_t counts[LOOP_TURN_BOUNDS + 1]; /* by bounds; the last: above all */
    double seconds, longest;
};
/* Counts one turn. */
void loop_turns_count(struct loop_turns *turns, double seconds);

#endif
