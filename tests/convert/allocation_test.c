/* Whatever allocation of a conversion fails, in each direction: it is reported, and no output is there. */
#include "directions.h"

#include "support/failing.h"

static int convert_whole_or_not(void *context) {
    int status = convert_once(context);
    failing_pause(true);
    assert_int_equal(file_exists(places.output), !status);
    if (!status)
        remove_output();
    failing_pause(false);
    return status;
}

static void outputs_are_whole_or_absent(void **state) {
    (void)state;
    for (int i = 0; i < DIRECTIONS; i++)
        failing_try_all(convert_whole_or_not, (void *)&directions[i], 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_whole_or_absent),
    };
    log_quiet(true);
    return cmocka_run_group_tests(tests, make_places, NULL);
}
