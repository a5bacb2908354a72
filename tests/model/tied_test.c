/* A table that is embedding and head has its gradient on two stages. After a global batch both have the sum, whether
 * gradients are whole or each data rank keeps a share. */
#include "model/support.h"
#include "parallel/sharded.h"

enum { LAYERS = 2, T = 8, STAGES = 2, DATA = 2, BOUND = 61 };

/* A small whole number, whose sums are exact. Every stage and data rank adds another one. */
static float value(int64_t element, int stage, int data) {
    return (float)((element * 7) % BOUND + 100 * stage + 1000 * data);
}

/* Writes the table's gradient, as the backwards of a stage do. */
static int write_gradient(const struct rank *rank, const struct param_store *store, int id) {
    int64_t count = param_local_elements(store, id);
    int status = param_begin_gradients(store, PARAM_UNIT_FIRST);
    float *values = malloc((size_t)count * sizeof *values);
    for (int64_t e = 0; e < count; e++)
        values[e] = value(e, rank->place.pipeline, rank->place.data);
    if (!status)
        status = test_write(rank->exec.stream, param_gradient(store, id), values, (size_t)count * sizeof *values);
    free(values);
    if (!status)
        status = param_end_gradients(store, PARAM_UNIT_FIRST);
    return status ? status : param_settle_gradients(store);
}

/* Returns the sum over the stages, and over the data ranks if the storage has added those. */
static float sum_of(const struct rank *rank, const struct param_store *store, int64_t element) {
    float sum = 0;
    for (int stage = 0; stage < STAGES; stage++)
        for (int data = 0; data < DATA; data++)
            if (data == rank->place.data || param_cuts_gradients(store))
                sum += value(element, stage, data);
    return sum;
}

static int check_range(const struct rank *rank, const struct param_store *store, int id,
                       const struct param_range *range, int64_t *compared) {
    float *found = malloc((size_t)range->count * sizeof *found);
    int status = test_read(rank->exec.stream, found, range->data, (size_t)range->count * sizeof *found);
    for (int64_t e = 0; e < param_local_elements(store, id) && !status; e++) {
        int64_t at = store->map.places[id].offset + e - range->first;
        if (at < 0 || at >= range->count)
            continue;
        float expected = sum_of(rank, store, e);
        ++*compared;
        if (found[at] != expected)
            status = status_fail(STATUS_INVALID, "stage %d, element %lld: %g, expected %g", rank->place.pipeline,
                                 (long long)e, (double)found[at], (double)expected);
    }
    free(found);
    return status;
}

static int check_sums(const struct rank *rank, const struct param_store *store, int id) {
    int count, status = STATUS_OK;
    int64_t compared = 0;
    const struct param_range *ranges = param_ranges(store, PARAM_GRADIENTS, &count);
    for (int i = 0; i < count && !status; i++)
        status = check_range(rank, store, id, &ranges[i], &compared);
    if (!status && !compared)
        status = status_fail(STATUS_INVALID, "nothing was compared");
    return status;
}

static int run_rank(struct comm *world, void *context) {
    const struct rank_grid grid = {1, 1, 1, DATA, STAGES};
    int stage = rank_grid_place(&grid, world->rank).pipeline;
    const struct model_options options = {.base.config = test_config(LAYERS, T),
                                          .base.dtype = DTYPE_F32,
                                          .base.trains = true,
                                          .max_rows = T,
                                          .train.stashes = 1,
                                          .base.layer_shards = DATA,
                                          .base.chunk_count = 1,
                                          .base.chunks = {{stage * LAYERS / STAGES, LAYERS / STAGES}},
                                          .base.storage = context};
    struct test_model test;
    int status = test_model_open_rank(&test, &options, &grid, world, false);
    if (!status)
        status = base_initialise(test.base, 3);
    if (!status) {
        const struct param_store *store = base_store(test.base);
        int id = param_table_find(store->map.table, "embedding.token.weight", 0);
        status = write_gradient(&test.rank, store, id);
        if (!status)
            status = model_sum_tied_gradients(test.model);
        if (!status)
            status = check_sums(&test.rank, store, id);
    }
    if (status)
        comm_abort(world, status_text());
    test_model_close(&test);
    return status;
}

static void a_tied_table_is_summed_on_both_stages(void **state) {
    (void)state;
    static const struct storage *const storages[] = {&storage_whole, &storage_sharded_gradients, &storage_sharded};
    for (size_t i = 0; i < sizeof storages / sizeof *storages; i++)
        if (comm_local_run(DATA * STAGES, run_rank, (void *)storages[i]))
            fail_msg("%s: %s", storages[i]->name, status_text());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tied_table_is_summed_on_both_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
