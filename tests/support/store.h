/* The values of a parameter store in host memory, to be looked at, changed and put back; and those of a part of the
 * ranks beside those of the whole. */
#pragma once

#include "support/device.h"
#include "tensor/tensor.h"

#include <math.h>

/* An array of an opened store that is held whole, in device memory. */
static inline void *test_array(const struct param_store *store, enum param_array array) {
    int count;
    const struct param_range *ranges = param_ranges(store, array, &count);
    return count == 1 && ranges[0].first == 0 && ranges[0].count == store->map.flat_elements ? ranges[0].data : NULL;
}

/* Both arrays at the store's offsets. */
struct test_values {
    const struct param_store *store;
    float *weights;   /* of a store in fp32; in its type otherwise */
    float *gradients; /* NULL where the store has none */
};

static inline struct test_values test_values(const struct param_store *store, struct stream *stream) {
    return (struct test_values){
        .store = store,
        .weights = test_copy(stream, test_array(store, PARAM_WEIGHTS), param_weight_bytes(store)),
        .gradients = store->has_gradients
                         ? test_copy(stream, test_array(store, PARAM_GRADIENTS), param_gradient_bytes(store))
                         : NULL};
}

static inline void test_values_free(struct test_values *values) {
    free(values->weights);
    free(values->gradients);
}

/* Puts both back, and frees them. */
static inline int test_values_put(struct test_values *values, struct stream *stream) {
    const struct param_store *store = values->store;
    int status = test_write(stream, test_array(store, PARAM_WEIGHTS), values->weights, param_weight_bytes(store));
    if (!status && values->gradients)
        status = test_write(stream, test_array(store, PARAM_GRADIENTS), values->gradients, param_gradient_bytes(store));
    test_values_free(values);
    return status;
}

/* Compares the rank's rectangles of every gradient with the same elements of the whole: they are within `bound` of its
 * largest entry. *moved: how many parameters have a gradient that is not zero; may be NULL. */
static inline int test_compare_gradients(const struct param_store *store, struct stream *stream,
                                         const struct test_values *whole, float bound, int *moved) {
    struct test_values ours = test_values(store, stream);
    int count = 0, status = STATUS_OK;
    for (int id = 0; id < store->map.table->count && !status; id++) {
        const struct param *row = &store->map.table->rows[id];
        const float *gradient = ours.gradients + store->map.places[id].offset;
        const float *expected = whole->gradients + whole->store->map.places[id].offset;
        struct param_rect rects[PARAM_MAX_SLICES];
        int rect_count = param_part_rects(&store->map.part, store->map.table, id, rects);
        float largest = 0;
        for (int64_t e = 0; e < param_elements(row); e++)
            largest = fmaxf(largest, fabsf(expected[e]));
        count += largest > 0;
        for (int r = 0; r < rect_count && !status; r++)
            for (int64_t e = 0; e < rects[r].rows * rects[r].columns && !status; e++) {
                int64_t y = rects[r].row + e / rects[r].columns, x = rects[r].column + e % rects[r].columns;
                float a = gradient[rects[r].local_row * rects[r].columns + e], b = expected[y * row->shape[1] + x];
                if (!(fabsf(a - b) <= bound * largest))
                    status = status_fail(STATUS_INVALID, "%s [%lld, %lld]: %.9g, whole %.9g, the largest %.9g",
                                         row->name, (long long)y, (long long)x, (double)a, (double)b, (double)largest);
            }
    }
    test_values_free(&ours);
    if (moved)
        *moved = count;
    return status;
}
