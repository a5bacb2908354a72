/* A file that ranks as processes write together, through MPI-IO.
 *
 * All ranks of the group make the same calls; pieces of different ranks do not overlap. Unlike in collectives, a
 * failure is one rank's alone: it is returned there, the others' calls go on, and the caller agrees with them
 * afterwards. */
#ifndef CAMBIUM_COMM_FILE_H
#define CAMBIUM_COMM_FILE_H

#include "comm/comm.h"

struct comm_file;

/* Whether this group has such files; ranks of one process write by themselves. */
bool comm_has_files(const struct comm *comm);
/* Opens a file that is there, to write in it. */
int comm_file_open(struct comm *comm, const char *path, struct comm_file **file);
/* Writes `count` bytes of this rank, which may be none, at byte `at`. */
int comm_file_write(struct comm_file *file, int64_t at, const void *bytes, int64_t count);
/* Flushes the file to the disk and closes it. */
int comm_file_close(struct comm_file *file);

#endif
