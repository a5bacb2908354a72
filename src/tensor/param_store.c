/* The values of a table on one device: opening, loans, gradients, ranges, and initial values. */
#include "loans-internal.h"

#include <assert.h>

/* ---- opening ---- */

/* Notes how each parameter of the part is encoded. */
static int describe_encodings(struct param_store *store, const struct param_encodings *encodings) {
    const struct param_table *table = store->map.table;
    struct param_rect rects[PARAM_MAX_SLICES];
    store->layouts = calloc((size_t)table->count + 1, sizeof *store->layouts);
    TRY(status_allocated(store->layouts));
    for (int i = 0; i < table->count; i++) {
        int count = param_part_rects(&store->map.part, table, i, rects);
        if (count && encodings->describe(encodings->context, &table->rows[i], rects, count, &store->layouts[i]))
            store->map.places[i].encoded = &store->layouts[i];
    }
    return STATUS_OK;
}

int param_store_sketch(struct param_store *store, const struct param_store_options *options) {
    *store = (struct param_store){.device = options->device,
                                  .ops = ops_for(options->device),
                                  .storage = options->storage ? options->storage : &storage_whole,
                                  .sharing = options->sharing,
                                  .has_gradients = options->has_gradients};
    struct param_place *places = malloc((size_t)options->table->count * sizeof *places);
    TRY(status_allocated(places));
    param_map_make(&store->map,
                   &(const struct param_map_options){.table = options->table,
                                                     .part = options->part,
                                                     .type = options->dtype,
                                                     .layer_shards = options->layer_shards},
                   places);
    if (options->encodings)
        TRY(describe_encodings(store, options->encodings));
    return loans_open(&store->loans, options->table);
}

size_t param_weight_bytes(const struct param_store *store) {
    return store->storage->bytes(store, PARAM_WEIGHTS);
}

size_t param_gradient_bytes(const struct param_store *store) {
    return store->storage->bytes(store, PARAM_GRADIENTS);
}

int param_store_open(struct param_store *store, const struct param_fill *fill) {
    return store->storage->open(store, fill);
}

void param_store_close(struct param_store *store) {
    loans_close(store->loans);
    if (store->storage)
        store->storage->close(store);
    free(store->map.places);
    free(store->layouts);
    *store = (struct param_store){0};
}

int storage_fill(struct param_store *store, const struct param_fill *fill, int id) {
    int status = fill->fill(fill->context, id);
    loans_check(store->loans, "it was filled in");
    return status;
}

/* ---- units ---- */

int param_unshard(const struct param_store *store, int unit, enum param_use use) {
    return store->storage->unshard ? store->storage->unshard(store, unit, use) : STATUS_OK;
}

int param_reshard(const struct param_store *store, int unit) {
    return store->storage->reshard ? store->storage->reshard(store, unit) : STATUS_OK;
}

int param_reshard_after(const struct param_store *store, int unit, int status) {
    int resharded = param_reshard(store, unit);
    return status ? status : resharded;
}

void param_forget_units(const struct param_store *store) {
    if (store->storage->forget)
        store->storage->forget(store);
}

/* ---- loans ---- */

struct matrix_view storage_plain_view(const struct param_store *store, int id, const void *weights) {
    const struct param_place *place = &store->map.places[id];
    const char *data = (const char *)weights + place->offset * (int64_t)dtype_bytes(place->type);
    return matrix_plain(place->type, data, place->shape[0], place->shape[1]);
}

struct matrix_view param_borrow(const struct param_store *store, int id) {
    loans_lend(store->loans, id, false);
    return store->storage->borrow(store, id, PARAM_PLAIN);
}

struct matrix_view param_borrow_linear(const struct param_store *store, int id) {
    loans_lend(store->loans, id, false);
    return store->storage->borrow(store, id, PARAM_LINEAR);
}

struct matrix_view param_borrow_rows(const struct param_store *store, int id) {
    loans_lend(store->loans, id, false);
    return store->storage->borrow(store, id, PARAM_ROWS);
}

struct matrix_view param_view(const struct param_store *store, int id, enum param_form form) {
    struct param_store sketch = *store;
    sketch.held = NULL;
    struct matrix_view view = store->storage->borrow(&sketch, id, form);
    view.data = NULL;
    return view;
}

void *param_borrow_to_write(struct param_store *store, int id) {
    loans_lend(store->loans, id, true);
    return (void *)(uintptr_t)store->storage->borrow(store, id, PARAM_WRITTEN).data;
}

void param_return(const struct param_store *store, int id) {
    if (store->storage->give_back)
        store->storage->give_back(store, id);
    loans_return(store->loans, id);
}

void param_set_travelling(const struct param_store *store, int64_t first, int64_t count, bool travels) {
    for (int i = 0; i < store->map.table->count; i++)
        if (param_local_elements(store, i) && store->map.places[i].offset >= first &&
            store->map.places[i].offset < first + count)
            loans_travel(store->loans, i, travels);
}

void param_set_absent(const struct param_store *store, int unit, bool is_absent) {
    if (store->loans)
        loans_set_absent(store->loans, unit, is_absent);
}

void param_check_returned(const struct param_store *store, const char *after) {
    loans_check(store->loans, after);
}

/* ---- ranges and gradients ---- */

const struct param_range *param_ranges(const struct param_store *store, enum param_array array, int *count) {
    return store->storage->ranges(store, array, count);
}

struct param_range param_range_between(const struct param_store *store, enum param_array array, int64_t first,
                                       int64_t count) {
    int ranges, i = 0;
    const struct param_range *range = param_ranges(store, array, &ranges);
    while (i + 1 < ranges && range[i + 1].first <= first)
        i++;
    assert(ranges && first >= range[i].first && first + count <= range[i].first + range[i].count);
    return param_range_cut(&range[i], first, count);
}

struct param_range param_range_within(const struct param_store *store, enum param_array array, int64_t first,
                                      int64_t count) {
    int ranges;
    const struct param_range *range = param_ranges(store, array, &ranges);
    if (!range)
        return (struct param_range){.first = first, .count = count};
    for (int i = 0; i < ranges; i++) {
        int64_t from = first > range[i].first ? first : range[i].first;
        int64_t end = first + count, range_end = range[i].first + range[i].count;
        end = end < range_end ? end : range_end;
        if (from < end)
            return param_range_cut(&range[i], from, end - from);
    }
    return (struct param_range){.first = first};
}

bool param_trains(const struct param_store *store, int id) {
    return store->has_gradients && store->map.table->rows[id].is_trainable && param_local_elements(store, id) > 0;
}

bool param_cuts_gradients(const struct param_store *store) {
    return store->has_gradients && store->storage->begin_gradients;
}

int param_begin_gradients(const struct param_store *store, int unit) {
    return param_cuts_gradients(store) ? store->storage->begin_gradients(store, unit) : STATUS_OK;
}

int param_end_gradients(const struct param_store *store, int unit) {
    return param_cuts_gradients(store) ? store->storage->end_gradients(store, unit) : STATUS_OK;
}

int param_settle_gradients(const struct param_store *store) {
    return param_cuts_gradients(store) ? store->storage->settle_gradients(store) : STATUS_OK;
}

float *param_gradient(const struct param_store *store, int id) {
    if (!store->held || !param_trains(store, id))
        return NULL;
    if (param_cuts_gradients(store))
        return store->storage->gradient(store, id);
    return param_range_between(store, PARAM_GRADIENTS, store->map.places[id].offset, param_local_elements(store, id))
        .data;
}

int param_clear_gradients(const struct param_store *store, struct stream *stream) {
    int count, status = STATUS_OK;
    const struct param_range *ranges = param_ranges(store, PARAM_GRADIENTS, &count);
    for (int i = 0; i < count && !status; i++)
        status = stream_zero(stream, ranges[i].data, (size_t)ranges[i].count * sizeof(float));
    return status;
}

/* ---- initial values ---- */

enum { INITIAL_CHUNK = 1 << 20 };

/* Writes the initial values of a run; its `first` counts in the whole parameter. `values` has room for a chunk of it in
 * both types. */
static int initialise_run(struct stream *stream, const struct param *row, uint64_t seed, const struct param_range *run,
                          float *values) {
    enum dtype type = run->type;
    size_t width = dtype_bytes(type);
    int status = STATUS_OK;
    for (int64_t done = 0; done < run->count && !status; done += INITIAL_CHUNK) {
        int64_t part = run->count - done < INITIAL_CHUNK ? run->count - done : INITIAL_CHUNK;
        param_initial_values(row, seed, run->first + done, part, values);
        uint16_t *rounded = (uint16_t *)(values + part);
        for (int64_t j = 0; j < part && type == DTYPE_BF16; j++)
            rounded[j] = bf16_from_float(values[j]);
        const void *source = type == DTYPE_BF16 ? (const void *)rounded : values;
        status = stream_copy_to_device(stream, (char *)run->data + (size_t)done * width, source, (size_t)part * width);
        THEN(status, stream_wait(stream));
    }
    return status;
}

/* The elements of a parameter to write: those that the ranges have, or all of a loan where there are no ranges. */
struct written {
    struct param_store *store;
    int id;
    bool is_lent;
    struct param_range loan;
    struct stream *stream;
    uint64_t seed;
    void *values; /* host: room in both types for a chunk, or for the parameter if that is less */
};

static void begin_writing(struct written *written) {
    struct param_store *store = written->store;
    int ranges, id = written->id;
    param_ranges(store, PARAM_WEIGHTS, &ranges);
    written->is_lent = !ranges;
    if (written->is_lent)
        written->loan = (struct param_range){.first = store->map.places[id].offset,
                                             .count = param_local_elements(store, id),
                                             .data = param_borrow_to_write(store, id),
                                             .type = store->map.places[id].type};
}

/* Writes the initial values of elements [first, first + count) of the whole parameter, which start at element `at` of
 * this rank's part. */
static int initialise_part(const struct written *written, int64_t first, int64_t at, int64_t count) {
    const struct param_store *store = written->store;
    int64_t start = store->map.places[written->id].offset + at;
    struct param_range run = written->is_lent ? param_range_cut(&written->loan, start, count)
                                              : param_range_within(store, PARAM_WEIGHTS, start, count);
    run.first = first + run.first - start;
    return initialise_run(written->stream, &store->map.table->rows[written->id], written->seed, &run, written->values);
}

int param_initialise(struct param_store *store, struct stream *stream, uint64_t seed, int id) {
    const struct param *row = &store->map.table->rows[id];
    struct written written = {.store = store, .id = id, .stream = stream, .seed = seed};
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = param_part_rects(&store->map.part, store->map.table, id, rects);
    begin_writing(&written);
    size_t most =
        (size_t)(param_local_elements(store, id) < INITIAL_CHUNK ? param_local_elements(store, id) : INITIAL_CHUNK);
    int status = device_host_alloc(store->device, most * (sizeof(float) + sizeof(uint16_t)), &written.values);
    for (int r = 0; r < count && !status; r++) {
        bool is_whole = rects[r].columns == row->shape[1];
        int64_t runs = is_whole ? 1 : rects[r].rows, length = rects[r].columns * (is_whole ? rects[r].rows : 1);
        int64_t first = rects[r].row * row->shape[1] + rects[r].column, at = rects[r].local_row * rects[r].columns;
        for (int64_t j = 0; j < runs && !status; j++)
            status = initialise_part(&written, first + j * row->shape[1], at + j * length, length);
    }
    device_host_free(store->device, written.values);
    if (written.is_lent)
        param_return(store, id);
    return status;
}

int param_store_initialise(struct param_store *store, struct stream *stream, uint64_t seed) {
    int status = STATUS_OK;
    for (int i = 0; i < store->map.table->count && !status; i++)
        status = param_initialise(store, stream, seed, i);
    return status;
}
