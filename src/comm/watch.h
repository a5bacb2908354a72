/* Ranks as processes watch each other, beside MPI, which tells nobody that a process is dead or stopped.
 *
 * Rank 0 has a TCP connection to each other rank. A thread of each process sends a beat over every connection four
 * times a second. A connection that closes without a goodbye: that rank has died. No beat for the timeout: it is
 * stopped, or its machine is, or cut off. So rank 0 sees all others, and they see rank 0; what rank 0 finds it tells
 * them. One rank says it, in one line that names the rank, and every process ends: rank 0 at once (rank 1 where it is
 * about rank 0), the others half of the timeout later, or all of it where rank 0 has died, unless the launcher has
 * ended them: so it does not lose the line, and hears it once.
 *
 * A beat also says whether the rank's own thread, the one that computes, has given a sign of life since the last one
 * (watch_give_sign). Nobody is ended for giving none, but who finds that nothing goes on can ask whose thread hangs.
 *
 * The timeout is counted in this thread's own ticks, and anew after one that came late: who was stopped itself, or
 * whose machine slept, does not blame others for the time.
 *
 * Each connection must name two random words, which travel over MPI. Nothing here calls MPI. */
#ifndef CAMBIUM_COMM_WATCH_H
#define CAMBIUM_COMM_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct watch;

struct watch_options {
    int rank, size;
    double seconds; /* without a beat; at least one beat's */
    /* Called once at most, by the watch's thread, when the run is over. `line` is what this rank has to say of `rank`;
     * NULL: another one says it. NULL: prints the line and ends the process with status 1. */
    void (*on_end)(void *context, int rank, const char *line);
    void *context;
};

enum { WATCH_WORD_BYTES = 16, WATCH_ADDRESSES = 32 };

struct watch_address {
    uint16_t family; /* AF_INET, AF_INET6 */
    unsigned char bytes[16];
};

/* The address at which rank 0 listens for the others. Port 0: it does not. */
struct watch_card {
    uint16_t port; /* of this host's byte order */
    uint16_t address_count;
    struct watch_address addresses[WATCH_ADDRESSES];
    unsigned char leaders_word[WATCH_WORD_BYTES], others_word[WATCH_WORD_BYTES];
};

/* As rank 0: listens and starts to watch. Who has not come when the timeout is over counts as stopped. */
int watch_lead(const struct watch_options *options, struct watch_card *card, struct watch **watch);
/* As another rank: connects to rank 0, for half of the timeout, and starts to watch. */
int watch_join(const struct watch_options *options, const struct watch_card *card, struct watch **watch);
/* A sign of life of this rank's own thread, by that thread. NULL is nothing. */
void watch_give_sign(struct watch *watch);
/* How many a rank has given; of another rank, in how many beats there were any. False: no beats of it come here. Any
 * thread. */
bool watch_signs_of(const struct watch *watch, int rank, uint64_t *count);
/* This rank has failed, has said so, and ends the run: tells the others and watches no more. */
void watch_fail(struct watch *watch);
/* Says goodbye to all and gives everything back. NULL is nothing. */
void watch_close(struct watch *watch);

#endif
