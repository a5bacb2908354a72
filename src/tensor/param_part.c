/* The rectangles of each parameter that a rank holds. */
#include "tensor/param_part.h"

int param_part_rects(const struct param_part *part, const struct param_table *table, int id,
                     struct param_rect rects[PARAM_MAX_SLICES]) {
    const struct param *row = &table->rows[id];
    if (part->is_held && !part->is_held[id])
        return 0;
    struct param_rect whole = {.rows = row->shape[0], .columns = row->shape[1]};
    if (row->shard == PARAM_SHARD_AXIS1) {
        whole.column = param_share(row->shape[1], part->tensor, part->tensors);
        whole.columns = param_share(row->shape[1], part->tensor + 1, part->tensors) - whole.column;
    }
    if (row->shard != PARAM_SHARD_AXIS0) {
        rects[0] = whole;
        return 1;
    }
    int64_t local_row = 0;
    for (int i = 0; i < row->slice_count; i++) {
        const struct param_slice *slice = &row->slices[i];
        int sharers =
            slice->most_parts && slice->most_parts < part->tensors ? part->tensors / (int)slice->most_parts : 1;
        int64_t first = param_share(slice->rows, part->tensor / sharers, part->tensors / sharers);
        int64_t end = param_share(slice->rows, part->tensor / sharers + 1, part->tensors / sharers);
        rects[i] = whole;
        rects[i].is_shared = sharers > 1;
        rects[i].is_second = part->tensor % sharers > 0;
        rects[i].row = slice->row + first;
        rects[i].rows = end - first;
        rects[i].local_row = local_row;
        local_row += end - first;
    }
    return row->slice_count;
}

void param_part_shape(const struct param_part *part, const struct param_table *table, int id, int64_t shape[2]) {
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = param_part_rects(part, table, id, rects);
    shape[0] = shape[1] = 0;
    for (int i = 0; i < count; i++) {
        shape[0] += rects[i].rows;
        shape[1] = rects[i].columns;
    }
}
