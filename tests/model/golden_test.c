/* The model against `transformers` in fp64 (tools/golden/model_vectors.py): logits, loss and every gradient. */
#include "model/golden.h"
#include "support/passes.h"

#include <stddef.h>

static const char *const cases[] = {"d5_tied", "d33_exact", "d64_untied", "d8_deep", GOLDEN_VARIANTS};
enum { CASE_COUNT = sizeof cases / sizeof *cases };

static double *expected_values(const struct golden *g, const char *name, int64_t *count) {
    const struct safetensor *tensor = safetensors_find(g->expected, name);
    assert_non_null(tensor);
    float *values = malloc((size_t)tensor->elements * sizeof *values);
    double *wide = malloc((size_t)tensor->elements * sizeof *wide);
    test_ok(safetensors_read(g->expected, tensor, 0, tensor->elements, DTYPE_F32, values));
    for (int64_t i = 0; i < tensor->elements; i++)
        wide[i] = values[i];
    *count = tensor->elements;
    free(values);
    return wide;
}

/* Returns a gradient's largest error over the largest entry of the file's tensor, or with `of_whole` of all tensors of
 * the parameter. The file's orientation is that of the slice. */
static double gradient_error(const struct test_values *values, const struct golden *g, int id, bool of_whole) {
    const struct param *row = &values->store->map.table->rows[id];
    const float *gradient = values->gradients + values->store->map.places[id].offset;
    int64_t columns = row->shape[1];
    double worst = 0, worst_error = 0, whole_scale = 0;
    for (int i = 0; i < row->slice_count; i++) {
        const struct param_slice *slice = &row->slices[i];
        char name[128];
        snprintf(name, sizeof name, "grad.%s", slice->name);
        int64_t count;
        double *expected = expected_values(g, name, &count), error = 0, scale = 0;
        assert_int_equal(count, slice->file_rows * columns);
        for (int64_t r = 0; r < slice->rows; r++)
            for (int64_t c = 0; c < columns; c++) {
                int64_t at = slice->file_start + r;
                double e = expected[slice->is_transposed ? c * slice->file_rows + at : at * columns + c];
                error = fmax(error, fabs(gradient[(slice->row + r) * columns + c] - e));
            }
        for (int64_t j = 0; j < count; j++)
            scale = fmax(scale, fabs(expected[j]));
        free(expected);
        worst = fmax(worst, error / scale);
        worst_error = fmax(worst_error, error);
        whole_scale = fmax(whole_scale, scale);
    }
    return of_whole ? worst_error / whole_scale : worst;
}

static void compare(const char *name, enum dtype dtype, double loss_bound, double logit_bound, double gradient_bound) {
    struct golden g;
    golden_open(&g, name);
    struct test_model t;
    test_model_open(
        &t, (struct model_options){.base.config = g.config, .base.dtype = dtype, .base.trains = true, .max_rows = g.N});
    test_model_load(&t, g.directory);
    struct model_batch batch = golden_batch(&g, 0, g.B);
    float *logits = malloc((size_t)(g.N * g.config.vocab_size) * sizeof *logits);
    test_ok(model_logits(t.model, &batch, logits));
    int64_t count;
    double *expected = expected_values(&g, "logits", &count), loss;
    double error = test_max_error(logits, expected, (size_t)count);
    if (!(error <= logit_bound))
        fail_msg("%s: logits are off by %g of the largest", name, error);
    free(expected);
    free(logits);
    expected = expected_values(&g, "loss", &count);
    /* Sample by sample with accumulated gradients, which must be the same as all at once. */
    for (int64_t split = 0; split < 2; split++) {
        for (int64_t b = 0; b < (split ? g.B : 1); b++) {
            batch = golden_batch(&g, b, split ? 1 : g.B);
            test_ok(test_train_step(t.model, &batch, &(struct model_pass){.is_first_micro_batch = b == 0}));
        }
        test_ok(model_loss(t.model, &loss));
        if (!(fabs(loss - expected[0]) <= loss_bound * expected[0]))
            fail_msg("%s: loss %.9g, expected %.9g", name, loss, expected[0]);
        struct test_values values = test_model_values(&t);
        for (int id = 0; id < base_table(t.base)->count; id++) {
            error =
                gradient_error(&values, &g, id, dtype == DTYPE_BF16); /* what nearly cancels has its roundings alone */
            if (!(error <= gradient_bound))
                fail_msg("%s: gradient of %s is off by %g of its largest", name, base_table(t.base)->rows[id].name,
                         error);
        }
        test_values_free(&values);
    }
    free(expected);
    test_model_close(&t);
    golden_close(&g);
}

/* fp32 against fp64: 1e-5 of a tensor's largest entry. */
static void fp32_equals_transformers(void **state) {
    (void)state;
    for (int i = 0; i < CASE_COUNT; i++)
        compare(cases[i], DTYPE_F32, 1e-6, 1e-5, 1e-5);
}

/* bf16 keeps 8 bits: weights and each stored activation are off by up to 2^-9 of themselves. A logit is a sum over a
 * path of about 4 rounded tensors a layer and as many rounded weights. Errors of independent roundings add as squares.
 * With L layers the typical error is therefore 2^-9 * sqrt(8 L + 4) of the sum's size. The largest of n such errors is
 * about sqrt(2 log n) times that: 4 for some thousand logits of a case, 5 for the 300,000 gradients of all cases. A
 * gradient passes through the network twice. */
static void bf16_is_within_its_roundings(void **state) {
    (void)state;
    test_skip_without_bf16();
    for (int i = 0; i < CASE_COUNT; i++) {
        char directory[512];
        snprintf(directory, sizeof directory, "%s/model/golden/%s", TEST_DATA, cases[i]);
        double typical = 0x1p-9 * sqrt(8.0 * (double)test_read_config(directory).num_layers + 4);
        compare(cases[i], DTYPE_BF16, 2 * typical, 4 * typical, 2 * 5 * typical);
    }
}

static void a_plan_is_what_opening_allocates(void **state) {
    (void)state;
    struct model_config config = tiny_model(&(const struct tiny_model){
        .layers = 2, .hidden = 48, .heads = 3, .ffn = 100, .positions = 32, .vocab = 77, .init_std = 0.02});
    struct model_options options = {
        .base.config = config, .base.dtype = DTYPE_BF16, .base.trains = true, .max_rows = 64};
    struct device *device;
    struct rank rank;
    struct base *base;
    struct training_runner *model;
    struct model_plan plan, again;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(rank_open_single(&rank, device, 1));
    test_ok(test_plan_training(&options, &rank, &plan));
    test_ok(test_open_training(&options, &rank, &again, &base, &model));
    assert_memory_equal(&plan, &again, sizeof plan);
    assert_int_equal(rank.exec.workspace_bytes, work_scratch(&rank.work));
    int64_t block = 4 * 48 * 48 + 4 * 48 + 2 * 48 * 100 + 100 + 48 + 4 * 48;
    assert_int_equal(plan.parameters, (77 + 32) * 48 + 2 * block + 2 * 48);
    test_close_training(&base, &model);
    rank_close(&rank);
    device_close(device);
}

static void config_json_round_trips(void **state) {
    (void)state;
    struct model_config config, again;
    const size_t members = offsetof(struct model_config, add_mlp_bias) + sizeof config.add_mlp_bias;
    enum dtype dtype;
    struct model_text_ends ends;
    for (int i = 0; i < CASE_COUNT; i++) {
        char directory[512], *text;
        snprintf(directory, sizeof directory, "%s/model/golden/%s", TEST_DATA, cases[i]);
        config = test_read_config(directory);
        if (!config.family) /* the key is its own */
            config.add_bias_linear = i % 2;
        test_ok(
            model_write_config(&config, DTYPE_BF16, &(const struct model_text_ends){.count = 1, .eos = {7}}, &text));
        test_ok(model_read_config(text, "text", &again, &dtype, &ends));
        assert_memory_equal(&config, &again, members); /* and no padding after them */
        assert_int_equal(dtype, DTYPE_BF16);
        assert_int_equal(ends.count, 1);
        assert_int_equal(ends.eos[0], 7);
        free(text);
    }
}

static void what_is_not_built_is_refused_by_name(void **state) {
    (void)state;
    static const char base[] = "{" TINY_GPT2_KEYS(1, 9) "%s}";
    static const struct {
        const char *more, *error;
        int status;
    } bad[] = {
        {",\"scale_attn_by_inverse_layer_idx\":true", "scale_attn_by_inverse_layer_idx", STATUS_UNSUPPORTED},
        {",\"reorder_and_upcast_attn\":true", "reorder_and_upcast_attn", STATUS_UNSUPPORTED},
        {",\"add_cross_attention\":true", "add_cross_attention", STATUS_UNSUPPORTED},
        {",\"scale_attn_weights\":false", "scale_attn_weights", STATUS_UNSUPPORTED},
        {",\"activation_function\":\"relu\"", "activation_function", STATUS_UNSUPPORTED},
        {",\"dtype\":\"int8\"", "dtype", STATUS_UNSUPPORTED},
        {",\"n_inner\":-4", "n_inner", STATUS_INVALID},
        {",\"n_inner\":\"many\"", "n_inner", STATUS_INVALID},
        {",\"attn_pdrop\":1.5", "attn_pdrop", STATUS_INVALID},
        {",\"n_layer\":2", "duplicate", STATUS_INVALID},
        {",", "f:1:", STATUS_INVALID},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[512];
        struct model_config config;
        enum dtype dtype;
        struct model_text_ends ends;
        snprintf(text, sizeof text, base, bad[i].more);
        test_fails(model_read_config(text, "f", &config, &dtype, &ends), bad[i].status, bad[i].error);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_equals_transformers),
        cmocka_unit_test(bf16_is_within_its_roundings),
        cmocka_unit_test(a_plan_is_what_opening_allocates),
        cmocka_unit_test(config_json_round_trips),
        cmocka_unit_test(what_is_not_built_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
