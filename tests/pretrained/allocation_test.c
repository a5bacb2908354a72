/* Whatever allocation fails while a model directory is opened, at whichever rank: that rank says so, the others are
 * released, and nothing is left. Ranks are threads. */
#include "pretrained/pretrained.h"

#include "support/failing.h"
#include "support/test.h"

enum { RANKS = 2, DEADLINE = 60 /* seconds */ };

static int open_whole(struct comm *world, void *context) {
    struct pretrained model;
    int status = comm_agree(world, pretrained_open(context, world, &model));
    pretrained_close(&model);
    return status;
}

static int open_together(void *context) {
    test_ends_within(DEADLINE);
    return comm_local_run(RANKS, open_whole, context);
}

static int open_config(void *context) {
    struct pretrained model;
    int status = pretrained_open_config(context, &model);
    pretrained_close(&model);
    return status;
}

static void directories_open_and_close(void **state) {
    static const char *const names[] = {"fp32", "sharded", "untied"};
    char path[300];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, TEST_DATA "/ckpt/golden/%s", names[i]);
        assert_int_equal(failing_try_all(open_config, path, 100), 0);
        assert_int_equal(failing_try_all(open_together, path, 200), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(directories_open_and_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
