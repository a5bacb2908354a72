/* The results of `eval` so far, which its two files share, and how they are written. */
#ifndef CAMBIUM_JOBS_EVAL_INTERNAL_H
#define CAMBIUM_JOBS_EVAL_INTERNAL_H

#include "eval.h"

#include "infer/likelihood.h"

#include <stdio.h>

/* The results of a task so far. */
struct eval_result {
    struct task_sums sums;
    int64_t requests;
    double began, ended; /* seconds of the clock: its first row was read, its last one was evaluated; 0: not yet */
};

/* A row of a round. */
struct eval_row {
    int64_t task, number; /* in the job's tasks, and in the task's rows from 0 */
    struct task_row texts;
    int64_t first, request_count; /* its requests in the round; a rolling text has one for each window */
};

/* Prints the table of the tasks that have rows to standard output. STATUS_IO. */
int eval_print(const struct eval_job *job, const struct eval_result *results);
/* Writes the metrics to the job's output, which appears whole. STATUS_IO, STATUS_MEMORY. */
int eval_write(const struct eval_job *job, const struct engine *engine, int ranks, const struct eval_result *results);
/* Writes a line for each request of a row. */
void eval_write_samples(const struct eval_job *job, const struct eval_row *row, const struct likelihood_list *requests,
                        FILE *out);

#endif
