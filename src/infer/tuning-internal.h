/* A tuning run on one rank. */
#pragma once

#include "engine-internal.h"
#include "infer/tuner.h"
#include "infer/tuning.h"
#include "train/lent.h"

enum tuning_task {
    TUNING_TASK_OPEN,
    TUNING_TASK_PASS,
    TUNING_TASK_UPDATE,
    TUNING_TASK_SLICE,
    TUNING_TASK_END,
    TUNING_TASK_SNAPSHOT,
    TUNING_TASK_CLOSE
};

/* A run's options as ranks send them: `config` has no pointers. */
struct tuning_opening {
    struct run_config config;
    int64_t loss; /* row of loss_table */
    struct loss_options loss_options;
    int64_t adapter_count, start_count, state_bytes;
};

struct tuning_run {
    struct engine *engine;
    int number;
    struct tuning_opening opening;
    struct peft_config configs[PEFT_MAX_STACK];
    struct peft_bytes start[PEFT_MAX_STACK]; /* while it opens */
    const void *state;
    const struct ckpt_text *texts; /* the leader's */
    int text_count;
    struct tuner_adapters adapters;
    struct tuner tuner;
    struct lent_run lent;
    size_t bytes; /* in engine_shared.tuned; 0: not yet */
    /* The pass or update under way; `pass` and `update` are copies, whose results the leader hands on. */
    struct slice slice;
    bool is_under_way, is_update;
    struct tuning_pass pass, *given_pass;
    struct tuning_update update, *given_update;
    struct train_source source; /* reads on the leader, and sends to the others */
    bool has_begun;             /* there are gradients to add to */
    double weight, service;     /* the leader's: of its turns */
};

/* tuning_ranks.c: the leader's data on all ranks. They return STATUS_OK at once where no rank follows. */
int tuning_share(const struct engine *engine, void *data, size_t bytes);
/* Returns the first failure of any rank. */
int tuning_agree(const struct engine *engine, int status);
/* Sends the opening, its configurations and its files. A follower's run owns its copies. */
int tuning_share_opening(struct tuning_run *run);
void tuning_free_opening(struct tuning_run *run);
/* Sends a batch that the leader has read with `status`. */
int tuning_share_batch(const struct engine *engine, struct gpt_batch *batch, int status);

/* tuning_files.c */
/* Takes a snapshot together with all ranks; only the leader's stays. */
int tuning_make_snapshot(struct tuning_run *run, struct tuning_snapshot *snapshot);
/* Adds receipts to the files of the leader's snapshot, which needs `base`. */
int tuning_add_receipts(struct tuning_run *run, struct tuning_snapshot *snapshot);
/* Loads the values of run->start, and the optimizer's of run->state. */
int tuning_load(struct tuning_run *run);
