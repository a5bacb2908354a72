/* The host channel `local`: state that ranks as threads share.
 *
 * A world is one run of threads. A group has a ring of entries, one for each collective that may be under way, and a
 * mailbox for each ordered pair of members. Every word on which threads wait for each other is a C11 atomic. A sleep is
 * a futex with a time limit, so that no sleeping thread misses a failure of the world.
 *
 * A rank is busy while it touches memory of other ranks (their buffers or requests). It never becomes busy in a failed
 * world. So a rank that fails waits until no other rank is busy, and may then free everything. */
#pragma once

#include "comm-internal.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CACHE_LINE = 64, FAILURE_BYTES = 1024 };

/* A number that threads change and wait for. */
struct meeting {
    _Alignas(CACHE_LINE) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

struct local_rank {
    _Alignas(CACHE_LINE) atomic_bool is_busy;
    atomic_bool has_ended;  /* has left the world */
    _Atomic uint64_t signs; /* of life */
};

struct local_world {
    int size;
    int spins;               /* looks at a meeting before the thread yields its core */
    struct local_rank *rank; /* [size] */

    pthread_mutex_t lock; /* guards the members after it */
    int references;       /* groups */
    struct local_group *forming;
    int failed_rank, failed_status;
    char failed_text[FAILURE_BYTES];
    atomic_bool is_failed; /* written under the lock, after the text */
};

/* The next task of one member's share of a collective. A rank that waits runs its own tasks first, then the others'. */
struct local_share {
    _Alignas(CACHE_LINE) _Atomic uint32_t next;
};

/* One collective under way. */
struct local_entry {
    struct meeting turn;       /* the low bits of the number of the collective that uses this entry */
    struct meeting started;    /* members that have started it */
    struct meeting done;       /* tasks that are done */
    _Atomic uint32_t left;     /* members that have left it; the last one clears the entry */
    struct comm_call *call;    /* [size] */
    const void **send;         /* [size] */
    void **receive;            /* [size] */
    struct event **event;      /* [size] of a call on a GPU: where the buffers are ready, and then where it ends */
    struct local_share *share; /* [size] */
};

/* Requests of one kind, sends or receives, whose counterparts have not started yet. */
struct local_mailbox {
    pthread_mutex_t lock;
    struct comm_request *head, *last;
};

struct local_member {
    struct meeting bell;       /* changes when a message of this member is done */
    _Atomic uint64_t sequence; /* collectives started */
};

struct local_group {
    struct local_world *world;
    int size;
    int references;                /* under the world's lock */
    int *world_rank;               /* [size] */
    struct local_member *member;   /* [size] */
    struct local_mailbox *mailbox; /* [from * size + to] */
    struct local_entry entry[COMM_STARTED_MAX];

    /* Used while the group forms. */
    const struct local_group *parent;
    struct local_group *next_forming;
    bool *has_joined;      /* [size], under the world's lock */
    struct meeting joined; /* members */
};

struct local_comm {
    struct comm base;
    struct local_group *group;
    uint64_t sequence;                 /* of the next collective */
    bool is_started[COMM_STARTED_MAX]; /* this rank has started the entry's collective, and not left it */
};

extern const struct comm_host_channel comm_host_local;
extern const struct comm_device_channel comm_device_local_card;

/* ---- waiting ---- */

/* Adds to the value, and wakes the sleepers if it becomes `target`. */
void meeting_add(struct meeting *meeting, uint32_t more, uint32_t target);
/* Adds one, and wakes the sleepers. */
void meeting_ring(struct meeting *meeting);
/* Sets the value, and wakes the sleepers. */
void meeting_set(struct meeting *meeting, uint32_t value);
/* Waits for one step while the value is `seen`; `step` counts from 0. Returns true after a sleep. Then the rank has
 * given a sign of life, and the caller should check for a failure. */
bool meeting_rest(const struct local_comm *comm, struct meeting *meeting, uint32_t seen, int *step);
/* Gives a sign of life. */
static inline void local_give_sign(const struct local_comm *comm) {
    _Atomic uint64_t *signs = &comm->group->world->rank[comm->base.world_rank].signs;
    atomic_store_explicit(signs, atomic_load_explicit(signs, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* ---- failure ---- */

/* Returns true if the world has failed. */
static inline bool local_has_failed(const struct local_world *world) {
    return atomic_load_explicit(&world->is_failed, memory_order_acquire);
}
/* Marks the world as failed by this rank, with `status` and text for the others, unless it has failed before. */
void local_set_failure(struct local_comm *comm, int status, const char *text);
/* In a failed world: waits until no rank touches this rank's memory any more. Returns the world's status, with its
 * text.
 */
int local_failure(struct local_comm *comm);
/* Calls local_set_failure with this text, then local_failure. */
int local_fail(struct local_comm *comm, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Marks this rank as busy. Returns false, and does not mark it, in a failed world. */
bool local_busy_begin(struct local_comm *comm);
/* Ends what local_busy_begin began. */
void local_busy_end(struct local_comm *comm);
/* Returns true if the member has left the world. */
bool local_has_ended(const struct local_group *group, int member);

/* ---- calls on a GPU: local_card.c ---- */

/* A member's part of the device channel. */
struct local_card {
    struct device *device;
    struct stream *stream;  /* of the calls that this member queues; NULL: it has queued none */
    struct event **unused;  /* [room] events that no call uses, so that a step opens none */
    int unused_count, room; /* room: of all events that this member has opened */
};
/* Returns true if the call moves memory of a GPU that all members share. */
static inline bool local_is_on_card(const struct comm *comm, const struct comm_call *call) {
    return call->data.stream && comm->device == &comm_device_local_card;
}
/* Queues the collective of all members, which agree. The device's failure; STATUS_MEMORY. */
int local_card_run(const struct local_comm *comm, const struct local_entry *entry);
/* Queues the copy of a message of two members. Errors as local_card_run. */
int local_card_send(const struct local_comm *comm, const struct comm_request *sent,
                    const struct comm_request *received);

/* ---- members of comm_host_local ---- */

struct comm_signs local_signs_of(const struct comm *world, int rank);
int local_start(struct comm *comm, struct comm_request *request);
int local_finish(struct comm *comm, struct comm_request *request);
int local_use_device(struct comm *comm, struct device *device);
int local_message_start(struct local_comm *comm, struct comm_request *request);
int local_message_finish(struct local_comm *comm, struct comm_request *request);
