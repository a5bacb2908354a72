/* A rank that plans on a sketched device: workspaces are arithmetic, and an operation that is missing is found. */
#include "parallel/rank.h"

#include "support/test.h"

static const struct rank_grid alone = {1, 1, 1, 1, 1};

static struct norm norm_call(int64_t rows) {
    static float gradient;
    return (struct norm){.rows = rows, .cols = 64, .dgain = &gradient, .dbias = &gradient};
}

static void a_sketch_plans_the_workspace_of_its_device(void **state) {
    (void)state;
    size_t needed[2];
    for (int is_sketch = 0; is_sketch < 2; is_sketch++) {
        struct device_facts facts = {.kind = test_device(), .threads = 2};
        struct device *device;
        struct rank rank;
        test_ok(is_sketch ? device_sketch(&facts, &device)
                          : device_open(facts.kind, DEVICE_FIRST, facts.threads, &device));
        rank_sketch(&rank, &alone, 0, device);
        struct norm norm = norm_call(300);
        test_ok(rank_run(&rank, PHASE_NORM, norm_backward, &norm));
        needed[is_sketch] = work_scratch(&rank.work);
        rank_close(&rank);
        device_close(device);
    }
    assert_true(needed[0] > 0);
    assert_int_equal(needed[0], needed[1]);
}

static void planning_finds_an_operation_that_is_missing(void **state) {
    (void)state;
    struct device_facts facts = {.kind = test_device(), .threads = 1};
    struct device *device;
    struct rank rank;
    struct norm norm = norm_call(4);
    test_ok(device_sketch(&facts, &device));
    rank_sketch(&rank, &alone, 0, device);
    struct ops ops = *rank.ops;
    ops.norm_forward = ops_absent.norm_forward;
    ops.norm_backward = ops_absent.norm_backward;
    rank.ops = &ops;
    test_fails(rank_run(&rank, PHASE_NORM, norm_forward, &norm), STATUS_UNSUPPORTED, "no operation norm_forward");
    test_fails(rank_run(&rank, PHASE_NORM, norm_backward, &norm), STATUS_UNSUPPORTED, "no operation norm_backward");
    rank_close(&rank);
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sketch_plans_the_workspace_of_its_device),
        cmocka_unit_test(planning_finds_an_operation_that_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
