/* A histogram of times. */
#include "loop_turns.h"

const double loop_turn_bounds[LOOP_TURN_BOUNDS] = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5};

void loop_turns_count(struct loop_turns *turns, double seconds) {
    int bucket = 0;
    while (bucket < LOOP_TURN_BOUNDS && seconds > loop_turn_bounds[bucket])
        bucket++;
    turns->counts[bucket]++;
    turns->seconds += seconds;
    if (seconds > turns->longest)
        turns->longest = seconds;
}
