/* Plans of serving: published latencies of FasterTransformer, and memory that is the engine's. */
#include "support/test.h"

#include "planner/fit.h"
#include "planner/serve.h"

#include <math.h>

static const char latencies[] = TEST_DATA "/planner/azure/latencies.yaml";

static void the_shipped_constants_give_the_published_latencies(void **state) {
    (void)state;
    struct cluster cluster;
    struct fit_rows rows;
    double largest = 0, sum = 0;
    test_ok(cluster_open("azure-a100-80gb-2022", &cluster));
    test_ok(fit_rows_read(latencies, &cluster, &rows));
    assert_int_equal(rows.count, 16);
    test_ok(fit_predict(&rows, &cluster));
    for (int i = 0; i < rows.count; i++) {
        largest = fmax(largest, fabs(fit_error(&rows.rows[i])));
        sum += fabs(fit_error(&rows.rows[i]));
    }
    assert_true(largest < 0.15);
    assert_true(sum / rows.count < 0.06);
    fit_rows_free(&rows);
    cluster_close(&cluster);
}

static void latencies_of_5b_predict_those_of_20b(void **state) {
    (void)state;
    struct cluster cluster;
    struct fit_rows rows;
    double largest = 0, sum = 0;
    test_ok(cluster_open("azure-a100-80gb-2022", &cluster));
    test_ok(fit_rows_read(latencies, &cluster, &rows));
    for (int i = 0; i < rows.count; i++)
        rows.rows[i].is_fitted = i < 8;
    test_ok(fit_run(&rows, &cluster));
    for (int i = 8; i < rows.count; i++) {
        largest = fmax(largest, fabs(fit_error(&rows.rows[i])));
        sum += fabs(fit_error(&rows.rows[i]));
    }
    assert_true(largest < 0.25);
    assert_true(sum / 8 < 0.12);
    fit_rows_free(&rows);
    cluster_close(&cluster);
}

/* Reading and multiplying take the longer of both, and what it does not hide of the shorter. */
static void what_is_not_hidden_takes_time(void **state) {
    (void)state;
    static const double hidden[] = {1, 0.5, 0};
    struct cluster cluster;
    struct fit_rows rows;
    double seconds[3][16];
    test_ok(cluster_open("azure-a100-80gb-2022", &cluster));
    test_ok(fit_rows_read(latencies, &cluster, &rows));
    for (int i = 0; i < 3; i++) {
        cluster.achieved[CLUSTER_SERVE_HIDDEN].value = hidden[i];
        test_ok(fit_predict(&rows, &cluster));
        for (int row = 0; row < rows.count; row++)
            seconds[i][row] = rows.rows[row].step.seconds;
    }
    for (int row = 0; row < rows.count; row++) {
        assert_true(seconds[0][row] < seconds[1][row] && seconds[1][row] < seconds[2][row]);
        assert_true(seconds[2][row] < 2 * seconds[0][row]);
    }
    fit_rows_free(&rows);
    cluster_close(&cluster);
}

/* Adapters take the memory that an engine gives them, and time for each that a batch uses. */
static void adapters_take_memory_and_time(void **state) {
    (void)state;
    struct cluster cluster;
    struct run_file file;
    struct train_run run;
    struct serve_times times[4];
    struct engine_plan plans[4];
    double image[4];
    static const char *const keys[] = {"model.num_layers=4", "model.hidden_size=64", "model.num_attention_heads=4",
                                       "model.vocab_size=512", "data.seq_length=64"};
    const struct serve_layout layouts[] = {{1, 1, 4, 16, 16, 0, 0, 0, PRECISION_BF16, 0, NULL},
                                           {1, 1, 4, 16, 16, 2, 8, 0, PRECISION_BF16, 0, NULL},
                                           {1, 1, 4, 16, 16, 4, 8, 0, PRECISION_BF16, 0, NULL},
                                           {1, 1, 4, 16, 16, 4, 16, 0, PRECISION_BF16, 0, NULL}};
    test_ok(cluster_open("a100-80gb", &cluster));
    test_ok(run_file_read(NULL, keys, 5, &file));
    test_ok(run_file_resolve(&file.run, &run));
    cluster.achieved[CLUSTER_SERVE_LAYER].value = 0;
    for (int i = 0; i < 4; i++) {
        struct serve_work work;
        test_ok(serve_work_make(&run.config.model, &layouts[i], &cluster, &work));
        serve_times_find(&work, &cluster, &times[i]);
        /* The last step of the prompts draws the first of 16 tokens. */
        assert_true(fabs(times[i].latency / (times[i].prompts + 15 * times[i].token) - 1) < 1e-9);
        plans[i] = work.plan;
        image[i] = work.image_bytes;
        serve_work_free(&work);
    }
    assert_true(plans[0].adapters == 0 && image[0] == 0);
    assert_true((double)(plans[2].adapters - plans[1].adapters) == 2 * image[1]);
    assert_true(image[2] == image[1] && image[3] > image[1]);
    for (int i = 1; i < 4; i++)
        assert_true(times[i].token > times[i - 1].token); /* adapters are read */
    assert_true(times[1].prompts > times[0].prompts);
    run_file_close(&file);
    cluster_close(&cluster);
}

/* Prompts are computed in steps, and the workspace is that of a step. Pages are read again in each step of a prompt. */
static void prompts_take_steps(void **state) {
    (void)state;
    enum { BATCH = 4, INPUT = 64, STEP = 32 };
    struct cluster cluster;
    struct run_file file;
    struct train_run run;
    struct serve_times times[3];
    struct engine_plan plans[3];
    static const int64_t rows[] = {BATCH * INPUT, STEP, BATCH * INPUT * 2};
    static const char *const keys[] = {"model.num_layers=4", "model.hidden_size=64", "model.num_attention_heads=4",
                                       "model.vocab_size=512", "data.seq_length=128"};
    test_ok(cluster_open("a100-80gb", &cluster));
    test_ok(run_file_read(NULL, keys, 5, &file));
    test_ok(run_file_resolve(&file.run, &run));
    cluster.memory_bandwidth.value = cluster.peak_bf16.value = 1e30;
    cluster.achieved[CLUSTER_SERVE_LAYER].value = 0;
    cluster.achieved[CLUSTER_SERVE_ROW].value = 1e-6;
    cluster.achieved[CLUSTER_SERVE_STEP].value = 1e-3;
    for (int i = 0; i < 3; i++) {
        const struct serve_layout layout = {1, 1, BATCH, INPUT, 16, 0, 0, 0, PRECISION_BF16, rows[i], NULL};
        struct serve_work work;
        test_ok(serve_work_make(&run.config.model, &layout, &cluster, &work));
        serve_times_find(&work, &cluster, &times[i]);
        plans[i] = work.plan;
        serve_work_free(&work);
    }
    assert_true(fabs(times[0].prompts - 1e-3 - 1e-6 * BATCH * INPUT) < 1e-12);
    assert_true(fabs(times[1].prompts - 1e-3 * BATCH * INPUT / STEP - 1e-6 * BATCH * INPUT) < 1e-12);
    assert_true(times[2].prompts == times[0].prompts && times[1].token == times[0].token);
    assert_true(plans[1].workspace < plans[0].workspace && plans[0].workspace < plans[2].workspace);
    assert_true(plans[1].cache == plans[0].cache);
    run_file_close(&file);
    cluster_close(&cluster);
}

/* A step of a bank counts what an adapter does: nothing of other methods, such as IA3's product with the base. */
static void an_adapter_costs_its_own_work(void **state) {
    (void)state;
    struct cluster cluster;
    struct run_file file;
    struct train_run run;
    double token[4];
    static const char *const keys[] = {"model.num_layers=4", "model.hidden_size=1024", "model.num_attention_heads=8",
                                       "model.vocab_size=512", "data.seq_length=128"};
    static const int64_t adapters[][2] = {{0, 0}, {1, 1}, {64, 1}, {64, 64}};
    test_ok(cluster_open("h100", &cluster));
    test_ok(run_file_read(NULL, keys, 5, &file));
    test_ok(run_file_resolve(&file.run, &run));
    cluster.achieved[CLUSTER_SERVE_LAYER].value = cluster.achieved[CLUSTER_SERVE_STEP].value = 0;
    cluster.achieved[CLUSTER_SERVE_ROW].value = 0;
    for (int i = 0; i < 4; i++) {
        const struct serve_layout layout = {1,   1,   64, 64, 16, adapters[i][0], adapters[i][1], 0, PRECISION_BF16,
                                            512, NULL};
        struct serve_work work;
        struct serve_times times;
        test_ok(serve_work_make(&run.config.model, &layout, &cluster, &work));
        serve_times_find(&work, &cluster, &times);
        token[i] = times.token;
        serve_work_free(&work);
    }
    assert_true(token[1] > token[0] && token[1] < 1.15 * token[0]);
    assert_true(token[2] > token[1] && token[3] > 1.5 * token[2]);
    run_file_close(&file);
    cluster_close(&cluster);
}

/* Caches that keep the weights from step to step make `serve_memory` more than 1. They have no place for the pages. */
static void pages_are_read_at_the_speed_of_the_memory(void **state) {
    (void)state;
    enum { BATCH = 4, LAYERS = 4, COLUMNS = 64, MORE = 496 };
    struct cluster cluster;
    struct run_file file;
    struct train_run run;
    struct serve_times times[2];
    static const char *const keys[] = {"model.num_layers=4", "model.hidden_size=64", "model.num_attention_heads=4",
                                       "model.vocab_size=512", "data.seq_length=1024"};
    test_ok(cluster_open("a100-80gb", &cluster));
    test_ok(run_file_read(NULL, keys, 5, &file));
    test_ok(run_file_resolve(&file.run, &run));
    cluster.achieved[CLUSTER_SERVE_LAYER].value = 0;
    cluster.achieved[CLUSTER_SERVE_HIDDEN].value = 1;
    cluster.achieved[CLUSTER_SERVE_MEMORY].value = 8;
    for (int i = 0; i < 2; i++) {
        const struct serve_layout layout = {1, 1, BATCH, 16 + i * MORE, 16, 0, 0, 0, PRECISION_BF16, 0, NULL};
        struct serve_work work;
        test_ok(serve_work_make(&run.config.model, &layout, &cluster, &work));
        serve_times_find(&work, &cluster, &times[i]);
        serve_work_free(&work);
    }
    double bytes = 2.0 * BATCH * MORE * LAYERS * COLUMNS * sizeof(uint16_t);
    double seconds = bytes / cluster.memory_bandwidth.value;
    assert_true(fabs((times[1].token - times[0].token) / seconds - 1) < 1e-6);
    run_file_close(&file);
    cluster_close(&cluster);
}

/* With free memory and free products in TF32, a step takes the FLOPs of attention over the cache, in fp32. The heads
 * have a size whose attention in training is in TF32. */
static void attention_over_the_cache_stays_in_fp32(void **state) {
    (void)state;
    enum { BATCH = 4, LAYERS = 4, COLUMNS = 64, INPUT = 32, OUTPUT = 16 };
    struct cluster cluster;
    struct run_file file;
    struct train_run run;
    struct serve_times times;
    struct serve_work work;
    static const char *const keys[] = {"model.num_layers=4", "model.hidden_size=64", "model.num_attention_heads=4",
                                       "model.vocab_size=512", "data.seq_length=64"};
    const struct serve_layout layout = {1, 1, BATCH, INPUT, OUTPUT, 0, 0, 0, PRECISION_TF32, 0, NULL};
    test_ok(cluster_open("a100-80gb", &cluster));
    test_ok(run_file_read(NULL, keys, 5, &file));
    test_ok(run_file_resolve(&file.run, &run));
    cluster.memory_bandwidth.value = cluster.peak_tf32.value = 1e30;
    cluster.achieved[CLUSTER_SERVE_LAYER].value = cluster.achieved[CLUSTER_SERVE_STEP].value = 0;
    cluster.achieved[CLUSTER_SERVE_SMALL_DIMENSION].value = cluster.achieved[CLUSTER_SERVE_ROW].value = 0;
    test_ok(serve_work_make(&run.config.model, &layout, &cluster, &work));
    serve_times_find(&work, &cluster, &times);
    double rate = cluster.peak_fp32.value * cluster.achieved[CLUSTER_SERVE_PRODUCTS].value;
    double seconds = 4.0 * BATCH * LAYERS * COLUMNS / rate; /* of a row for each key that it sees */
    assert_true(fabs(times.prompts / (seconds * INPUT * (INPUT + 1) / 2) - 1) < 1e-6);
    assert_true(fabs(times.token / (seconds * (INPUT + OUTPUT / 2)) - 1) < 1e-6);
    serve_work_free(&work);
    run_file_close(&file);
    cluster_close(&cluster);
}

static void rows_are_of_one_kind(void **state) {
    (void)state;
    struct cluster cluster;
    struct fit_rows rows;
    char *directory = test_directory(), path[4096];
    static const char *const texts[][2] = {
        {"- {config: a.yaml, nodes: 1}\n", ":1: a row needs config, nodes and step_seconds"},
        {"- {config: a.yaml, nodes: x, step_seconds: 1}\n",
         ":1: nodes is x: expected a whole number from 1 to 1048576"},
        {"- {nodes: 1, step: 1}\n", "unknown key 'step'"},
        {"a: 1\n", "expected a list of rows"},
        {"- 1\n", "expected a row"},
        {"[]\n", "has no rows"},
    };
    test_ok(cluster_open("a100-80gb", &cluster));
    snprintf(path, sizeof path, "%s/rows.yaml", directory);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        test_ok(file_write_atomic(path, texts[i][0], strlen(texts[i][0])));
        test_fails(fit_rows_read(path, &cluster, &rows), STATUS_USAGE, texts[i][1]);
    }
    cluster_close(&cluster);
    free(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_constants_give_the_published_latencies),
        cmocka_unit_test(latencies_of_5b_predict_those_of_20b),
        cmocka_unit_test(what_is_not_hidden_takes_time),
        cmocka_unit_test(adapters_take_memory_and_time),
        cmocka_unit_test(prompts_take_steps),
        cmocka_unit_test(an_adapter_costs_its_own_work),
        cmocka_unit_test(pages_are_read_at_the_speed_of_the_memory),
        cmocka_unit_test(attention_over_the_cache_stays_in_fp32),
        cmocka_unit_test(rows_are_of_one_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
