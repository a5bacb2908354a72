/* The MPI backend: what a rank keeps of a group. Compiled only where MPI is. */
#ifndef CAMBIUM_COMM_MPI_INTERNAL_H
#define CAMBIUM_COMM_MPI_INTERNAL_H

#include "comm-internal.h"

#include <mpi.h>

/* Collectives are started in one order everywhere, but a rank does the work of some of them only when it waits. MPI
 * wants one order per communicator, so there are two: `calls` has what happens when a call is started (and messages),
 * `work` what happens when started calls are finished, oldest first. */
struct mpi_comm {
    struct comm base;
    MPI_Comm calls, work;
    bool is_world;
    int *world_rank;                      /* [size] */
    struct comm_request *oldest, *newest; /* started collectives whose work is not done */
    int started;

    /* Of reductions: one piece a rank, in memory that is bounded whatever is reduced. */
    char *scratch;          /* [size][piece_bytes] */
    size_t piece_bytes;     /* a multiple of 64 */
    const void **source;    /* [size] */
    MPI_Request *transfers; /* [2 * size] */
    int transfer_count;
};

/* The status of an MPI call's return code: 0, or STATUS_IO with MPI's text behind `what`. */
int mpi_status(const struct mpi_comm *comm, int code, const char *what);
/* Elements travel as unsigned integers of their size. */
MPI_Datatype mpi_type(enum dtype dtype);

int mpi_all_reduce(struct mpi_comm *comm, const struct comm_call *call);
int mpi_reduce_scatter(struct mpi_comm *comm, const struct comm_call *call);

/* Whether the group is one of this backend. */
bool comm_is_mpi(const struct comm *comm);

int mpi_start(struct comm *comm, struct comm_request *request);
int mpi_finish(struct comm *comm, struct comm_request *request);

#endif
