#include "op_cases.h"
#include "support/test.h"

#include <math.h>

static void optimizer_and_sums_equal_fp64(void **state) {
    (void)state;
    test_ok(op_check_reference(&optimizer_family, test_device(), test_is_long()));
}

static void gradients_equal_finite_differences(void **state) {
    (void)state;
    test_ok(op_check_gradients(&optimizer_family, test_device(), test_is_long()));
}

static void threads_do_not_change_bits(void **state) {
    (void)state;
    test_ok(op_check_threads(&optimizer_family, test_device(), test_is_long()));
}

/* A clip factor of NaN stands for a norm that is not finite. */
static void a_factor_that_is_nan_updates_nothing(void **state) {
    enum { COUNT = 1500 };
    struct {
        struct flat_range range;
        float scale, master[COUNT], m[COUNT], v[COUNT], gradient[COUNT], weights[COUNT];
    } before = {.range = {.count = COUNT}, .scale = NAN}, after, *there;
    struct device *device;
    struct stream *stream;
    void *memory;
    (void)state;
    for (int i = 0; i < COUNT; i++)
        before.master[i] = before.m[i] = before.v[i] = before.gradient[i] = before.weights[i] = 1 + (float)i;
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &device));
    test_ok(stream_open(device, &stream));
    test_ok(device_alloc(device, sizeof before, &memory));
    there = memory;
    test_ok(stream_copy_to_device(stream, memory, &before, sizeof before));
    const struct adamw a = {.ranges = &there->range,
                            .range_count = 1,
                            .master = there->master,
                            .m = there->m,
                            .v = there->v,
                            .gradient = there->gradient,
                            .gradient_scale = &there->scale,
                            .weights = there->weights,
                            .lr = 1e-3,
                            .beta1 = 0.9f,
                            .beta2 = 0.95f,
                            .epsilon = 1e-8f,
                            .step = 3,
                            .zero_gradient = true};
    test_ok(ops_for(device)->adamw(&(struct exec){.stream = stream}, &a));
    test_ok(stream_copy_to_host(stream, &after, memory, sizeof after));
    test_ok(stream_wait(stream));
    assert_memory_equal(&after, &before, sizeof after);
    device_free(device, memory);
    stream_close(stream);
    device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizer_and_sums_equal_fp64),
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(threads_do_not_change_bits),
        cmocka_unit_test(a_factor_that_is_nan_updates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
