/* The trainer by itself: nothing is allocated inside a step, and a step means what it says. */
#include "train/support.h"

#include "late/late.h"
#include "support/allocations.h"

#include <math.h>

/* Returns true if a device has the precision. */
static bool has_precision(const char *name, int precision) {
    struct device *device;
    test_ok(device_open(name, DEVICE_FIRST, 1, &device));
    enum dtype dtype = precision == PRECISION_BF16 || precision == PRECISION_FP8 ? DTYPE_BF16 : DTYPE_F32;
    struct matrix_view matrix = matrix_plain(dtype, NULL, 8, 8);
    const struct gemm gemm = {.a = matrix, .b = matrix, .c = matrix, .is_tf32 = precision == PRECISION_TF32};
    const struct ops *ops = ops_for(device);
    bool has =
        ops->gemm_supports(device, &gemm) && (precision != PRECISION_FP8 || ops->fp8_cast != ops_absent.fp8_cast);
    device_close(device);
    return has;
}

static void nothing_is_allocated_inside_a_step(void **state) {
    (void)state;
    if (!allocations_can_be_counted())
        test_skip("this build has an allocator that cannot be counted");
    char *prefix = write_text(), *directory = test_directory();
    for (int precision = PRECISION_FP32; precision <= PRECISION_FP8; precision++) {
        if (!has_precision(test_device(), precision))
            continue;
        struct train_run run = make_run((const char **)&prefix, precision, 2);
        run.config.data.reset_attention_mask = run.config.data.reset_position_ids = true; /* ragged segments */
        struct trainer *trainer;
        struct train_record record;
        struct validation_record validation;
        struct metrics_file metrics;
        struct event_file events;
        bool is_done;
        test_ok(trainer_open(&run, NULL, &trainer));
        test_ok(metrics_open(&metrics, "/dev/null", &(struct metrics_start){0}));
        test_ok(events_open(&events, directory, 1));
        for (int i = 0; i < 5; i++)
            test_ok(trainer_step(trainer, &record));
        test_ok(trainer_evaluate(trainer, &validation, &is_done));
        allocations_start();
        for (int i = 0; i < 5; i++) {
            test_ok(trainer_step(trainer, &record));
            test_ok(metrics_write_train(&metrics, &record));
            test_ok(events_write(&events, record.iteration, &(struct event_scalar){"lm loss", record.lm_loss}, 1));
        }
        test_ok(trainer_evaluate(trainer, &validation, &is_done));
        test_ok(metrics_write_validation(&metrics, &validation));
        assert_int_equal(allocations_stop(), 0);
        assert_true(is_done);
        metrics_close(&metrics);
        events_close(&events);
        trainer_close(trainer);
    }
    free(prefix);
    free(directory);
}

/* Its loss and norm come back together. From the third micro batch on, an upload waits until the last but one before it
 * has left the host. A pass of two micro batches has none of these waits. */
static void a_step_waits_for_the_device_once(void **state) {
    (void)state;
    char *prefix = write_text();
    for (int precision = PRECISION_FP32; precision <= PRECISION_FP8; precision++) {
        if (!has_precision("late", precision))
            continue;
        struct train_run run = make_run((const char **)&prefix, precision, 3);
        struct trainer *trainer;
        struct train_record record;
        run.config.device = "late";
        test_ok(trainer_open(&run, NULL, &trainer));
        test_ok(trainer_step(trainer, &record));
        for (int i = 0; i < 3; i++) {
            struct late_counts before = late_counts(trainer_rank(trainer)->device);
            test_ok(trainer_step(trainer, &record));
            struct late_counts after = late_counts(trainer_rank(trainer)->device);
            assert_int_equal(after.waits - before.waits, 1);
            assert_int_equal(after.uploads - before.uploads, 2);
            assert_int_equal(after.downloads - before.downloads, 2);
        }
        trainer_close(trainer);
    }
    free(prefix);
}

static int open_and_look(struct comm *world, void *context) {
    const struct train_run *run = context;
    int devices = device_count(test_device()), expected = devices ? world->rank % devices : world->rank;
    struct trainer *trainer;
    log_quiet(true);
    int status = trainer_open(run, world, &trainer);
    if (!status && device_number(trainer_rank(trainer)->device) != expected)
        status = status_fail(STATUS_INVALID, "rank %d has another device", world->rank);
    if (!status)
        trainer_close(trainer);
    return status;
}

/* Ranks are threads, which take the devices in turn. The CPU serves all numbers. */
static void each_rank_of_a_host_opens_the_device_of_its_place(void **state) {
    (void)state;
    char *prefix = write_text();
    struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, 3);
    test_ok(comm_local_run(2, open_and_look, &run));
    free(prefix);
}

static void the_count_sees_an_allocation(void **state) {
    (void)state;
    if (!allocations_can_be_counted())
        test_skip("this build has an allocator that cannot be counted");
    char *volatile memory = strdup("a text");
    free(memory); /* which libc keeps at hand for the next of its size */
    allocations_start();
    memory = strdup("a text");
    free(memory);
    assert_int_equal(allocations_stop(), 1);
    allocations_start();
    memory = malloc(1 << 16); /* more than libc keeps at hand: kept, so held as well */
    assert_int_equal(allocations_stop(), 2);
    free(memory);
}

/* Losses of the first steps, without dropout so that only the mean's definition counts. */
static void first_losses(const struct train_run *run, double losses[3]) {
    struct trainer *trainer;
    struct train_record record;
    test_ok(trainer_open(run, NULL, &trainer));
    for (int i = 0; i < 3; i++) {
        test_ok(trainer_step(trainer, &record));
        losses[i] = record.lm_loss;
        assert_int_equal(record.iteration, i + 1);
    }
    trainer_close(trainer);
}

/* Masked labels are spread unevenly: a mean of micro batches' means would differ in the second digit. */
static void the_loss_is_the_mean_over_the_global_batch(void **state) {
    (void)state;
    char *prefix = write_text();
    double whole[3], parts[3];
    for (int masks = 0; masks < 4; masks++) {
        for (int64_t size = 1; size <= 6; size++) {
            if (6 % size)
                continue;
            struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, size);
            run.config.data.eod_mask_loss = masks & 1;
            run.config.data.reset_position_ids = run.config.data.reset_attention_mask = masks & 2;
            first_losses(&run, size == 1 ? whole : parts);
            for (int i = 0; i < 3 && size > 1; i++)
                assert_true(fabs(whole[i] - parts[i]) < 1e-5 * whole[i]);
        }
    }
    free(prefix);
}

/* As the work: a token whose loss does not count has none of the head's. */
static void flops_are_of_what_runs(void **state) {
    (void)state;
    char *prefix = write_text();
    double flops[2];
    for (int masks = 0; masks < 2; masks++) {
        struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, 3);
        struct trainer *trainer;
        struct train_record record;
        run.config.data.eod_mask_loss = masks;
        test_ok(trainer_open(&run, NULL, &trainer));
        test_ok(trainer_step(trainer, &record));
        const struct train_plan *plan = trainer_plan(trainer);
        assert_true(plan->head_flops_per_token == 6.0 * 50 * 32);
        flops[masks] = record.model_tflops * 1e12 * record.seconds;
        if (masks == 0) {
            double tokens = record.tokens_per_s * record.seconds;
            assert_true(fabs(flops[0] - tokens * plan->flops_per_token) < 1e-9 * flops[0]);
        } else {
            double masked = (flops[0] - flops[1]) / plan->head_flops_per_token;
            assert_true(masked > 0.5 && fabs(masked - round(masked)) < 1e-3);
        }
        trainer_close(trainer);
    }
    free(prefix);
}

static void validation_follows_from_the_iteration(void **state) {
    (void)state;
    char *prefix = write_text();
    struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, 3);
    struct trainer *trainer;
    struct train_record record;
    struct validation_record a, b;
    bool is_done;
    test_ok(trainer_open(&run, NULL, &trainer));
    for (int i = 0; i < 5; i++)
        test_ok(trainer_step(trainer, &record));
    test_ok(trainer_evaluate(trainer, &a, &is_done));
    assert_true(is_done);
    test_ok(trainer_evaluate(trainer, &b, &is_done));
    assert_true(a.valid_loss == b.valid_loss); /* and nothing of it remains in the next one */
    assert_true(a.valid_loss > 0 && a.valid_loss < 4.5);
    trainer_close(trainer);
    run.config.data.split = "100,0,0";
    test_ok(trainer_open(&run, NULL, &trainer));
    for (int i = 0; i < 5; i++)
        test_ok(trainer_step(trainer, &record));
    test_ok(trainer_evaluate(trainer, &a, &is_done));
    assert_false(is_done);
    trainer_close(trainer);
    free(prefix);
}

static void the_plan_counts_every_part(void **state) {
    (void)state;
    char *prefix = write_text();
    struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, 3);
    struct train_plan fp32, bf16;
    test_ok(train_plan_make(&run, 1, NULL, &fp32));
    run.config.train.precision = PRECISION_BF16;
    test_ok(train_plan_make(&run, 1, NULL, &bf16));
    size_t parameters = (size_t)fp32.parameters;
    assert_int_equal(fp32.parameters, 50 * 32 + 24 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32);
    assert_in_range(fp32.weights, 4 * parameters, 4 * parameters + 28 * 256);
    assert_in_range(bf16.weights, 2 * parameters, 2 * parameters + 28 * 128);
    assert_in_range(fp32.gradients, 4 * parameters, 4 * parameters + 28 * 256);
    assert_in_range(fp32.optimizer, 8 * parameters, 8 * parameters + 28 * 512 + 256);
    assert_in_range(bf16.optimizer, 12 * parameters, 12 * parameters + 28 * 768 + 256);
    assert_true(bf16.activations < fp32.activations);
    assert_int_equal(train_plan_total(&fp32),
                     fp32.weights + fp32.gradients + fp32.optimizer + fp32.activations + fp32.workspace + fp32.data);
    free(prefix);
}

static void tf32_needs_a_card(void **state) {
    (void)state;
    static const char why[] = "precision tf32: no TF32 on cpu: take fp32 or bf16, or an NVIDIA GPU (--device cuda)";
    char *prefix = write_text();
    struct train_run run = make_run((const char **)&prefix, PRECISION_TF32, 3);
    struct train_plan plan;
    struct trainer *trainer;
    run.config.device = "cpu";
    test_fails(train_plan_make(&run, 1, NULL, &plan), STATUS_UNSUPPORTED, why);
    test_fails(trainer_open(&run, NULL, &trainer), STATUS_UNSUPPORTED, why);
    run.config.device = "late";
    test_fails(train_plan_make(&run, 1, NULL, &plan), STATUS_UNSUPPORTED, "precision tf32: no TF32 on late");
    free(prefix);
}

/* Stages differ: the first has most of the layers, or the last. */
static void every_stage_is_planned(void **state) {
    (void)state;
    char *prefix = write_text();
    struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, 1);
    struct train_plan whole, plan;
    run.config.model.num_layers = 6;
    test_ok(train_plan_make(&run, 1, NULL, &whole));
    assert_int_equal(train_plan_of_host(&whole), train_plan_total(&whole));
    run.config.parallel.pipeline_model_parallel_size = 2;
    for (int stage = 0; stage < 2; stage++) {
        run.config.parallel.decoder_first_pipeline_num_layers = stage ? 1 : 5;
        run.config.parallel.decoder_last_pipeline_num_layers = stage ? 5 : 1;
        test_ok(train_plan_make(&run, 2, NULL, &plan));
        assert_int_equal(plan.place.pipeline, stage);
        assert_int_equal(plan.ranks_here, 2);
        assert_in_range(plan.weights, whole.weights * 5 / 8, whole.weights);
        size_t same = strcmp(test_device(), "cuda") == 0 ? plan.workspace : 0; /* cuBLASLt's is that of each stage */
        size_t most = (train_plan_total(&plan) - same) * 7 / 8 + same;
        assert_true(train_plan_of_host(&plan) < 2 * most); /* the other stage has less */
        assert_true(train_plan_of_host(&plan) > train_plan_total(&plan) * 9 / 8);
    }
    test_ok(train_plan_make(&run, 6, NULL, &plan)); /* three copies of the data */
    assert_int_equal(plan.place.pipeline, 1);
    assert_int_equal(plan.ranks_here, 6);
    assert_true(train_plan_of_host(&plan) < 6 * train_plan_total(&plan));
    free(prefix);
}

static void a_plan_beyond_the_memory_is_refused_with_what_would_help(void **state) {
    (void)state;
    char *prefix = write_text();
    struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, 2);
    struct train_plan plan;
    test_ok(train_plan_make(&run, 3, NULL, &plan));
    struct memory_limit limit = {.bytes = train_plan_of_host(&plan)};
    test_ok(train_plan_check(&run, &plan, &limit));
    limit.bytes--;
    test_fails(train_plan_check(&run, &plan, &limit), STATUS_MEMORY, "GiB are planned on this host, which has 0.");
    test_fails(
        train_plan_check(&run, &plan, &limit), STATUS_MEMORY,
        "what would help: a smaller data.seq_length, parallel.recompute_granularity full, "
        "parallel.use_distributed_optimizer, parallel.data_parallel_sharding_strategy optim_grads_params, a smaller "
        "train.micro_batch_size, more tensor or pipeline ranks in place of data ranks");
    limit.is_cgroup = true;
    test_fails(train_plan_check(&run, &plan, &limit), STATUS_MEMORY, "which allows its control group 0.");
    run.config.parallel.use_distributed_optimizer = true;
    run.config.parallel.data_parallel_sharding_strategy = SHARDING_OPTIM_GRADS_PARAMS;
    run.config.train.micro_batch_size = 1;
    test_fails(train_plan_check(&run, &plan, &limit), STATUS_MEMORY,
               "what would help: a smaller data.seq_length, parallel.recompute_granularity full, more tensor or "
               "pipeline ranks in place of");
    run.config.parallel.recompute_granularity = GRANULARITY_FULL;
    run.config.parallel.recompute_num_layers = 1;
    test_ok(train_plan_make(&run, 1, NULL, &plan));
    limit.bytes = 1000;
    test_fails(train_plan_check(&run, &plan, &limit), STATUS_MEMORY,
               "what would help: a smaller data.seq_length, tensor or pipeline ranks on more hosts");
    free(prefix);
}

/* A device with memory of its own is measured by that, and the host by the rest. */
static void device_and_host_are_checked_apart(void **state) {
    (void)state;
    char *prefix = write_text();
    struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, 2);
    struct train_plan plan, one;
    test_ok(train_plan_make(&run, 3, NULL, &plan));
    test_ok(train_plan_make(&run, 1, NULL, &one));
    struct train_bytes bytes = train_plan_bytes(&plan);
    assert_int_equal(bytes.device, plan.weights + plan.gradients + plan.optimizer + plan.activations + plan.workspace);
    assert_int_equal(bytes.host, plan.data + plan.checkpoint.host);
    assert_int_equal(plan.here.device, 3 * bytes.device); /* the ranks have the same part of the model */
    assert_int_equal(plan.most_on_device, bytes.device);
    assert_true(plan.here.host < 3 * bytes.host); /* they share the maps of their data */
    assert_int_equal(train_plan_bytes(&one).device, one.here.device);
    assert_int_equal(plan.device_memory, 0);
    assert_int_equal(train_plan_of_host(&plan), plan.here.device + plan.here.host);
    struct memory_limit limit = {.bytes = plan.here.host};
    test_fails(train_plan_check(&run, &plan, &limit), STATUS_MEMORY, "GiB are planned on this host, which has 0.");
    plan.device_memory = bytes.device; /* as a GPU would say */
    test_ok(train_plan_check(&run, &plan, &limit));
    plan.device_memory--;
    test_fails(train_plan_check(&run, &plan, &limit), STATUS_MEMORY, "GiB are planned on a device, which has 0.");
    limit.bytes--;
    test_fails(train_plan_check(&run, &plan, &limit), STATUS_MEMORY, "GiB are planned on this host, which has 0.");
    free(prefix);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_and_host_are_checked_apart),
        cmocka_unit_test(a_step_waits_for_the_device_once),
        cmocka_unit_test(each_rank_of_a_host_opens_the_device_of_its_place),
        cmocka_unit_test(the_count_sees_an_allocation),
        cmocka_unit_test(nothing_is_allocated_inside_a_step),
        cmocka_unit_test(the_loss_is_the_mean_over_the_global_batch),
        cmocka_unit_test(flops_are_of_what_runs),
        cmocka_unit_test(validation_follows_from_the_iteration),
        cmocka_unit_test(the_plan_counts_every_part),
        cmocka_unit_test(tf32_needs_a_card),
        cmocka_unit_test(every_stage_is_planned),
        cmocka_unit_test(a_plan_beyond_the_memory_is_refused_with_what_would_help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
