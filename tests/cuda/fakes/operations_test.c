/* The operations that the backend `cuda` has, against the fp64 reference at the CPU's tolerances. The kernels of the
 * program's fat binaries run on the interpreter: LD_LIBRARY_PATH leads to its libcuda.so.1. */
#include "op_cases.h"

#include "support/test.h"

static void operations_compute_what_the_cpus_do(void **state) {
    /* Each family has at least as many cases whose operations are there. */
    static const struct {
        const struct op_family *family;
        int least;
    } rows[] = {{&norm_family, 46}, {&pointwise_family, 44}, {&ends_family, 12}, {&adapter_family, 20}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int count;
        test_ok(op_check_present(rows[i].family, "cuda", &count));
        assert_in_range(count, rows[i].least, rows[i].family->count);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_compute_what_the_cpus_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
