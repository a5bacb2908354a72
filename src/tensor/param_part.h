/* The part of a parameter table that one rank holds. */
#pragma once

#include "tensor/param_table.h"

/* One rank's part of a table: its share of every parameter that is cut over the tensor ranks, and all of the others.
 * Each slice of a fused weight is cut by itself. A stage of the pipeline holds its own parameters only. */
struct param_part {
    int tensor, tensors; /* this tensor rank's number; number of tensor ranks */
    const bool *is_held; /* [table count] true: this stage holds the parameter; NULL: it holds all */
    const bool *is_copy; /* [table count] true: another stage has the original (tied embeddings); NULL: no copies */
};
/* Returns true if another stage has the parameter's original. */
static inline bool param_part_is_copy(const struct param_part *part, int id) {
    return part->is_copy && part->is_copy[id];
}

/* A rectangle of a parameter that a part holds: rows [row, row + rows) and columns [column, column + columns) of the
 * whole parameter. In the part, it is rows [local_row, local_row + rows) and all columns. */
struct param_rect {
    int64_t row, rows, column, columns, local_row;
    bool is_shared; /* neighbouring tensor ranks hold it, too: each computes a part of its gradient */
    bool is_second; /* another of these ranks comes first, and counts and writes it */
};

/* Returns the start of share `index` of `count` in `total`. If `count` does not divide `total`, shares differ by at
 * most one. */
static inline int64_t param_share(int64_t total, int index, int count) {
    return total * index / count;
}
/* Writes the rectangles that a rank holds of parameter `id`. Returns their number; 0 if the stage does not hold it. */
int param_part_rects(const struct param_part *part, const struct param_table *table, int id,
                     struct param_rect rects[PARAM_MAX_SLICES]);
/* Writes the shape of the parameter on this rank; {0, 0} if the rank does not hold it. */
void param_part_shape(const struct param_part *part, const struct param_table *table, int id, int64_t shape[2]);
