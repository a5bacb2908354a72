/* The usual array: ranges of a flat array on a device, in the order of a map, read and written in pieces through its
 * stream. */
#include "ckpt-internal.h"

struct ckpt_flat ckpt_flat_weights(const struct param_store *store, struct stream *stream) {
    struct ckpt_flat flat = {.map = &store->map, .stream = stream, .dtype = store->map.type};
    flat.ranges = param_ranges(store, PARAM_WEIGHTS, &flat.count);
    return flat;
}

/* Returns the range that ends after the start of a parameter and has a part of it, or NULL. */
static const struct param_range *find_range(const struct ckpt_flat *flat, int param) {
    int64_t start = flat->map->places[param].offset;
    int low = 0, high = flat->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (flat->ranges[middle].first + flat->ranges[middle].count <= start)
            low = middle + 1;
        else
            high = middle;
    }
    bool has_some = low < flat->count && flat->ranges[low].first < start + param_map_elements(flat->map, param);
    return has_some ? &flat->ranges[low] : NULL;
}

/* Adds a block whose row and column count from those of the part's `rect`, unless it is empty. */
static int add(struct ckpt_block *out, int count, const struct param_rect *rect, struct ckpt_block block) {
    if (block.rows <= 0 || block.columns <= 0)
        return count;
    block.row += rect->row;
    block.column += rect->column;
    out[count] = block;
    return count + 1;
}

/* Lists the elements that the array has of each of the part's rectangles: the end of a row, whole rows, the start of a
 * row. */
static int flat_rects(void *context, int param, struct ckpt_block *out) {
    struct ckpt_flat *flat = context;
    const struct param_map *map = flat->map;
    const struct param_range *range = find_range(flat, param);
    struct param_rect rects[PARAM_MAX_SLICES];
    int rect_count = param_part_rects(&map->part, map->table, param, rects), count = 0;
    if (!range || (flat->leaves && flat->leaves[param]))
        return 0;
    if (flat->leaves_copies && map->table->rows[param].shard == PARAM_REPLICATED && map->part.tensor > 0)
        return 0;
    for (int i = 0; i < rect_count; i++) {
        int64_t columns = rects[i].columns, size = rects[i].rows * columns;
        int64_t start = map->places[param].offset + rects[i].local_row * columns - range->first;
        int64_t first = start < 0 ? -start : 0;
        int64_t end = range->count - start < size ? range->count - start : size;
        if (first >= end || (flat->leaves_copies && rects[i].is_second))
            continue;
        int64_t whole = (first + columns - 1) / columns, whole_end = end / columns;
        if (whole > whole_end) { /* inside one row */
            count = add(
                out, count, &rects[i],
                (struct ckpt_block){
                    .param = param, .row = whole_end, .rows = 1, .column = first % columns, .columns = end - first});
            continue;
        }
        const struct ckpt_block head = {.param = param,
                                        .row = whole - 1,
                                        .rows = first % columns != 0,
                                        .column = first % columns,
                                        .columns = columns - first % columns};
        const struct ckpt_block rows = {.param = param, .row = whole, .rows = whole_end - whole, .columns = columns};
        const struct ckpt_block tail = {.param = param, .row = whole_end, .rows = 1, .columns = end % columns};
        count = add(out, count, &rects[i], head);
        count = add(out, count, &rects[i], rows);
        count = add(out, count, &rects[i], tail);
    }
    return count;
}

/* Returns the place of a block, which lies in one rectangle; *all_columns is the length of a row there. */
static char *find_block(const struct ckpt_flat *flat, const struct ckpt_block *block, int64_t *all_columns) {
    const struct param_map *map = flat->map;
    const struct param_range *range = find_range(flat, block->param);
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = param_part_rects(&map->part, map->table, block->param, rects), r = 0;
    while (r + 1 < count && block->row >= rects[r].row + rects[r].rows)
        r++;
    *all_columns = rects[r].columns;
    int64_t at = map->places[block->param].offset + (rects[r].local_row + block->row - rects[r].row) * *all_columns +
                 block->column - rects[r].column;
    return param_range_cut(range, at, block->columns).data;
}

/* Returns the bytes of a row of the block, packed. */
static size_t row_bytes(const struct ckpt_flat *flat, const struct ckpt_block *block) {
    return (size_t)block->columns * dtype_bytes(flat->dtype);
}

static int flat_queue(void *context, const struct ckpt_block *block, const struct ckpt_target *target) {
    struct ckpt_flat *flat = context;
    int64_t all_columns;
    const char *memory = find_block(flat, block, &all_columns);
    return stream_copy_rows(flat->stream,
                            &(const struct copy_call){.kind = target->kind,
                                                      .to = target->memory,
                                                      .from = memory,
                                                      .rows = (size_t)block->rows,
                                                      .bytes = row_bytes(flat, block),
                                                      .to_stride = target->stride,
                                                      .from_stride = (size_t)all_columns * dtype_bytes(flat->dtype)});
}

static int flat_get(void *context, const struct ckpt_block *block, void *values) {
    struct ckpt_flat *flat = context;
    const struct ckpt_target target = {values, row_bytes(flat, block), COPY_TO_HOST};
    int status = flat_queue(flat, block, &target);
    int waited = stream_wait(flat->stream);
    return status ? status : waited;
}

static int flat_put(void *context, const struct ckpt_block *block, const void *values) {
    struct ckpt_flat *flat = context;
    int64_t all_columns;
    char *memory = find_block(flat, block, &all_columns);
    return stream_copy_rows(flat->stream,
                            &(const struct copy_call){.kind = COPY_TO_DEVICE,
                                                      .to = memory,
                                                      .from = values,
                                                      .rows = (size_t)block->rows,
                                                      .bytes = row_bytes(flat, block),
                                                      .to_stride = (size_t)all_columns * dtype_bytes(flat->dtype),
                                                      .from_stride = row_bytes(flat, block)});
}

/* Returns host memory for whole rows. */
static void *flat_find_place(void *context, const struct ckpt_block *block) {
    struct ckpt_flat *flat = context;
    int64_t all_columns;
    char *memory = find_block(flat, block, &all_columns);
    bool is_dense = block->columns == all_columns || block->rows == 1;
    return is_dense && device_host_reads(stream_device(flat->stream)) && !stream_wait(flat->stream) ? memory : NULL;
}

struct ckpt_array ckpt_flat_array(struct ckpt_flat *flat, const char *prefix, bool only_trainable) {
    bool is_host = !flat->stream || device_host_reads(stream_device(flat->stream));
    return (struct ckpt_array){.prefix = prefix,
                               .dtype = flat->dtype,
                               .only_trainable = only_trainable,
                               .is_copy = flat->is_copy,
                               .copy_of = flat->copy_of,
                               .threads = is_host && flat->threads > 1 ? flat->threads : 1,
                               .stream = is_host ? NULL : flat->stream,
                               .rects = flat_rects,
                               .get = is_host ? flat_get : NULL,
                               .queue = is_host ? NULL : flat_queue,
                               .put = flat_put,
                               .find_place = flat_find_place,
                               .context = flat};
}
