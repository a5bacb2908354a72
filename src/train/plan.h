/* The memory plan of a run, made before anything is allocated: what each purpose takes at a rank, what all ranks of
 * this host take together, and the refusal of more than there is. A plan allocates nothing of what it counts. */
#ifndef CAMBIUM_TRAIN_PLAN_H
#define CAMBIUM_TRAIN_PLAN_H

#include "base/memory.h"
#include "comm/comm.h"
#include "data/data.h"
#include "parallel/grid.h"

#include <stdio.h>

struct train_run;

/* Bytes by the memory that they stand in. */
struct train_bytes {
    size_t device, host;
};

/* Bytes of memory that a rank of a run takes, by purpose. */
struct train_plan {
    int ranks; /* of the run */
    struct rank_grid grid, place;
    struct train_bytes here; /* what all ranks of this host take together */
    int ranks_here;
    size_t device_memory;  /* of the rank's device; 0: its memory is the host's */
    size_t most_on_device; /* bytes of the rank that takes most of its device */
    size_t weights, gradients, optimizer, activations, workspace; /* the device's */
    size_t data, checkpoint;                                      /* the host's */
    struct gpt_data_bytes of_data; /* a part of `data`, whole for each rank, and once among those that share it */
    int64_t parameters, trainable_parameters;
    int threads;                 /* of the first rank of this process */
    char cores[80];              /* why it has as many */
    double flops_per_token;      /* of what trains: a frozen base counts 4 operations a weight, not 6 */
    double head_flops_per_token; /* of these; only of tokens whose loss counts */
};

/* Plans every rank of the run: *plan is that of the rank that takes most (the first of several), with the sum of this
 * host. Refuses layouts that cannot be, opens the datasets' files to see that they are there, and writes nothing.
 * `world`: the processes that will be the ranks, all of which call this; NULL: the ranks will be threads of this one.
 */
int train_plan_make(const struct train_run *run, int ranks, struct comm *world, struct train_plan *plan);
/* Bytes of all purposes, by memory and together. */
struct train_bytes train_plan_bytes(const struct train_plan *plan);
size_t train_plan_total(const struct train_plan *plan);
/* The bytes that all ranks of this host take of its memory: all bytes, where devices have no memory of their own. */
size_t train_plan_of_host(const struct train_plan *plan);
/* A line each, after `prefix`. */
void train_plan_print(const struct train_plan *plan, const char *prefix, FILE *out);
/* Refuses (STATUS_MEMORY) a plan that takes more of the host's memory than the limit, or more than a device has. The
 * message names the options that would help. */
int train_plan_check(const struct train_run *run, const struct train_plan *plan, const struct memory_limit *limit);

#endif
