/* Published step times of NeMo-Megatron 22.06 on Azure, and of Megatron-LM on Selene (arXiv 2104.04473, table 1). The
 * bounds are those of docs/planning.md; the errors reached are below them. */
#include "support/test.h"

#include "planner/fit.h"
#include "planner/memory.h"
#include "planner/search.h"

#include <math.h>

static const char rows_file[] = TEST_DATA "/planner/azure/rows.yaml";
static const char small_file[] = TEST_DATA "/planner/azure/small.yaml";
static const char cluster_name[] = "azure-a100-80gb-2022";

struct errors {
    double largest, mean;
};

static struct errors errors_of(const struct fit_rows *rows, bool is_fitted) {
    struct errors errors = {0};
    int count = 0;
    for (int i = 0; i < rows->count; i++) {
        double error = fabs(fit_error(&rows->rows[i]));
        if (rows->rows[i].is_fitted != is_fitted)
            continue;
        errors.largest = fmax(errors.largest, error);
        errors.mean += error;
        count++;
    }
    errors.mean /= count;
    return errors;
}

static void the_shipped_constants_give_the_published_times(void **state) {
    (void)state;
    struct cluster cluster;
    struct fit_rows rows;
    test_ok(cluster_open(cluster_name, &cluster));
    test_ok(fit_rows_read(rows_file, &cluster, &rows));
    assert_int_equal(rows.count, 14);
    test_ok(fit_predict(&rows, &cluster));
    struct errors errors = errors_of(&rows, true);
    assert_true(errors.largest < 0.06);
    assert_true(errors.mean < 0.03);
    const struct fit_row *r = rows.rows;
    assert_true(r[3].step.seconds < r[4].step.seconds); /* 20B: tensor 2, pipeline 4 before tensor 8 */
    assert_true(r[6].step.seconds < r[7].step.seconds); /* 40B: tensor 4 before tensor 8 */
    double scaling[] = {r[11].step.seconds * 105 / (r[12].step.seconds * 140),
                        r[11].step.seconds * 105 / (r[13].step.seconds * 175)};
    assert_true(fabs(scaling[0] - 0.981) < 0.02); /* 530B on more nodes */
    assert_true(fabs(scaling[1] - 0.950) < 0.02);
    for (int i = 0; i < rows.count; i++) { /* the parts of a step add up to it */
        const struct cost_step *s = &r[i].step;
        double sum = s->work.products + s->work.other + s->work.tensor + s->work.floor + s->stages + s->bubble +
                     s->gradients + s->optimizer;
        assert_true(fabs(sum / s->seconds - 1) < 1e-9);
    }
    fit_rows_free(&rows);
    cluster_close(&cluster);
}

/* The times of 126M are rounded to 0.1 s. */
static void small_models_come_within_their_rounding(void **state) {
    (void)state;
    struct cluster cluster;
    struct fit_rows rows;
    test_ok(cluster_open(cluster_name, &cluster));
    test_ok(fit_rows_read(small_file, &cluster, &rows));
    test_ok(fit_predict(&rows, &cluster));
    for (int i = 0; i < 4; i++)
        assert_true(fabs(fit_error(&rows.rows[i])) < (i < 2 ? 0.15 : 0.6));
    assert_true(rows.rows[2].step.seconds < rows.rows[4].step.seconds); /* 1, 2 and 4 stages on 4 nodes */
    assert_true(rows.rows[4].step.seconds < rows.rows[5].step.seconds);
    fit_rows_free(&rows);
    cluster_close(&cluster);
}

static void every_second_row_predicts_the_others(void **state) {
    (void)state;
    struct cluster cluster;
    struct fit_rows rows;
    test_ok(cluster_open(cluster_name, &cluster));
    test_ok(fit_rows_read(rows_file, &cluster, &rows));
    for (int i = 0; i < rows.count; i++)
        rows.rows[i].is_fitted = i % 2 == 0;
    test_ok(fit_run(&rows, &cluster));
    struct errors fitted = errors_of(&rows, true), others = errors_of(&rows, false);
    assert_true(fitted.mean < 0.03);
    assert_true(others.largest < 0.10);
    assert_true(others.mean < 0.04);
    assert_true(fabs(cluster.achieved[CLUSTER_ERROR].value - fmax(fitted.largest, others.largest)) < 1e-12);
    for (int i = 0; i < fit_kind_of(&rows)->count; i++) {
        const struct config_quantity *constant = &cluster.achieved[fit_kind_of(&rows)->constants[i]];
        assert_true(constant->value >= constant->low && constant->value <= constant->high);
    }
    fit_rows_free(&rows);
    cluster_close(&cluster);
}

/* ---- Selene: nothing is fitted to these ---- */

struct selene {
    int heads, hidden, layers, tensor, pipeline, devices, batch;
    double tflops; /* of the hardware, the repeated forward included */
};

/* Predicts a row with one micro batch size; infinite where the batch cannot be divided. */
static double predict(const struct selene *row, const struct cluster *cluster, int micro_batch) {
    struct run_file file;
    struct train_run run;
    struct cost_work work;
    struct cost_step step;
    char keys[12][96];
    const char *list[12];
    int count = 0;
    if (row->batch % (micro_batch * (row->devices / row->tensor / row->pipeline)))
        return INFINITY;
    snprintf(keys[count++], sizeof *keys, "model.num_layers=%d", row->layers);
    snprintf(keys[count++], sizeof *keys, "model.hidden_size=%d", row->hidden);
    snprintf(keys[count++], sizeof *keys, "model.num_attention_heads=%d", row->heads);
    snprintf(keys[count++], sizeof *keys, "model.vocab_size=51200");
    snprintf(keys[count++], sizeof *keys, "data.seq_length=2048");
    snprintf(keys[count++], sizeof *keys, "train.precision=bf16");
    snprintf(keys[count++], sizeof *keys, "train.micro_batch_size=%d", micro_batch);
    snprintf(keys[count++], sizeof *keys, "train.global_batch_size=%d", row->batch);
    snprintf(keys[count++], sizeof *keys, "parallel.tensor_model_parallel_size=%d", row->tensor);
    snprintf(keys[count++], sizeof *keys, "parallel.pipeline_model_parallel_size=%d", row->pipeline);
    snprintf(keys[count++], sizeof *keys, "parallel.recompute_granularity=full");
    for (int i = 0; i < count; i++)
        list[i] = keys[i];
    test_ok(run_file_read(NULL, list, (size_t)count, &file));
    test_ok(run_file_resolve(&file.run, &run));
    test_ok(cost_work_make(&run, cluster, &work));
    test_ok(cost_step(&run, row->devices, &work, cluster, &step, NULL));
    cost_work_free(&work);
    run_file_close(&file);
    return step.seconds;
}

static void another_cluster_of_these_devices_is_predicted_unseen(void **state) {
    (void)state;
    static const struct selene rows[] = {
        {24, 2304, 24, 1, 1, 32, 512, 137},        {32, 3072, 30, 2, 1, 64, 512, 138},
        {32, 4096, 36, 4, 1, 128, 512, 142},       {48, 6144, 40, 8, 1, 256, 1024, 135},
        {64, 8192, 48, 8, 2, 512, 1536, 138},      {80, 10240, 60, 8, 4, 1024, 1792, 140},
        {96, 12288, 80, 8, 8, 1536, 2304, 148},    {128, 16384, 96, 8, 16, 1920, 2160, 155},
        {128, 20480, 105, 8, 35, 2520, 2520, 163}, {160, 25600, 128, 8, 64, 3072, 3072, 163},
    };
    enum { ROWS = sizeof rows / sizeof *rows };
    struct cluster cluster;
    double largest = 0, sum = 0;
    test_ok(cluster_open(cluster_name, &cluster));
    for (int i = 0; i < ROWS; i++) {
        const struct selene *r = &rows[i];
        double h = r->hidden, L = r->layers, s = 2048, best = INFINITY;
        double flops = 96 * r->batch * s * L * h * h * (1 + s / (6 * h) + 51200 / (16 * L * h));
        double seconds = flops / (r->devices * r->tflops * 1e12);
        for (int micro_batch = 1; micro_batch <= 16; micro_batch *= 2) /* the paper does not say which */
            best = fmin(best, predict(r, &cluster, micro_batch));
        largest = fmax(largest, fabs(best / seconds - 1));
        sum += fabs(best / seconds - 1);
    }
    assert_true(largest < 0.12);
    assert_true(sum / ROWS < 0.05);
    cluster_close(&cluster);
}

/* ---- layouts and memory ---- */

static void the_published_layouts_are_near_the_best_of_the_tools_grid(void **state) {
    (void)state;
    static const struct { int row, billions; } cases[] = {{2, 5}, {3, 20}, {6, 40}, {10, 175}};
    struct cluster cluster;
    struct fit_rows rows;
    test_ok(cluster_open(cluster_name, &cluster));
    test_ok(fit_rows_read(rows_file, &cluster, &rows));
    test_ok(fit_predict(&rows, &cluster));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct fit_row *row = &rows.rows[cases[i].row];
        struct search search = {.cluster = &cluster,
                                .base = row->file.run,
                                .space = SEARCH_HP_TOOL,
                                .billions = cases[i].billions,
                                .memory_share = 1,
                                .top = 3};
        struct search_result result;
        test_ok(search_run(&search, (int)row->nodes * 8, &result));
        assert_true(result.counts.listed > 0);
        assert_true(row->step.seconds < 1.15 * result.rows[0].step.seconds);
        search_free(&result);
    }
    fit_rows_free(&rows);
    cluster_close(&cluster);
}

static void the_published_layouts_fit_into_80_gb(void **state) {
    (void)state;
    struct cluster cluster;
    struct fit_rows rows;
    test_ok(cluster_open(cluster_name, &cluster));
    test_ok(fit_rows_read(rows_file, &cluster, &rows));
    for (int i = 0; i < rows.count; i++) {
        const struct fit_row *row = &rows.rows[i];
        struct plan_memory memory;
        test_ok(memory_find(&row->run, (int)row->nodes * 8, &row->work, &cluster, 0, &memory));
        assert_true((double)memory.device < 80e9);
        assert_int_equal(memory.weights + memory.gradients + memory.optimizer + memory.activations + memory.workspace,
                         memory.device);
    }
    fit_rows_free(&rows);
    cluster_close(&cluster);
}

static void layers_of_2022_keep_the_published_bytes(void **state) {
    (void)state;
    static const struct {
        int heads, hidden, micro_batch;
        double tp, sequence, selective, both, full; /* MiB, 8 tensor ranks */
    } rows[] = {
        {64, 6144, 4, 1264, 844, 624, 204, 96},
        {96, 12288, 1, 552, 342, 312, 102, 48},
        {128, 20480, 1, 840, 490, 520, 170, 80},
        {160, 25600, 1, 1050, 612.5, 650, 212.5, 100},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct run_config run = {.model = {.num_attention_heads = rows[i].heads, .hidden_size = rows[i].hidden},
                                 .data.seq_length = 2048,
                                 .train.micro_batch_size = rows[i].micro_batch,
                                 .parallel.tensor_model_parallel_size = 8};
        const double expected[] = {rows[i].tp, rows[i].sequence, rows[i].selective, rows[i].both, rows[i].full};
        for (int c = 0; c < 5; c++) {
            run.parallel.sequence_parallel = c % 2;
            run.parallel.recompute_granularity = c < 2   ? GRANULARITY_NONE
                                                 : c < 4 ? GRANULARITY_SELECTIVE
                                                         : GRANULARITY_FULL;
            assert_true(fabs(memory_layer_2022(&run) / (1 << 20) / expected[c] - 1) < 0.01);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shipped_constants_give_the_published_times),
        cmocka_unit_test(small_models_come_within_their_rounding),
        cmocka_unit_test(every_second_row_predicts_the_others),
        cmocka_unit_test(another_cluster_of_these_devices_is_predicted_unseen),
        cmocka_unit_test(the_published_layouts_are_near_the_best_of_the_tools_grid),
        cmocka_unit_test(the_published_layouts_fit_into_80_gb),
        cmocka_unit_test(layers_of_2022_keep_the_published_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
