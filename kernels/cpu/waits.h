/* How the threads of CPU devices wait for each other: by spinning, or asleep.
 *
 * A thread that spins answers at once, which makes a step on an idle machine up to 1.6 times as fast. Where other
 * programs compute on the same cores it takes the time from the threads that it waits for, and a step takes 3 to 8
 * times as long. libgomp reads the environment once, when it is loaded; but its threads spin 3,000 times less while
 * there are more of them than cores (GOMP_SPINCOUNT in its manual). A watching thread therefore measures what other
 * programs take, and holds sleeping OpenMP threads as long as the machine is busy. Nothing is watched where the user
 * has set OMP_WAIT_POLICY or GOMP_SPINCOUNT. */
#ifndef CAMBIUM_KERNELS_CPU_WAITS_H
#define CAMBIUM_KERNELS_CPU_WAITS_H

#include <stdbool.h>

/* Starts to watch for a device of `threads` OpenMP threads, which compute on the cores of the calling thread. Devices
 * of one process share one watching thread; where it cannot be started, threads wait as libgomp has it. Any thread. */
void waits_begin(int threads);
/* Ends what waits_begin began with the same number; the last one ends the watching thread. */
void waits_end(int threads);

/* ---- its choice ---- */

enum { WAITS_BUSY_LOOKS = 2, WAITS_IDLE_LOOKS = 10 };

/* Begin it with zeros. */
struct waits_choice {
    bool is_asleep; /* threads that wait sleep now */
    int looks;      /* in a row that spoke for the other choice */
};
/* Takes note of a look: other programs kept `others` of `cores` busy (negative: not known) on which `threads` of ours
 * want to compute. Returns is_asleep. */
bool waits_choose(struct waits_choice *choice, double others, int cores, int threads);

#endif
