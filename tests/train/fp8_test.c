/* Training in FP8. Its losses are near those of bf16, on one rank and on several. Recomputation, validation and
 * checkpoints do not change them. Ranks are threads. */
#include "train-internal.h"
#include "train/support.h"

#include "ckpt/safetensors.h"
#include "support/device.h"

#include <math.h>
#include <string.h>

enum { STEPS = 8, BATCH = 4, LENGTH = 3 };
enum { TENSORS = 12, GRADIENTS = 8 }; /* of a layer; the first of an output's gradient */

struct task {
    struct train_run run;
    int64_t last;   /* iteration, after which it saves if it has a directory */
    bool validates; /* after each iteration */
    double loss[STEPS];
};

/* The ranks of a stage share every tensor, and so its scale. */
static int expect_same_scales(struct comm *world, struct trainer *trainer) {
    struct rank *rank = trainer_rank(trainer);
    int count;
    const struct param_range *range = param_ranges(model_fp8_store(trainer->model), PARAM_WEIGHTS, &count);
    size_t bytes = (size_t)range->count * sizeof(float);
    char *own = test_copy(rank->exec.stream, range->data, bytes), *first = malloc(bytes);
    struct comm_data data = {.send = own, .receive = first, .count = (int64_t)bytes, .dtype = DTYPE_U8};
    int status = first ? comm_broadcast(world, &data, 0) : STATUS_MEMORY;
    if (!status && memcmp(own, first, bytes) != 0)
        status = status_fail(STATUS_INVALID, "rank %d has other scales than rank 0", world->rank);
    free(own);
    free(first);
    return status;
}

static int train_on(struct comm *world, struct trainer *trainer, void *context) {
    struct task *task = context;
    struct train_record record;
    struct validation_record validation;
    bool is_done;
    int status = STATUS_OK;
    while (!status && trainer_iteration(trainer) < task->last) {
        status = trainer_step(trainer, &record);
        if (!status && world->rank == 0)
            task->loss[record.iteration - 1] = record.lm_loss;
        if (!status && task->validates)
            status = trainer_evaluate(trainer, &validation, &is_done);
    }
    if (!status && model_fp8_store(trainer->model) && trainer_rank(trainer)->grid.pipeline == 1)
        status = expect_same_scales(world, trainer);
    if (!status && task->run.config.checkpoint.save)
        status = trainer_save(trainer);
    return status ? status : trainer_await_weights(trainer);
}

static int run_rank(struct comm *world, void *context) {
    const struct task *task = context;
    return use_trainer(&task->run, world, train_on, context);
}

static struct task make_task(const char **prefix, int precision) {
    struct task task = {.run = make_run(prefix, precision, 1), .last = STEPS};
    struct run_config *config = &task.run.config;
    config->train.global_batch_size = BATCH;
    config->optim.lr = 1e-3;
    if (precision == PRECISION_FP8)
        config->train.fp8_amax_history_len = LENGTH;
    return task;
}

static void train(struct task *task) {
    const struct run_config *config = &task->run.config;
    int64_t ranks = config->parallel.tensor_model_parallel_size * config->parallel.pipeline_model_parallel_size;
    test_ok(comm_local_run((int)ranks * (config->parallel.data_parallel_sharding_strategy ? 2 : 1), run_rank, task));
}

static void resume(struct task *task, const char *directory, int64_t iteration) {
    snprintf(task->run.checkpoint, sizeof task->run.checkpoint, "%s/iter_%07lld", directory, (long long)iteration);
    task->run.iteration = task->run.optimizer_step = iteration;
    task->run.consumed_samples = iteration * BATCH;
}

/* A loss is a mean over rows, in which the roundings of FP8 cancel. In the first step all scales are 1, and gradients
 * below the least FP8 number vanish: Adam moves their weights later than bf16 does. */
static const double NEAR_BF16 = 0x1p-7;

/* As in layout_test.c: one rounding of bf16. */
static const double NEAR_ONE_RANK = 0x1p-9;

static void assert_near(const struct task *a, const struct task *b, double bound) {
    double worst = 0;
    for (int64_t i = a->run.iteration; i < a->last; i++) {
        double off = fabs(a->loss[i] - b->loss[i]) / b->loss[i];
        worst = fmax(worst, off);
        if (!(off <= bound))
            fail_msg("step %lld: the loss is %g, expected %g", (long long)i + 1, a->loss[i], b->loss[i]);
    }
    print_message("losses within %.1e\n", worst);
}

static void losses_are_near_those_of_bf16(void **state) {
    (void)state;
    test_skip_without_bf16();
    char *prefix = write_text();
    struct task bf16 = make_task((const char **)&prefix, PRECISION_BF16);
    train(&bf16);
    for (int format = FP8_HYBRID; format <= FP8_E4M3; format++) {
        struct task fp8 = make_task((const char **)&prefix, PRECISION_FP8);
        fp8.run.config.train.fp8_format = format;
        fp8.run.config.train.fp8_amax_compute_algo = format == FP8_E4M3 ? FP8_AMAX_MOST_RECENT : FP8_AMAX_MAX;
        train(&fp8);
        assert_near(&fp8, &bf16, NEAR_BF16);
        assert_true(fp8.loss[0] != bf16.loss[0]);
    }
    free(prefix);
}

static void every_layout_has_the_losses_of_one_rank(void **state) {
    (void)state;
    test_skip_without_bf16();
    char *prefix = write_text();
    struct task one = make_task((const char **)&prefix, PRECISION_FP8);
    train(&one);
    for (int layout = 0; layout < 5; layout++) {
        struct task many = make_task((const char **)&prefix, PRECISION_FP8);
        struct run_config *config = &many.run.config;
        config->parallel.tensor_model_parallel_size = layout < 2 || layout == 4 ? 2 : 1;
        config->parallel.sequence_parallel = layout == 1;
        config->parallel.pipeline_model_parallel_size = layout == 2 ? 2 : 1;
        config->parallel.data_parallel_sharding_strategy = layout == 3   ? SHARDING_OPTIM_GRADS_PARAMS
                                                           : layout == 4 ? SHARDING_OPTIM
                                                                         : SHARDING_NONE;
        train(&many);
        assert_near(&many, &one, NEAR_ONE_RANK);
    }
    free(prefix);
}

/* They cast with the scales that there are, and add nothing to the histories. */
static void recomputation_and_validation_change_no_bits(void **state) {
    (void)state;
    test_skip_without_bf16();
    char *prefix = write_text();
    struct task plain = make_task((const char **)&prefix, PRECISION_FP8);
    train(&plain);
    for (int kind = 0; kind < 3; kind++) {
        struct task task = make_task((const char **)&prefix, PRECISION_FP8);
        struct run_config *config = &task.run.config;
        task.validates = kind == 0;
        config->train.eval_interval = config->train.eval_iters = 1;
        config->parallel.recompute_granularity = kind ? GRANULARITY_FULL : GRANULARITY_NONE;
        config->parallel.recompute_method = kind == 1 ? METHOD_UNIFORM : METHOD_BLOCK;
        config->parallel.recompute_num_layers = 1;
        train(&task);
        for (int i = 0; i < STEPS; i++)
            assert_true(task.loss[i] == plain.loss[i]);
    }
    free(prefix);
}

/* Returns the file of a checkpoint; the caller frees text->data. */
static struct strbuf read_file(const char *directory, int64_t iteration, const char *name) {
    struct strbuf text = STRBUF_INIT;
    char path[4096];
    snprintf(path, sizeof path, "%s/iter_%07lld/%s", directory, (long long)iteration, name);
    test_ok(file_read(path, 1 << 28, &text));
    return text;
}

static void read_tensor(const struct safetensors *file, const char *name, int64_t rows, float *values) {
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const struct safetensor *tensor = safetensors_at(file, i);
        if (strcmp(tensor->name, name) != 0)
            continue;
        assert_int_equal(tensor->shape[0], rows);
        assert_int_equal(tensor->shape[1], TENSORS);
        test_ok(safetensors_read(file, tensor, 0, tensor->elements, DTYPE_F32, values));
        return;
    }
    fail_msg("there is no tensor %s", name);
}

/* A history has a row for each of the last LENGTH steps, and the largest decides. */
static void scales_follow_from_the_histories_in_the_file(void **state) {
    (void)state;
    test_skip_without_bf16();
    char *prefix = write_text(), *directory = test_directory(), path[4096];
    struct task task = make_task((const char **)&prefix, PRECISION_FP8);
    struct safetensors *file;
    float history[LENGTH][TENSORS], scale[2][TENSORS];
    task.run.config.checkpoint.save = directory;
    train(&task);
    snprintf(path, sizeof path, "%s/iter_%07d/fp8.safetensors", directory, STEPS);
    test_ok(safetensors_open(path, &file));
    read_tensor(file, "layers.1.fp8_amax_history", LENGTH, history[0]);
    read_tensor(file, "layers.1.fp8_scale", 2, scale[0]);
    for (int t = 0; t < TENSORS; t++) {
        float largest = fmaxf(fmaxf(history[0][t], history[1][t]), history[2][t]);
        for (int row = 0; row < LENGTH; row++)
            assert_true(history[row][t] > 0);
        assert_true(scale[0][t] == (t < GRADIENTS ? 448.0f : 57344.0f) / largest);
        assert_true(scale[1][t] == 1 / scale[0][t]);
        assert_true(history[0][t] != history[1][t] || history[1][t] != history[2][t]);
    }
    safetensors_close(file);
    free(directory);
    free(prefix);
}

/* The histories of one rank, loaded on others and saved again, are the same file. */
static void any_layout_resumes_the_histories(void **state) {
    (void)state;
    test_skip_without_bf16();
    char *prefix = write_text(), *first = test_directory();
    struct task one = make_task((const char **)&prefix, PRECISION_FP8);
    one.last = STEPS / 2;
    one.run.config.checkpoint.save = first;
    train(&one);
    struct strbuf expected = read_file(first, one.last, "fp8.safetensors");
    for (int layout = 0; layout < 3; layout++) {
        char *directory = test_directory();
        struct task many = make_task((const char **)&prefix, PRECISION_FP8);
        many.run.config.parallel.tensor_model_parallel_size = layout != 1 ? 2 : 1;
        many.run.config.parallel.pipeline_model_parallel_size = layout != 0 ? 2 : 1;
        many.run.config.parallel.data_parallel_sharding_strategy = layout == 2 ? SHARDING_OPTIM : SHARDING_NONE;
        many.run.config.checkpoint.save = directory;
        many.last = one.last;
        resume(&many, first, one.last);
        train(&many);
        struct strbuf found = read_file(directory, one.last, "fp8.safetensors");
        assert_int_equal(found.length, expected.length);
        assert_memory_equal(found.data, expected.data, found.length);
        strbuf_free(&found);
        free(directory);
    }
    strbuf_free(&expected);
    free(first);
    free(prefix);
}

static void a_run_resumes_in_the_other_precision(void **state) {
    (void)state;
    test_skip_without_bf16();
    char *prefix = write_text(), *directories[2] = {test_directory(), test_directory()};
    struct task saved[2];
    for (int is_fp8 = 0; is_fp8 < 2; is_fp8++) {
        struct task *task = &saved[is_fp8];
        *task = make_task((const char **)&prefix, is_fp8 ? PRECISION_FP8 : PRECISION_BF16);
        task->run.config.checkpoint.save = directories[is_fp8];
        train(task);
        task->run.config.checkpoint.save = NULL;
    }
    struct task bf16 = make_task((const char **)&prefix, PRECISION_BF16);
    struct task fp8 = make_task((const char **)&prefix, PRECISION_FP8);
    struct task longer = make_task((const char **)&prefix, PRECISION_FP8);
    longer.run.config.train.fp8_amax_history_len = LENGTH + 1; /* its histories begin empty, too */
    resume(&bf16, directories[1], STEPS);
    resume(&fp8, directories[0], STEPS);
    resume(&longer, directories[1], STEPS);
    struct task *const tasks[] = {&bf16, &fp8, &longer};
    for (int i = 0; i < 3; i++) {
        struct train_record record;
        struct trainer *trainer;
        log_quiet(true);
        test_ok(trainer_open(&tasks[i]->run, NULL, &trainer));
        for (int step = 0; step < 2; step++) {
            test_ok(trainer_step(trainer, &record));
            assert_true(record.lm_loss < saved[0].loss[STEPS / 2]);
        }
        trainer_close(trainer);
    }
    free(directories[0]);
    free(directories[1]);
    free(prefix);
}

static void sizes_and_keys_are_refused(void **state) {
    (void)state;
    test_skip_without_bf16();
    char *prefix = write_text();
    struct trainer *trainer;
    struct task task = make_task((const char **)&prefix, PRECISION_FP8);
    task.run.config.model.ffn_hidden_size = 120;
    log_quiet(true);
    test_fails(
        trainer_open(&task.run, NULL, &trainer), STATUS_USAGE,
        "mlp.fc1 has 120 outputs on each tensor rank; FP8 products need multiples of 16, and the nearest is 128");
    struct run_config bf16 = make_run((const char **)&prefix, PRECISION_BF16, 1).config, changed;
    struct {
        int64_t *field;
        const char *key;
    } keys[] = {{&changed.train.fp8_margin, "train.fp8_margin"},
                {&changed.train.fp8_amax_history_len, "train.fp8_amax_history_len"}};
    for (int i = 0; i < 2; i++) {
        changed = bf16;
        *keys[i].field = 7;
        test_fails(run_config_resolve(&changed), STATUS_USAGE, keys[i].key);
    }
    changed = bf16;
    changed.train.fp8_format = FP8_E4M3;
    test_fails(run_config_resolve(&changed), STATUS_USAGE, "train.fp8_format does nothing without train.precision fp8");
    changed = bf16;
    changed.train.fp8_amax_compute_algo = FP8_AMAX_MOST_RECENT;
    test_fails(run_config_resolve(&changed), STATUS_USAGE, "train.fp8_amax_compute_algo");
    free(prefix);
}

static struct model_options small_options(void) {
    return (struct model_options){
        .config = tiny_model(&(const struct tiny_model){
            .layers = 1, .hidden = 32, .heads = 2, .positions = S, .vocab = VOCAB, .init_std = 0.02}),
        .dtype = DTYPE_BF16,
        .use = MODEL_TRAIN,
        .max_rows = S,
        .train.fp8 = {.is_on = true, .history_length = LENGTH}};
}

/* Returns the status of a sketch of the small model on a GPU of this architecture. */
static int sketch_on(const char *kind) {
    const struct device_facts facts = {.kind = kind, .threads = 1};
    const struct rank_grid grid = {1, 1, 1, 1, 1};
    struct model_options options = small_options();
    struct device *device;
    struct rank rank;
    struct model *model;
    struct model_plan plan;
    test_ok(device_sketch(&facts, &device));
    rank_sketch(&rank, &grid, 0, device);
    int status = model_sketch(&options, &rank, &plan, &model);
    model_close(model);
    rank_close(&rank);
    device_close(device);
    return status;
}

static void a_card_before_sm_89_is_refused(void **state) {
    (void)state;
    const struct device_facts facts = {.kind = "cuda:sm_80", .threads = 1};
    struct device *device;
    int status = device_sketch(&facts, &device);
    device_close(device);
    if (status)
        test_skip("this build has no CUDA");
    test_fails(
        sketch_on("cuda:sm_80"), STATUS_UNSUPPORTED,
        "train.precision fp8: no FP8 products on cuda, a sketch of sm_80 (GPUs have them from sm_89 on); bf16 works");
    test_ok(sketch_on("cuda:sm_89"));
    test_ok(sketch_on("cuda:sm_90"));
}

static void a_backend_without_fp8_is_refused(void **state) {
    (void)state;
    struct device *device;
    struct rank rank;
    struct model *model;
    struct model_plan plan;
    struct model_options options = small_options();
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(rank_open_single(&rank, device, 1));
    struct ops ops = *rank.ops;
    ops.gemm_supports = ops_absent.gemm_supports;
    rank.ops = &ops;
    char text[256]; /* it has no bf16 products either */
    snprintf(text, sizeof text, "train.precision fp8: no FP8 products on %s (GPUs have them from sm_89 on); fp32 works",
             device_description(device));
    test_fails(model_sketch(&options, &rank, &plan, &model), STATUS_UNSUPPORTED, text);
    rank_close(&rank);
    device_close(device);
}

/* Returns the planned bytes of GPT-2 1.5B on one rank, with samples of 1,024 tokens. */
static double plan_gpt2(const char **prefix, struct device *device, int precision) {
    struct train_run run = make_run(prefix, precision, 1);
    struct train_plan plan;
    run.config.model = tiny_model(&(const struct tiny_model){
        .layers = 48, .hidden = 1600, .heads = 25, .positions = 1024, .vocab = 50257, .init_std = 0.02});
    run.config.data.seq_length = 1024;
    test_ok(run_config_resolve(&run.config));
    test_ok(train_plan_rank(&run, 1, 0, device, &plan, NULL));
    return (double)train_plan_total(&plan);
}

/* Cast weights are kept: 2 bytes beside the 18 of bf16's training. Outputs of norms and activations are not. */
static void a_plan_takes_a_tenth_more_than_that_of_bf16(void **state) {
    (void)state;
    test_skip_without_bf16();
    char *prefix = write_text();
    struct device *device;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    double bf16 = plan_gpt2((const char **)&prefix, device, PRECISION_BF16);
    double fp8 = plan_gpt2((const char **)&prefix, device, PRECISION_FP8);
    print_message("%.3f times the bytes of bf16\n", fp8 / bf16);
    assert_true(fp8 > bf16 && fp8 <= 1.10 * bf16);
    device_close(device);
    free(prefix);
}

/* ---- tools/test --long: 10 million parameters ---- */

enum { LONG_STEPS = 500, LAST_STEPS = 50, BYTES = 256, LONG_LENGTH = 128 };

/* The bytes of a page of docs/, as tokens. */
static void add_page(struct indexed_writer *writer, const char *path) {
    struct strbuf text = STRBUF_INIT;
    test_ok(file_read(path, 1 << 24, &text));
    int32_t *tokens = calloc(text.length + 1, sizeof *tokens);
    assert_non_null(tokens);
    for (size_t i = 0; i < text.length; i++)
        tokens[i] = 1 + (unsigned char)text.data[i];
    tokens[text.length] = EOD;
    test_ok(indexed_writer_add_sequence(writer, tokens, (int64_t)text.length + 1));
    test_ok(indexed_writer_end_document(writer));
    free(tokens);
    strbuf_free(&text);
}

static char *write_pages(void) {
    char *directory = test_directory(), *prefix, **names;
    size_t count;
    struct indexed_writer writer;
    assert_true(asprintf(&prefix, "%s/pages", directory) > 0);
    test_ok(indexed_writer_open(&writer, prefix, TOKEN_U16, BYTES + 1));
    test_ok(file_list(TEST_DATA "/../docs", &names, &count));
    for (size_t i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/../docs/%s", TEST_DATA, names[i]);
        if (strstr(names[i], ".md"))
            add_page(&writer, path);
    }
    file_list_free(names, count);
    test_ok(indexed_writer_commit(&writer));
    free(directory);
    return prefix;
}

/* Returns the mean loss of the last steps. */
static double train_long(const char **prefix, int precision, double *seconds) {
    struct train_run run = make_run(prefix, precision, 1);
    struct train_record record;
    struct trainer *trainer;
    double sum = 0, start = clock_seconds();
    run.config.model = tiny_model(&(const struct tiny_model){
        .layers = 12, .hidden = 256, .heads = 4, .positions = LONG_LENGTH, .vocab = BYTES + 1, .init_std = 0.02});
    run.config.data.seq_length = LONG_LENGTH;
    run.config.data.split = "100,0,0";
    run.config.train.micro_batch_size = run.config.train.global_batch_size = 8;
    run.config.train.train_iters = LONG_STEPS;
    run.config.train.eval_interval = run.config.optim.lr_decay_iters = 0;
    run.config.optim.lr = 1e-3;
    test_ok(run_config_resolve(&run.config));
    test_ok(trainer_open(&run, NULL, &trainer));
    for (int step = 0; step < LONG_STEPS; step++) {
        test_ok(trainer_step(trainer, &record));
        sum += step >= LONG_STEPS - LAST_STEPS ? record.lm_loss : 0;
    }
    trainer_close(trainer);
    *seconds = clock_seconds() - start;
    return sum / LAST_STEPS;
}

static void many_steps_end_within_a_hundredth_of_bf16(void **state) {
    (void)state;
    test_skip_without_bf16();
    double of_bf16, of_fp8;
    if (!test_is_long())
        test_skip("it takes minutes: tools/test --long");
    char *prefix = write_pages();
    double bf16 = train_long((const char **)&prefix, PRECISION_BF16, &of_bf16);
    double fp8 = train_long((const char **)&prefix, PRECISION_FP8, &of_fp8);
    print_message("losses %.4f and %.4f, fp8 over bf16: %.4f; time %.2f\n", bf16, fp8, fp8 / bf16, of_fp8 / of_bf16);
    assert_true(fabs(fp8 / bf16 - 1) <= 0.01);
    free(prefix);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_near_those_of_bf16),
        cmocka_unit_test(every_layout_has_the_losses_of_one_rank),
        cmocka_unit_test(recomputation_and_validation_change_no_bits),
        cmocka_unit_test(scales_follow_from_the_histories_in_the_file),
        cmocka_unit_test(any_layout_resumes_the_histories),
        cmocka_unit_test(a_run_resumes_in_the_other_precision),
        cmocka_unit_test(sizes_and_keys_are_refused),
        cmocka_unit_test(a_card_before_sm_89_is_refused),
        cmocka_unit_test(a_backend_without_fp8_is_refused),
        cmocka_unit_test(a_plan_takes_a_tenth_more_than_that_of_bf16),
        cmocka_unit_test(many_steps_end_within_a_hundredth_of_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
