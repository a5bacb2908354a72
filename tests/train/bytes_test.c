/* The bytes that a rank allocates on its device are those of its plan, and a step allocates none. The messages of
 * shares are those of the plan, too. Ranks are threads on the backend late, which counts. */
#include "train-internal.h"
#include "train/support.h"

#include "late/late.h"
#include "parallel/sharded.h"

#include <math.h>
#include <string.h>

enum { LAYERS = 4, BATCH = 8 };

struct layout {
    int tensor, data, pipeline, chunks, sharding, kept;
    bool is_untied;
    int precision;
};

static int expect_planned(struct trainer *trainer, const char *when) {
    size_t planned = train_plan_bytes(trainer_plan(trainer)).device;
    int64_t allocated = late_counts(trainer_rank(trainer)->device).allocated;
    return allocated == (int64_t)planned ? STATUS_OK
                                         : status_fail(STATUS_INVALID, "%s: %lld bytes are allocated, %zu planned",
                                                       when, (long long)allocated, planned);
}

/* Returns the bytes of a kind of planned message among the data ranks, once for a global batch. */
static double planned_messages(const struct rank *rank, enum work_message message) {
    double bytes = 0;
    for (int i = 0; i < rank->work.count; i++) {
        const struct work_item *item = &rank->work.items[i];
        if (item->group == RANK_BUCKETS && item->message == message)
            bytes += item->work.bytes * (double)item->count;
    }
    return bytes;
}

/* Compares the messages of one step. A store with whole weights gathers them by other means. */
static int expect_messages(struct trainer *trainer, const struct param_store *store) {
    struct sharded_counts counts = sharded_counts(store);
    const struct rank *rank = trainer_rank(trainer);
    double summed = counts.summed * sizeof(float), gathered = counts.gathered * (double)dtype_bytes(store->map.type);
    if (param_cuts_gradients(store) && fabs(summed - planned_messages(rank, WORK_REDUCE_SCATTER)) > 0)
        return status_fail(STATUS_INVALID, "%.0f bytes are summed, %.0f planned", summed,
                           planned_messages(rank, WORK_REDUCE_SCATTER));
    if (sharded_cuts_weights(store) && fabs(gathered - planned_messages(rank, WORK_ALL_GATHER)) > 0)
        return status_fail(STATUS_INVALID, "%.0f bytes are gathered, %.0f planned", gathered,
                           planned_messages(rank, WORK_ALL_GATHER));
    return STATUS_OK;
}

static int run_rank(struct comm *world, void *context) {
    const struct train_run *run = context;
    struct trainer *trainer;
    struct train_record record;
    log_quiet(true);
    int status = trainer_open(run, world, &trainer);
    if (!status)
        status = expect_planned(trainer, "after the opening");
    if (!status)
        status = trainer_step(trainer, &record);
    if (!status)
        status = expect_planned(trainer, "after a step");
    if (!status)
        status = expect_messages(trainer, model_store(trainer->model));
    if (!status)
        status = trainer_await_weights(trainer);
    if (status)
        comm_abort(world, status_text());
    trainer_close(trainer);
    return status;
}

static void check(const char **prefix, const struct layout *layout) {
    struct train_run run = make_run(prefix, layout->precision, 1);
    struct run_config *config = &run.config;
    config->device = "late";
    config->model.num_layers = LAYERS;
    config->model.untie_embeddings_and_output_weights = layout->is_untied;
    config->train.global_batch_size = BATCH;
    config->parallel.tensor_model_parallel_size = layout->tensor;
    config->parallel.pipeline_model_parallel_size = layout->pipeline;
    config->parallel.virtual_pipeline_model_parallel_size = layout->chunks;
    config->parallel.data_parallel_sharding_strategy = layout->sharding;
    config->parallel.fsdp_keep_gathered = layout->kept;
    test_ok(run_config_resolve(config));
    print_message("tensor %d data %d pipeline %d of %d chunks, %s, %d kept\n", layout->tensor, layout->data,
                  layout->pipeline, layout->chunks, run_shardings[layout->sharding], layout->kept);
    test_ok(comm_local_run(layout->tensor * layout->data * layout->pipeline, run_rank, &run));
}

static void what_is_allocated_is_what_was_planned(void **state) {
    (void)state;
    static const int grids[][4] = {{1, 2, 1, 1}, {2, 2, 1, 1}, {1, 2, 2, 1}, {1, 2, 2, 2}, {1, 4, 1, 1}, {2, 2, 2, 1}};
    static const int precisions[] = {PRECISION_FP32, PRECISION_BF16, PRECISION_FP8};
    const size_t precision_count = test_has_bf16() ? 3 : 1; /* FP8 needs it, too */
    char *prefix = write_text();
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++)
        for (int sharding = SHARDING_NONE; sharding <= SHARDING_OPTIM_GRADS_PARAMS; sharding++)
            for (int kept = 0; kept < (sharding == SHARDING_OPTIM_GRADS_PARAMS ? 2 : 1); kept++) {
                struct layout layout = {.tensor = grids[g][0],
                                        .data = grids[g][1],
                                        .pipeline = grids[g][2],
                                        .chunks = grids[g][3],
                                        .sharding = sharding,
                                        .kept = kept,
                                        .is_untied = g % 2,
                                        .precision = precisions[(g + (size_t)sharding) % precision_count]};
                check((const char **)&prefix, &layout);
            }
    free(prefix);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_allocated_is_what_was_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
