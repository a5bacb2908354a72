/* If any allocation fails at any rank of a grid, that rank reports it, the others are released, and no memory is
 * leaked. Ranks are threads. */
#include "parallel/hook.h"
#include "parallel/pipeline.h"
#include "parallel/sharded.h"
#include "parallel/site.h"
#include "parallel/sync.h"

#include "support/failing.h"
#include "support/test.h"

enum { LAYERS = 3, ROWS = 64, MESSAGE = 100, MICRO_BATCHES = 3, DEADLINE = 60 /* seconds */ };
static const struct rank_grid grid = {.tensor = 2, .context = 1, .expert = 1, .data = 2, .pipeline = 2};
static const struct pipeline_shape shape = {.stages = 2, .chunks = 1, .micro_batches = MICRO_BATCHES};

/* Everything that a rank opens. */
struct scene {
    struct rank rank;
    struct device *device;
    struct param_store store;
    const struct storage *storage;
    struct gradient_sync sync;
    struct pipeline pipeline;
    struct hook_table hooks;
};

static int describe(struct param_table *table) {
    int added = 0;
    for (int layer = -1; layer <= LAYERS && added >= 0; layer++) {
        struct param row = {.dims = 2,
                            .shape = {ROWS, ROWS},
                            .shard = PARAM_SHARD_AXIS0,
                            .is_trainable = true,
                            .layer = layer,
                            .slice_count = 1,
                            .slices = {{.rows = ROWS, .file_rows = ROWS}}};
        added = param_table_add(table, &row);
    }
    return added < 0 ? added : STATUS_OK;
}

static const struct gradient_sync_options sharded = {
    .is_sharded = true, .overlaps_gradients = true, .overlaps_weights = true};

static int open_store(struct scene *s, const struct param_table *table, const struct param_part *part) {
    int status = param_store_sketch(&s->store, &(const struct param_store_options){.table = table,
                                                                                   .part = part,
                                                                                   .device = s->device,
                                                                                   .storage = s->storage,
                                                                                   .has_gradients = true,
                                                                                   .layer_shards = grid.data,
                                                                                   .sharing = {.rank = &s->rank}});
    if (!status)
        status = param_store_open(&s->store, NULL);
    return status ? status : gradient_sync_open(&s->sync, &s->rank, &s->store, &sharded);
}

static int open_all(struct scene *s, struct comm *world) {
    struct rank_site site;
    int stashes, status = rank_site_find(world, 1, &site);
    if (!status)
        status = device_open(test_device(), DEVICE_FIRST, 1, &s->device);
    if (!status)
        status = rank_open(&s->rank, &grid, world, s->device, 1);
    if (!status)
        status = hook_table_init(&s->hooks, LAYERS);
    if (!status)
        status = pipeline_stashes(&shape, s->rank.place.pipeline, &stashes);
    if (!status)
        status = pipeline_open(&s->pipeline, &s->rank, &shape, MESSAGE, DTYPE_F32);
    if (!status)
        status = rank_need(&s->rank, ROWS);
    return status ? status : rank_allocate_workspace(&s->rank);
}

static int run_step(void *context, const struct pipeline_step *step, const void *in, void *out) {
    (void)step, (void)in;
    return out ? stream_zero(context, out, MESSAGE * sizeof(float)) : STATUS_OK;
}

/* Makes every unit of this rank whole, and sums its gradients. */
static int use_units(struct scene *s) {
    int status = STATUS_OK;
    for (int unit = PARAM_UNIT_FIRST; unit <= LAYERS && !status; unit++) {
        status = param_unshard(&s->store, unit, PARAM_BACKWARD);
        if (!status)
            status = param_reshard(&s->store, unit);
        if (!status)
            status = param_begin_gradients(&s->store, unit);
        if (!status)
            status = param_end_gradients(&s->store, unit);
    }
    return status ? status : param_settle_gradients(&s->store);
}

static int run_all(struct scene *s) {
    int status = pipeline_run(&s->pipeline, false, &(const struct pipeline_worker){run_step, s->rank.exec.stream});
    if (!status)
        status = use_units(s);
    if (!status)
        status = gradient_sync_finish(&s->sync);
    return status ? status : gradient_sync_gather_weights(&s->sync);
}

struct task {
    const struct param_table *table;
    const struct storage *storage;
};

static int run_rank(struct comm *world, void *context) {
    const struct task *task = context;
    struct scene s = {.storage = task->storage};
    log_quiet(true);
    int status = open_all(&s, world);
    struct param_part part = {.tensor = s.rank.place.tensor, .tensors = grid.tensor};
    if (!status)
        status = open_store(&s, task->table, &part);
    if (!status)
        status = run_all(&s);
    if (status)
        comm_abort(world, status_text());
    gradient_sync_close(&s.sync);
    param_store_close(&s.store);
    pipeline_close(&s.pipeline);
    hook_table_free(&s.hooks);
    rank_close(&s.rank);
    device_close(s.device);
    return status;
}

static int run_ranks(void *context) {
    struct rank_seat seats[8];
    struct param_table table = {0};
    struct task task = {.table = &table, .storage = context};
    test_ends_within(DEADLINE);
    int ranks = rank_grid_size(&grid), status = rank_site_survey(NULL, ranks, 1, seats);
    if (!status)
        status = describe(&table);
    if (!status)
        status = comm_local_run(ranks, run_rank, &task);
    param_table_free(&table);
    return status;
}

static void ranks_of_a_grid_open_and_close(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(run_ranks, NULL, 150), 0);
}

static void so_do_ranks_with_shares_of_each_unit(void **state) {
    (void)state;
    const struct storage *storage = &storage_sharded;
    assert_int_equal(failing_try_all(run_ranks, (void *)(uintptr_t)storage, 150), 0);
}

/* All agree after the opening, as trainers do: a rank that has failed must not leave another waiting in a group. */
static int open_and_agree(struct comm *world, void *context) {
    struct device *device = NULL;
    struct rank rank = {0};
    log_quiet(true);
    int status = device_open(test_device(), DEVICE_FIRST, 1, &device);
    status = comm_agree(world, status);
    bool is_tried = !status;
    if (is_tried)
        status = comm_agree(world, rank_open(&rank, &grid, world, device, 1));
    if (status)
        comm_abort(world, status_text());
    if (is_tried)
        rank_close(&rank);
    device_close(device);
    return status;
}

static int open_ranks(void *context) {
    test_ends_within(DEADLINE);
    return comm_local_run(rank_grid_size(&grid), open_and_agree, NULL);
}

static void a_rank_that_does_not_open_leaves_none_waiting(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(open_ranks, NULL, 300), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_a_grid_open_and_close),
        cmocka_unit_test(so_do_ranks_with_shares_of_each_unit),
        cmocka_unit_test(a_rank_that_does_not_open_leaves_none_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
