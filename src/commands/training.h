/* The end of `pretrain` and `finetune`: the memory plan, and the run where it fits. */
#ifndef CAMBIUM_COMMANDS_TRAINING_H
#define CAMBIUM_COMMANDS_TRAINING_H

#include "launch.h"

#include "planner/cluster.h"
#include "train/train.h"

struct training {
    const struct train_run *run; /* prepared */
    int ranks;
    bool is_dry_run;               /* prints the configuration and the plan, and trains nothing */
    const struct cluster *cluster; /* of a dry run whose plan is for another machine; NULL: this one */
    /* Prints the resolved configuration to standard output; an error is found by the caller, in the stream. */
    void (*dump)(const void *context);
    const void *context; /* of `dump` */
    /* Called on each rank after the last iteration. Returns a status; NULL: nothing is left to do. */
    int (*finish)(struct trainer *trainer, const struct train_run *run);
};

/* Plans the run, prints the plan, refuses one that exceeds this host's memory (STATUS_MEMORY), and trains. All
 * processes of the launch call it. A run that was stopped before its first iteration is no failure. */
int training_launch(struct launch *launch, const struct training *training);

#endif
