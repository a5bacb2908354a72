/* Programs that a benchmark starts, watches and ends: this one as a server, and others. */
#pragma once

#include "base/base.h"

struct program;

/* Starts words[0] (found along the PATH) with its words, NULL-terminated. Its standard output can be read; its standard
 * error is kept. It dies with this process. A program that does not exist ends at once, which program_end reports.
 * STATUS_IO, STATUS_MEMORY. */
int program_start(const char *const *words, struct program **program);
/* Returns the next line of standard output, without its end, valid until the next call; NULL: there is none. */
const char *program_line(struct program *program);
/* Copies its standard error so far, at most the first part. STATUS_MEMORY. */
int program_errors(struct program *program, struct strbuf *text);
/* Returns its process id. */
int program_id(const struct program *program);
/* Returns its peak memory so far in bytes; 0: not known. */
int64_t program_peak(const struct program *program);
/* Waits for its end, after sending SIGTERM if `terminates`. Returns its exit status, 127 when there is no such program,
 * or 128 plus the signal. */
int program_end(struct program *program, bool terminates);
/* Kills it if it still runs. NULL is allowed. */
void program_close(struct program *program);

/* Reads the processor time of a process's threads so far, in seconds: threads named "rank N" count for rank N, all
 * others for rank 0. STATUS_IO when the system does not say. */
int program_read_ranks(int id, double *seconds, int ranks);
