/* Zeroes gradients before the first micro batch of a step. Linears overwrite the gradients of their weights then, so
 * only the others are zeroed. A table on the device lists them, so each chunk takes one call. */
#include "model-internal.h"

#include <stdlib.h>

/* True when a parameter belongs to the chunk's layers or ends. */
static bool is_of_chunk(const struct model *model, const struct model_chunk *chunk, int id) {
    int64_t layer = model->table.rows[id].layer, end = chunk->first + chunk->count;
    bool is_before = layer < 0 && chunk_has_embedding(model, chunk),
         is_after = layer == end && chunk_has_head(model, chunk);
    return is_before || is_after || (layer >= chunk->first && layer < end);
}

static bool is_cleared(const struct model *model, const struct model_chunk *chunk, int id) {
    return param_trains(&model->store, id) && !model->table.rows[id].is_linear && is_of_chunk(model, chunk, id);
}

/* Adds a chunk's ranges after the first `count`; returns the new number. */
static int add_ranges(const struct model *model, const struct model_chunk *chunk, struct flat_range *ranges,
                      int count) {
    const struct param_store *store = &model->store;
    for (int i = 0; i < model->table.count; i++)
        if (is_cleared(model, chunk, i)) {
            const struct flat_range *last = count ? &ranges[count - 1] : NULL;
            ranges[count++] = (struct flat_range){.before = last ? last->before + last->count : 0,
                                                  .count = param_local_elements(store, i),
                                                  .first = param_gradient(store, i) - model->cleared.x};
        }
    return count;
}

size_t model_cleared_bytes(const struct model *model) {
    bool are_whole = model->store.has_gradients && !param_cuts_gradients(&model->store);
    return are_whole ? (size_t)model->table.count * sizeof *model->cleared.ranges : 0;
}

int model_upload_cleared(struct model *model) {
    const struct model_options *o = &model->options;
    struct stream *stream = model->rank->exec.stream;
    int blocks, count = 0;
    const struct param_range *gradients = param_ranges(&model->store, PARAM_GRADIENTS, &blocks);
    if (!model->cleared.ranges || !blocks)
        return STATUS_OK;
    model->cleared.x = gradients[0].data;
    struct flat_range *ranges = calloc((size_t)model->table.count, sizeof *ranges);
    TRY(status_allocated(ranges));
    for (int c = 0; c < o->chunk_count; c++)
        model->cleared.end[c] = count = add_ranges(model, &o->chunks[c], ranges, count);
    int status = stream_copy_to_device(stream, model->cleared.ranges, ranges, (size_t)count * sizeof *ranges);
    THEN(status, stream_wait(stream));
    free(ranges);
    return status;
}

/* Returns the elements of the chunk's ranges, for planning. */
static int64_t count_elements(const struct model *model, const struct model_chunk *chunk) {
    int64_t elements = 0;
    for (int i = 0; i < model->table.count; i++)
        if (is_cleared(model, chunk, i))
            elements += param_local_elements(&model->store, i);
    return elements;
}

int chunk_clear_gradients(const struct model *model, const struct model_chunk *chunk) {
    const struct model_cleared *cleared = &model->cleared;
    struct rank *rank = model->rank;
    int64_t c = chunk - model->options.chunks, first = c ? cleared->end[c - 1] : 0;
    if (rank->is_planning ? !model->store.has_gradients : !cleared->ranges)
        return STATUS_OK;
    struct zero_ranges call = {.ranges = cleared->ranges + first,
                               .range_count = cleared->end[c] - first,
                               .x = cleared->x,
                               .elements = rank->is_planning ? count_elements(model, chunk) : 0};
    return rank_run(rank, PHASE_REST, zero_ranges, &call);
}
