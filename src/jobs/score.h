/* The job of `score`: the log-probability of each token of the texts of a file, as JSON lines on standard output. */
#ifndef CAMBIUM_JOBS_SCORE_H
#define CAMBIUM_JOBS_SCORE_H

#include "adapter_names.h"
#include "model.h"

struct score_job {
    const struct job_model *model;
    const struct adapter_names *names;
    const char *input; /* JSON lines, perhaps packed by gzip; - is standard input */
};

/* As a rank of `world`, which aborts where it fails (comm_fail); `job` is a struct score_job. A line that cannot be
 * scored ends the run after the lines before it: STATUS_INVALID, with file and line. */
int score_job_run(struct comm *world, void *job);

#endif
