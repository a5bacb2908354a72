/* The storage of a frozen base: weights of linears are packed, one parameter after the other. */
#include "tensor/tensor.h"

enum { BLOCK_CODES = 4 << 20 /* that are filled in at a time */ };

struct packed {
    void *memory;
    size_t bytes;
    struct storage_views views[]; /* [table count] */
};

/* ---- sizes ---- */

static size_t plain_bytes(const struct param_store *store, int id) {
    return (size_t)param_local_elements(store, id) * dtype_bytes(store->map.places[id].type);
}

static size_t view_bytes(const struct param_store *store, const struct matrix_view *view) {
    return store->ops->packed_bytes(store->device, view);
}

/* Returns the view of a parameter's packed form, without data. *bytes is 0 if it has none. An encoded parameter is
 * packed in its bits. If the backend does not take them, it is packed like others. */
static struct matrix_view packed_form(const struct param_store *store, int id, size_t *bytes) {
    struct matrix_view view = storage_plain_view(store, id, NULL);
    const struct encoded_layout *encoded = store->map.places[id].encoded;
    bool is_held = param_local_elements(store, id) > 0;
    struct matrix_view packed = matrix_packed(view, NULL);
    packed.encoded = encoded;
    *bytes = encoded ? view_bytes(store, &packed) : 0;
    if (*bytes)
        return packed;
    view.data = NULL;
    *bytes = is_held && store->map.table->rows[id].is_linear ? view_bytes(store, &view) : 0;
    return *bytes ? matrix_packed(view, NULL) : view;
}

static size_t aligned(size_t bytes) {
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

size_t storage_packed_bytes(const struct param_store *store, int id) {
    size_t bytes;
    packed_form(store, id, &bytes);
    return aligned(bytes ? bytes : plain_bytes(store, id));
}

static size_t packed_bytes(const struct param_store *store, enum param_array array) {
    size_t total = 0;
    for (int i = 0; i < store->map.table->count && array == PARAM_WEIGHTS; i++)
        total += storage_packed_bytes(store, i);
    return total;
}

/* ---- packing ---- */

/* Returns true if `fill` must give plain values: of all rows, or of the parts that are not encoded. */
static bool needs_plain(const struct encoded_layout *encoded) {
    for (int i = 0; encoded && i < encoded->count; i++)
        if (encoded->parts[i].encoding.codes == CODES_NONE)
            return true;
    return !encoded;
}

struct storage_views storage_packed_views(const struct param_store *store, int id, void *memory) {
    size_t bytes;
    struct storage_views views = {.plain = storage_plain_view(store, id, NULL),
                                  .packed = packed_form(store, id, &bytes)};
    views.packed.data = bytes ? memory : NULL;
    views.plain.data = !bytes && plain_bytes(store, id) ? memory : NULL;
    return views;
}

struct matrix_view storage_packed_view(const struct storage_views *views, enum param_form form) {
    bool takes_packed = form == PARAM_LINEAR || form == PARAM_ROWS;
    return takes_packed && views->packed.form == MATRIX_PACKED ? views->packed : views->plain;
}

/* A parameter, and the bytes of its plain values if they are held only until they are packed. */
struct packing {
    int id;
    size_t stage;
};

/* Returns the bytes of plain values that are held only until they are packed. */
static size_t stage_bytes(const struct param_store *store, int id, const struct storage_views *views) {
    return views->packed.data && needs_plain(views->packed.encoded) ? plain_bytes(store, id) : 0;
}

static int compare_packing(const void *a, const void *b) {
    const struct packing *x = a, *y = b;
    return x->stage != y->stage ? (x->stage < y->stage) - (x->stage > y->stage) : x->id - y->id;
}

/* Places all views, and lists the parameters in the order in which they are packed. */
static void place(const struct param_store *store, struct packing *order) {
    struct packed *packed = store->held;
    int count = store->map.table->count;
    struct arena arena = arena_over(packed->memory, packed->bytes);
    for (int i = 0; i < count; i++) {
        packed->views[i] = storage_packed_views(store, i, arena_take(&arena, storage_packed_bytes(store, i)));
        order[i] = (struct packing){.id = i, .stage = stage_bytes(store, i, &packed->views[i])};
    }
    qsort(order, (size_t)count, sizeof *order, compare_packing);
}

static int stage_take(struct storage_stage *stage, struct device *device, size_t bytes) {
    if (bytes <= stage->bytes && bytes >= stage->bytes / 2)
        return STATUS_OK;
    device_free(device, stage->data);
    *stage = (struct storage_stage){.bytes = bytes};
    return device_alloc(device, bytes, &stage->data);
}

/* Writes the values of encoded rows to rows of a plain view. */
static int decode(const struct param_store *store, struct stream *stream, const struct encoded_rows *rows,
                  struct matrix_view to) {
    int64_t count = to.rows * to.columns;
    float *values = malloc((size_t)count * (sizeof *values + sizeof(uint16_t)) + 1);
    TRY(status_allocated(values));
    uint16_t *halves = (uint16_t *)(void *)(values + count);
#pragma omp parallel for num_threads(device_threads(store->device)) schedule(static)
    for (int64_t i = 0; i < to.rows; i++) {
        encoded_row_values(rows, i, values + i * to.columns);
        for (int64_t j = i * to.columns; j < (i + 1) * to.columns && to.type == DTYPE_BF16; j++)
            halves[j] = bf16_from_float(values[j]);
    }
    const void *from = to.type == DTYPE_BF16 ? (const void *)halves : values;
    int status = stream_copy_to_device(stream, (void *)(uintptr_t)to.data, from, (size_t)count * dtype_bytes(to.type));
    int waited = status ? STATUS_OK : stream_wait(stream);
    free(values);
    return status ? status : waited;
}

/* Packs rows of a part of an encoded parameter, or decodes them to `plain` if it is held in the type of the store. */
static int fill_rows(struct param_store *store, const struct param_fill *fill, int id, const struct param_rect *rect,
                     struct pack_call *call, struct matrix_view plain) {
    struct exec exec = {.stream = fill->stream};
    int status = fill->fill_encoded(fill->context, id, call->part, rect, call->rows);
    THEN_IF(status, call->plain.encoded, store->ops->pack(&exec, call));
    THEN_IF(status, plain.data, decode(store, fill->stream, call->rows, plain));
    int waited = stream_wait(fill->stream);
    return status ? status : waited;
}

/* Fills in part `index` of an encoded parameter, by blocks whose codes stay in the processor's caches. */
static int fill_part(struct param_store *store, const struct param_fill *fill, int id, int index,
                     const struct param_rect *rect, const struct storage_views *views) {
    struct exec exec = {.stream = fill->stream};
    const struct encoded_part *part = &store->map.places[id].encoded->parts[index];
    const struct matrix_view *turned = &views->packed;
    struct matrix_view plain = matrix_rows(views->plain, rect->local_row, rect->rows);
    struct pack_call call = {.plain = *turned, .out = (void *)(uintptr_t)turned->data, .part = index};
    if (part->encoding.codes == CODES_NONE) {
        plain.encoded = turned->encoded;
        call.plain = plain;
        return turned->encoded ? store->ops->pack(&exec, &call) : STATUS_OK;
    }
    int64_t blocks = BLOCK_CODES / PACK_ROWS / (part->positions + 1), step = (blocks + 1) * PACK_ROWS;
    struct encoded_part block = *part;
    block.rows = step < part->rows ? step : part->rows;
    void *memory = malloc(encoded_rows_bytes(&block) + 1);
    int status = status_allocated(memory);
    for (; call.row < part->rows && !status; call.row += step) {
        struct param_rect cut = *rect;
        cut.row += call.row;
        cut.rows = block.rows = part->rows - call.row < step ? part->rows - call.row : step;
        struct encoded_rows rows = encoded_rows_place(&block, memory);
        call.rows = &rows;
        status = fill_rows(store, fill, id, &cut, &call, matrix_rows(plain, call.row, cut.rows));
    }
    free(memory);
    return status;
}

/* Fills in a parameter: plain values, then its encoded parts. */
static int fill_values(struct param_store *store, const struct param_fill *fill, int id,
                       const struct storage_views *views) {
    const struct encoded_layout *encoded = store->map.places[id].encoded;
    struct param_rect rects[PARAM_MAX_SLICES];
    int count = encoded ? param_part_rects(&store->map.part, store->map.table, id, rects) : 0;
    int status = needs_plain(encoded) ? storage_fill(store, fill, id) : STATUS_OK;
    for (int i = 0; i < count && !status; i++)
        status = fill_part(store, fill, id, i, &rects[i], views);
    return status;
}

int storage_pack(struct param_store *store, const struct param_fill *fill, int id, struct storage_views *views,
                 struct storage_stage *stage) {
    struct matrix_view *plain = &views->plain, *turned = &views->packed;
    struct exec exec = {.stream = fill->stream};
    size_t staged = stage_bytes(store, id, views);
    int status = STATUS_OK;
    if (staged) {
        status = stage_take(stage, store->device, staged);
        plain->data = stage->data;
    }
    if (status)
        return status_wrap(status, "plain weights");
    if (!plain->data && !turned->data) /* another rank holds it */
        return STATUS_OK;
    status = fill_values(store, fill, id, views);
    if (!status && turned->data && !turned->encoded) {
        const struct pack_call call = {.plain = *plain, .out = (void *)(uintptr_t)turned->data};
        status = store->ops->pack(&exec, &call);
    }
    int waited = stream_wait(fill->stream);
    if (staged)
        plain->data = NULL;
    return status ? status : waited;
}

static int packed_open(struct param_store *store, const struct param_fill *fill) {
    int count = store->map.table->count;
    struct packed *packed = store->held = calloc(1, sizeof *packed + (size_t)count * sizeof *packed->views);
    struct packing *order = calloc((size_t)count + 1, sizeof *order);
    struct storage_stage stage = {0};
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
        status = storage_pack(store, fill, order[i].id, &packed->views[order[i].id], &stage);
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
    struct storage_views views = packed ? packed->views[id] : storage_packed_views(store, id, NULL);
    return storage_packed_view(&views, form);
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
