/* The job of `verify serving`: compares the log-probabilities over the whole vocabulary of the forward that trains with
 * those of the engine, bit by bit. */
#pragma once

#include "model.h"

struct verify_text {
    const int32_t *tokens; /* [count] */
    int64_t count;
};

struct verify_serving {
    const struct job_model *model; /* one stage holds it, and no data-parallel ranks */
    const char *input; /* JSON lines, plain or compressed by gzip; - is standard input; NULL: random texts */
    const struct verify_text *texts; /* [text_count] instead of `input`; NULL: none are given */
    int64_t text_count;
    const char *dump;   /* a directory that is new or empty; NULL: nothing is written */
    int special_tokens; /* enum special_tokens, of texts */
    bool is_quiet;      /* prints nothing */
    /* Results, which the first rank sets: all paths are equal; the largest difference of any, NaN where numbers are not
     * finite. */
    bool is_equal;
    double gap;
};

/* Checks that a directory for --dump is new or empty; NULL is allowed. STATUS_INVALID, STATUS_IO. */
int verify_check_dump(const char *directory);
/* Runs the job as a rank of `world`; `job` is a struct verify_serving. Prints a JSON line for each path and a summary.
 * A difference is no failure. A failure aborts all ranks (comm_fail). STATUS_INVALID for a text that the model cannot
 * see as a whole; errors of the model, the adapters and the engine. */
int verify_serving_run(struct comm *world, void *job);
