/* A file that ranks as processes write together, through MPI-IO.
 *
 * All ranks of the group make the same calls. Pieces of different ranks do not overlap. Unlike a collective, a call may
 * fail only on one rank: the calls of the other ranks succeed, and all call comm_agree afterwards. */
#pragma once

#include "comm/comm.h"

struct comm_file;

/* Returns true if this group has such files. Ranks of one process write without them. */
bool comm_has_files(const struct comm *comm);
/* Opens an existing file to write in it. The caller closes it. STATUS_IO; STATUS_MEMORY. */
int comm_file_open(struct comm *comm, const char *path, struct comm_file **file);
/* Writes `count` bytes of this rank at byte `at`; 0 bytes are allowed. STATUS_IO, also for a full disk;
 * STATUS_UNSUPPORTED for more bytes than MPI writes in one call. */
int comm_file_write(struct comm_file *file, int64_t at, const void *bytes, int64_t count);
/* Flushes the file to the disk, closes it and frees it. STATUS_IO. */
int comm_file_close(struct comm_file *file);
