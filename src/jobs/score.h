/* The job of `score`: writes the log-probability of each token of a file's texts as JSON lines to standard output. */
#pragma once

#include "adapter_names.h"
#include "model.h"

struct score_job {
    const struct job_model *model;
    const struct adapter_names *names;
    const char *input;  /* JSON lines, plain or compressed by gzip; - is standard input */
    int special_tokens; /* enum special_tokens, of texts */
};

/* Runs the job as a rank of `world`; `job` is a struct score_job. A failure aborts all ranks (comm_fail). A line that
 * cannot be scored ends the run after the lines before it: STATUS_INVALID, with file and line. */
int score_job_run(struct comm *world, void *job);
