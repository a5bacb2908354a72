#include "op_cases.h"
#include "support/test.h"

static void casts_and_scales_equal_fp64(void **state) {
    (void)state;
    test_ok(op_check_reference(&fp8_family, test_device(), test_is_long()));
}

static void fused_casts_equal_separate_ones(void **state) {
    (void)state;
    test_ok(op_check_reference(&fp8_result_family, test_device(), test_is_long()));
}

static void threads_do_not_change_bits(void **state) {
    (void)state;
    test_ok(op_check_threads(&fp8_family, test_device(), test_is_long()));
    test_ok(op_check_threads(&fp8_result_family, test_device(), test_is_long()));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_and_scales_equal_fp64),
        cmocka_unit_test(fused_casts_equal_separate_ones),
        cmocka_unit_test(threads_do_not_change_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
