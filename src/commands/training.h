/* The end of `pretrain` and `finetune`: the memory plan, and the run where it fits. */
#pragma once

#include "launch.h"

#include "planner/cluster.h"
#include "train/train.h"

/* The cluster for which a dry run plans, in place of this machine. */
struct training_target {
    const char *cluster;    /* NULL: this machine */
    int64_t nodes, devices; /* one of them is given */
};
#define TRAINING_TARGET_ROWS(at)                                                                                       \
    ROW_TEXT("cluster", (at) + offsetof(struct training_target, cluster), "NAME|FILE",                                 \
             "of --dry-run: plan for this cluster ('cambium plan show --help'); data and weights need not exist"),     \
        ROW_INT("nodes", (at) + offsetof(struct training_target, nodes), NULL, 1, 1 << 16, "of --cluster: its nodes"), \
        ROW_INT("devices", (at) + offsetof(struct training_target, devices), NULL, 1, 1 << 20,                         \
                "of --cluster: its devices, in place of --nodes")
/* Rows of both commands. The values' offsets are `at`, and `target` of a struct training_target. */
#define TRAINING_CONFIG_ROW(at)                                                                                        \
    ROW_PATH("config", (at), "FILE.yaml", "read the run's keys from this file first", .may_differ = true)
#define TRAINING_RANKS_ROW(at)                                                                                         \
    RANKS_ROW((at), "ranks to train on, as threads of this process; 1 when not given, and under mpirun or srun "       \
                    "theirs")
#define TRAINING_DRY_RUN_ROWS(at, target)                                                                              \
    ROW_BOOL("dry-run", (at), "false",                                                                                 \
             "print the resolved configuration and the memory plan of the largest rank, then exit"),                   \
        TRAINING_TARGET_ROWS(target)
/* Opens the cluster of a dry run, and resolves `config` for a plan without data and weights. `model`: a directory of
 * which config.json is read; NULL: the configuration has the model. *run keeps the configuration's checkpoints. The
 * errors of cluster_open and pretrained_open_config. */
int training_prepare_elsewhere(const struct training_target *target, struct run_config *config, const char *model,
                               struct train_run *run, struct cluster *cluster, int *ranks);
/* Refuses --nodes and --devices without --cluster, and --cluster without a dry run. STATUS_USAGE. */
int training_check_target(const struct training_target *target, bool is_dry_run);

struct training {
    const struct train_run *run; /* prepared */
    int ranks;
    bool is_dry_run;               /* prints the configuration and the plan, and trains nothing */
    const struct cluster *cluster; /* of a dry run whose plan is for another machine; NULL: this one */
    /* Prints the resolved configuration to standard output; an error is found by the caller, in the stream. */
    void (*dump)(const void *context);
    const void *context; /* of `dump` and `before` */
    /* Called on each rank before it opens its trainer. Returns a status; NULL: nothing is to do. */
    int (*before)(struct comm *world, const struct train_run *run, const void *context);
    /* Called on each rank after the last iteration. Returns a status; NULL: nothing is left to do. */
    int (*finish)(struct trainer *trainer, const struct train_run *run);
    /* Called on each rank when it has closed its trainer, which finished this iteration; `is_stopped`: a signal ended
     * it. The same. */
    int (*after)(struct comm *world, const struct train_run *run, int64_t iteration, bool is_stopped);
    size_t program; /* of the plan; set by training_launch */
};

/* Plans the run, prints the plan, refuses one that exceeds this host's memory (STATUS_MEMORY), and trains. All
 * processes of the launch call it. A run that was stopped before its first iteration is no failure. */
int training_launch(struct launch *launch, const struct training *training);
