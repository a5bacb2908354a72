/* The storage of a frozen base: weights of linears are packed, one parameter after the other. */
#include "tensor/tensor.h"

struct packed {
    void *memory;
    size_t bytes;
    struct matrix_view
        views[]; /* [table count] plain, then [table count] packed; data is NULL if there is no such view */
};

/* ---- sizes ---- */

static size_t plain_bytes(const struct param_store *store, int id) {
    return (size_t)param_local_elements(store, id) * dtype_bytes(store->map.places[id].type);
}

static size_t packed_view_bytes(const struct param_store *store, int id) {
    struct matrix_view view = storage_plain_view(store, id, NULL);
    return store->ops->packed_bytes(store->device, &view);
}

/* Returns the bytes of a parameter in the packed block: of its packed form, or of a plain copy if the backend does not
 * pack it. The token embedding of a tied model is there twice: plain for the gather, packed for the head. */
static size_t row_bytes(const struct param_store *store, int id, bool *is_packed, bool *is_kept) {
    const struct param *row = &store->map.table->rows[id];
    bool is_held = param_local_elements(store, id) > 0;
    size_t bytes = row->is_linear && is_held ? packed_view_bytes(store, id) : 0;
    *is_packed = bytes > 0;
    *is_kept = is_held && (!row->is_linear || !*is_packed || row->is_embedding);
    return bytes;
}

static size_t aligned(size_t bytes) {
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

static size_t packed_bytes(const struct param_store *store, enum param_array array) {
    size_t total = 0;
    bool is_packed, is_kept;
    for (int i = 0; i < store->map.table->count && array == PARAM_WEIGHTS; i++) {
        total += aligned(row_bytes(store, i, &is_packed, &is_kept));
        if (is_kept)
            total += aligned(plain_bytes(store, i));
    }
    return total;
}

/* ---- packing ---- */

/* A parameter, and the bytes of its plain values if they are held only until they are packed. */
struct packing {
    int id;
    size_t stage;
};

static int compare_packing(const void *a, const void *b) {
    const struct packing *x = a, *y = b;
    return x->stage != y->stage ? (x->stage < y->stage) - (x->stage > y->stage) : x->id - y->id;
}

/* Places all views, and lists the parameters in the order in which they are packed. */
static void place(const struct param_store *store, struct packing *order) {
    struct packed *packed = store->held;
    int count = store->map.table->count;
    struct arena arena = arena_over(packed->memory, packed->bytes);
    bool is_packed, is_kept;
    for (int i = 0; i < count; i++) {
        size_t bytes = row_bytes(store, i, &is_packed, &is_kept);
        packed->views[i] = packed->views[count + i] = storage_plain_view(store, i, NULL);
        packed->views[count + i].data = is_packed ? arena_take(&arena, bytes) : NULL;
        packed->views[i].data = is_kept ? arena_take(&arena, plain_bytes(store, i)) : NULL;
        order[i] = (struct packing){.id = i, .stage = is_packed && !is_kept ? plain_bytes(store, i) : 0};
    }
    qsort(order, (size_t)count, sizeof *order, compare_packing);
}

/* Memory for plain values until they are packed. The largest come first, so it never grows. It is replaced by a smaller
 * block once less than half of it is needed, because the packed values grow meanwhile. */
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

static int pack_one(struct param_store *store, const struct packing *packing, struct stage *stage,
                    const struct param_fill *fill) {
    struct packed *packed = store->held;
    struct matrix_view *plain = &packed->views[packing->id], *turned = plain + store->map.table->count;
    struct exec exec = {.stream = fill->stream};
    int status = STATUS_OK;
    if (packing->stage) {
        status = stage_take(stage, store->device, packing->stage);
        plain->data = stage->data;
    }
    if (!plain->data) /* another rank holds it */
        return status ? status_wrap(status, "plain weights") : STATUS_OK;
    status = storage_fill(store, fill, packing->id);
    if (!status && turned->data) {
        const struct pack_call call = {.plain = *plain, .out = (void *)(uintptr_t)turned->data};
        status = store->ops->pack(&exec, &call);
        *turned = matrix_packed(*plain, call.out);
    }
    int waited = stream_wait(fill->stream);
    if (packing->stage)
        plain->data = NULL;
    return status ? status : waited;
}

static int packed_open(struct param_store *store, const struct param_fill *fill) {
    int count = store->map.table->count;
    struct packed *packed = store->held = calloc(1, sizeof *packed + (size_t)count * 2 * sizeof *packed->views);
    struct packing *order = calloc((size_t)count + 1, sizeof *order);
    struct stage stage = {0};
    int status = status_allocated(packed && order);
    if (!status) {
        packed->bytes = packed_bytes(store, PARAM_WEIGHTS);
        status = device_alloc(store->device, packed->bytes, &packed->memory);
        if (status)
            status_wrap(status, "packed weights");
    }
    if (!status)
        place(store, order);
    for (int i = 0; i < count && !status; i++)
        status = pack_one(store, &order[i], &stage, fill);
    device_free(store->device, stage.data);
    free(order);
    return status;
}

static void packed_close(struct param_store *store) {
    struct packed *packed = store->held;
    if (packed)
        device_free(store->device, packed->memory);
    free(packed);
}

/* ---- loans ---- */

static struct matrix_view packed_borrow(const struct param_store *store, int id, enum param_form form) {
    const struct packed *packed = store->held;
    int count = store->map.table->count;
    if (packed)
        return packed->views[form == PARAM_LINEAR && packed->views[count + id].data ? count + id : id];
    struct matrix_view view = storage_plain_view(store, id, NULL);
    if (form == PARAM_LINEAR && packed_view_bytes(store, id))
        view.form = MATRIX_PACKED;
    return view;
}

static const struct param_range *packed_ranges(const struct param_store *store, enum param_array array, int *count) {
    *count = 0;
    return NULL;
}

const struct storage storage_packed = {
    .name = "packed",
    .needs_fill = true,
    .bytes = packed_bytes,
    .open = packed_open,
    .close = packed_close,
    .borrow = packed_borrow,
    .ranges = packed_ranges,
};
