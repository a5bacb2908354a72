/* Shared by saving and loading: the optimizer's state as arrays of a checkpoint. */
#pragma once

#include "train-internal.h"

/* ---- arrays.c ---- */

/* Returns one of the arrays without values, for planning. */
struct ckpt_array optimizer_array_describe(int index);

/* ---- fp8.c ---- */

/* The file of FP8 scales and histories. */
struct fp8_part {
    struct param_table table; /* the caller frees it */
    struct ckpt_flat flat;
    struct ckpt_array array;
    struct ckpt_part part;
};
bool train_has_fp8(const struct train_run *run);
/* Describes the file, without values. STATUS_MEMORY. */
int train_fp8_describe(const struct train_run *run, struct fp8_part *part);
/* Gives the described file the values of this rank. */
void train_fp8_open(struct trainer *trainer, struct fp8_part *part);
/* Loads the values of the run's checkpoint, if it has some; without them, histories are empty. */
int train_fp8_load(struct trainer *trainer);

/* Returns the rank that owns the elements of which this rank's data group has copies. */
int train_first_copy(const struct rank *rank);
