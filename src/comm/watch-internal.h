/* The watch of ranks: structs and functions that its two files share. */
#pragma once

#include "watch.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Bytes of a connection. Any other byte is a beat. */
enum watch_sign {
    WATCH_BEAT = 'b',
    WATCH_SIGN = 's',    /* a beat of a rank whose computing thread has given signs since the last beat */
    WATCH_GOODBYE = 'g', /* this rank ends normally */
    WATCH_OVER = 'o',    /* the run is over, and a rank has printed why */
};

struct watch_hello {
    unsigned char word[WATCH_WORD_BYTES];
    int32_t rank;
};

struct watch_peer {
    enum { PEER_AWAITED, PEER_HERE, PEER_GONE } state;
    int fd;     /* -1: none */
    int silent; /* ticks since its last byte */
    _Atomic uint64_t signs;
};

/* A connection that has not yet said which rank it is. */
struct watch_guest {
    int fd; /* -1: none */
    int silent;
    size_t received;
    struct watch_hello hello;
};

/* Places for guests; strangers may connect, too. Further connections wait in the listener's queue. */
enum { WATCH_GUESTS = 64 };

struct watch {
    struct watch_options options;
    int timeout; /* ticks */
    pthread_t thread;
    bool is_running;   /* the thread runs, and is not joined; only it uses the members after this */
    int wake;          /* an eventfd that ends the thread */
    uint64_t reported; /* the value of `signs` at the last beat */
    bool has_said;     /* on_end is called, or about to be */

    _Atomic uint64_t signs; /* of this rank's computing thread, which writes it */

    int peer_count;           /* ranks 0 .. peer_count - 1: all ranks at rank 0, and only rank 0 at the others */
    struct watch_peer *peers; /* [peer_count]; this rank's entry is PEER_GONE */
    struct pollfd *polled;    /* [2 + WATCH_GUESTS + peer_count]: wake, listener, guests, peers */

    /* Used by rank 0 while it expects connections. */
    int listener; /* -1: none */
    unsigned char leaders_word[WATCH_WORD_BYTES], others_word[WATCH_WORD_BYTES];
    struct watch_guest guests[WATCH_GUESTS];
};

/* ---- watch_join.c: making connections ---- */

/* Listens, and fills in where others connect. STATUS_IO. */
int watch_listen(struct watch *watch, struct watch_card *card);
/* Connects to rank 0 within `seconds`. STATUS_IO. */
int watch_connect(struct watch *watch, const struct watch_card *card, double seconds);
/* Accepts all waiting connections as guests, and greets them. */
void watch_accept(struct watch *watch);
/* Reads from a guest. If it proves to be an expected rank, it becomes that peer. */
void watch_hear_guest(struct watch *watch, struct watch_guest *guest);
/* Closes the listener and the guests once all ranks have come. */
void watch_close_door(struct watch *watch);
