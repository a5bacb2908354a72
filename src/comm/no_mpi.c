/* Replaces mpi*.c in a build without MPI. */
#include "comm-internal.h"
#include "comm/comm_file.h"

bool comm_has_files(const struct comm *comm) {
    return false;
}

static int no_files(void) {
    return status_fail(STATUS_UNSUPPORTED, "this build has no MPI-IO");
}

int comm_file_open(struct comm *comm, const char *path, struct comm_file **file) {
    *file = NULL;
    return no_files();
}

int comm_file_write(struct comm_file *file, int64_t at, const void *bytes, int64_t count) {
    return no_files();
}

int comm_file_close(struct comm_file *file) {
    return no_files();
}

int comm_mpi_open(struct comm **comm) {
    *comm = NULL;
    return status_fail(STATUS_UNSUPPORTED, "started as one of several ranks, but this build has no MPI: install "
                                           "libopenmpi-dev and build again, or start one process");
}
