/* The part of a parameter table that one rank holds. */
#ifndef CAMBIUM_TENSOR_PARAM_PART_H
#define CAMBIUM_TENSOR_PARAM_PART_H

#include "tensor/param_table.h"

/* One rank's part of a table. It has its share of every parameter that is cut over the tensor ranks, and all of the
 * others. The slices of a fused weight are cut each by itself. A stage of the pipeline has its own parameters alone. */
struct param_part {
    int tensor, tensors; /* the number of this tensor rank, and of all */
    const bool *is_held; /* [table count] of this stage; NULL: every parameter */
    const bool *is_copy; /* [table count] of which another stage has the original (tied embeddings); NULL: none */
};
static inline bool param_part_is_copy(const struct param_part *part, int id) {
    return part->is_copy && part->is_copy[id];
}

/* A rectangle of a parameter that a part holds: rows [row, row + rows) and columns [column, column + columns) of the
 * whole parameter. In the part these are rows [local_row, local_row + rows) and all columns. */
struct param_rect {
    int64_t row, rows, column, columns, local_row;
    bool is_shared; /* the next tensor ranks, or those before, hold it as well: each makes a part of its gradient */
    bool is_second; /* of these this rank is not the first, which counts it and writes it */
};

/* The start of share `index` of `count` in `total`. Shares differ by one at most when `count` does not divide. */
static inline int64_t param_share(int64_t total, int index, int count) {
    return total * index / count;
}
/* The rectangles that a rank holds of parameter `id`: their number, 0 when the stage does not hold it. */
int param_part_rects(const struct param_part *part, const struct param_table *table, int id,
                     struct param_rect rects[PARAM_MAX_SLICES]);
/* The shape of the parameter on this rank; {0, 0} when it is not held. */
void param_part_shape(const struct param_part *part, const struct param_table *table, int id, int64_t shape[2]);

#endif
