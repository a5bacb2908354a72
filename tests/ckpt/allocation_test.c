/* Whatever allocation fails while files are written or read, at whichever rank: it is said, nothing is left that is not
 * whole, and the checkpoints before stay. Ranks are threads. */
#include "tiny_gpt2.h"

#include "ckpt/codec.h"
#include "ckpt/exchange.h"
#include "support/failing.h"

enum { RANKS = 2, DEADLINE = 60 /* seconds */ };

/* A checkpoint that is there counts even where the box, or an old checkpoint, could not be swept away: that is for the
 * next one. */
enum { SWEPT = 40 };

static struct tiny_training whole; /* for the golden directories */
static struct tiny_training
    trainings[RANKS]; /* of the first parameters: so there is time for more of the allocations */
enum { FIRST_PARAMS = 2 };
static char root[200];

/* The part of a parameter that a rank owns: each parameter belongs to one rank, and a rectangle lies in one slice. */
static int rects_of(void *context, int param, struct ckpt_block *rects) {
    const struct tiny_array *array = context;
    const struct param *row = &array->table->rows[param];
    int rank = array->table == &trainings[1].table;
    for (int i = 0; i < row->slice_count; i++)
        rects[i] =
            (struct ckpt_block){param, row->slices[i].row, row->slices[i].rows, .column = 0, .columns = row->shape[1]};
    return param % RANKS == rank ? row->slice_count : 0;
}

static int open_trainings(void **state) {
    char *directory = test_directory();
    (void)state;
    snprintf(root, sizeof root, "%s", directory);
    free(directory);
    tiny_training_open(&whole, tiny_table(true));
    for (int r = 0; r < RANKS; r++) {
        struct param_table table = tiny_table(true);
        table.count = FIRST_PARAMS;
        tiny_training_open(&trainings[r], table);
        for (int a = 0; a < TINY_ARRAYS; a++)
            tiny_fill_golden(&trainings[r].values[a]);
    }
    return 0;
}

static int close_trainings(void **state) {
    (void)state;
    tiny_training_close(&whole);
    for (int r = 0; r < RANKS; r++)
        tiny_training_close(&trainings[r]);
    return 0;
}

/* ---- one file ---- */

static int write_file(const char *path) {
    struct safetensors_header *header = NULL;
    static const float values[6] = {1, 2, 3};
    const void *every[10];
    int status = safetensors_header_new(&header), number = 0;
    for (int i = 0; i < 10 && !status && number >= 0; i++) {
        char name[24];
        snprintf(name, sizeof name, "tensor.%d", i);
        every[i] = values;
        number = safetensors_header_add(header, name, safetensors_type_name(DTYPE_F32), 2, (const int64_t[]){2, 3});
    }
    if (!status)
        status = number < 0 ? number : tiny_write_tensors(header, path, every, 10, sizeof values);
    safetensors_header_free(header);
    return status;
}

static int write_and_read_file(void *context) {
    struct safetensors *file = NULL;
    uint16_t rounded[6];
    int status = write_file(context);
    if (!status)
        status = safetensors_open(context, &file);
    if (!status)
        status = safetensors_read(file, safetensors_at(file, 0), 0, 6, DTYPE_BF16, rounded);
    safetensors_close(file);
    failing_pause(true);
    test_ok(file_remove_tree(context));
    failing_pause(false);
    return status;
}

static void a_file_is_written_and_read(void **state) {
    char path[300];
    (void)state;
    snprintf(path, sizeof path, "%s/file", root);
    assert_int_equal(failing_try_all(write_and_read_file, path, 300), 0);
}

/* ---- a model directory ---- */

static int read_tensors(const char *directory, struct tiny_training *into,
                        int (*open)(const char *directory, struct ckpt_tensors **tensors), int first, int count) {
    struct ckpt_tensors *tensors = NULL;
    uint64_t digest;
    int status = open(directory, &tensors);
    if (!status)
        status = ckpt_read(tensors, &into->table, into->arrays + first, count);
    if (!status)
        status = ckpt_read_param(tensors, &into->table, into->arrays + first, 0);
    if (!status)
        status = ckpt_digest(tensors, &digest);
    ckpt_close(tensors);
    return status;
}

struct model_directory {
    const char *path;
    struct tiny_training *training;
};

static int read_model(void *context) {
    const struct model_directory *model = context;
    struct strbuf text = STRBUF_INIT;
    char resolved[PATH_MAX];
    int status = ckpt_resolve_model(model->path, resolved, sizeof resolved);
    if (!status)
        status = ckpt_read_config(resolved, &text);
    if (!status)
        status = read_tensors(resolved, model->training, ckpt_open_model, 0, 1);
    strbuf_free(&text);
    return status;
}

static int read_quantised(void *context) {
    struct ckpt_tensors *tensors;
    struct strbuf config = STRBUF_INIT;
    float values[2 * 40];
    int status = ckpt_read_config(context, &config);
    THEN(status, ckpt_open_model(context, &tensors));
    if (!status) {
        status = ckpt_attach_codec(tensors, strbuf_text(&config), "config.json");
        THEN(status, ckpt_read_numbers(tensors, "a.weight", 0, 2 * 40, DTYPE_F32, values));
        ckpt_close(tensors);
    }
    strbuf_free(&config);
    return status;
}

static void quantised_directories_are_read(void **state) {
    static const char *const names[] = {"gptq_4_v1", "awq", "packed_4_asymmetric", "nf4_twice", "int8", "float_blocks"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/ckpt/golden/quantised/%s", TEST_DATA, names[i]);
        assert_int_equal(failing_try_all(read_quantised, path, 200), 0);
    }
}

static void directories_are_read(void **state) {
    static const char *const names[] = {"fp32", "sharded", "buffers"};
    char path[300];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, TEST_DATA "/ckpt/golden/%s", names[i]);
        struct model_directory model = {path, &whole};
        assert_int_equal(failing_try_all(read_model, &model, 150), 0);
        tiny_check_golden(&whole.values[0]);
    }
}

/* ---- other systems' directories ---- */

struct exchange {
    const char *from, *output;
};

/* Reads a distributed checkpoint, writes it as files of safetensors and as a distributed checkpoint, and reads both. */
static int exchange_both(void *context) {
    const struct exchange *x = context;
    struct ckpt_tensors *first = NULL, *second = NULL, *third = NULL;
    int64_t objects;
    char tensors[300], dcp[300];
    snprintf(tensors, sizeof tensors, "%s/tensors", x->output);
    snprintf(dcp, sizeof dcp, "%s/dcp", x->output);
    int status = exchange_open_dcp(x->from, &first, &objects);
    int of_tensors = status ? status
                            : exchange_write_tensors(&(struct exchange_files){
                                  .directory = tensors, .tensors = first, .max_shard_bytes = 64});
    int of_dcp = of_tensors;
    if (!of_dcp)
        of_dcp = exchange_write_dcp(&(struct exchange_dcp){.directory = dcp, .tensors = first, .files = 2});
    status = of_dcp;
    if (!status)
        status = exchange_open_safetensors(tensors, &second);
    if (!status)
        status = exchange_open_dcp(dcp, &third, &objects);
    failing_pause(true);
    assert_true(!of_tensors || !file_exists(tensors));
    assert_true(!of_dcp || !file_exists(dcp));
    ckpt_close(first);
    ckpt_close(second);
    ckpt_close(third);
    test_ok(file_remove_tree(x->output));
    failing_pause(false);
    return status;
}

static void distributed_checkpoints_are_read_and_written(void **state) {
    char path[300];
    (void)state;
    snprintf(path, sizeof path, "%s/exchange", root);
    struct exchange x = {.from = TEST_DATA "/ckpt/golden/dcp/rows_uneven", .output = path};
    assert_in_range(failing_try_all(exchange_both, &x, 200), 0, SWEPT);
}

static int read_arguments(void *context) {
    char *text;
    int status = exchange_read_megatron_arguments(context, &text);
    free(text);
    return status;
}

static void arguments_of_megatron_are_read(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(read_arguments, TEST_DATA "/ckpt/golden/megatron/gpt", 200), 0);
}

static int write_model(void *context) {
    const struct tiny_training *t = &trainings[0];
    const struct ckpt_model model = {
        .table = &t->table, .weights = t->arrays, .config_text = "{}\n", .max_shard_bytes = 4096};
    size_t bytes;
    int status = ckpt_model_bytes(&model, RANKS, 1, &bytes);
    if (!status)
        status = ckpt_write_model(context, &model);
    failing_pause(true);
    assert_true(file_exists(context) || status);
    if (file_exists(context)) /* of this call, or of one before */
        test_ok(read_model(&(struct model_directory){context, &trainings[0]}));
    failing_pause(false);
    return status;
}

static void a_directory_is_written(void **state) {
    char path[300];
    (void)state;
    snprintf(path, sizeof path, "%s/model", root);
    assert_in_range(failing_try_all(write_model, path, 150), 0, SWEPT);
}

/* ---- checkpoints ---- */

/* Those in the root are whole; the last of them is `least` or a later one. */
static void check_root(const char *directory, int64_t least) {
    char latest[PATH_MAX];
    int64_t iteration, *iterations;
    size_t count;
    failing_pause(true);
    test_ok(ckpt_list_above(directory, -1, &iterations, &count));
    for (size_t i = 0; i < count; i++) {
        snprintf(latest, sizeof latest, "%s/iter_%07lld", directory, (long long)iterations[i]);
        test_ok(ckpt_check_state(latest));
        test_ok(read_tensors(latest, &trainings[0], ckpt_open_model, 0, 1));
        test_ok(read_tensors(latest, &trainings[0], ckpt_open_optimizer, 1, TINY_ARRAYS - 1));
    }
    free(iterations);
    test_ok(ckpt_latest(directory, latest, sizeof latest, &iteration));
    assert_true(iteration >= least);
    failing_pause(false);
}

static int64_t iteration = 1;

static int save_one(void *context) {
    struct ckpt_save save = tiny_training_save(&trainings[0], context);
    save.iteration = ++iteration;
    save.state_text = "{\"iteration\": 1}\n";
    save.keep_last = 1;
    int status = ckpt_save(&save);
    check_root(context, status ? 1 : iteration);
    return status;
}

static int resume(void *context) {
    char latest[PATH_MAX];
    struct facts facts = FACTS_INIT;
    struct strbuf text = STRBUF_INIT;
    int64_t *iterations = NULL;
    size_t count;
    int status = ckpt_resolve_checkpoint(context, latest, sizeof latest);
    if (!status)
        status = ckpt_check_state(latest);
    if (!status)
        status = ckpt_check_iteration(latest, iteration);
    if (!status)
        status = ckpt_checkpoint_facts(latest, &facts);
    if (!status)
        status = ckpt_read_state(latest, &text);
    if (!status)
        status = ckpt_list_above(context, 0, &iterations, &count);
    if (!status)
        status = read_tensors(latest, &trainings[0], ckpt_open_optimizer, 1, TINY_ARRAYS - 1);
    free(iterations);
    strbuf_free(&text);
    facts_free(&facts);
    return status;
}

static void checkpoints_are_whole_and_resumed(void **state) {
    char path[300];
    (void)state;
    snprintf(path, sizeof path, "%s/alone", root);
    test_ok(save_one(path));
    assert_in_range(failing_try_all(save_one, path, 100), 0, SWEPT);
    test_ok(save_one(path));
    assert_int_equal(failing_try_all(resume, path, 150), 0);
}

static int save_in_background(void *context) {
    struct ckpt_save save = tiny_training_save(&trainings[0], context);
    struct ckpt_saver *saver = NULL;
    size_t bytes;
    save.keep_last = 1;
    int64_t before = iteration;
    int status = ckpt_saver_bytes(&save, true, 1, 0, &bytes);
    if (!status)
        status = ckpt_saver_open(&save, true, &saver);
    for (int i = 0; i < 2 && !status; i++) {
        status = ckpt_saver_begin(saver, ++iteration, "{\"iteration\": 1}\n");
        if (!status)
            status = ckpt_saver_wait(saver);
    }
    ckpt_saver_close(saver);
    check_root(context, status ? 1 : before + 2);
    return status;
}

static void checkpoints_in_the_background_are_whole(void **state) {
    char path[300];
    (void)state;
    snprintf(path, sizeof path, "%s/background", root);
    test_ok(save_one(path));
    test_ends_within(20 * DEADLINE);
    assert_in_range(failing_try_all(save_in_background, path, 100), 0, SWEPT);
    test_ends_within(0);
}

static int save_rank(struct comm *world, void *context) {
    struct tiny_training *t = &trainings[world->rank];
    struct ckpt_save save = tiny_training_save(t, context);
    log_quiet(true);
    for (int a = 0; a < TINY_ARRAYS; a++)
        t->arrays[a].rects = rects_of;
    save.iteration = iteration;
    save.model.world = world;
    save.state_text = world->rank ? NULL : "{\"iteration\": 1}\n";
    save.keep_last = 1;
    int status = ckpt_save(&save);
    for (int a = 0; a < TINY_ARRAYS; a++)
        t->arrays[a].rects = NULL;
    return status;
}

static int save_together(void *context) {
    iteration++;
    test_ends_within(DEADLINE);
    int status = comm_local_run(RANKS, save_rank, context);
    test_ends_within(0);
    check_root(context, status ? 1 : iteration);
    return status;
}

static void checkpoints_of_several_ranks_are_whole(void **state) {
    char path[300];
    (void)state;
    snprintf(path, sizeof path, "%s/together", root);
    test_ok(save_together(path));
    assert_in_range(failing_try_all(save_together, path, 700), 0, SWEPT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_written_and_read),
        cmocka_unit_test(directories_are_read),
        cmocka_unit_test(quantised_directories_are_read),
        cmocka_unit_test(distributed_checkpoints_are_read_and_written),
        cmocka_unit_test(arguments_of_megatron_are_read),
        cmocka_unit_test(a_directory_is_written),
        cmocka_unit_test(checkpoints_are_whole_and_resumed),
        cmocka_unit_test(checkpoints_in_the_background_are_whole),
        cmocka_unit_test(checkpoints_of_several_ranks_are_whole),
    };
    log_quiet(true);
    return cmocka_run_group_tests(tests, open_trainings, close_trainings);
}
