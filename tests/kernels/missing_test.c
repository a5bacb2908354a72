/* An operation that a backend lacks is an answer: it has a name, and calling it is an error. */
#include "backend.h"

#include "support/test.h"

static void no_backend_lacks_an_operation(void **state) {
    (void)state;
    for (int i = 0; device_name_at(i); i++) {
        struct device *device;
        test_ok(device_open(device_name_at(i), DEVICE_FIRST, 1, &device));
        assert_null(ops_missing(ops_for(device), 0));
        device_close(device);
    }
}

static void a_missing_operation_has_a_name_and_fails(void **state) {
    (void)state;
    struct device *device;
    struct exec exec = {0};
    test_ok(device_open("cpu", DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &exec.stream));
    struct ops ops = *ops_for(device);
    ops.norm_forward = NULL;
    ops.norm_backward_workspace = NULL;
    ops.sample = NULL;
    for (int is_filled = 0; is_filled < 2; is_filled++) {
        assert_string_equal(ops_missing(&ops, 0), "norm_forward");
        assert_string_equal(ops_missing(&ops, 1), "sample");
        assert_null(ops_missing(&ops, 2));
        ops_fill(&ops);
    }
    test_fails(ops.norm_forward(&exec, NULL), STATUS_UNSUPPORTED, "device 'cpu' has no operation norm_forward");
    assert_int_equal(ops.norm_backward_workspace(device, NULL), 0);
    assert_ptr_equal(ops.gemm, ops_for(device)->gemm);
    stream_close(exec.stream);
    device_close(device);
}

/* All of the absent ones are named, and each in the place of its own. */
static void every_operation_can_be_missing(void **state) {
    (void)state;
    int count = 0;
    for (; ops_missing(&ops_absent, count); count++)
        for (int i = 0; i < count; i++)
            assert_string_not_equal(ops_missing(&ops_absent, i), ops_missing(&ops_absent, count));
    assert_in_range(count, 40, sizeof(struct ops) / sizeof(void *));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_backend_lacks_an_operation),
        cmocka_unit_test(a_missing_operation_has_a_name_and_fails),
        cmocka_unit_test(every_operation_can_be_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
