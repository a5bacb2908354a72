/* The memory plan of a run, made before anything is allocated. It has the bytes of each purpose at one rank, and the
 * sum of all ranks on this host. A run that needs more memory than there is is refused. Planning allocates none of the
 * memory that it counts. */
#pragma once

#include "base/memory.h"
#include "comm/comm.h"
#include "data/data.h"
#include "kernels/device.h"
#include "parallel/grid.h"
#include "parallel/layout.h"
#include "parallel/schedule.h"
#include "parallel/work.h"

struct run_config;
struct train_run;

/* Bytes of device memory and of host memory. */
struct train_bytes {
    size_t device, host;
};

/* The bytes that one rank of a run takes, by purpose. */
struct train_plan {
    int ranks; /* in the run */
    struct rank_grid grid, place;
    struct train_bytes here; /* all ranks of this host together */
    int ranks_here;
    size_t device_memory;  /* of the rank's device; 0: the device uses host memory */
    size_t most_on_device; /* device bytes of the rank that takes most of them */
    size_t weights, gradients, optimizer, activations, workspace; /* of the device */
    size_t data;                                                  /* of the host */
    struct train_bytes checkpoint;
    size_t program;                /* what each process takes besides; 0 until train_plan_add_program */
    int processes_here;            /* of this host, with a program each */
    struct gpt_data_bytes of_data; /* included in `data` of each rank, but counted once for ranks that share it */
    int64_t parameters, trainable_parameters;
    int threads;                 /* of the first rank of this process; 0: the plan is of another machine */
    char cores[80];              /* the reason for this number, in words */
    char encodings[240];         /* ENCODINGS_TEXT_BYTES: of a base in few bits, in words; "": others */
    double flops_per_token;      /* of training; a weight of a frozen base counts 4 operations, not 6 */
    double head_flops_per_token; /* the part of these that only tokens have whose loss counts */
};

/* Plans every rank of the run. *plan is that of the rank that takes most (the first of several), with the sum of this
 * host. Opens the datasets' files to check that they exist; writes nothing. `world`: the processes that will be the
 * ranks, all of which call this; NULL: the ranks will be threads of this process. STATUS_USAGE for an impossible
 * layout, STATUS_MEMORY, and the errors of gpt_data_open, base_sketch and
 * training_sketch. */
int train_plan_make(const struct train_run *run, int ranks, struct comm *world, struct train_plan *plan);
/* Adds the program to a plan that was just made, before the run takes any of its memory. `world`: as in
 * train_plan_make. */
void train_plan_add_program(const struct train_run *run, const struct comm *world, struct train_plan *plan);
/* Returns how a resolved configuration splits layers over the pipeline. */
struct pipeline_split train_pipeline_split(const struct run_config *run, const struct rank_grid *grid);
/* Makes the grid of a run's ranks and the shape of its schedule. STATUS_USAGE for an impossible layout. */
int train_plan_grid(const struct train_run *run, int ranks, struct rank_grid *grid, struct pipeline_shape *shape);
/* Returns NULL if `ranks` have such a grid and schedule; else the name of what does not divide. */
const char *train_plan_obstacle(const struct train_run *run, int ranks);
/* Plans rank `number` of `ranks` on a device, which may be a sketch. Opens no files and allocates none of the memory:
 * `data` of the plan lacks the samples' index maps. `work`, if not NULL, receives the rank's work of a global batch;
 * the caller frees it (work_free). STATUS_USAGE for an impossible layout, STATUS_MEMORY, and the errors of base_sketch
 * and training_sketch.
 */
int train_plan_rank(const struct train_run *run, int ranks, int number, struct device *device, struct train_plan *plan,
                    struct work_list *work);
/* Return the bytes of all purposes of a rank: by memory, and in total. The program is not one of them. */
struct train_bytes train_plan_bytes(const struct train_plan *plan);
size_t train_plan_total(const struct train_plan *plan);
/* Returns the host memory that all ranks of this host take, with their program. It includes the device's bytes if
 * devices use host memory.
 */
size_t train_plan_of_host(const struct train_plan *plan);
/* Prints the plan in lines that start with `prefix`. */
void train_plan_print(const struct train_plan *plan, const char *prefix, FILE *out);
/* Refuses a plan that takes more host memory than the limit, or more than a device has. STATUS_MEMORY; the message
 * names the options that would help. */
int train_plan_check(const struct train_run *run, const struct train_plan *plan, const struct memory_limit *limit);
