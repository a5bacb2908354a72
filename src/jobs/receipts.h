/* Writes receipts of adapters, and replays them for commands that run no engine. */
#pragma once

#include "model.h"

#include "peft/receipt.h"
#include "train/train.h"

struct receipts_job {
    const struct job_model *model; /* without adapters */
    char **directories;            /* [count] of single adapters; those with a receipt keep it */
    size_t count;
    bool replays;  /* replays receipts by model->receipts, instead of writing them */
    bool may_lack; /* an adapter that leaves golden texts no positions gets a warning, and no receipt */
};
/* Computes the receipt of each directory with the model, and writes or replays it. `context`: a struct receipts_job.
 * All ranks call it together. Errors of job_model_open, engine_image_load, engine_make_receipt and engine_replay;
 * STATUS_IO. */
int receipts_job_run(struct comm *world, void *context);
/* Writes the receipts of a run into the adapters below its output: the last, the best, and those of its checkpoints.
 * The run may have been stopped by a signal; another one ends the writing. All ranks of the run call it together, after
 * they closed their trainers. Errors of receipts_job_run. */
int receipts_add(struct comm *world, const struct train_run *run);
/* True when the directory has a receipt. */
bool receipt_is_in(const char *directory);
/* Replays the receipts of open adapters that fit the base (peft_files_check_base), by model->receipts, each with the
 * base only, and closes the base again. With a `run`, its base runs on its tensor ranks and in its precision; `run`
 * NULL: `model` has the base. All ranks call it together. Errors of receipts_job_run: STATUS_INVALID for an adapter
 * that is refused. */
int receipts_replay(struct comm *world, const struct train_run *run, const struct job_model *model,
                    const struct peft_files *files);

/* Makes the receipts of a run's saves. The caller sets the first members, and closes it after the run. */
struct receipts_maker {
    const struct train_run *run;
    const struct peft_config *configs; /* [count] of the stack that trains */
    int count;
    /* On the first rank, since the first save: */
    struct device *host;
    struct rank host_rank;
    json_t *base;                              /* of receipt_describe_base */
    struct receipt_text golden[RECEIPT_TEXTS]; /* with the base's numbers */
};
/* Returns the seal for the run's tuner. A save whose texts do not fit into the trainer's batches, or whose forward is
 * another (FP8), gets none; receipts_add writes it later. */
struct tuner_seal receipts_seal(struct receipts_maker *maker);
void receipts_maker_close(struct receipts_maker *maker);
