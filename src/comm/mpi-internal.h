/* The MPI backend: what a rank keeps of a group. Compiled only where MPI is. */
#ifndef CAMBIUM_COMM_MPI_INTERNAL_H
#define CAMBIUM_COMM_MPI_INTERNAL_H

#include "comm-internal.h"

#include <mpi.h>

/* The most windows of a group under way at once: while one is summed the next ones travel. Many short pieces keep a
 * link busier than few long ones: at 1 Gbit/s between two ranks, 8 of 128 KiB reach 0.97 of what a socket does, 2 of
 * 512 KiB 0.77. */
enum { MPI_WINDOWS = 8 };

/* Elements [first, first + count) of a collective on their way; of a reduce-scatter, these of every rank's part. */
struct mpi_window {
    struct comm_request *request;
    int64_t first, count;
    bool is_spreading; /* of an all-reduce: this rank's sum goes to the others, and theirs come */
    bool is_done;
    char *scratch;      /* [size - 1][piece_bytes]: what the others send to be summed */
    MPI_Request *moves; /* [2 * size]; all have arrived when the first move_count have */
    int move_count;
};

/* Collectives are started in one order everywhere, and their windows begin in this order, but when they begin each rank
 * decides for itself. MPI wants one order per communicator, so there are two: `calls` has what happens when a call is
 * started (and messages, and files), `work` what happens when a window begins. */
struct mpi_comm {
    struct comm base;
    struct mpi_process *process;
    struct mpi_comm *next; /* of its groups */
    MPI_Comm calls, work;
    bool is_world;
    struct watch *watch;                  /* the world's; NULL: none */
    int *world_rank;                      /* [size] */
    struct comm_request *oldest, *newest; /* started collectives that are not done */
    struct comm_request *unbegun;         /* the first of them that still has windows to begin */
    struct comm_request *messages;        /* started messages that have not arrived */
    int started;                          /* collectives that are not done */
    int failure;                          /* the status of the first call that failed while it moved; 0: none */
    char failure_text[COMM_TEXT_BYTES * 4];
    bool is_mismatch; /* the ranks' next collectives differ */

    struct mpi_window windows[MPI_WINDOWS]; /* a ring of window_most */
    int window_first, window_count, window_most;
    size_t piece_bytes;  /* what one rank sends at once of a sum; a multiple of 64 */
    const void **source; /* [size] */
};

/* ---- mpi_progress.c: who calls MPI ---- */

/* MPI is called under one lock, by the ranks' threads and by a thread of this backend, which keeps started calls moving
 * while nobody waits for them. MPI is initialised once in a process: there is one of these, which the world owns. */
struct mpi_process;
int mpi_process_open(struct mpi_process **process);
/* All groups but the world are closed. */
void mpi_process_close(struct mpi_process *process);
void mpi_enter(struct mpi_process *process);
void mpi_leave(struct mpi_process *process);
/* The same, but gives up where another thread does not leave within a second. */
void mpi_enter_soon(struct mpi_process *process);
/* A group of this process, whose calls move from now on until it is removed. Inside the lock. */
void mpi_process_add(struct mpi_process *process, struct mpi_comm *comm);
void mpi_process_remove(struct mpi_comm *comm);
/* Moves what can move in all groups. Inside the lock. */
void mpi_process_advance(struct mpi_process *process);
/* Something was started that nobody waits for yet: the thread wakes up. Inside the lock. */
void mpi_process_wake(struct mpi_process *process);

/* ---- mpi_calls.c ---- */

/* The status of an MPI call's return code: 0, or STATUS_IO with MPI's text after `what`. */
int mpi_status(const struct mpi_comm *comm, int code, const char *what);
/* Elements travel as unsigned integers of their size. */
MPI_Datatype mpi_type(enum dtype dtype);
/* Moves what can move of the group's messages and collectives. A failure stays in the group, for who waits. */
void mpi_advance(struct mpi_comm *comm);
static inline bool mpi_is_busy(const struct mpi_comm *comm) {
    return comm->oldest || comm->messages;
}

int mpi_start(struct comm *comm, struct comm_request *request);
int mpi_finish(struct comm *comm, struct comm_request *request);
int mpi_await(struct comm *comm, int from);

/* ---- mpi_windows.c ---- */

/* Begins the next window of comm->unbegun, which all ranks have agreed on; a window of the ring is free. */
int mpi_window_begin(struct mpi_comm *comm);
/* Moves all windows; *has_moved: whether anything came of it. When a request's last window is done, request->finished
 * is its count. */
int mpi_windows_advance(struct mpi_comm *comm, bool *has_moved);

/* Whether the group is one of this backend. */
bool comm_is_mpi(const struct comm *comm);

#endif
