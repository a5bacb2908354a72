/* Tinker's API below /api/v1 (client 0.38.0): sessions, training runs, samplers, and futures of what they do.
 *
 * A request of a training run or a sampler is answered with the number of a future, and its result is fetched. Each
 * request has a number (seq_id): a repeated one is the same request, and requests of a run are done in order of these.
 * The runs train through tuning.h, and samples take the path of all completions (call.h).
 *
 *     tinker_data.c    messages with data, and the samples of a pass
 *     tinker_answer.c  answers in protobuf
 *     tinker.c         sessions; the end of what is silent
 *     tinker_future.c  futures
 *     tinker_run.c     training runs: order, asks, results
 *     tinker_save.c    what runs save, load and publish
 *     tinker_files.c   directories of saved weights: RUN/weights/NAME and RUN/sampler_weights/NAME
 *     tinker_sampler.c samplers
 *     tinker_sample.c  samples
 *     tinker_rest.c    lists of what is on disk
 *     tinker_start.c   opening it in a server; the options of runs
 *
 * The loop's thread owns everything; a worker reads and writes files. Objects belong to the key that made them. */
#pragma once

#include "server.h"

struct tinker;
struct tinker_shape;
struct tinker_described;
struct tuning_run_options;

struct tinker_options {
    struct server *server;
    const char *root;         /* directory of runs */
    const char *tokenizer_id; /* what clients open with transformers; NULL: the model's name */
    struct worker *worker;    /* for files; its owner stops it */
    /* Makes the options of a run with this shape whose longest text has `longest` tokens. On the worker. The errors of
     * finetune's options. tinker_described ends it. */
    int (*describe)(const struct server *server, const struct tinker_shape *shape, int64_t longest,
                    struct tinker_described **made);
    double hold_seconds;    /* for which the fetch of a future waits */
    double silence_seconds; /* after which a session ends that sends no heartbeat */
    double keep_seconds;    /* for which a result stays after it was fetched */
};

/* The modules that train in a run, and how. */
struct tinker_shape {
    int64_t rank, seed;
    bool trains_head, trains_mlp, trains_attention;
};
enum { TINKER_ALPHA = 32, TINKER_MOST_RANK = 512 };

/* The options of a run, with all that they point to. */
struct tinker_described {
    struct tuning_run_options *options;
    void (*free)(struct tinker_described *described);
};

/* Opens the API of a server with --tuning-root, after its jobs. `tokenizer_id` as in the options. STATUS_MEMORY,
 * STATUS_IO. */
int tinker_start(struct server *server, const char *tokenizer_id);
/* Opens the API. STATUS_MEMORY, STATUS_IO. */
int tinker_open(const struct tinker_options *options, struct tinker **tinker);
/* Ends sessions that are silent, holds that are over, and results that were fetched. Called regularly. */
void tinker_tick(struct tinker *tinker);
/* Ends all sessions: their runs are closed. */
void tinker_stop(struct tinker *tinker);
/* True when no ask and no file is under way. NULL is allowed. */
bool tinker_is_idle(const struct tinker *tinker);
/* Frees everything. NULL is allowed. */
void tinker_close(struct tinker *tinker);
