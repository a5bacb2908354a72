/* The time of a training step on a cluster, from the program's own lists of work.
 *
 * Small models of the same layers give the work of a layer, of the embedding and of the head (parallel/work.h). A
 * product takes its FLOPs, at a rate that falls with its smallest dimension. Other operations take their bytes.
 * Messages take bytes, latency and link. A layer takes at least a floor. Then the schedules of all stages are walked
 * (walk.h), gradients are summed, and weights are updated.
 *
 * Ranks that differ only in their tensor or data place count as one. The model sees no stragglers, no heat, and no
 * other jobs on the network. */
#pragma once

#include "planner/cluster.h"
#include "planner/walk.h"

#include "parallel/work.h"
#include "train/train.h"

/* Seconds by their cause. The floor is the part of a layer's minimum time that its work does not fill. */
struct cost_seconds {
    double products, other, tensor, floor;
};

/* A stage's units. A layer follows the run's `selective`, or recomputes all of its activations. */
enum cost_unit { COST_LAYER, COST_LAYER_AGAIN, COST_EMBEDDING, COST_HEAD, COST_UNITS };

/* Stages of small models: cost_work.c. */
enum cost_list { COST_FIRST, COST_FIRST_MORE, COST_LAST, COST_AGAIN, COST_AGAIN_MORE, COST_LISTS };

/* The work of the units for one micro batch at one tensor rank. It depends on the model, tensor ranks, micro batch,
 * sequence parallelism, precision and selective recomputation only, so that many layouts share it. */
struct cost_work {
    struct work_list lists[COST_LISTS];
    double layers;               /* that COST_FIRST_MORE has more than COST_FIRST */
    double elements[COST_UNITS]; /* that train */
    double weights[COST_UNITS];  /* bytes, frozen ones included */
    double kept[2];              /* bytes that a layer keeps of a micro batch: COST_LAYER, COST_LAYER_AGAIN */
    double message_bytes;        /* between stages */
    enum dtype dtype;
    int precision;        /* enum precision */
    bool drops_attention; /* attention has dropout */
    int tensor;
    int64_t seq_length;
};

/* Plans the small models of a resolved run. The caller frees *work with cost_work_free. STATUS_USAGE if the cluster has
 * no peak for the run's precision; errors of train_plan_rank. */
int cost_work_make(const struct train_run *run, const struct cluster *cluster, struct cost_work *work);
void cost_work_free(struct cost_work *work);

/* Returns how many of a chunk's layers a configuration recomputes. */
int64_t cost_recomputed_layers(const struct run_config *config, int64_t layers);

/* A link of a device in one direction. */
struct cost_link {
    double bandwidth, latency;
};
/* Returns the seconds of a collective of `ranks` ranks in a ring that moves `passes` (2 for an all-reduce, else 1)
 * times `bytes`, the whole operand of a rank. */
double cost_ring(double bytes, int ranks, double passes, struct cost_link link);

/* A predicted step. */
struct cost_step {
    double seconds;
    /* The parts below add up to `seconds`. They are those of the stage that ends last: its own work, messages between
     * stages, and the bubble. `gradients` has the sums and gathers that nothing hides. */
    struct cost_seconds work;
    double stages, bubble, gradients, optimizer;
    int stage;
};

/* Predicts a step of a resolved run on `ranks` devices; `work` is that of the run. `walk`, if not NULL, receives the
 * schedule in time, and the caller frees it; without it, step->bubble includes step->stages. STATUS_USAGE for an
 * impossible layout, STATUS_MEMORY. */
int cost_step(const struct train_run *run, int ranks, const struct cost_work *work, const struct cluster *cluster,
              struct cost_step *step, struct walk *walk);
/* Stores seconds that a step takes at least: the work of the busiest stage. Errors as cost_step. */
int cost_least(const struct train_run *run, int ranks, const struct cost_work *work, const struct cluster *cluster,
               double *seconds);
