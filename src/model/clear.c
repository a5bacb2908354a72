/* Zeroes gradients before the first micro batch of a step. Linears overwrite the gradients of their weights then, so
 * only the others are zeroed. A table on the device lists them, so each chunk takes one call. */
#include "model-internal.h"

/* True when a parameter belongs to the chunk's layers or ends. */
static bool is_of_chunk(const struct training_runner *training, const struct model_chunk *chunk, int id) {
    int64_t layer = training->run.base->table.rows[id].layer, end = chunk->first + chunk->count;
    bool is_before = layer < 0 && chunk_has_embedding(training->run.base, chunk),
         is_after = layer == end && chunk_has_head(training->run.base, chunk);
    return is_before || is_after || (layer >= chunk->first && layer < end);
}

static bool is_cleared(const struct training_runner *training, const struct model_chunk *chunk, int id) {
    return param_trains(&training->run.base->store, id) && !training->run.base->table.rows[id].is_linear &&
           is_of_chunk(training, chunk, id);
}

/* Adds a chunk's ranges after the first `count`; returns the new number. */
static int add_ranges(const struct training_runner *training, const struct model_chunk *chunk,
                      struct flat_range *ranges, int count) {
    const struct param_store *store = &training->run.base->store;
    for (int i = 0; i < training->run.base->table.count; i++)
        if (is_cleared(training, chunk, i)) {
            const struct flat_range *last = count ? &ranges[count - 1] : NULL;
            ranges[count++] = (struct flat_range){.before = last ? last->before + last->count : 0,
                                                  .count = param_local_elements(store, i),
                                                  .first = param_gradient(store, i) - training->cleared.x};
        }
    return count;
}

size_t model_cleared_bytes(const struct training_runner *training) {
    bool are_whole = training->run.base->store.has_gradients && !param_cuts_gradients(&training->run.base->store);
    return are_whole ? (size_t)training->run.base->table.count * sizeof *training->cleared.ranges : 0;
}

int model_upload_cleared(struct training_runner *training) {
    const struct base_options *o = &training->run.base->options;
    struct stream *stream = training->run.rank->exec.stream;
    int blocks, count = 0;
    const struct param_range *gradients = param_ranges(&training->run.base->store, PARAM_GRADIENTS, &blocks);
    if (!training->cleared.ranges || !blocks)
        return STATUS_OK;
    training->cleared.x = gradients[0].data;
    struct flat_range *ranges = calloc((size_t)training->run.base->table.count, sizeof *ranges);
    TRY(status_allocated(ranges));
    for (int c = 0; c < o->chunk_count; c++)
        training->cleared.end[c] = count = add_ranges(training, &o->chunks[c], ranges, count);
    int status = stream_copy_to_device(stream, training->cleared.ranges, ranges, (size_t)count * sizeof *ranges);
    THEN(status, stream_wait(stream));
    free(ranges);
    return status;
}

/* Returns the elements of the chunk's ranges, for planning. */
static int64_t count_elements(const struct training_runner *training, const struct model_chunk *chunk) {
    int64_t elements = 0;
    for (int i = 0; i < training->run.base->table.count; i++)
        if (is_cleared(training, chunk, i))
            elements += param_local_elements(&training->run.base->store, i);
    return elements;
}

int chunk_clear_gradients(const struct training_runner *training, const struct model_chunk *chunk) {
    const struct model_cleared *cleared = &training->cleared;
    const struct base *base = training->run.base;
    struct rank *rank = training->run.rank;
    int64_t c = chunk - base->options.chunks, first = c ? cleared->end[c - 1] : 0;
    if (rank->is_planning ? !base->store.has_gradients : !cleared->ranges)
        return STATUS_OK;
    struct zero_ranges call = {.ranges = cleared->ranges + first,
                               .range_count = cleared->end[c] - first,
                               .x = cleared->x,
                               .elements = rank->is_planning ? count_elements(training, chunk) : 0};
    return rank_run(rank, PHASE_REST, zero_ranges, &call);
}
