/* Programs that a benchmark starts, watches and ends: this one as a server, and others. */
#ifndef CAMBIUM_BENCH_PROCESS_H
#define CAMBIUM_BENCH_PROCESS_H

#include "base/base.h"

#include <stdbool.h>
#include <stdint.h>

struct program;

/* Starts words[0] (found along the PATH) with its words, NULL at the end. Its standard output can be read; what it says
 * on standard error is kept. It dies with this process. A program that is not there ends at once, which program_end
 * tells. */
int program_start(const char *const *words, struct program **program);
/* The next line of standard output, without its end; NULL: there is none. It lives until the next call. */
const char *program_line(struct program *program);
/* What it has said on standard error so far; at most the first part of it. */
int program_errors(struct program *program, struct strbuf *text);
int program_id(const struct program *program);
/* The most memory that it has had so far, bytes; 0: not known. */
int64_t program_peak(const struct program *program);
/* Waits for its end, behind SIGTERM where `is_told`: its exit status, 127 where there is no such program, or 128 and
 * the signal. */
int program_end(struct program *program, bool is_told);
/* Kills what still runs. NULL is allowed. */
void program_close(struct program *program);

/* Seconds of the processor that threads of a process took so far: of those named "rank N" for rank N, all others for
 * rank 0. STATUS_IO where the system does not tell. */
int program_read_ranks(int id, double *seconds, int ranks);

#endif
