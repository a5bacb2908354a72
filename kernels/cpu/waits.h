/* Chooses how the threads of CPU devices wait for each other: spinning or asleep.
 *
 * A spinning thread answers at once, which makes a step on an idle machine up to 1.6 times as fast. On a busy machine,
 * it takes time from the threads that it waits for, and a step takes 3 to 8 times as long.
 *
 * libgomp reads the environment only once, when it is loaded. But its threads spin 3,000 times less while there are
 * more of them than cores (GOMP_SPINCOUNT in its manual). So a watching thread measures how many cores other programs
 * use, and keeps extra OpenMP threads asleep while the machine is busy. It does not run if the user has set
 * OMP_WAIT_POLICY or GOMP_SPINCOUNT. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

/* The OpenMP threads of a device. */
struct waits_team {
    int threads;      /* 0: not watched */
    pthread_t opener; /* the thread that began the watch */
    struct waits_team *next;
};

/* Starts to watch for a device of `threads` OpenMP threads, which compute on the cores of the calling thread. Devices
 * of one process share one watching thread. If that cannot be started, threads wait as libgomp chooses. *team belongs
 * to the watch until waits_end. Any thread. */
void waits_begin(struct waits_team *team, int threads);
/* Undoes a waits_begin. The last one ends the watching thread. Any thread. */
void waits_end(struct waits_team *team);
/* Returns how many OpenMP threads may compute at the same time. Devices that one thread opened work in turn, with the
 * same threads of libgomp, so only the largest of them counts. */
int waits_threads(void);

/* ---- the choice, for tests ---- */

enum { WAITS_BUSY_LOOKS = 2, WAITS_IDLE_LOOKS = 10 };

/* The state of the choice, at first all zero. */
struct waits_choice {
    bool is_asleep; /* waiting threads sleep */
    int looks;      /* measurements in a row that favour the other choice */
};
/* Updates the choice by one measurement: other programs kept `others` of `cores` busy (negative: not known), on which
 * `threads` of ours want to compute. Returns is_asleep. */
bool waits_choose(struct waits_choice *choice, double others, int cores, int threads);
