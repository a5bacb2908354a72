/* Measuring the trainer: runs of it over random tokens, and who takes their steps. */
#ifndef CAMBIUM_BENCH_TRAINING_H
#define CAMBIUM_BENCH_TRAINING_H

#include "bench.h"
#include "transformers.h"

#include "parallel/site.h"
#include "train/plan.h"
#include "train/train.h"

/* ---- runs: training.c ---- */

/* A dataset of random tokens in a directory of its own that goes with it. */
struct bench_dataset {
    char directory[BENCH_DIRECTORY_BYTES], prefix[80];
    const char *item; /* the prefix */
};
int bench_dataset_open(struct bench_dataset *dataset, int64_t tokens, int64_t vocab_size);
void bench_dataset_close(struct bench_dataset *dataset);

/* The run of so many iterations that the options ask for, in their layout or that of one rank. Its strings are the
 * dataset's and the options'. */
int bench_training_run(const struct bench_options *options, bool is_one_rank, int64_t iterations,
                       struct bench_dataset *dataset, struct train_run *run);

/* The ranks that have data of their own: what a global batch is a multiple of. */
int64_t bench_data_ranks(const struct run_config *run, int ranks);

/* ---- runners: runner.c ---- */

/* What the ranks of a run found together. */
struct bench_findings {
    double *seconds; /* [steps] of each measured step */
    int64_t steps;
    double total, loss;
    struct trainer_times times;         /* a step, of the rank for which each was least */
    struct bench_ceiling before, after; /* of all ranks at once, summed */
    double phases[PHASE_COUNT];         /* seconds: the mean of the ranks */
    int64_t planned_bytes;              /* of the ranks of this process */
    struct rank_grid grid;
    char device[96];                 /* of the first rank */
    int ranks, threads;              /* threads of each rank */
    char (*cores)[SITE_CORES_BYTES]; /* [ranks] */
};

enum bench_order { ORDER_CEILING_BEFORE, ORDER_WARM_UP, ORDER_STEP, ORDER_CEILING_AFTER, ORDER_FINISH, ORDER_END };

struct bench_runner;

/* Opens trainers for `run`: of `ranks` threads, or where `world` is given of this process as one of its ranks. At most
 * `steps` steps are measured, as the means of `block` steps in a row; of several they end when nothing travels. */
int bench_runner_open(const struct train_run *run, int ranks, struct comm *world, int64_t steps, int block,
                      struct bench_runner **runner);
/* Does it on all ranks and waits; a rank of a launch that fails ends the launch. */
int bench_runner_obey(struct bench_runner *runner, enum bench_order order);
/* Complete at the first rank after ORDER_FINISH. */
struct bench_findings *bench_runner_findings(struct bench_runner *runner);
void bench_runner_close(struct bench_runner *runner);

/* Of a runner of one rank without a launch. */
struct trainer *bench_runner_trainer(struct bench_runner *runner);

/* ---- contests: contest.c ---- */

/* Training steps, and in turn with each of them one of a baseline, so that what the machine does to one it does to the
 * other: the ratio of their medians says what the difference costs. */
struct bench_contest {
    struct bench_runner *runner, *baseline; /* the baseline may be NULL */
    struct bench_transformers peer;         /* takes steps as well, where it is open */
};
/* Warms up and takes so many steps, a line each. Afterwards the findings are complete but for ORDER_CEILING_AFTER. */
int bench_contest_measure(struct bench_contest *contest, int64_t steps);
void bench_contest_close(struct bench_contest *contest);
/* Iterations that a run needs for so many measured steps. */
int64_t bench_contest_iterations(int64_t steps);

/* Threads of one rank that has all those of the options' ranks. */
int64_t bench_baseline_threads(const struct bench_options *options);

#endif
