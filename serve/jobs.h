/* Tuning by OpenAI's API: files that clients upload, and jobs that tune adapters on them beside the serving.
 *
 * Everything lies below --tuning-root and survives the process. Each directory and file appears whole, by a rename:
 *
 *     files/ID/{file.json,rows.jsonl}
 *     jobs/ID/job.json                OpenAI's object of the job, its finetune command line, and its checkpoints
 *     jobs/ID/{events.jsonl,metrics.jsonl}
 *     jobs/ID/checkpoints/step-N/     an adapter, and the optimizer's state from which a restarted job resumes
 *     jobs/ID/adapter/                the adapter of a job that has succeeded
 *
 * A job is a command line of `cambium finetune`; the command that opens the server supplies the function that prepares
 * a run from it. The engine trains by asks (tuning.h). The loop's thread owns everything; files are read and written on
 * a worker. */
#pragma once

#include "openai/tuning.h"
#include "server.h"

struct jobs;
struct train_run;
struct peft_config;
struct ckpt_text;

/* A run, prepared from words. */
struct jobs_run {
    const struct train_run *run;        /* resolved, with its rows' options and its loss */
    const struct peft_config *adapters; /* [adapter_count] */
    int adapter_count;
    const struct ckpt_text *texts; /* [text_count] */
    int text_count;
    const char *init_directory; /* of the adapter to start from; NULL: initial values */
};
/* Prepares runs as `cambium finetune` does. Not thread-safe: one thread at a time. */
struct jobs_maker {
    /* Checks words and reads the files that they name. STATUS_USAGE: the words; the other errors of finetune. */
    int (*make)(char **words, int count, struct jobs_run **run);
    void (*free)(struct jobs_run *run); /* NULL is allowed */
};

/* Reads the root, before anybody is accepted. A damaged job becomes failed. STATUS_IO, STATUS_MEMORY. */
int jobs_open(struct server *server, struct jobs **jobs);
/* Serves the models of ended jobs again, and continues the others. The loop's thread. */
void jobs_begin(struct jobs *jobs);
/* Stops the running jobs after they have saved. `is_hasty`: without waiting for a save. They resume after a restart. */
void jobs_stop(struct jobs *jobs, bool is_hasty);
/* True when no ask and no write is under way. NULL is allowed. */
bool jobs_are_idle(const struct jobs *jobs);
/* Ends the worker, when the loop still runs; then frees everything. NULL is allowed. */
void jobs_end(struct jobs *jobs);
void jobs_close(struct jobs *jobs);
/* Appends the metrics cambium:tuning_*. NULL is allowed. */
void jobs_add_metrics(const struct jobs *jobs, struct strbuf *out);
