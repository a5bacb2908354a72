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

static void write_file(const char *directory, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    test_ok(file_write_atomic(path, text, strlen(text)));
}

static void what_ends_texts_is_read_from_two_files(void **state) {
    char *directory = test_directory();
    struct pretrained model;
    (void)state;
    write_file(directory, "config.json", "{\"model_type\":\"llama\",\"eos_token_id\":7}");
    write_file(directory, "generation_config.json", "{\"eos_token_id\":[9,7]}");
    test_ok(pretrained_open_config(directory, &model));
    assert_int_equal(model.ends.count, 2);
    assert_int_equal(model.ends.eos[0], 7);
    assert_int_equal(model.ends.eos[1], 9);
    pretrained_close(&model);
    assert_int_equal(failing_try_all(open_config, directory, 100), 0);
    write_file(directory, "generation_config.json", "[]");
    test_fails(pretrained_open_config(directory, &model), STATUS_INVALID, "generation_config.json: a JSON object was");
    pretrained_close(&model);
    free(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_ends_texts_is_read_from_two_files),
        cmocka_unit_test(directories_open_and_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
