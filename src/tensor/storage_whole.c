/* The storage of training: all values in two flat arrays. */
#include "tensor/tensor.h"

struct whole {
    struct param_range weights, gradients;
};

static struct param_range array_of(const struct param_store *store, enum param_array array) {
    const struct param_map *map = &store->map;
    return (struct param_range){.count = map->flat_elements, .type = array == PARAM_WEIGHTS ? map->type : DTYPE_F32};
}

static size_t whole_bytes(const struct param_store *store, enum param_array array) {
    if (array == PARAM_GRADIENTS && !store->has_gradients)
        return 0;
    struct param_range range = array_of(store, array);
    return (size_t)range.count * dtype_bytes(range.type);
}

static int whole_open(struct param_store *store, const struct param_fill *fill) {
    struct whole *whole = store->held = calloc(1, sizeof *whole);
    TRY(status_allocated(whole));
    whole->weights = array_of(store, PARAM_WEIGHTS);
    whole->gradients = array_of(store, PARAM_GRADIENTS);
    /* Gaps are zero, because they are summed and sent, too. */
    int status = device_alloc_zeroed(store->device, whole_bytes(store, PARAM_WEIGHTS), &whole->weights.data);
    if (!status && store->has_gradients)
        status = device_alloc_zeroed(store->device, whole_bytes(store, PARAM_GRADIENTS), &whole->gradients.data);
    if (status)
        return status_wrap(status, "weights and gradients");
    for (int id = 0; id < store->map.table->count && fill && !status; id++)
        if (param_local_elements(store, id))
            status = storage_fill(store, fill, id);
    return status;
}

static void whole_close(struct param_store *store) {
    struct whole *whole = store->held;
    if (!whole)
        return;
    device_free(store->device, whole->weights.data);
    device_free(store->device, whole->gradients.data);
    free(whole);
}

static struct matrix_view whole_borrow(const struct param_store *store, int id, enum param_form form) {
    const struct whole *whole = store->held;
    return storage_plain_view(store, id, whole ? whole->weights.data : NULL);
}

static const struct param_range *whole_ranges(const struct param_store *store, enum param_array array, int *count) {
    const struct whole *whole = store->held;
    *count = whole && (array == PARAM_WEIGHTS || store->has_gradients);
    return !whole ? NULL : array == PARAM_WEIGHTS ? &whole->weights : &whole->gradients;
}

const struct storage storage_whole = {
    .name = "whole",
    .bytes = whole_bytes,
    .open = whole_open,
    .close = whole_close,
    .borrow = whole_borrow,
    .ranges = whole_ranges,
};
