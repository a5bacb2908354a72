/* What saving takes from loading: the optimizer's state as arrays of a checkpoint. */
#ifndef CAMBIUM_TRAIN_SAVE_INTERNAL_H
#define CAMBIUM_TRAIN_SAVE_INTERNAL_H

#include "train-internal.h"

struct optimizer_arrays;

/* The rank that owns what this one and others of its data group have copies of: save.c */
int train_first_copy(const struct trainer *trainer);

/* What this rank writes of the optimizer: the moments and, behind them, the master weights that a bf16 run has. The
 * arrays live until the close, also where the opening failed. resume.c */
int optimizer_arrays_open(struct trainer *trainer, struct optimizer_arrays **out, const struct ckpt_array **arrays);
void optimizer_arrays_close(struct optimizer_arrays *arrays);

#endif
