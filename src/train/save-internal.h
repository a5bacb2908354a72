/* Saving inside, and what it takes from loading: the optimizer's state as arrays of a checkpoint. */
#ifndef CAMBIUM_TRAIN_SAVE_INTERNAL_H
#define CAMBIUM_TRAIN_SAVE_INTERNAL_H

#include "train-internal.h"

/* ---- resume.c ---- */

enum { OPTIMIZER_ARRAYS = 3 };
struct optimizer_arrays;

/* The optimizer's arrays that this rank writes: the moments and, after them, the master weights that a bf16 run has.
 * The arrays live until the close, also where the opening failed. */
int optimizer_arrays_open(struct trainer *trainer, struct optimizer_arrays **out, const struct ckpt_array **arrays);
/* The master weights among these (in fp32: the weights) under names of their own. */
struct ckpt_array optimizer_master_array(const struct ckpt_array *arrays);
void optimizer_arrays_close(struct optimizer_arrays *arrays);
/* The store's table with the names that these tensors have in files. */
const struct param_table *train_state_table(const struct trainer *trainer);
/* One of them as planning knows it, without values. */
struct ckpt_array optimizer_array_describe(int index);

/* ---- save.c ---- */

/* The rank that owns what this one and others of its data group have copies of. */
int train_first_copy(const struct trainer *trainer);

#endif
