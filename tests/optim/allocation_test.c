/* If any allocation of an optimizer fails at any rank, that rank reports it, the others are released, and no memory is
 * leaked. Ranks are threads. */
#include "optim/optim.h"

#include "support/failing.h"
#include "support/test.h"

enum { RANKS = 2, ROWS = 32, DEADLINE = 60 /* seconds */ };

/* Everything that a rank opens. */
struct scene {
    struct device *device;
    struct rank rank;
    struct param_table table;
    struct param_store store;
    struct gradient_sync sync;
    struct optimizer optimizer;
};

static int open_store(struct scene *s, struct comm *world, enum dtype dtype) {
    const struct param row = {
        .dims = 2, .shape = {ROWS, ROWS}, .is_trainable = true, .slice_count = 1, .slices = {{.rows = ROWS}}};
    int status = device_open(test_device(), DEVICE_FIRST, 1, &s->device);
    if (!status)
        status = rank_open(&s->rank, &(const struct rank_grid){1, 1, 1, RANKS, 1}, world, s->device, 1);
    int added = status ? status : param_table_add(&s->table, &row);
    if (added < 0)
        return added;
    status = param_store_sketch(
        &s->store,
        &(const struct param_store_options){
            .table = &s->table, .device = s->device, .dtype = dtype, .has_gradients = true, .layer_shards = RANKS});
    return status ? status : param_store_open(&s->store, NULL);
}

static int step(struct scene *s) {
    const struct optimizer_options options = {.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .clip_grad = 1};
    double norm;
    const struct gradient_sync_options sharded = {.is_sharded = true, .overlaps_weights = true};
    int status = optimizer_plan(&s->rank, s->store.map.flat_elements, 1, s->store.map.type);
    if (!status)
        status = gradient_sync_open(&s->sync, &s->rank, &s->store, &sharded);
    if (!status)
        status = optimizer_open(&s->optimizer, &options, &s->sync);
    if (!status)
        status = rank_allocate_workspace(&s->rank);
    if (!status)
        status = optimizer_reset(&s->optimizer);
    if (!status)
        status = optimizer_step(&s->optimizer, 1e-3, &norm);
    return status ? status : optimizer_round_weights(&s->optimizer);
}

static int run_rank(struct comm *world, void *context) {
    struct scene s = {0};
    int status = open_store(&s, world, *(enum dtype *)context);
    if (!status)
        status = step(&s);
    if (status)
        comm_abort(world, status_text());
    optimizer_close(&s.optimizer);
    gradient_sync_close(&s.sync);
    param_store_close(&s.store);
    param_table_free(&s.table);
    rank_close(&s.rank);
    device_close(s.device);
    return status;
}

static int run_ranks(void *context) {
    test_ends_within(DEADLINE);
    return comm_local_run(RANKS, run_rank, context);
}

static void optimizers_open_and_close(void **state) {
    (void)state;
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++)
        assert_int_equal(failing_try_all(run_ranks, &dtype, 200), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers_open_and_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
