/* Whichever step of an engine's opening fails, on one rank or on one of two, everything that the steps before it took
 * is given back. Closing an open engine gives all of it back too. */
#include "engine-internal.h"
#include "held.h"
#include "stacks.h"

#include "support/failing_step.h"

struct task {
    size_t step; /* it fails on the last rank; engine_opening.count: none does */
    int bases;
    struct directories directories;
};

static void is_empty(const struct engine *engine) {
    assert_null(engine->files.tensors);
    assert_null(engine->shared->device);
    assert_null(engine->shared->rank.device);
    assert_null(engine->shared->holders);
    assert_null(engine->leader);
    assert_null(engine->follower);
    assert_null(engine->bank);
    assert_null(engine->base);
    assert_null(engine->runner);
    assert_null(engine->host);
    assert_null(engine->loading.files);
}

static int open_failing(struct comm *world, void *context) {
    const struct task *task = context;
    struct opening_step steps[FAILING_STEPS_MOST];
    bool fails = task->step < engine_opening.count && world->rank == world->size - 1;
    const struct opening opening =
        opening_that_fails(&engine_opening, fails ? task->step : engine_opening.count, steps);
    struct engine_options options = {.device = test_device(),
                                     .model = base_directory(),
                                     .world = world->size > 1 ? world : NULL,
                                     .grid = {world->size, 1, 1, 1, 1},
                                     .adapters = (const char *const *)task->directories.name,
                                     .adapter_count = 2,
                                     .threads = 1,
                                     .max_rows = 8,
                                     .max_logit_rows = 8,
                                     .max_sequences = 3},
                          second = options;
    options.next = task->bases > 1 ? &second : NULL;
    struct engine *engine;
    test_ok(engine_allocate(&options, &engine));
    struct held before = held;
    int status = opening_run(&opening, engine);
    if (task->step == opening.count) {
        test_ok(status);
        assert_true(held_on_device(&held) > held_on_device(&before) && held.blocks > before.blocks);
        opening_undo(&opening, engine);
    } else if (fails) {
        test_fails(status, STATUS_IO, "this step fails");
    } else {
        test_fails(status, STATUS_PEER, "this step fails");
    }
    for (int i = 0; i < task->bases; i++)
        is_empty(engine_of_base(engine, i));
    assert_int_equal(held_on_device(&held), held_on_device(&before));
    assert_int_equal(held.pinned, before.pinned);
    assert_int_equal(held.blocks, before.blocks);
    free(engine->shared);
    return STATUS_OK;
}

static void each_step_that_fails_is_undone(int ranks) {
    static const struct stack stack = {{"lora_patterns", "ia3"}, 2, 0, 0};
    struct task task = {.step = 0};
    find_stack(&stack, &task.directories);
    for (task.bases = 1; task.bases <= 2; task.bases++)
        for (task.step = 0; task.step <= engine_opening.count; task.step++)
            test_ok(comm_local_run(ranks, open_failing, &task));
    forget_stack(&stack, &task.directories);
}

static void each_step_that_fails_on_one_rank_is_undone(void **state) {
    (void)state;
    each_step_that_fails_is_undone(1);
}

static void each_step_that_fails_on_one_of_two_ranks_is_undone_on_both(void **state) {
    (void)state;
    each_step_that_fails_is_undone(2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_step_that_fails_on_one_rank_is_undone),
        cmocka_unit_test(each_step_that_fails_on_one_of_two_ranks_is_undone_on_both),
    };
    test_ends_within(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
