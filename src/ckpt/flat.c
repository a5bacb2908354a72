/* The usual array: a flat block on a device in the order of a store, read and written in pieces through its stream. */
#include "ckpt-internal.h"

static int64_t end_of(const struct ckpt_flat *flat) {
    return flat->count ? flat->first + flat->count : flat->store->flat_elements;
}

/* Adds the rectangle of rows [row, row + rows) and columns [column, column + columns) of the part's `rect`. */
static int add(struct ckpt_block *out, int count, int param, const struct param_rect *rect, int64_t row, int64_t rows,
               int64_t column, int64_t columns) {
    if (rows <= 0 || columns <= 0)
        return count;
    out[count] = (struct ckpt_block){
        .param = param, .row = rect->row + row, .rows = rows, .column = rect->column + column, .columns = columns};
    return count + 1;
}

/* Of each rectangle of the part the elements that the array has: the end of a row, whole rows, the start of a row. */
static int flat_rects(void *context, int param, struct ckpt_block *out) {
    struct ckpt_flat *flat = context;
    const struct param_store *store = flat->store;
    struct param_rect rects[PARAM_MAX_SLICES];
    int rect_count = param_part_rects(&store->part, store->table, param, rects), count = 0;
    if (flat->leaves && flat->leaves[param])
        return 0;
    if (flat->leaves_copies && store->table->rows[param].shard == PARAM_REPLICATED && store->part.tensor > 0)
        return 0;
    for (int i = 0; i < rect_count; i++) {
        int64_t columns = rects[i].columns, size = rects[i].rows * columns;
        int64_t start = store->offset[param] + rects[i].local_row * columns;
        int64_t first = flat->first > start ? flat->first - start : 0;
        int64_t end = end_of(flat) - start < size ? end_of(flat) - start : size;
        if (first >= end)
            continue;
        int64_t whole = (first + columns - 1) / columns, whole_end = end / columns;
        if (whole > whole_end) { /* inside one row */
            count = add(out, count, param, &rects[i], whole_end, 1, first % columns, end - first);
            continue;
        }
        count = add(out, count, param, &rects[i], whole - 1, first % columns != 0, first % columns,
                    columns - first % columns);
        count = add(out, count, param, &rects[i], whole, whole_end - whole, 0, columns);
        count = add(out, count, param, &rects[i], whole_end, end % columns != 0, 0, end % columns);
    }
    return count;
}

/* Calls copy() for each run of the block that is contiguous in the flat array. The block lies in one rectangle. */
static int copy_runs(struct ckpt_flat *flat, const struct ckpt_block *block, char *values,
                     int (*copy)(struct stream *, char *memory, char *values, size_t bytes)) {
    const struct param_store *store = flat->store;
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = param_part_rects(&store->part, store->table, block->param, rects), r = 0;
    while (r + 1 < count && block->row >= rects[r].row + rects[r].rows)
        r++;
    int64_t width = (int64_t)dtype_bytes(flat->dtype), all_columns = rects[r].columns;
    int64_t runs = block->rows, run = block->columns;
    if (run == all_columns) {
        run *= runs;
        runs = 1;
    }
    int64_t at = store->offset[block->param] - flat->first +
                 (rects[r].local_row + block->row - rects[r].row) * all_columns + block->column - rects[r].column;
    int status = STATUS_OK;
    for (int64_t i = 0; i < runs && !status; i++)
        status = copy(flat->stream, (char *)flat->memory + (at + i * all_columns) * width, values + i * run * width,
                      (size_t)(run * width));
    int waited = stream_wait(flat->stream);
    return status ? status : waited;
}

static int copy_out(struct stream *stream, char *memory, char *values, size_t bytes) {
    return stream_copy_to_host(stream, values, memory, bytes);
}

static int copy_in(struct stream *stream, char *memory, char *values, size_t bytes) {
    return stream_copy_to_device(stream, memory, values, bytes);
}

static int flat_get(void *context, const struct ckpt_block *block, void *values) {
    return copy_runs(context, block, values, copy_out);
}

static int flat_put(void *context, const struct ckpt_block *block, const void *values) {
    return copy_runs(context, block, (char *)values, copy_in);
}

struct ckpt_array ckpt_flat_array(struct ckpt_flat *flat, const char *prefix, bool only_trainable) {
    return (struct ckpt_array){.prefix = prefix,
                               .dtype = flat->dtype,
                               .only_trainable = only_trainable,
                               .is_copy = flat->is_copy,
                               .copy_of = flat->copy_of,
                               .threads = flat->threads,
                               .rects = flat_rects,
                               .get = flat_get,
                               .put = flat_put,
                               .context = flat};
}
