/* Ranks as processes watch each other, because MPI does not report that a process is dead or stopped.
 *
 * Rank 0 has a TCP connection to each other rank. A thread of each process sends a beat over every connection four
 * times a second. If a connection closes without a goodbye, that rank has died. If no beat comes for the timeout, the
 * rank or its machine is stopped, or cut off. So rank 0 watches all others, and they watch rank 0, which tells them its
 * findings.
 *
 * One rank prints a line that names the lost rank, and every process ends. Rank 0 prints it and ends at once; if rank 0
 * is lost, rank 1 does. The others end the timeout later, unless the launcher ends them before. So the launcher gets
 * the line, exactly once.
 *
 * A beat also says whether the rank's computing thread has given a sign of life since the last beat (watch_give_sign).
 * No process is ended for giving none. It serves to find the thread that hangs when a run makes no progress.
 *
 * The timeout is counted in ticks of the watching thread, and starts again after a tick that came late. So a process
 * that was stopped itself, or whose machine slept, does not blame others for the time.
 *
 * Both sides of a connection must know random words, which travel over MPI. Nothing here calls MPI. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct watch;

struct watch_options {
    int rank, size;
    double seconds; /* the timeout; at least the time of one beat */
    /* Called at most once, by the watch's thread, when the run is over. This rank must print `line`, which is about
     * `rank`; if it is NULL, another rank prints it. If on_end is NULL, the watch prints the line and ends the process
     * with status 1. */
    void (*on_end)(void *context, int rank, const char *line);
    void *context;
};

enum { WATCH_WORD_BYTES = 16, WATCH_ADDRESSES = 32 };

struct watch_address {
    uint16_t family; /* AF_INET, AF_INET6 */
    unsigned char bytes[16];
};

/* The addresses at which rank 0 listens for the others. Port 0: it does not listen. */
struct watch_card {
    uint16_t port; /* in the host's byte order */
    uint16_t address_count;
    struct watch_address addresses[WATCH_ADDRESSES];
    unsigned char leaders_word[WATCH_WORD_BYTES], others_word[WATCH_WORD_BYTES];
};

/* For rank 0: listens, fills in where others connect, and starts to watch. A rank that has not connected within the
 * timeout counts as stopped. The caller closes *watch. STATUS_IO, STATUS_MEMORY. */
int watch_lead(const struct watch_options *options, struct watch_card *card, struct watch **watch);
/* For other ranks: tries to connect to rank 0 for half of the timeout, and starts to watch. The caller closes *watch.
 * STATUS_IO, STATUS_MEMORY. */
int watch_join(const struct watch_options *options, const struct watch_card *card, struct watch **watch);
/* Gives a sign of life of the calling thread, which is this rank's computing thread. NULL does nothing. */
void watch_give_sign(struct watch *watch);
/* Stores the number of signs that this rank has given; for another rank, the number of beats that reported any. Returns
 * false if no beats of that rank come here. Any thread. */
bool watch_signs_of(const struct watch *watch, int rank, uint64_t *count);
/* Ends the run after this rank failed and printed its line: tells the others, and stops watching. */
void watch_fail(struct watch *watch);
/* Says goodbye to all, stops watching and frees the watch. NULL does nothing. */
void watch_close(struct watch *watch);
