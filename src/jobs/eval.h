/* The job of `eval`: runs tasks (tasks/tasks.h) on a model, prints a table of their metrics, and writes files. */
#pragma once

#include "model.h"

#include "tasks/tasks.h"

/* A task and the file of its rows. */
struct eval_task {
    const struct task *task;
    const char *path; /* JSON lines, plain or compressed by gzip */
};

/* Makes tasks[list->count] of items NAME=FILE. STATUS_USAGE names a wrong one. */
int eval_tasks_read(const struct config_list *list, struct eval_task *tasks);

struct eval_job {
    const struct job_model *model; /* max_model_len: tokens that the model sees at once */
    const struct eval_task *tasks; /* [task_count] */
    int64_t task_count;
    int special_tokens;        /* enum special_tokens, of all texts */
    int64_t limit;             /* rows of each task; 0: all */
    int64_t shots;             /* examples before each row */
    const char *shots_path;    /* their rows; NULL: the task's */
    int64_t shots_seed;        /* they are drawn as lm_eval does; -1: they are the first rows */
    struct config_list until;  /* texts that end a completion */
    int64_t max_gen_toks;      /* tokens of a completion, at most; 0: 256, or half of what the model sees */
    const char *chat_template; /* a name or a file; "auto": the model's */
    const char *output;        /* JSON of the metrics; NULL: none */
    const char *samples;       /* JSON lines, one for each request; NULL: none */
    const char *version;       /* of the program, for the output */
    int signal;                /* result on the first rank: the signal that interrupted the run; 0: none */
};

/* Runs the job as a rank of `world`; `job` is a struct eval_job. A failure aborts all ranks (comm_fail). A row that
 * cannot be evaluated ends the run: STATUS_INVALID, with file, line and field. Call it between stop_watch_begin and
 * stop_watch_end (stop.h): a signal ends the run after the rows under way, whose results are printed and written. */
int eval_job_run(struct comm *world, void *job);
