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

/* Checks a table that lacks this operation, before and after its places are filled. */
static void check_missing(struct ops *ops, enum op op) {
    const struct op_facts *facts = &op_facts[op];
    for (int is_filled = 0; is_filled < 2; is_filled++) {
        assert_true(ops_lacks(ops, op));
        if (facts->may_be_absent)
            assert_null(ops_missing(ops, 0));
        else
            assert_string_equal(ops_missing(ops, 0), facts->name);
        assert_null(ops_missing(ops, 1));
        assert_int_equal(ops_fill(ops), !is_filled);
    }
}

static void every_operation_that_is_missing_has_a_name_and_fails(void **state) {
    (void)state;
    struct device *device;
    struct exec exec = {0};
    char text[96];
    test_ok(device_open("cpu", DEVICE_FIRST, 1, &device));
    test_ok(stream_open(device, &exec.stream));
#define NO_WORKSPACE(op, type)                                                                                         \
    ops.op##_workspace = NULL;                                                                                         \
    assert_true(ops_fill(&ops));                                                                                       \
    assert_int_equal(ops_workspace(&ops, OP_##op, device, NULL), 0);
#define MISSING(name, type, workspace, ...)                                                                            \
    {                                                                                                                  \
        struct ops ops = *ops_for(device);                                                                             \
        OPS_WITH_##workspace(NO_WORKSPACE, name, type) ops.name = NULL;                                                \
        check_missing(&ops, OP_##name);                                                                                \
        snprintf(text, sizeof text, "device 'cpu' has no operation %s", #name);                                        \
        test_fails(ops.name(&exec, NULL), STATUS_UNSUPPORTED, text);                                                   \
        assert_ptr_equal(ops.sizes, ops_for(device)->sizes);                                                           \
    }
    OPS(MISSING)
    stream_close(exec.stream);
    device_close(device);
}

/* All of the absent ones are named, in the order of the list. */
static void every_operation_can_be_missing(void **state) {
    (void)state;
    int count = 0;
    for (int op = 0; op < OP_COUNT; op++)
        if (!op_facts[op].may_be_absent)
            assert_string_equal(ops_missing(&ops_absent, count++), op_facts[op].name);
    assert_null(ops_missing(&ops_absent, count));
    assert_in_range(count, 40, OP_COUNT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_backend_lacks_an_operation),
        cmocka_unit_test(every_operation_that_is_missing_has_a_name_and_fails),
        cmocka_unit_test(every_operation_can_be_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
