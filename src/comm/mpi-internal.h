/* The host channel `mpi`: a rank's state of a group. Compiled only with MPI. */
#pragma once

#include "comm-internal.h"

#include <mpi.h>

/* The maximum number of windows of a group under way at once: while one is summed, the next ones travel. Many short
 * pieces use a link better than few long ones. At 1 Gbit/s between two ranks, 8 pieces of 128 KiB reach 0.97 of a
 * socket's speed, and 2 of 512 KiB reach 0.77. */
enum { MPI_WINDOWS = 8 };

/* Elements [first, first + count) of a collective that are under way; for a reduce-scatter, these of every rank's part.
 */
struct mpi_window {
    struct comm_request *request;
    int64_t first, count;
    bool is_spreading; /* in an all-reduce: ranks send their sums to each other */
    bool is_done;
    char *scratch;      /* [size - 1][piece_bytes]: contributions of the other ranks */
    MPI_Request *moves; /* [2 * size]; the first move_count are in use */
    int move_count;
};

/* A rank's side of a group. All ranks start collectives in one order, and windows begin in this order, but each rank
 * begins them at its own time. MPI needs one order of calls per communicator, so there are two. `calls` is used when a
 * call is started, and for messages and files. `work` is used when a window begins. */
struct mpi_comm {
    struct comm base;
    struct mpi_process *process;
    struct mpi_comm *next; /* in the process's list */
    MPI_Comm calls, work;
    bool is_world;
    struct watch *watch;                  /* the world's, or NULL */
    int *world_rank;                      /* [size] */
    struct comm_request *oldest, *newest; /* started collectives that are not done */
    struct comm_request *unbegun;         /* the first of them with windows that have not begun */
    struct comm_request *messages;        /* started messages that have not arrived */
    int started;                          /* collectives that are not done */
    int failure;                          /* the status of the first call that failed under way; 0: none */
    char failure_text[COMM_TEXT_BYTES * 4];
    bool is_mismatch; /* the ranks' next collectives differ */

    struct mpi_window windows[MPI_WINDOWS]; /* a ring of window_most */
    int window_first, window_count, window_most;
    size_t piece_bytes;  /* bytes of a sum that one rank sends at once; a multiple of 64 */
    const void **source; /* [size] */
};

/* ---- mpi_calls.c: the lock of MPI, and the thread that advances calls ---- */

/* All calls of MPI are made under one lock. The ranks' threads make them, and one thread of this channel, which
 * advances started calls while no rank waits for them. A process initialises MPI once, so there is one of these, which
 * the world owns. */
struct mpi_process;
/* Starts the thread. STATUS_MEMORY, STATUS_IO. */
int mpi_process_open(struct mpi_process **process);
/* Ends the thread, and frees the struct. All groups but the world are closed. */
void mpi_process_close(struct mpi_process *process);
/* Takes the lock. */
void mpi_enter(struct mpi_process *process);
/* Releases the lock. */
void mpi_leave(struct mpi_process *process);
/* Like mpi_enter, but returns without the lock if another thread does not release it within a second. */
void mpi_enter_soon(struct mpi_process *process);
/* Adds a group, whose calls are advanced from now on. Under the lock. */
void mpi_process_add(struct mpi_process *process, struct mpi_comm *comm);
/* Removes a group. Under the lock. */
void mpi_process_remove(struct mpi_comm *comm);

/* ---- mpi_calls.c: calls ---- */

/* Returns true if a started call of the group is not done. */
static inline bool mpi_is_busy(const struct mpi_comm *comm) {
    return comm->oldest || comm->messages;
}

/* As the members of struct comm_host_channel. */
int mpi_start(struct comm *comm, struct comm_request *request);
int mpi_finish(struct comm *comm, struct comm_request *request);
int mpi_await(struct comm *comm, int from);

/* ---- mpi_windows.c ---- */

/* Returns the status of an MPI call's return code: STATUS_OK, or STATUS_IO with MPI's text after `what`. */
int mpi_status(const struct mpi_comm *comm, int code, const char *what);
/* Returns MPI's type for elements, which is an unsigned integer of their size. */
MPI_Datatype mpi_type(enum dtype dtype);
/* Begins the next window of comm->unbegun, on which all ranks have agreed. A window of the ring is free. STATUS_IO. */
int mpi_window_begin(struct mpi_comm *comm);
/* Advances all windows. *has_moved is set to true if any window made progress. When a request's last window is done,
 * request->finished equals its count. STATUS_IO. */
int mpi_windows_advance(struct mpi_comm *comm, bool *has_moved);

/* Returns true if the group is one of this channel. */
bool comm_is_mpi(const struct comm *comm);
