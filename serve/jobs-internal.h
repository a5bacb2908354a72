/* The inside of tuning by OpenAI's API, shared by its routes (files_route.c, jobs_route.c), its state on disk
 * (jobs_state.c) and its runs (jobs_run.c, jobs_save.c). The loop's thread, but for the work of errands. */
#pragma once

#include "jobs.h"
#include "loop.h"
#include "route.h"
#include "tuning.h"

#include "base/staging.h"
#include "data/tuning.h"

#include <stdarg.h>
#include <sys/queue.h>

enum { JOBS_BUCKETS = 6 };
static const double jobs_buckets[JOBS_BUCKETS] = {0.01, 0.1, 1, 10, 60, 600}; /* seconds of a step, upper ends */

enum {
    JOBS_WAITING_MOST = 64, /* queued jobs */
    JOBS_KEPT = 3,          /* checkpoints of a job */
    JOBS_FILE_MOST = 512 << 20
};

/* ---- errands: work on files, in order, on the worker ---- */

struct errand {
    struct worker_job job;
    struct jobs *jobs;
    /* On the worker. Returns a status; its text is kept. */
    int (*work)(struct errand *errand);
    /* On the loop, afterwards; it frees the errand. */
    void (*done)(struct errand *errand);
    int status;
    struct error error; /* of the status; a work that sets a case keeps it */
};
/* Sends an errand whose functions are set. */
void jobs_send(struct jobs *jobs, struct errand *errand);

/* ---- state ---- */

struct stored_file {
    TAILQ_ENTRY(stored_file) all;
    struct openai_file at;
    char owner[KEYS_NAME_BYTES + 1]; /* the name of its key; "": there are no keys */
    int64_t number;                  /* of files and jobs, in order of creation */
};

struct job_event {
    int64_t number, created;
    const char *level;
    char *message;                 /* NULL: a step: */
    struct openai_figures figures; /* of the step */
};

/* Lines that wait to be appended to a file of a job. */
struct job_log {
    struct strbuf waiting;
    bool is_writing;
};

enum job_wish { JOB_NO_WISH, JOB_CANCEL, JOB_PAUSE, JOB_STOP, JOB_FAIL };

struct job {
    TAILQ_ENTRY(job) all;
    struct jobs *jobs;
    char id[OPENAI_ID_BYTES], owner[KEYS_NAME_BYTES + 1];
    int64_t number;
    uint64_t client;
    double weight;
    json_t *object;      /* OpenAI's; its "status" is the job's */
    json_t *words;       /* of `cambium finetune` */
    json_t *checkpoints; /* OpenAI's objects, oldest first; those with files */
    struct job_event *events;
    size_t event_count, event_capacity;
    int64_t next_event;
    struct job_log event_log, metric_log;
    int64_t saved_step, saved_tokens; /* the state from which it resumes; 0: none */
    int64_t logged_step;              /* the last one with figures */
    int64_t bytes;                    /* of its directory, as far as known */
    enum job_wish wish;
    struct job_run *run;    /* while it runs */
    int64_t writes;         /* errands under way */
    struct exchange *asker; /* waits for the answer to its creation; NULL: nobody */
};
TAILQ_HEAD(job_list, job);
TAILQ_HEAD(stored_list, stored_file);

struct jobs {
    struct server *server;
    const struct serve_options *options;
    struct worker *worker;
    int lock;                 /* descriptor of the root, which no other server may use */
    struct stored_list files; /* oldest first */
    struct job_list jobs;     /* oldest first */
    int64_t bytes;            /* below the root */
    int64_t next_number;
    int64_t under_way; /* errands, asks and publications */
    bool is_stopping, has_begun;
    struct tuning_spent spent;
    int64_t steps, step_counts[JOBS_BUCKETS]; /* since the start */
    double step_seconds, memory;
};

/* Writes a path below the root. STATUS_INVALID when it is too long. */
int jobs_path(const struct jobs *jobs, char path[PATH_MAX], const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Draws an id: the prefix and 24 characters. */
void jobs_draw_id(const char *prefix, char id[OPENAI_ID_BYTES]);
int64_t jobs_now(void);
/* Returns the bytes of a directory tree. Any thread. */
int64_t jobs_tree_bytes(const char *path);
/* Checks that a request may tune, and returns false with *error. */
bool jobs_may_tune(const struct exchange *exchange, struct error *error);
/* Returns the name under which a client's objects are kept. */
const char *jobs_owner(const struct exchange *exchange);
/* Returns false with *error when `more` bytes exceed --tuning-disk, or the key's tuning_bytes. */
bool jobs_have_room(const struct exchange *exchange, int64_t more, struct error *error);
/* Return an object of this client, or NULL. */
struct stored_file *jobs_find_file(const struct exchange *exchange, const char *id);
struct job *jobs_find_job(const struct exchange *exchange, const char *id);
/* Adds a file that is on disk. NULL: no memory. */
struct stored_file *jobs_add_file(struct jobs *jobs, const struct openai_file *at, const char *owner, int64_t number);
/* Writes files/ID/file.json of a file into a directory. Any thread. */
int jobs_write_file(const char *directory, const struct stored_file *file);

/* ---- jobs_state.c ---- */

/* Reads files/ and jobs/. */
int jobs_load(struct jobs *jobs);
struct job *job_new(struct jobs *jobs);
void job_free(struct job *job);
const char *job_status(const struct job *job);
bool job_is(const struct job *job, const char *status);
bool job_has_ended(const struct job *job);
/* Sets a member of the object; takes the value. */
void job_set(struct job *job, const char *member, json_t *value);
/* Changes the status: logs a line, adds an event, and writes job.json. `message` NULL: "Job is STATUS". */
void job_change(struct job *job, const char *status, const char *level, const char *message);
/* Writes job.json. */
void job_write(struct job *job);
/* Returns the text of job.json; the caller frees it. */
int job_text(const struct job *job, char **text);
/* Adds an event, in memory and on disk. */
void job_tell(struct job *job, const char *level, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Adds a step's figures, unless they are there from before a restart. `line`: further members of metrics.jsonl. */
void job_tell_step(struct job *job, const struct openai_figures *figures, const char *line);
/* Ends the job as failed. */
void job_fail(struct job *job, const char *code, const char *param, const char *message);
void job_event_id(const struct job *job, const struct job_event *event, char id[OPENAI_ID_BYTES]);

/* ---- jobs_run.c ---- */

/* Prepares a new job, answers its asker, and queues or starts it. The job has its words. */
void job_begin(struct job *job);
/* Starts queued jobs as far as --tuning-jobs permits. */
void jobs_start(struct jobs *jobs);
/* Ends a running job in the way of the wish, as soon as it can. */
void job_wish(struct job *job, enum job_wish wish);

/* A run that is under way. */
struct job_run {
    struct errand errand; /* first */
    struct job *job;
    struct tuning_ask ask;
    struct jobs_run *made;
    struct tuning_data *data;
    struct train_source source;
    struct schedule schedule;
    struct tuning_run *run;
    struct peft_bytes start[PEFT_MAX_STACK];
    int start_count;
    struct strbuf state;
    int64_t step, total, rows, batch, epochs, tokens;
    double saved, began;                  /* times of the last save, and of the present step */
    struct openai_figures figures, last;  /* of a step that is not reported yet (step 0: none); of the last one */
    bool only_checks;                     /* to find whether a job fits, while others run */
    bool is_of_rows;                      /* `error` is about a file */
    bool is_saving;                       /* files are being written */
    void (*proceed)(struct job_run *run); /* takes the next step */
    bool waits;                           /* for them, before it does anything else */
    bool wants_save;                      /* a snapshot is next */
    bool is_validated;                    /* in this step */
    bool must_close;
    struct error error; /* of the run */
};
/* True at the last step of an epoch: epoch e ends with step ceil(rows x e / batch). */
static inline bool run_is_epoch(const struct job_run *run) {
    int64_t epoch = run->step * run->batch / run->rows;
    return run->step == run->total || (epoch > 0 && (run->rows * epoch + run->batch - 1) / run->batch == run->step);
}

/* ---- jobs_save.c ---- */

/* Writes a snapshot, then publishes it if it is a checkpoint. It calls run->proceed if the run waits. */
void run_save(struct job_run *run, struct tuning_snapshot *snapshot);
/* Serves an adapter of a directory of this job by a name: from files that are read when it is used. */
void job_serve(struct job *job, const char *name, const char *directory);
/* Writes the directory of a checkpoint's files. `step` 0: the whole job's. */
int job_directory(const struct job *job, int64_t step, char path[PATH_MAX]);
/* Removes the state from which a job resumes, when it has ended. */
void job_drop_state(struct job *job);
/* Deletes a model of the client: its name, then its files; answers when requests cannot name it. Returns false when no
 * job of the client has it. */
bool jobs_delete_model(struct exchange *exchange, const char *name);
