/* The values of a table on one device: flat arrays in the table's order, packed copies for inference. */
#include "loans-internal.h"

#include <stdlib.h>

size_t param_weight_bytes(const struct param_store *store) {
    return (size_t)store->map.flat_elements * dtype_bytes(store->dtype);
}

size_t param_gradient_bytes(const struct param_store *store) {
    return store->has_gradients ? (size_t)store->map.flat_elements * sizeof(float) : 0;
}

int param_store_sketch(struct param_store *store, const struct param_store_options *options) {
    *store = (struct param_store){.device = options->device,
                                  .ops = ops_for(options->device),
                                  .dtype = options->dtype,
                                  .has_gradients = options->has_gradients,
                                  .will_pack = options->will_pack};
    struct param_place *places = malloc((size_t)options->table->count * sizeof *places);
    if (!places)
        return status_fail(STATUS_MEMORY, "out of memory");
    param_map_make(&store->map,
                   &(const struct param_map_options){.table = options->table,
                                                     .part = options->part,
                                                     .type = options->dtype,
                                                     .layer_shards = options->layer_shards},
                   places);
    return loans_open(&store->loans, options->table);
}

int param_store_open(struct param_store *store) {
    /* Gaps are summed and sent, too. */
    int status = device_alloc_zeroed(store->device, param_weight_bytes(store), &store->weights);
    if (!status && store->has_gradients) {
        void *gradients;
        status = device_alloc_zeroed(store->device, param_gradient_bytes(store), &gradients);
        store->gradients = gradients;
    }
    return status ? status_wrap(status, "weights and gradients") : STATUS_OK;
}

void param_store_close(struct param_store *store) {
    loans_close(store->loans);
    if (store->device) {
        device_free(store->device, store->weights);
        device_free(store->device, store->gradients);
        device_free(store->device, store->packed);
    }
    free(store->views);
    free(store->map.places);
    *store = (struct param_store){0};
}

static struct weight_view plain_view(const struct param_store *store, int id) {
    return (struct weight_view){.type = store->dtype,
                                .layout = WEIGHT_PLAIN,
                                .data = (const char *)store->weights +
                                        store->map.places[id].offset * (int64_t)dtype_bytes(store->dtype),
                                .rows = store->map.places[id].shape[0],
                                .cols = store->map.places[id].shape[1]};
}

/* What a parameter takes in the packed block: its packed form, or a plain copy where the backend keeps plain ones. The
 * token embedding of a tied model stands there twice: plain for the gather, packed for the head. */
static size_t packed_bytes(const struct param_store *store, int id, bool *is_packed, bool *is_kept) {
    const struct param *row = &store->map.table->rows[id];
    struct weight_view view = plain_view(store, id);
    bool is_held = param_local_elements(store, id) > 0;
    size_t bytes = row->is_linear && is_held ? store->ops->packed_bytes(store->device, &view) : 0;
    *is_packed = bytes > 0;
    *is_kept = is_held && (!row->is_linear || !*is_packed || row->is_embedding);
    return bytes;
}

static size_t aligned(size_t bytes) {
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

size_t param_packed_bytes(const struct param_store *store) {
    size_t total = 0;
    bool is_packed, is_kept;
    for (int i = 0; i < store->map.table->count; i++) {
        total += aligned(packed_bytes(store, i, &is_packed, &is_kept));
        if (is_kept)
            total += aligned((size_t)param_local_elements(store, i) * dtype_bytes(store->dtype));
    }
    return total;
}

/* A parameter, and the bytes of its plain values where they are held only until they are packed. */
struct packing {
    int id;
    size_t stage;
};

static int compare_packing(const void *a, const void *b) {
    const struct packing *x = a, *y = b;
    return x->stage != y->stage ? (x->stage < y->stage) - (x->stage > y->stage) : x->id - y->id;
}

static size_t plain_bytes(const struct param_store *store, int id) {
    return (size_t)param_local_elements(store, id) * dtype_bytes(store->dtype);
}

/* Where everything will stand, and in which order it comes. */
static void place_packed(struct param_store *store, struct packing *order) {
    int count = store->map.table->count;
    struct arena arena = arena_over(store->packed, store->packed_bytes);
    bool is_packed, is_kept;
    for (int i = 0; i < count; i++) {
        size_t bytes = packed_bytes(store, i, &is_packed, &is_kept);
        store->views[i] = store->views[count + i] = plain_view(store, i);
        store->views[count + i].data = is_packed ? arena_take(&arena, bytes) : NULL;
        store->views[i].data = is_kept ? arena_take(&arena, plain_bytes(store, i)) : NULL;
        order[i] = (struct packing){.id = i, .stage = is_packed && !is_kept ? plain_bytes(store, i) : 0};
    }
    qsort(order, (size_t)count, sizeof *order, compare_packing);
}

/* Where plain values are held until they are packed. They come largest first, so that it never grows; it is let go when
 * less than half of it is wanted, for what is packed grows meanwhile. */
struct stage {
    void *data;
    size_t bytes;
};

static int stage_take(struct stage *stage, struct device *device, size_t bytes) {
    if (bytes <= stage->bytes && bytes >= stage->bytes / 2)
        return STATUS_OK;
    device_free(device, stage->data);
    *stage = (struct stage){.bytes = bytes};
    return device_alloc(device, bytes, &stage->data);
}

static int pack_one(struct param_store *store, struct stream *stream, const struct packing *packing,
                    struct stage *stage, int (*fill)(void *context, int id), void *context) {
    struct weight_view *plain = &store->views[packing->id], *packed = plain + store->map.table->count;
    struct exec exec = {.stream = stream};
    int status = STATUS_OK;
    if (packing->stage) {
        status = stage_take(stage, store->device, packing->stage);
        plain->data = stage->data;
    }
    if (!plain->data) /* of another rank */
        return status ? status_wrap(status, "plain weights") : STATUS_OK;
    status = fill(context, packing->id);
    loans_check(store->loans, "it was filled in");
    if (!status && packed->data)
        status = store->ops->pack(&exec, plain, (void *)(uintptr_t)packed->data, packed);
    int waited = stream_wait(stream);
    if (packing->stage)
        plain->data = NULL;
    return status ? status : waited;
}

int param_store_pack(struct param_store *store, struct stream *stream, int (*fill)(void *context, int id),
                     void *context) {
    int count = store->map.table->count;
    store->views = calloc((size_t)count * 2, sizeof *store->views);
    struct packing *order = calloc((size_t)count + 1, sizeof *order);
    struct stage stage = {0};
    int status = store->views && order ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    store->packed_bytes = param_packed_bytes(store);
    if (!status && (status = device_alloc(store->device, store->packed_bytes, &store->packed)))
        status_wrap(status, "packed weights");
    if (!status)
        place_packed(store, order);
    for (int i = 0; i < count && !status; i++)
        status = pack_one(store, stream, &order[i], &stage, fill, context);
    device_free(store->device, stage.data);
    free(order);
    return status;
}

static struct weight_view find_plain(const struct param_store *store, int id) {
    return store->views ? store->views[id] : plain_view(store, id);
}

struct weight_view param_borrow(const struct param_store *store, int id) {
    loans_lend(store->loans, id, false);
    return find_plain(store, id);
}

struct weight_view param_borrow_linear(const struct param_store *store, int id) {
    loans_lend(store->loans, id, false);
    if (store->views && store->views[store->map.table->count + id].data)
        return store->views[store->map.table->count + id];
    struct weight_view view = find_plain(store, id);
    if (store->will_pack && !store->weights && store->ops->packed_bytes(store->device, &view))
        view.layout = WEIGHT_PACKED;
    return view;
}

void *param_borrow_to_write(struct param_store *store, int id) {
    loans_lend(store->loans, id, true);
    return (void *)(uintptr_t)find_plain(store, id).data;
}

void param_return(const struct param_store *store, int id) {
    loans_return(store->loans, id);
}

void param_set_travelling(const struct param_store *store, int64_t first, int64_t count, bool travels) {
    for (int i = 0; i < store->map.table->count; i++)
        if (param_local_elements(store, i) && store->map.places[i].offset >= first &&
            store->map.places[i].offset < first + count)
            loans_travel(store->loans, i, travels);
}

void param_check_returned(const struct param_store *store, const char *after) {
    loans_check(store->loans, after);
}

bool param_trains(const struct param_store *store, int id) {
    return store->has_gradients && store->map.table->rows[id].is_trainable && param_local_elements(store, id) > 0;
}

float *param_gradient(const struct param_store *store, int id) {
    return store->gradients && param_trains(store, id) ? store->gradients + store->map.places[id].offset : NULL;
}

/* ---- initial values ---- */

enum { INITIAL_CHUNK = 1 << 20 };

/* Elements [first, first + count) of the whole parameter to `to`. `values` has a chunk's floats, and after them room
 * for their bf16. */
static int initialise_run(const struct param_store *store, struct stream *stream, const struct param *row,
                          uint64_t seed, int64_t first, int64_t count, char *to, float *values) {
    size_t width = dtype_bytes(store->dtype);
    int status = STATUS_OK;
    for (int64_t done = 0; done < count && !status; done += INITIAL_CHUNK) {
        int64_t part = count - done < INITIAL_CHUNK ? count - done : INITIAL_CHUNK;
        param_initial_values(row, seed, first + done, part, values);
        uint16_t *rounded = (uint16_t *)(values + INITIAL_CHUNK);
        for (int64_t j = 0; j < part && store->dtype == DTYPE_BF16; j++)
            rounded[j] = bf16_from_float(values[j]);
        const void *source = store->dtype == DTYPE_BF16 ? (const void *)rounded : values;
        status = stream_copy_to_device(stream, to + (size_t)done * width, source, (size_t)part * width);
        if (!status)
            status = stream_wait(stream);
    }
    return status;
}

int param_initialise(struct param_store *store, struct stream *stream, uint64_t seed, int id) {
    const struct param *row = &store->map.table->rows[id];
    int64_t width = (int64_t)dtype_bytes(store->dtype);
    char *to = param_borrow_to_write(store, id);
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = param_part_rects(&store->map.part, store->map.table, id, rects);
    void *values;
    int status = device_host_alloc(store->device, INITIAL_CHUNK * (sizeof(float) + sizeof(uint16_t)), &values);
    for (int r = 0; r < count && !status; r++) {
        bool is_whole = rects[r].columns == row->shape[1];
        int64_t runs = is_whole ? 1 : rects[r].rows, run = rects[r].columns * (is_whole ? rects[r].rows : 1);
        int64_t first = rects[r].row * row->shape[1] + rects[r].column, at = rects[r].local_row * rects[r].columns;
        for (int64_t j = 0; j < runs && !status; j++)
            status = initialise_run(store, stream, row, seed, first + j * row->shape[1], run,
                                    to + (at + j * run) * width, values);
    }
    device_host_free(store->device, values);
    param_return(store, id);
    return status;
}

int param_store_initialise(struct param_store *store, struct stream *stream, uint64_t seed) {
    int status = STATUS_OK;
    for (int i = 0; i < store->map.table->count && !status; i++)
        status = param_initialise(store, stream, seed, i);
    return status;
}
