/* Stands in for mpi.c in a build without MPI. */
#include "comm-internal.h"

int comm_mpi_open(struct comm **comm) {
    *comm = NULL;
    return status_fail(STATUS_UNSUPPORTED, "started as one of several ranks, but this build has no MPI: install "
                                           "libopenmpi-dev and build again, or start one process");
}
