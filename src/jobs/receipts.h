/* Writes receipts of adapters. */
#pragma once

#include "model.h"
#include "train/train.h"

struct receipts_job {
    const struct job_model *model; /* without adapters, and with receipts off */
    char **directories;            /* [count] of single adapters; those with a receipt keep it */
    size_t count;
    bool may_lack; /* an adapter that leaves golden texts no positions gets a warning, and no receipt */
};
/* Computes the receipt of each directory with the model, and writes it there. `context`: a struct receipts_job. All
 * ranks call it together. Errors of job_model_open, engine_image_load and engine_make_receipt; STATUS_IO. */
int receipts_job_run(struct comm *world, void *context);
/* Writes the receipts of a run into the adapters below its output: the last, the best, and those of its checkpoints. It
 * does nothing after a stop. All ranks of the run call it together, after they closed their trainers. Errors of
 * receipts_job_run. */
int receipts_add(struct comm *world, const struct train_run *run);
/* True when the directory has a receipt. */
bool receipt_is_in(const char *directory);
