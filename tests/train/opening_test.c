/* Whichever step of a trainer's opening fails, on one rank or on the last of two, every rank returns. The run can be
 * opened again, because its directory is no longer locked. AddressSanitizer also finds memory that was not freed. */
#include "train-internal.h"

#include "train/support.h"

#include "support/failing_step.h"

struct task {
    const struct train_run *run;
    size_t step; /* it fails on the last rank; train_opening.count: none does */
};

static int open_failing(struct comm *world, void *context) {
    const struct task *task = context;
    struct opening_step steps[FAILING_STEPS_MOST];
    bool fails = task->step < train_opening.count && world->rank == world->size - 1;
    const struct opening opening = opening_that_fails(&train_opening, fails ? task->step : train_opening.count, steps);
    struct trainer *trainer;
    log_quiet(true);
    test_ok(train_make(task->run, world, &trainer));
    int status = opening_run(&opening, trainer);
    if (task->step == opening.count) {
        test_ok(status);
        opening_undo(&opening, trainer);
    } else {
        test_fails(status, fails ? STATUS_IO : STATUS_PEER, "this step fails");
    }
    assert_int_equal(trainer->save_lock, -1);
    free(trainer);
    return STATUS_OK;
}

static void each_step_that_fails_is_undone(int ranks) {
    char *prefix = write_text(), *directory = test_directory();
    struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, 3);
    run.config.checkpoint.save = directory;
    run.config.checkpoint.save_interval = 2;
    run.config.checkpoint.async_save = true;
    struct task task = {.run = &run};
    for (; task.step <= train_opening.count; task.step++)
        test_ok(comm_local_run(ranks, open_failing, &task));
    free(prefix);
    free(directory);
}

static void each_step_that_fails_on_one_rank_is_undone(void **state) {
    (void)state;
    each_step_that_fails_is_undone(1);
}

static void each_step_that_fails_on_one_of_two_ranks_ends_both(void **state) {
    (void)state;
    each_step_that_fails_is_undone(2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_step_that_fails_on_one_rank_is_undone),
        cmocka_unit_test(each_step_that_fails_on_one_of_two_ranks_ends_both),
    };
    test_ends_within(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
