/* Gradients summed in buckets and in pieces, on a made-up table with more layers than a group takes started calls. The
 * buckets are small, so that a matrix fills one on every backend. */
#include "parallel/sync.h"

#include <limits.h>

#include "comm/unordered.h"
#include "support/store.h"
#include "support/test.h"

enum { LAYERS = 40, ROWS = 35, COLUMNS = 65, BUCKET = 1 << 10, TENSOR = 2, DATA = 3, STAGES = 2 };

/* A matrix that the tensor ranks share and a copy for each layer, and one of each before and after the layers. */
static void describe(struct param_table *table) {
    *table = (struct param_table){0};
    for (int layer = -1; layer <= LAYERS; layer++) {
        struct param matrix = {.dims = 2,
                               .shape = {ROWS, COLUMNS},
                               .shard = PARAM_SHARD_AXIS1,
                               .is_trainable = true,
                               .layer = layer,
                               .slice_count = 1,
                               .slices = {{.rows = ROWS}}};
        struct param copy = {
            .dims = 1, .shape = {COLUMNS * 2, 1}, .is_trainable = true, .layer = layer, .slice_count = 1};
        copy.slices[0].rows = copy.shape[0];
        test_ok(param_table_add(table, &matrix) >= 0 ? 0 : -1);
        test_ok(param_table_add(table, &copy) >= 0 ? 0 : -1);
    }
}

struct task {
    const struct param_table *table;
    struct gradient_sync_options options;
    bool is_unordered; /* the sums run on streams of their own, in any order of ranks */
};

static float value(int tensor, int data, int64_t element) {
    return (float)(element % 1013 + 2000 * tensor + 1) * (float)(data + 1);
}

static int expect(bool is_true, const char *what, int64_t at) {
    return is_true ? STATUS_OK : status_fail(STATUS_INVALID, "%s at %lld", what, (long long)at);
}

/* Checks the sums of this rank's pieces, and that the pieces of all ranks cover the array once. */
static int check_sums(const struct gradient_sync *sync, const struct rank *rank) {
    const struct param_store *store = sync->store;
    struct test_values values = test_values(store, rank->exec.stream);
    int64_t local = 0;
    int status = STATUS_OK;
    for (int i = 0; i < sync->piece_count && !status; i++) {
        const struct sync_piece *piece = &sync->pieces[i];
        const struct sync_piece *next = i + 1 < sync->piece_count ? piece + 1 : NULL;
        int shards = sync->is_sharded ? DATA : 1;
        status = expect(piece->local == local, "the local place", piece->first);
        if (!status)
            status = expect(piece->count * shards == piece->bucket_count, "the size of a piece", piece->first);
        if (!status)
            status = expect(piece->bucket_first + piece->bucket_count ==
                                (next ? next->bucket_first : store->map.flat_elements),
                            "the end of a bucket", piece->first);
        local += piece->count;
        for (int64_t e = piece->first; e < piece->first + piece->count && !status; e++)
            status = expect(values.gradients[e] == 6 * value(rank->place.tensor, 0, e), "the sum", e);
    }
    test_values_free(&values);
    return status ? status : expect(local == sync->local_elements, "the number of local elements", local);
}

/* Checks that every parameter lies in one bucket. */
static int check_buckets(const struct gradient_sync *sync) {
    const struct param_store *store = sync->store;
    int status = STATUS_OK;
    for (int i = 0; i < store->map.table->count && !status; i++) {
        int64_t first = store->map.places[i].offset, end = first + param_local_elements(store, i);
        bool has_bucket = false;
        for (int p = 0; p < sync->piece_count; p++) {
            const struct sync_piece *piece = &sync->pieces[p];
            has_bucket |= first >= piece->bucket_first && end <= piece->bucket_first + piece->bucket_count;
        }
        status = expect(has_bucket, "the bucket of a parameter", i);
    }
    return status;
}

/* Returns the layer of a parameter's first use. A later stage has the embedding only for its head. */
static int first_use(const struct gradient_sync *sync, int param) {
    int layer = sync->store->map.table->rows[param].layer;
    return layer < 0 && sync->rank->place.pipeline > 0 ? LAYERS : layer;
}

/* Checks that the parameters that layers (before, layer] use first have arrived. Others may still travel. */
static int check_arrived(const struct gradient_sync *sync, int before, int layer) {
    const struct param_store *store = sync->store;
    float *values = malloc((size_t)store->map.flat_elements * sizeof *values);
    int status = values ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    bool have_arrived = true;
    for (int i = 0; i < store->map.table->count && !status; i++) {
        int use = first_use(sync, i);
        int64_t count = use > before && use <= layer ? param_local_elements(store, i) : 0,
                first = store->map.places[i].offset;
        if (count)
            status = test_read(sync->rank->exec.stream, values, (float *)test_array(store, PARAM_WEIGHTS) + first,
                               (size_t)count * sizeof *values);
        for (int64_t e = 0; e < count && !status; e++)
            have_arrived &= values[e] == value(0, 1, first + e);
    }
    free(values);
    return status ? status : expect(have_arrived, "weights that layers need, the last", layer);
}

/* Sets this rank's pieces one after the other. Then the weights that a layer needs are there when it waits for them. */
static int gather_layer_by_layer(struct gradient_sync *sync) {
    enum { LOOKS = 4 };
    int status = STATUS_OK, looked = -2;
    for (int turn = 0; turn < sync->piece_count && !status; turn++) {
        status = gradient_sync_gather_start(sync, turn);
        if (!status && turn + 1 < sync->piece_count)
            status = expect((sync->gathering > 0) == sync->options.overlaps_weights, "the gathers under way", turn);
    }
    for (int layer = -1; layer <= LAYERS && !status; layer++) {
        status = gradient_sync_gather_wait(sync, layer);
        if (!status && (layer == -1 || layer % (LAYERS / LOOKS) == 0)) {
            status = check_arrived(sync, looked, layer);
            looked = layer;
        }
    }
    return status ? status : gradient_sync_gather_wait(sync, INT_MAX);
}

static int set_pieces(const struct gradient_sync *sync, int number) {
    struct stream *stream = sync->rank->exec.stream;
    struct test_values values = test_values(sync->store, stream);
    for (int i = 0; i < sync->piece_count; i++)
        for (int64_t e = sync->pieces[i].first; e < sync->pieces[i].first + sync->pieces[i].count; e++)
            values.weights[e] = value(0, number, e);
    return test_values_put(&values, stream);
}

static int check_weights(struct gradient_sync *sync) {
    struct stream *stream = sync->rank->exec.stream;
    int status = set_pieces(sync, 1);
    if (!status)
        status = gather_layer_by_layer(sync);
    if (!status)
        status = set_pieces(sync, 0);
    if (!status)
        status = gradient_sync_gather_weights(sync);
    struct test_values values = test_values(sync->store, stream);
    for (int64_t e = 0; e < sync->store->map.flat_elements && !status; e++)
        status = expect(values.weights[e] == value(0, 0, e), "the gathered weight", e);
    test_values_free(&values);
    return status;
}

/* Sets the gradients of a layer as its backward does; before that, they are garbage. */
static int set_layer(const struct gradient_sync *sync, int layer, bool is_garbage) {
    const struct param_store *store = sync->store;
    const struct rank *rank = sync->rank;
    float *values = malloc(param_gradient_bytes(store));
    int status = values ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < store->map.table->count && !status; i++) {
        int64_t count = store->map.table->rows[i].layer == layer ? param_local_elements(store, i) : 0;
        for (int64_t e = 0; e < count; e++)
            values[e] =
                is_garbage ? -1e6f : value(rank->place.tensor, rank->place.data, store->map.places[i].offset + e);
        if (count)
            status = test_write(rank->exec.stream, param_gradient(store, i), values, (size_t)count * sizeof *values);
    }
    free(values);
    return status;
}

static int set_all(const struct gradient_sync *sync) {
    const struct rank *rank = sync->rank;
    struct test_values values = test_values(sync->store, rank->exec.stream);
    for (int64_t e = 0; e < sync->store->map.flat_elements; e++)
        values.gradients[e] = value(rank->place.tensor, rank->place.data, e);
    return test_values_put(&values, rank->exec.stream);
}

static int sum_once(struct gradient_sync *sync, const struct rank *rank, bool from_the_top) {
    int status = set_all(sync);
    for (int layer = LAYERS; layer >= -1 && from_the_top && !status; layer--)
        status = set_layer(sync, layer, true);
    for (int layer = LAYERS; layer >= -1 && from_the_top && !status; layer--) {
        status = set_layer(sync, layer, false);
        if (!status)
            status = gradient_sync_layer(sync, layer);
        if (!status && layer < 0)
            status = expect((sync->started > 0) == sync->options.overlaps_gradients, "the sums under way", 0);
    }
    if (!status)
        status = gradient_sync_finish(sync);
    return status ? status : check_sums(sync, rank);
}

static const struct ops_sizes *small_buckets(struct device *device) {
    static const struct ops_sizes sizes = {.bucket_elements = BUCKET};
    (void)device;
    return &sizes;
}

/* The rank's operations with other sizes, in `ops`. */
static void set_sizes(struct rank *rank, struct ops *ops, const struct ops_sizes *(*sizes)(struct device *)) {
    *ops = *rank->ops;
    ops->sizes = sizes;
    rank->ops = ops;
}

static int run_rank(struct comm *world, void *context) {
    const struct task *task = context;
    struct rank_grid grid = {TENSOR, 1, 1, DATA, STAGES};
    struct device *device;
    struct rank rank;
    struct param_store store = {0};
    struct gradient_sync sync = {0};
    struct ops ops;
    int status = device_open(test_device(), DEVICE_FIRST, 1, &device);
    if (!status && task->is_unordered)
        status = unordered_open(world, device);
    if (!status)
        status = rank_open(&rank, &grid, world, device, 0);
    if (!status)
        set_sizes(&rank, &ops, small_buckets);
    struct param_part part = {.tensor = rank.place.tensor, .tensors = TENSOR};
    struct param_store_options options = {.table = task->table,
                                          .part = &part,
                                          .device = device,
                                          .has_gradients = true,
                                          .layer_shards = task->options.is_sharded ? DATA : 0};
    if (!status)
        status = param_store_sketch(&store, &options);
    if (!status)
        status = param_store_open(&store, NULL);
    if (!status)
        status = gradient_sync_open(&sync, &rank, &store, &task->options);
    rank.is_planning = false;
    if (!status)
        status = expect(sync.bucket_count > COMM_STARTED_MAX, "too few buckets", sync.bucket_count);
    for (int round = 0; round < 3 && !status; round++)
        status = sum_once(&sync, &rank, round != 1);
    if (!status)
        status = check_buckets(&sync);
    if (!status && task->options.is_sharded)
        status = check_weights(&sync);
    if (status)
        comm_abort(world, status_text());
    gradient_sync_close(&sync);
    param_store_close(&store);
    rank_close(&rank);
    comm_request_order(world); /* the channel goes before its device */
    device_close(device);
    return status;
}

/* With and without the overlap, which changes when things move and not their values. Then over a channel that adds in
 * any order, which makes no difference to these numbers. */
static void check(bool is_sharded) {
    struct param_table table;
    describe(&table);
    for (int turn = 0; turn < 3; turn++) {
        bool overlaps = turn > 0;
        struct task task = {
            .table = &table,
            .options = {.is_sharded = is_sharded, .overlaps_gradients = overlaps, .overlaps_weights = overlaps},
            .is_unordered = turn == 2};
        test_ok(comm_local_run(TENSOR * DATA * STAGES, run_rank, &task));
    }
    param_table_free(&table);
}

static void every_rank_gets_the_sum(void **state) {
    (void)state;
    check(false);
}

static void every_rank_gets_its_pieces_of_the_sum_and_gives_theirs(void **state) {
    (void)state;
    check(true);
}

static const struct ops_sizes *large_buckets(struct device *device) {
    static const struct ops_sizes sizes = {.bucket_elements = (int64_t)1 << 40};
    (void)device;
    return &sizes;
}

/* Opens the sums of two ranks and counts their buckets, for a backend with such sizes. */
static int count_buckets(struct comm *world, void *context) {
    const struct ops_sizes *(*sizes)(struct device *) = *(const struct ops_sizes *(*const *)(struct device *))context;
    struct param_table table;
    struct device *device;
    struct rank rank;
    struct param_store store = {0};
    struct gradient_sync sync = {0};
    struct ops ops;
    describe(&table);
    int status = device_open(test_device(), DEVICE_FIRST, 1, &device);
    if (!status)
        status = rank_open(&rank, &(const struct rank_grid){1, 1, 1, 2, 1}, world, device, 0);
    if (!status)
        status = param_store_sketch(
            &store, &(const struct param_store_options){.table = &table, .device = device, .has_gradients = true});
    set_sizes(&rank, &ops, sizes);
    if (!status)
        status = gradient_sync_open(&sync, &rank, &store, &(const struct gradient_sync_options){0});
    /* Matrices and copies; a matrix fills a small bucket. */
    if (!status)
        status = expect(sizes == large_buckets ? sync.bucket_count == 2 : sync.bucket_count > LAYERS, "buckets",
                        sync.bucket_count);
    gradient_sync_close(&sync);
    param_store_close(&store);
    rank_close(&rank);
    device_close(device);
    param_table_free(&table);
    return status;
}

static void buckets_are_as_large_as_suits_the_backend(void **state) {
    (void)state;
    const struct ops_sizes *(*sizes)(struct device *) = small_buckets;
    test_ok(comm_local_run(2, count_buckets, &sizes));
    sizes = large_buckets;
    test_ok(comm_local_run(2, count_buckets, &sizes));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_gets_the_sum),
        cmocka_unit_test(every_rank_gets_its_pieces_of_the_sum_and_gives_theirs),
        cmocka_unit_test(buckets_are_as_large_as_suits_the_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
