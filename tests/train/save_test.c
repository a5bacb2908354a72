/* Background checkpoints of the trainer: the same bytes as in the foreground in every layout, and a run that resumes
 * from one is the run that was not interrupted. Ranks are threads. */
#include "train/support.h"

#include <string.h>
#include <unistd.h>

enum { SAVED = 5, LAST = 10, MOST = 4 };

struct layout {
    int tensor, data, pipeline;
    bool is_sharded;
    int precision;
};

struct task {
    struct train_run run;
    bool is_background;
    double losses[LAST];
};

static int train_on(struct comm *world, struct trainer *trainer, void *context) {
    struct task *task = context;
    struct train_record record;
    bool is_saved = true;
    int status = STATUS_OK;
    while (!status && trainer_iteration(trainer) < LAST) {
        status = trainer_step(trainer, &record);
        if (!status && world->rank == 0)
            task->losses[record.iteration - 1] = record.lm_loss;
        if (!status && !is_saved)
            status = trainer_save_poll(trainer, &is_saved);
        if (status || trainer_iteration(trainer) != SAVED)
            continue;
        is_saved = !task->is_background;
        status = task->is_background ? trainer_save_begin(trainer) : trainer_save(trainer);
    }
    return status ? status : trainer_save(trainer); /* and waits for the one before it */
}

static int run_rank(struct comm *world, void *context) {
    const struct task *task = context;
    return use_trainer(&task->run, world, train_on, context);
}

static void assert_same_checkpoints(const char *a, const char *b, int iteration, bool has_fp8) {
    static const char *const names[] = {"config.json", "model.safetensors", "optimizer.safetensors",
                                        "trainer_state.json", "fp8.safetensors"};
    for (int i = 0; i < 4 + has_fp8; i++) {
        struct strbuf x = STRBUF_INIT, y = STRBUF_INIT;
        char path[4096];
        snprintf(path, sizeof path, "%s/iter_%07d/%s", a, iteration, names[i]);
        test_ok(file_read(path, 1 << 28, &x));
        snprintf(path, sizeof path, "%s/iter_%07d/%s", b, iteration, names[i]);
        test_ok(file_read(path, 1 << 28, &y));
        if (x.length != y.length || memcmp(x.data, y.data, x.length))
            fail_msg("%s is another", path);
        strbuf_free(&x);
        strbuf_free(&y);
    }
}

static void check_layout(const char **prefix, const struct layout *layout) {
    char *directories[3] = {test_directory(), test_directory(), test_directory()};
    struct task tasks[3];
    test_ends_within(300);        /* under a sanitizer; else it takes a second */
    for (int i = 0; i < 3; i++) { /* in the foreground; in the background; resuming from the latter */
        struct task *task = &tasks[i];
        *task = (struct task){.run = make_run(prefix, layout->precision, 1), .is_background = i == 1};
        struct run_config *config = &task->run.config;
        config->train.global_batch_size = 4;
        config->parallel.tensor_model_parallel_size = layout->tensor;
        config->parallel.pipeline_model_parallel_size = layout->pipeline;
        config->parallel.use_distributed_optimizer = layout->is_sharded;
        config->checkpoint.save = directories[i];
        config->checkpoint.async_save = i > 0;
        if (i == 2) {
            char *path = task->run.checkpoint;
            snprintf(path, sizeof task->run.checkpoint, "%s/iter_%07d", directories[1], SAVED);
            task->run.iteration = task->run.optimizer_step = SAVED;
            task->run.consumed_samples = SAVED * config->train.global_batch_size;
        }
        test_ok(comm_local_run(layout->tensor * layout->data * layout->pipeline, run_rank, task));
        int lock; /* which the trainer leaves */
        test_ok(lock_open_directory(directories[i], &lock));
        close(lock);
    }
    bool has_fp8 = layout->precision == PRECISION_FP8;
    assert_same_checkpoints(directories[0], directories[1], SAVED, has_fp8);
    assert_same_checkpoints(directories[0], directories[1], LAST, has_fp8);
    assert_same_checkpoints(directories[0], directories[2], LAST, has_fp8);
    for (int i = SAVED; i < LAST; i++)
        assert_true(tasks[2].losses[i] == tasks[0].losses[i]);
    test_ends_within(0);
    for (int i = 0; i < 3; i++)
        free(directories[i]);
}

static void background_saves_have_the_same_bytes_and_resume_is_bit_exact(void **state) {
    (void)state;
    static const struct layout layouts[] = {
        {1, 1, 1, false, PRECISION_FP32}, {1, 1, 1, false, PRECISION_BF16}, {2, 1, 1, false, PRECISION_BF16},
        {1, 2, 1, false, PRECISION_FP32}, {1, 2, 1, true, PRECISION_BF16},  {2, 2, 1, true, PRECISION_FP32},
        {2, 2, 1, false, PRECISION_BF16}, {1, 4, 1, true, PRECISION_FP32},  {1, 1, 2, false, PRECISION_BF16},
        {2, 1, 2, false, PRECISION_FP32}, {1, 2, 2, true, PRECISION_FP32},  {1, 1, 1, false, PRECISION_FP8},
        {2, 2, 1, true, PRECISION_FP8},   {1, 1, 2, false, PRECISION_FP8},
    };
    char *prefix = write_text();
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (layouts[i].precision == PRECISION_FP32 || test_has_bf16()) /* FP8 needs it, too */
            check_layout((const char **)&prefix, &layouts[i]);
    free(prefix);
}

static void the_plan_says_what_the_copy_takes(void **state) {
    (void)state;
    char *prefix = write_text();
    struct train_run run = make_run((const char **)&prefix, PRECISION_FP32, 1);
    struct train_plan none, foreground, background, shared;
    run.config.train.global_batch_size = 4;
    test_ok(train_plan_make(&run, 1, NULL, &none));
    run.config.checkpoint.save = "/nowhere";
    test_ok(train_plan_make(&run, 1, NULL, &foreground));
    run.config.checkpoint.async_save = true;
    test_ok(train_plan_make(&run, 1, NULL, &background));
    test_ok(train_plan_make(&run, 4, NULL, &shared));
    assert_int_equal(none.checkpoint.host + none.checkpoint.device, 0);
    assert_true(foreground.checkpoint.host > 0 && foreground.checkpoint.host < background.checkpoint.host);
    assert_true(background.checkpoint.host > 12 * (size_t)background.parameters);
    assert_true(shared.checkpoint.host < background.checkpoint.host);
    assert_int_equal(background.checkpoint.device, foreground.checkpoint.device);
    assert_int_equal(train_plan_total(&background) - train_plan_total(&none),
                     background.checkpoint.host + background.checkpoint.device);
    free(prefix);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(background_saves_have_the_same_bytes_and_resume_is_bit_exact),
        cmocka_unit_test(the_plan_says_what_the_copy_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
