/* Streams of the stand-in for the driver: work is queued, and runs while the host waits for something. Once there was a
 * meeting of ranks, a thread also runs it a little later, because other ranks may wait for work that this host does not
 * wait for.
 *
 * Any stream whose first work is ready may be the next one, by the machine's seed, or the most or least urgent. So a
 * program that lacks an event or a wait gets wrong numbers or a fault. All calls are made under the driver's lock. */
#pragma once

#include "cuda/library.h"
#include "cuda/machine.h"

#include <pthread.h>

enum work_kind {
    WORK_LAUNCH,
    WORK_WRITE,
    WORK_READ,
    WORK_MOVE,
    WORK_SET,
    WORK_RECORD,
    WORK_AWAIT,
    WORK_CALL,
    WORK_GRAPH,
    WORK_MEET
};

struct event {
    uint64_t recorded, done; /* records that were queued, and that have run */
    int source;              /* the number of the stream of the last record */
    uint64_t mark;           /* what that stream had queued by then */
    double time;             /* of the last that has run, in milliseconds */
    struct graph *captured;  /* the last record is a part of its capture; NULL: of none */
    struct stream *joins;    /* whose work up to `mark` the captured record ends */
};

/* One entry of a stream. Copies have rows of `bytes`, each `to_pitch` and `from_pitch` after the one before. */
struct work {
    enum work_kind kind;
    struct launch launch; /* its parameters belong to the work */
    uint64_t to, from, bytes, rows, to_pitch, from_pitch;
    uint8_t value;
    bool fails;                                           /* on command */
    void (*call)(struct machine *machine, void *context); /* of a library */
    struct meeting meeting;                               /* of a library, with other ranks */
    void *context;                                        /* freed with the work */
    const struct work *part, *end;                        /* of a graph, which must stay until they have run */
    struct event *event;
    uint64_t ticket; /* of a record, and the record that a wait needs */
    struct work *next;
};

/* Captured work, which a launch runs in the order in which it was captured, on whatever stream. */
struct graph {
    struct work *first, **last;
};

struct stream {
    struct work *first, **last;
    struct graph *captured;  /* receives the work instead of the queue; NULL: the stream is not captured */
    bool is_joined;          /* of a stream that an event brought into a capture: a later event has its last work */
    struct streams *streams; /* its GPU's */
    bool is_passed_over;     /* its meeting waits for others */
    int priority;            /* the lower, the more urgent; 0 is the least urgent */
    int number;              /* from 1 on */
    uint64_t queued;         /* work so far, without records of events */
    int source;              /* the number of the stream that it waited for last; 0: none */
    uint64_t mark;           /* of that stream, what it waited for */
    struct stream *next;
};

struct streams {
    struct machine *machine;
    pthread_mutex_t *lock; /* the driver's; a wait for other ranks gives it back meanwhile */
    struct stream *list;
    unsigned long meetings; /* in the queues */
    unsigned long waits;    /* looks of a host that waits */
    int opened;             /* streams so far */
    int holds;              /* looks since a meeting, while less urgent work could run */
    pthread_t helper;
    bool has_helper, is_ending; /* the thread that runs work for other ranks */
    enum { ORDER_RANDOM, ORDER_URGENT, ORDER_PATIENT } order;
    int trace; /* a file, or -1 */
    int slot;  /* of the GPU */
};

/* Makes a stream; NULL where there is no memory. */
struct stream *stream_open(struct streams *streams);
/* Runs what a stream still has to do, and frees it. */
void stream_close(struct streams *streams, struct stream *stream);
/* Queues or captures a copy of `work`. Returns 0, or -1 where there is no memory. */
int stream_queue(struct stream *stream, const struct work *work);
/* Queues a run of a graph. As above. */
int stream_queue_graph(struct stream *stream, const struct graph *graph);
/* Ends the capture of all its streams. False where one of them but `origin` has work that no event has joined. */
bool stream_end_capture(struct stream *origin);
/* Notes that a stream waits for an event. True where it has waited for the same work before. */
bool stream_has_followed(struct stream *stream, const struct event *event);
/* Writes a line to the trace, if there is one. */
void streams_trace(const struct streams *streams, int priority, const char *what, unsigned long number);
/* Frees a graph and its work, which has run; NULL is allowed. */
void graph_free(struct graph *graph);
/* Starts the thread, unless it runs. */
void streams_start_helper(struct streams *streams);
/* Ends it, without the driver's lock. */
void streams_end_helper(struct streams *streams);
/* Runs work in random order until a stream is empty (NULL: until all are), or until an event's records have run. */
void streams_run(struct streams *streams, const struct stream *until_empty, const struct event *until_done);
