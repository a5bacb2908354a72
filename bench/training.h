/* Measuring the trainer: runs over random tokens, and the threads and processes that take their steps. */
#pragma once

#include "bench.h"
#include "transformers.h"

#include "parallel/site.h"
#include "train/plan.h"
#include "train/train.h"

/* ---- runs: training.c ---- */

/* A dataset of random tokens in a new directory, which is removed with it. */
struct bench_dataset {
    char directory[BENCH_DIRECTORY_BYTES], prefix[80];
    const char *item; /* the prefix */
};
/* STATUS_IO, STATUS_MEMORY. */
int bench_dataset_open(struct bench_dataset *dataset, int64_t tokens, int64_t vocab_size);
void bench_dataset_close(struct bench_dataset *dataset);

/* Makes a run of `iterations` for the options, in their layout or that of one rank. Its strings belong to the dataset
 * and the options. */
int bench_training_run(const struct bench_options *options, bool is_one_rank, int64_t iterations,
                       struct bench_dataset *dataset, struct train_run *run);

/* Returns the number of data-parallel ranks; a global batch is a multiple of it. */
int64_t bench_data_ranks(const struct run_config *run, int ranks);

/* ---- runners: runner.c ---- */

/* The results of a run's ranks together. */
struct bench_findings {
    double *seconds; /* [steps] of each measured step */
    int64_t steps;
    double total, loss;
    struct trainer_times times;         /* per step, of the rank with the least of each */
    struct bench_ceiling before, after; /* of all ranks at once, summed */
    double phases[PHASE_COUNT];         /* seconds: the mean over the ranks */
    int64_t planned_bytes;              /* for the ranks of this process */
    size_t device_bytes;                /* taken on the first rank's device, by all programs; 0 for the CPU */
    int64_t trainable_parameters;       /* of the whole model or adapter */
    double flops_per_token;             /* a weight of a frozen base counts 4 operations, not 6 */
    struct rank_grid grid;
    char device[96];                 /* of the first rank */
    int ranks, threads;              /* threads of each rank */
    char (*cores)[SITE_CORES_BYTES]; /* [ranks] */
};

enum bench_order { ORDER_CEILING_BEFORE, ORDER_WARM_UP, ORDER_STEP, ORDER_CEILING_AFTER, ORDER_FINISH, ORDER_END };

struct bench_runner;

/* Opens trainers for `run`: `ranks` threads, or with `world` this process as one of its ranks. At most `steps` steps
 * are measured, as means of `block` steps in a row; a block ends when no communication is in progress. */
int bench_runner_open(const struct train_run *run, int ranks, struct comm *world, int64_t steps, int block,
                      struct bench_runner **runner);
/* Gives an order to all ranks and waits; a rank of a launch that fails ends the launch. */
int bench_runner_obey(struct bench_runner *runner, enum bench_order order);
/* Returns the results, complete at the first rank after ORDER_FINISH. */
struct bench_findings *bench_runner_findings(struct bench_runner *runner);
void bench_runner_close(struct bench_runner *runner);

/* Returns the trainer of a runner with one rank and no launch. */
struct trainer *bench_runner_trainer(struct bench_runner *runner);

/* ---- one run on its own: steps.c ---- */

/* The measured steps of a run: the median, and the part of each phase in it. All 0 at other ranks than the first. */
struct bench_steps {
    double seconds, phases[PHASE_COUNT];
};
/* Trains on random tokens, on threads of this process or as a rank of `world`. Two steps come before those that are
 * measured. Errors of bench_runner_open and of steps. */
int bench_take_steps(const struct train_run *run, int ranks, struct comm *world, int64_t steps,
                     struct bench_steps *out);

/* ---- contests: contest.c ---- */

/* Training steps in turn with steps of a baseline, so that other programs affect both alike. The ratio of their medians
 * is the cost of the difference. */
struct bench_contest {
    struct bench_runner *runner, *baseline; /* the baseline may be NULL */
    struct bench_transformers peer;         /* takes steps too, if it is open */
};
/* Warms up and takes `steps` steps, a line each. Afterwards the findings are complete except for
 * ORDER_CEILING_AFTER. */
int bench_contest_measure(struct bench_contest *contest, int64_t steps);
/* Opens PyTorch, if the options ask for it, with as many threads in a single process. It trains `adapter` (NULL: the
 * whole model) on rows of `tokens`. The errors of bench_transformers_open. */
int bench_contest_open_peer(struct bench_contest *contest, const struct bench_options *o, const struct run_config *run,
                            const struct peft_config *adapter, int64_t tokens);
void bench_contest_close(struct bench_contest *contest);
/* Adds the run's ranks, their cores, its global batch and its layout to a summary. */
void bench_add_layout(json_t *object, const struct run_config *run, const struct bench_findings *findings);
/* Returns the iterations that a run needs for `steps` measured steps. */
int64_t bench_contest_iterations(int64_t steps);

/* Returns the threads of one rank that has all those of the options' ranks. */
int64_t bench_baseline_threads(const struct bench_options *options);
