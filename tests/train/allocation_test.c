/* Whichever allocation of a run fails, in the model, the optimizer, the data, the ranks or a checkpoint, the run
 * reports it. Nothing remains, and no checkpoint is incomplete. */
#include "train/support.h"

#include "support/failing.h"

#include <dirent.h>

/* Calls that get through: the name of a host's boot is asked for where it can be, and threads change the order. */
enum { FEW = 3 };

static int run_rank(struct comm *world, void *context) {
    struct train_run *run = context;
    struct trainer *trainer = NULL;
    log_quiet(true);
    int status = trainer_open(run, world, &trainer);
    if (!status)
        status = trainer_run(trainer);
    if (status && world)
        comm_abort(world, status_text());
    trainer_close(trainer);
    return status;
}

static int run_alone(void *context) {
    return run_rank(NULL, context);
}

static int run_and_clean(void *context) {
    struct train_run *run = context;
    int status = file_remove_tree(run->config.checkpoint.save);
    if (!status)
        status = run_alone(context);
    char path[512];
    DIR *directory = status ? opendir(run->config.checkpoint.save) : NULL;
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        if (!strncmp(entry->d_name, "iter_", 5)) {
            snprintf(path, sizeof path, "%s/%s/trainer_state.json", run->config.checkpoint.save, entry->d_name);
            assert_true(strstr(entry->d_name, ".tmp-") == NULL && file_exists(path));
        }
    if (directory)
        closedir(directory);
    return status;
}

static struct train_run small_run(const char **prefix, const char *save) {
    struct train_run run = make_run(prefix, PRECISION_FP32, 3);
    run.config.train.train_iters = 2;
    run.config.train.eval_interval = 2;
    run.config.train.eval_iters = 1;
    run.config.data.data_cache_path = "";
    run.config.checkpoint.save = save;
    run.config.checkpoint.save_interval = 2;
    return run;
}

static void a_run_ends_with_a_word(void **state) {
    char *prefix = write_text(), *directory = test_directory();
    (void)state;
    struct train_run run = small_run((const char **)&prefix, directory);
    assert_in_range(failing_try_all(run_and_clean, &run, 60), 0, FEW);
    run.config.checkpoint.async_save = true;
    assert_in_range(failing_try_all(run_and_clean, &run, 30), 0, FEW);
    run.config.checkpoint.save = NULL;
    assert_in_range(failing_try_all(run_alone, &run, 100), 0, FEW);
    free(prefix);
    free(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_ends_with_a_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
