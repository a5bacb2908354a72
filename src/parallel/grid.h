/* The rank grid: the place of each rank, and the groups that it is in.
 *
 * Pure arithmetic: no communication, no device; any thread. */
#pragma once

#include "base/base.h"

/* Ranks along each axis, in Megatron's order: tensor changes fastest, then context, expert, data, pipeline. */
struct rank_grid {
    int tensor, context, expert, data, pipeline;
};

/* Returns the number of ranks. */
int rank_grid_size(const struct rank_grid *grid);
/* Returns the coordinates of a rank, 0 <= rank < size. */
struct rank_grid rank_grid_place(const struct rank_grid *grid, int rank);
/* Returns the rank at a place; the inverse of rank_grid_place. */
int rank_grid_rank(const struct rank_grid *grid, const struct rank_grid *place);

/* ---- groups ---- */

/* The axes of the grid, fastest first. The sum of several is a set of axes. */
enum grid_axis {
    GRID_TENSOR = 1,
    GRID_CONTEXT = 2,
    GRID_EXPERT = 4,
    GRID_DATA = 8,
    GRID_PIPELINE = 16,
};

/* Writes the ranks whose place differs from that of `rank` at most along `axes` to `ranks` [rank_grid_group_size], and
 * returns their number. They are in ascending order, which is that of the places, the fastest axis first.
 *
 * GRID_TENSOR: ranks that share the rank's layers. GRID_DATA | GRID_CONTEXT: ranks that sum their gradients.
 * GRID_TENSOR | GRID_PIPELINE: ranks that together hold one model. */
int rank_grid_group(const struct rank_grid *grid, unsigned axes, int rank, int *ranks);
/* Returns the number of ranks in such a group. */
int rank_grid_group_size(const struct rank_grid *grid, unsigned axes);
/* Writes the first and the last stage of the rank's pipeline, which share tied embeddings: one rank or two. Returns
 * their number; 0 if the rank itself is neither. */
int rank_grid_embedding_group(const struct rank_grid *grid, int rank, int ranks[2]);

/* Sets grid->data to `ranks` divided by the other axes' sizes. STATUS_USAGE if these do not divide it. */
int rank_grid_fill(struct rank_grid *grid, int ranks);
