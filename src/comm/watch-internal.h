/* The watch of ranks: what its two files share. */
#ifndef CAMBIUM_COMM_WATCH_INTERNAL_H
#define CAMBIUM_COMM_WATCH_INTERNAL_H

#include "watch.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* The meaning of one byte. Any other is a beat. */
enum watch_sign {
    WATCH_BEAT = 'b',
    WATCH_SIGN = 's',    /* a beat of a rank whose own thread has given signs since the last one */
    WATCH_GOODBYE = 'g', /* this rank ends as it should */
    WATCH_OVER = 'o',    /* the run is over, and a rank has said why */
};

struct watch_hello {
    unsigned char word[WATCH_WORD_BYTES];
    int32_t rank;
};

struct watch_peer {
    enum { PEER_AWAITED, PEER_HERE, PEER_GONE } state;
    int fd;     /* -1: none */
    int silent; /* own ticks since its last sign */
    _Atomic uint64_t signs;
};

/* A connection that has not said yet which rank it is. */
struct watch_guest {
    int fd; /* -1: none */
    int silent;
    size_t received;
    struct watch_hello hello;
};

/* Places for guests; strangers may come too. Who finds none waits at the door. */
enum { WATCH_GUESTS = 64 };

struct watch {
    struct watch_options options;
    int timeout; /* ticks */
    pthread_t thread;
    bool is_running; /* the thread is there, and not joined: what follows is its own */
    int wake;        /* an eventfd that ends the thread */
    uint64_t told;   /* of `signs`, with the last beat */
    bool has_said;   /* on_end is called, or about to be */

    _Atomic uint64_t signs; /* of this rank's own thread, which writes it */

    int peer_count;           /* ranks 0 .. peer_count - 1: all at rank 0, and rank 0 alone at the others */
    struct watch_peer *peers; /* [peer_count]; one's own is PEER_GONE */
    struct pollfd *polled;    /* [2 + WATCH_GUESTS + peer_count]: wake, listener, guests, peers */

    /* of rank 0 while others are awaited */
    int listener; /* -1: none */
    unsigned char leaders_word[WATCH_WORD_BYTES], others_word[WATCH_WORD_BYTES];
    struct watch_guest guests[WATCH_GUESTS];
};

/* ---- watch_join.c: how connections come to be ---- */

/* Listens, and fills the card. */
int watch_listen(struct watch *watch, struct watch_card *card);
/* Connects to rank 0 within `seconds`. */
int watch_connect(struct watch *watch, const struct watch_card *card, double seconds);
/* Takes whoever is at the door and greets them. */
void watch_accept(struct watch *watch);
/* Reads what a guest says; one that proves to be an awaited rank becomes its peer. */
void watch_hear_guest(struct watch *watch, struct watch_guest *guest);
/* Closes the door when nobody is awaited any more. */
void watch_close_door(struct watch *watch);

/* The sign over a connection; one that takes nothing now does without. */
void watch_say(int fd, enum watch_sign sign);

#endif
