/* The layout oracle: proves on ranks of this machine's CPU that a run's layout computes what one rank computes.
 *
 * The model is shrunk, the layout is not. One rank and the layout make the same steps side by side, each from the same
 * weights. After each step every rank compares its part with the whole: outputs of layers, loss, gradients before and
 * after their sums, norm, clip factor, weights and moments. Then the run is saved and resumed in the other layout. */
#pragma once

#include "train/train.h"

enum { VERIFY_RANKS_MAX = 64, VERIFY_MICRO_BATCHES_MAX = 8 };

/* A proof, shared by the ranks of a process. */
struct verify_layout {
    struct train_run run; /* resolved; the caller owns its strings and its tuner */
    int ranks;
    int steps;
    int64_t virtual_tokens;  /* rows before each text, with ids after the vocabulary */
    int64_t first_position;  /* of a text: the length of a prefix */
    const char *directory;   /* for checkpoints, of all processes */
    struct verify_seen *one; /* what one rank computes; set by the first rank of a process */
    bool is_equal;           /* the result, on the first rank */
};

/* Checks the layout of a run, and shrinks its model and its batch unless `is_full_size`. The run then trains in fp32
 * on the CPU, at a constant rate, with few tokens. STATUS_USAGE for more than 64 ranks, and as train_plan_grid. */
int verify_shrink(struct verify_layout *job, bool is_full_size);

/* Runs the proof as one rank; `context` is the struct verify_layout of its process. The first rank prints a JSON line
 * for each kind of check, then a summary. A difference is no failure. STATUS_INTERRUPTED after a signal that is
 * watched; the errors of trainers. */
int verify_layout_run(struct comm *world, void *context);
/* Closes what the ranks of a process read until they end. Called after verify_layout_run has returned on all of them.
 */
void verify_layout_close(struct verify_layout *job);
