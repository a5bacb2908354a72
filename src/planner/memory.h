/* The memory of a training run on a cluster: the plan of the stage that takes most of a device.
 *
 * For this program it is the trainer's own plan (train/plan.h), to the byte. For the stack of 2022 it is the formula of
 * arXiv 2205.05198 with 18 bytes a parameter. */
#pragma once

#include "planner/cost.h"

struct plan_memory {
    int stage; /* that takes most */
    size_t weights, gradients, optimizer, activations, workspace;
    size_t device, host; /* the sum of these five; the host's bytes of that rank */
};

/* Plans all stages of a resolved run on `ranks` devices. It ends early once a stage takes more than `limit` bytes,
 * which is then in *memory; 0: no limit. STATUS_USAGE for an impossible layout, and the errors of train_plan_rank. */
int memory_find(const struct train_run *run, int ranks, const struct cost_work *work, const struct cluster *cluster,
                double limit, struct plan_memory *memory);
/* Plans one stage of such a run. Errors as memory_find. */
int memory_stage(const struct train_run *run, int ranks, const struct cost_work *work, const struct cluster *cluster,
                 int stage, struct plan_memory *memory);
/* Returns bytes that the first stage takes at least, from the work of the run's units: a quick bound. */
double memory_least(const struct train_run *run, const struct rank_grid *grid, const struct pipeline_shape *shape,
                    const struct cost_work *work);
/* Returns the bytes of weights, gradients and optimizer that a layer takes at least on one of `data` data ranks. */
double memory_layer_state(const struct cost_work *work, enum sharding sharding, int data);
/* Returns the bytes that a layer of the stack of 2022 keeps of a micro batch: table 2 of arXiv 2205.05198. */
double memory_layer_2022(const struct run_config *run);
