/* A run on a base that another owns and lends: of an engine, which serves meanwhile. It adds a runner, a tuner,
 * gradients and an optimizer; place, device, stream and groups are those of the lender's rank. */
#pragma once

#include "train/plan.h"
#include "train/stepper.h"

struct lent_run {
    struct train_run run;      /* set by the caller: tuner, loss, config; its model is the base's */
    const char *recomputed[2]; /* of run.config: modules */
    struct rank rank;
    const struct rank *lender; /* whose workspace it uses, if that is large enough */
    struct train_model model;
    struct train_plan plan;
    struct stepper stepper;
};

/* Plans `lent` on a base and its rank, which outlive it; lent->plan has the bytes. Takes no memory but for sketches.
 * Errors of train_plan_make. The caller closes it, even after a failure. */
int lent_run_sketch(struct lent_run *lent, struct base *base, const struct rank *rank);
/* Takes the memory, and sets initial values. All tensor ranks call it together. STATUS_MEMORY, the device's errors and
 * those of the tuner. */
int lent_run_open(struct lent_run *lent);
void lent_run_close(struct lent_run *lent);
