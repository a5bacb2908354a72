/* Products against fp64, and the promises of their contract. */
#include "op_cases.h"
#include "support/test.h"

static void products_equal_fp64(void **state) {
    (void)state;
    test_ok(op_check_reference(&gemm_family, test_is_long()));
}

static void products_do_not_depend_on_the_number_of_threads(void **state) {
    (void)state;
    test_ok(op_check_threads(&gemm_family, test_is_long()));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_fp64),
        cmocka_unit_test(products_do_not_depend_on_the_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
