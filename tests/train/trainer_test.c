/* The trainer by itself: nothing is allocated inside a step, and a step means what it says. */
#include "train/support.h"

#include "support/allocations.h"

#include <math.h>

static void nothing_is_allocated_inside_a_step(void **state) {
    (void)state;
    if (!allocations_can_be_counted())
        skip();
    char *prefix = write_text(), *directory = test_directory();
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        struct train_run run = make_run((const char **)&prefix, precision, 2);
        run.config.data.reset_attention_mask = run.config.data.reset_position_ids = true; /* ragged segments */
        struct trainer *trainer;
        struct train_record record;
        struct validation_record validation;
        struct metrics_file metrics;
        struct event_file events;
        bool is_done;
        test_ok(trainer_open(&run, NULL, &trainer));
        test_ok(metrics_open(&metrics, "/dev/null", 0));
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

static void the_count_sees_an_allocation(void **state) {
    (void)state;
    if (!allocations_can_be_counted())
        skip();
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
    assert_true(a.valid_loss == b.valid_loss); /* and nothing of it stays behind in the next one */
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
    test_ok(train_plan_make(&run, 1, &fp32));
    run.config.train.precision = PRECISION_BF16;
    test_ok(train_plan_make(&run, 1, &bf16));
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_count_sees_an_allocation),
        cmocka_unit_test(nothing_is_allocated_inside_a_step),
        cmocka_unit_test(the_loss_is_the_mean_over_the_global_batch),
        cmocka_unit_test(validation_follows_from_the_iteration),
        cmocka_unit_test(the_plan_counts_every_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
