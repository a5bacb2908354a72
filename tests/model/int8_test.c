/* Weights in int8 with a scale for each row: the simplest encoding. The model runs on it, and differs from fp32 only by
 * the rounding of the weights. */
#include "model/golden.h"

#include "kernels/rounding.h"

#include <math.h>

/* ---- a model on encoded weights ---- */

/* Those of linears, and so a tied embedding. */
static bool describe(const void *context, const struct param *param, const struct param_rect *rects, int count,
                     struct encoded_layout *layout) {
    layout->count = param->is_linear ? count : 0;
    for (int i = 0; i < layout->count; i++)
        layout->parts[i] = (struct encoded_part){.rows = rects[i].rows,
                                                 .positions = rects[i].columns,
                                                 .encoding = rounding_encoding(context, rects[i].columns)};
    return layout->count > 0;
}

struct filling {
    struct test_model *test;
    struct ckpt_tensors *tensors;
    const struct rounding *rounding; /* NULL: weights stay as they are */
};

/* Rounds the values of an encoded matrix. */
static void round_rows(const struct filling *filling, const float *values, struct encoded_rows to) {
    rounding_rows(&(const struct rounding_call){.rounding = filling->rounding,
                                                .values = values,
                                                .rows = to.rows,
                                                .columns = to.positions,
                                                .threads = 1,
                                                .to = &to});
}

/* Sets plain values in device memory to those that int8 has for them. */
static int round_values(const struct filling *filling, const int64_t *shape, void *data) {
    struct stream *stream = filling->test->rank.exec.stream;
    const struct encoded_part part = {
        .rows = shape[0], .positions = shape[1], .encoding = rounding_encoding(filling->rounding, shape[1])};
    size_t bytes = (size_t)(shape[0] * shape[1]) * sizeof(float);
    float *values = test_copy(stream, data, bytes);
    void *memory = malloc(encoded_rows_bytes(&part));
    struct encoded_rows rows = encoded_rows_place(&part, memory);
    round_rows(filling, values, rows);
    for (int64_t i = 0; i < shape[0]; i++)
        encoded_row_values(&rows, i, values + i * shape[1]);
    int status = test_write(stream, data, values, bytes);
    free(memory);
    free(values);
    return status;
}

static int fill(void *context, int id) {
    const struct filling *filling = context;
    struct param_store *store = base_store(filling->test->base);
    struct stream *stream = filling->test->rank.exec.stream;
    struct param_range range = {.first = store->map.places[id].offset,
                                .count = param_local_elements(store, id),
                                .data = param_borrow_to_write(store, id),
                                .type = DTYPE_F32};
    struct ckpt_flat flat = {.map = &store->map, .stream = stream, .ranges = &range, .count = 1, .dtype = DTYPE_F32};
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    int status = ckpt_read_param(filling->tensors, store->map.table, &array, id);
    if (!status && filling->rounding && store->map.table->rows[id].is_linear)
        status = round_values(filling, store->map.places[id].shape, range.data);
    param_return(store, id);
    return status;
}

static int fill_encoded(void *context, int id, int part, const struct param_rect *rect, const struct encoded_rows *to) {
    const struct filling *filling = context;
    const struct ckpt_array array = {.prefix = "", .dtype = DTYPE_F32, .must_be_finite = true};
    const struct ckpt_block block = {.param = id, .row = rect->row, .rows = rect->rows, .columns = rect->columns};
    float *values = malloc((size_t)(rect->rows * rect->columns) * sizeof *values);
    int status = ckpt_read_block(filling->tensors, base_table(filling->test->base), &array, &block, values);
    if (!status)
        round_rows(filling, values, *to);
    free(values);
    return status;
}

enum { TOKENS_MOST = 256 };

/* One sequence, all of its tokens in one step: log p of each next token. */
static void infer(struct test_model *test, const struct golden *g, float logprob[TOKENS_MOST]) {
    int32_t zeros[TOKENS_MOST] = {0}, rows[TOKENS_MOST], token[TOKENS_MOST];
    float drawn[TOKENS_MOST];
    struct id_change pages[TOKENS_MOST / KV_PAGE_TOKENS];
    int32_t is_greedy[TOKENS_MOST];
    int64_t page_count = (g->T + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    assert_true(g->T <= TOKENS_MOST);
    for (int32_t i = 0; i < g->T; i++)
        rows[i] = i;
    for (int32_t i = 0; i < page_count; i++)
        pages[i] = (struct id_change){i, i};
    const struct model_step step = {.rows = g->T,
                                    .tokens = g->tokens,
                                    .positions = rows,
                                    .sequence = zeros,
                                    .cached = rows,
                                    .place = rows,
                                    .page_change_count = page_count,
                                    .page_changes = pages,
                                    .logit_rows = g->T,
                                    .logit_row = rows,
                                    .labels = g->labels};
    const struct model_step_result result = {
        .token = token, .logprob = drawn, .label_logprob = logprob, .is_greedy = is_greedy};
    test_ok(inference_open_pages(test->inference, page_count));
    test_ok(model_infer(test->inference, &step));
    test_ok(model_infer_results(test->inference, &result));
}

/* How the weights of linears are held. */
enum weights { IN_FP32, IN_FP32_ROUNDED, IN_INT8 };

static void run(const char *name, enum weights weights, float logprob[TOKENS_MOST], int64_t *count,
                struct model_plan *plan) {
    struct golden g;
    struct test_model test;
    const struct rounding *rounding = rounding_find("int8");
    const struct param_encodings encodings = {.describe = describe, .context = rounding};
    struct filling filling = {.test = &test, .rounding = weights == IN_FP32 ? NULL : rounding};
    golden_open(&g, name);
    struct model_options options = {
        .base = {.config = g.config, .storage = &storage_packed, .encodings = weights == IN_INT8 ? &encodings : NULL},
        .max_rows = g.T,
        .infer.max_logit_rows = g.T,
        .infer.max_sequences = 1,
        .infer.max_pages = (g.T + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS};
    *plan = (struct model_plan){0};
    test_inference_open(&test, options, plan);
    test_ok(ckpt_open_model(g.directory, &filling.tensors));
    test_ok(base_fill(test.base, (struct param_fill){.fill = fill, .fill_encoded = fill_encoded, .context = &filling}));
    infer(&test, &g, logprob);
    *count = g.T;
    ckpt_close(filling.tensors);
    test_model_close(&test);
    golden_close(&g);
}

static double largest_difference(const float *a, const float *b, int64_t count) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)a[i] - (double)b[i]));
    return largest;
}

/* ---- promises ---- */

static const char *const names[] = {"d5_tied", "d33_exact", "d64_untied", "d8_deep"};
enum { NAMES = sizeof names / sizeof *names };

/* The reference has fp32 weights of the values that int8 holds. Then only the order of additions differs, and the place
 * where a scale is applied, as between other products in fp32. */
static void int8_equals_fp32_of_the_same_values(void **state) {
    (void)state;
    for (size_t i = 0; i < NAMES; i++) {
        float ours[TOKENS_MOST], expected[TOKENS_MOST];
        struct model_plan plan;
        int64_t count;
        run(names[i], IN_INT8, ours, &count, &plan);
        run(names[i], IN_FP32_ROUNDED, expected, &count, &plan);
        assert_true(largest_difference(ours, expected, count) < 2e-5);
    }
}

/* The mean square of a - b, over the variance of b; its root. */
static double relative_error(const float *a, const float *b, int64_t count) {
    double mean = 0, variance = 0, error = 0;
    for (int64_t i = 0; i < count; i++)
        mean += (double)b[i] / (double)count;
    for (int64_t i = 0; i < count; i++) {
        variance += ((double)b[i] - mean) * ((double)b[i] - mean);
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sqrt(error / variance);
}

/* A level is a row's largest weight over 127. Rounding is off by a level over the root of 12, and the largest weight is
 * about 3 times the mean one. So a product is off by 0.7%, and so is a tied embedding. Errors of four products in each
 * of 8 layers, and of the head, add as squares: 4% of logits, and of the log p that they make. */
static void int8_differs_from_fp32_by_the_rounding_of_weights(void **state) {
    (void)state;
    for (size_t i = 0; i < NAMES; i++) {
        float ours[TOKENS_MOST], expected[TOKENS_MOST];
        struct model_plan of_int8, of_fp32;
        int64_t count;
        run(names[i], IN_INT8, ours, &count, &of_int8);
        run(names[i], IN_FP32, expected, &count, &of_fp32);
        double error = relative_error(ours, expected, count);
        assert_true(error > 0 && error < 0.04);
        assert_true(of_int8.weights < of_fp32.weights);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_equals_fp32_of_the_same_values),
        cmocka_unit_test(int8_differs_from_fp32_by_the_rounding_of_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
