/* A store of which each rank has a share: units are whole while they are unsharded, and gradients of several micro
 * batches end as sums in the shares. */
#include "parallel/sharded.h"

#include "support/device.h"
#include "support/test.h"

#include <string.h>

enum { LAYERS = 12, ROWS = 37, COLUMNS = 53, DATA = 3, TENSOR = 2, MICRO_BATCHES = 3, UNITS = LAYERS + 2, BOUND = 61 };

/* A matrix that the tensor ranks share and a copy for each unit; those of the ends are larger. The matrices are weights
 * of linears, except the first. */
static void describe(struct param_table *table) {
    *table = (struct param_table){0};
    for (int layer = -1; layer <= LAYERS; layer++) {
        int64_t rows = layer < 0 ? 3 * ROWS : layer == LAYERS ? 2 * ROWS : ROWS;
        struct param matrix = {.dims = 2,
                               .shape = {rows, COLUMNS},
                               .shard = PARAM_SHARD_AXIS0,
                               .is_trainable = true,
                               .is_linear = layer >= 0,
                               .layer = layer,
                               .slice_count = 1,
                               .slices = {{.rows = rows}}};
        struct param copy = {.dims = 1, .shape = {COLUMNS, 1}, .is_trainable = true, .layer = layer, .slice_count = 1};
        copy.slices[0].rows = copy.shape[0];
        snprintf(matrix.name, sizeof matrix.name, "%d.matrix", layer);
        snprintf(copy.name, sizeof copy.name, "%d.copy", layer);
        test_ok(param_table_add(table, &matrix) >= 0 ? 0 : -1);
        test_ok(param_table_add(table, &copy) >= 0 ? 0 : -1);
    }
}

struct task {
    const struct param_table *table;
    const struct storage *storage;
    bool overlaps;
    int (*use)(struct param_store *store, struct rank *rank);
};

static int expect(bool is_true, const char *what, int64_t at) {
    return is_true ? STATUS_OK : status_fail(STATUS_INVALID, "%s at %lld", what, (long long)at);
}

/* Small whole numbers, whose sums are exact in any order. */
static float value(int id, int64_t element, int number) {
    return (float)((element * 7 + id * 13) % BOUND + number);
}

static int set_range(const struct rank *rank, const struct param_store *store, const struct param_range *range,
                     int number) {
    float *values = calloc((size_t)range->count, sizeof *values);
    for (int id = 0; id < store->map.table->count; id++)
        for (int64_t e = 0; e < param_local_elements(store, id); e++) {
            int64_t at = store->map.places[id].offset + e - range->first;
            if (at >= 0 && at < range->count)
                values[at] = value(id, e, number);
        }
    int status = test_write(rank->exec.stream, range->data, values, (size_t)range->count * sizeof *values);
    free(values);
    return status;
}

static int set_weights(const struct rank *rank, const struct param_store *store, int number) {
    int count, status = STATUS_OK;
    const struct param_range *ranges = param_ranges(store, PARAM_WEIGHTS, &count);
    for (int i = 0; i < count && !status; i++)
        status = set_range(rank, store, &ranges[i], number);
    param_forget_units(store);
    return status;
}

/* Checks an array of a parameter: value(id, element, number) x factor. */
static int check_values(const struct rank *rank, int id, const void *data, int64_t count, int64_t first, int number,
                        int factor) {
    float *values = malloc((size_t)count * sizeof *values);
    int status = test_read(rank->exec.stream, values, data, (size_t)count * sizeof *values);
    for (int64_t e = 0; e < count && !status; e++)
        status = expect(values[e] == (float)factor * value(id, first + e, number), "a value", e);
    free(values);
    return status;
}

static int check_unit(const struct rank *rank, const struct param_store *store, int unit, int number) {
    int status = param_unshard(store, unit, PARAM_FORWARD);
    for (int id = 2 * (unit + 1); id < 2 * (unit + 2) && !status; id++) {
        struct matrix_view view = param_borrow(store, id);
        status = check_values(rank, id, view.data, param_local_elements(store, id), 0, number, 1);
        param_return(store, id);
    }
    return param_reshard_after(store, unit, status);
}

/* The order of two micro batches; each layer's weights are looked at. */
static int64_t make_order(int *order) {
    int64_t count = 0;
    for (int m = 0; m < 2; m++) {
        for (int unit = PARAM_UNIT_FIRST; unit <= LAYERS; unit++)
            order[count++] = unit;
        for (int unit = LAYERS - 1; unit >= PARAM_UNIT_FIRST; unit--)
            order[count++] = unit;
    }
    return count;
}

static int use_weights(struct param_store *store, struct rank *rank) {
    int order[4 * UNITS], status = STATUS_OK;
    int64_t count = make_order(order);
    for (int number = 0; number < 3 && !status; number++) { /* updates between them */
        status = set_weights(rank, store, number);
        if (!status && number < 2)
            status = sharded_follow(store, order, count);
        for (int64_t i = 0; i < count && !status; i++)
            status = check_unit(rank, store, order[i], number);
        if (!status)
            status = sharded_follow(store, NULL, 0);
    }
    if (!status)
        status = param_unshard(store, 5, PARAM_READ);
    return status ? status : param_reshard(store, 5);
}

/* Two layers are in memory when a pass turns around, each unit is two messages, and the ends are gathered once. */
static int count_gathers(struct param_store *store, struct rank *rank) {
    int order[4 * UNITS];
    int64_t count = make_order(order);
    int status = set_weights(rank, store, 1);
    if (!status)
        status = sharded_follow(store, order, count);
    for (int64_t i = 0; i < count && !status; i++)
        status = check_unit(rank, store, order[i], 1);
    struct sharded_counts counts = sharded_counts(store);
    return status ? status : expect(counts.gathers == 2 * (2 + LAYERS + 3 * (LAYERS - 2)), "gathers", counts.gathers);
}

static int use_out_of_order(struct param_store *store, struct rank *rank) {
    static const int order[] = {0, 1};
    int status = set_weights(rank, store, 0);
    if (!status)
        status = sharded_follow(store, order, 2);
    if (!status)
        status = param_unshard(store, 0, PARAM_FORWARD);
    if (!status)
        status = param_reshard(store, 0);
    int found = status ? STATUS_OK : param_unshard(store, 2, PARAM_FORWARD);
    if (!status)
        status = expect(found == STATUS_INVALID && strstr(status_text(), "unit 2 is used out of order"), "no error", 0);
    if (!status)
        status = param_unshard(store, 1, PARAM_FORWARD);
    return status ? status : param_reshard(store, 1);
}

static int use_too_many(struct param_store *store, struct rank *rank) {
    int status = set_weights(rank, store, 0);
    for (int unit = 0; unit < 2 && !status; unit++)
        status = param_unshard(store, unit, PARAM_READ);
    int found = status ? STATUS_OK : param_unshard(store, 2, PARAM_READ);
    if (!status)
        status =
            expect(found == STATUS_INVALID && strstr(status_text(), "while all buffers are in use"), "no error", 0);
    for (int unit = 0; unit < 2 && !status; unit++)
        status = param_reshard(store, unit);
    return status;
}

/* Writes the gradients of a unit as its backward does: those of linears are garbage before. */
static int add_unit(const struct rank *rank, const struct param_store *store, int unit, int micro_batch) {
    int status = param_begin_gradients(store, unit);
    for (int id = 2 * (unit + 1); id < 2 * (unit + 2) && !status; id++) {
        int64_t count = param_local_elements(store, id);
        float *gradient = param_gradient(store, id), *values = malloc((size_t)count * sizeof *values);
        status = test_read(rank->exec.stream, values, gradient, (size_t)count * sizeof *values);
        for (int64_t e = 0; e < count && !status; e++) {
            bool is_overwritten = store->map.table->rows[id].is_linear;
            values[e] = (is_overwritten ? 0 : values[e]) + value(id, e, rank->place.data + micro_batch);
        }
        if (!status)
            status = test_write(rank->exec.stream, gradient, values, (size_t)count * sizeof *values);
        free(values);
    }
    if (!status)
        status = param_begin_gradients(store, unit); /* the second call keeps them */
    return status ? status : param_end_gradients(store, unit);
}

/* Checks the shares: sums over ranks and micro batches, and zeros between the parameters. */
static int check_shares(const struct rank *rank, const struct param_store *store) {
    int ranges, status = STATUS_OK;
    const struct param_range *range = param_ranges(store, PARAM_GRADIENTS, &ranges);
    for (int i = 0; i < ranges && !status; i++) {
        float *found = malloc((size_t)range[i].count * sizeof *found);
        float *expected = calloc((size_t)range[i].count, sizeof *expected);
        for (int id = 0; id < store->map.table->count; id++)
            for (int64_t e = 0; e < param_local_elements(store, id); e++) {
                int64_t at = store->map.places[id].offset + e - range[i].first;
                for (int m = 0; m < MICRO_BATCHES && at >= 0 && at < range[i].count; m++)
                    for (int d = 0; d < DATA; d++)
                        expected[at] += value(id, e, d + m);
            }
        status = test_read(rank->exec.stream, found, range[i].data, (size_t)range[i].count * sizeof *found);
        for (int64_t e = 0; e < range[i].count && !status; e++)
            status = expect(found[e] == expected[e], "a sum", range[i].first + e);
        free(found);
        free(expected);
    }
    return status;
}

static int use_gradients(struct param_store *store, struct rank *rank) {
    int status = STATUS_OK;
    for (int step = 0; step < 2 && !status; step++) { /* the second replaces the first */
        for (int m = 0; m < MICRO_BATCHES && !status; m++)
            for (int unit = LAYERS; unit >= PARAM_UNIT_FIRST && !status; unit--)
                status = add_unit(rank, store, unit, m);
        if (!status)
            status = param_settle_gradients(store);
        if (!status)
            status = check_shares(rank, store);
    }
    struct sharded_counts counts = sharded_counts(store);
    return status ? status : expect(counts.sums == 2 * 2 * MICRO_BATCHES * UNITS, "sums", counts.sums);
}

/* Linears of odd layers are in few bits. */
static bool describe_encoding(const void *context, const struct param *param, const struct param_rect *rects, int count,
                              struct encoded_layout *layout) {
    (void)context;
    const struct encoding int4 = {
        .codes = CODES_INTEGERS, .bits = 4, .bias = 8, .scale_type = DTYPE_BF16, .group = COLUMNS};
    *layout = (struct encoded_layout){
        .count = count, .parts = {{.rows = rects[0].rows, .positions = rects[0].columns, .encoding = int4}}};
    return param->is_linear && param->layer % 2;
}

struct filling {
    struct param_store *store;
    struct stream *stream;
};

static int fill(void *context, int id) {
    struct filling *filling = context;
    return param_initialise(filling->store, filling->stream, 5, id);
}

static int fill_encoded(void *context, int id, int part, const struct param_rect *rect, const struct encoded_rows *to) {
    (void)context;
    (void)part;
    for (int64_t i = 0; i < to->rows * to->positions; i++)
        to->codes[i] = (uint8_t)((id + rect->row * COLUMNS + i) % 16);
    for (int64_t i = 0; i < to->rows; i++)
        ((uint16_t *)to->scales)[i] = bf16_from_float((float)(1 + i));
    return STATUS_OK;
}

static int open_filled(struct param_store *store, struct rank *rank, const struct param_store_options *options) {
    struct filling filling = {.store = store, .stream = rank->exec.stream};
    int status = param_store_sketch(store, options);
    return status ? status
                  : param_store_open(store, &(const struct param_fill){.stream = rank->exec.stream,
                                                                       .fill = fill,
                                                                       .fill_encoded = fill_encoded,
                                                                       .context = &filling});
}

/* Compares the bytes that loans of a parameter lead to in both stores. */
static int compare_loans(const struct rank *rank, const struct param_store *store, const struct param_store *whole,
                         int id) {
    struct matrix_view view = param_borrow_linear(store, id), expected = param_borrow_linear(whole, id);
    bool is_packed = expected.form == MATRIX_PACKED;
    size_t bytes = is_packed ? store->ops->packed_bytes(store->device, &expected)
                             : (size_t)param_local_elements(store, id) * dtype_bytes(expected.type);
    char *a = malloc(bytes + 1), *b = malloc(bytes + 1);
    int status = expect(view.form == expected.form && !view.encoded == !expected.encoded, "a form", id);
    if (!status)
        status = test_read(rank->exec.stream, a, view.data, bytes);
    if (!status)
        status = test_read(rank->exec.stream, b, expected.data, bytes);
    if (!status)
        status = expect(!memcmp(a, b, bytes), "packed bytes", id);
    free(a);
    free(b);
    param_return(store, id);
    param_return(whole, id);
    return status;
}

/* A unit has the bytes of a store that holds all of them, and this rank the shares and buffers that were planned. */
static int use_packed(struct param_store *store, struct rank *rank) {
    static const struct param_encodings encodings = {.describe = describe_encoding};
    struct param_store whole = {0};
    struct param_part part = {.tensor = rank->place.tensor, .tensors = TENSOR};
    struct param_store_options options = {.table = store->map.table,
                                          .part = &part,
                                          .device = store->device,
                                          .dtype = DTYPE_BF16,
                                          .storage = &storage_packed,
                                          .encodings = &encodings};
    int status = open_filled(&whole, rank, &options);
    options.storage = store->storage;
    options.sharing = store->sharing;
    param_store_close(store);
    if (!status)
        status = open_filled(store, rank, &options);
    for (int round = 0; round < 2 && !status; round++)
        for (int unit = PARAM_UNIT_FIRST; unit <= LAYERS && !status; unit++) {
            status = param_unshard(store, unit, PARAM_FORWARD);
            for (int id = 2 * (unit + 1); id < 2 * (unit + 2) && !status; id++)
                status = compare_loans(rank, store, &whole, id);
            status = param_reshard_after(store, unit, status);
        }
    struct param_unit units[UNITS];
    int64_t elements = 0, buffers = 0, layer = 0;
    sharded_units(store, units);
    for (int u = 0; u < UNITS; u++) {
        int64_t count = units[u].run[0].count;
        elements += count;
        buffers += u == 0 || u == UNITS - 1 ? count : 0;
        layer = u > 0 && u < UNITS - 1 && count > layer ? count : layer;
    }
    if (!status)
        status = expect(param_weight_bytes(store) == (size_t)(elements / DATA + buffers + 2 * layer) * sizeof(uint16_t),
                        "planned bytes", elements);
    if (!status)
        status = expect((size_t)elements * sizeof(uint16_t) <
                            param_weight_bytes(&whole) + (size_t)UNITS * DATA * ARENA_ALIGNMENT,
                        "bytes of all shares", elements);
    param_store_close(&whole);
    return status;
}

static int run_rank(struct comm *world, void *context) {
    const struct task *task = context;
    struct rank_grid grid = {TENSOR, 1, 1, DATA, 1};
    struct device *device;
    struct rank rank;
    struct param_store store = {0};
    int status = device_open(test_device(), DEVICE_FIRST, 1, &device);
    if (!status)
        status = rank_open(&rank, &grid, world, device, 0);
    struct param_part part = {.tensor = rank.place.tensor, .tensors = TENSOR};
    struct param_store_options options = {
        .table = task->table,
        .part = &part,
        .device = device,
        .storage = task->storage,
        .has_gradients = true,
        .layer_shards = DATA,
        .sharing = {.rank = &rank, .overlaps_weights = task->overlaps, .overlaps_sums = task->overlaps}};
    if (!status)
        status = param_store_sketch(&store, &options);
    if (!status)
        status = task->storage->needs_fill ? STATUS_OK : param_store_open(&store, NULL);
    rank.is_planning = false;
    if (!status)
        status = task->use(&store, &rank);
    if (status)
        comm_abort(world, status_text());
    param_store_close(&store);
    rank_close(&rank);
    device_close(device);
    return status;
}

static void check(const struct storage *storage, int (*use)(struct param_store *, struct rank *)) {
    struct param_table table;
    describe(&table);
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        struct task task = {.table = &table, .storage = storage, .overlaps = overlaps, .use = use};
        test_ok(comm_local_run(TENSOR * DATA, run_rank, &task));
    }
    param_table_free(&table);
}

static void a_unit_has_the_weights_of_all_ranks(void **state) {
    (void)state;
    check(&storage_sharded, use_weights);
}

static void a_unit_has_the_packed_bytes_of_all_ranks(void **state) {
    (void)state;
    check(&storage_sharded_packed, use_packed);
}

static void units_are_gathered_as_often_as_planned(void **state) {
    (void)state;
    check(&storage_sharded, count_gathers);
}

static void units_are_used_in_their_order(void **state) {
    (void)state;
    check(&storage_sharded, use_out_of_order);
}

static void no_more_units_are_whole_than_have_memory(void **state) {
    (void)state;
    check(&storage_sharded, use_too_many);
}

static void shares_get_the_sums_of_all_micro_batches(void **state) {
    (void)state;
    check(&storage_sharded_gradients, use_gradients);
    check(&storage_sharded, use_gradients);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_unit_has_the_weights_of_all_ranks),
        cmocka_unit_test(a_unit_has_the_packed_bytes_of_all_ranks),
        cmocka_unit_test(units_are_gathered_as_often_as_planned),
        cmocka_unit_test(units_are_used_in_their_order),
        cmocka_unit_test(no_more_units_are_whole_than_have_memory),
        cmocka_unit_test(shares_get_the_sums_of_all_micro_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
