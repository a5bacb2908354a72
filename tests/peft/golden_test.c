/* Each method against peft in fp64 (golden/README.md): logits, loss, every gradient, 20 steps of AdamW. */
#include "golden.h"

#include "optim/optim.h"
#include "support/passes.h"
#include "support/runner.h"
#include "support/store.h"
#include "support/test.h"

#include <math.h>

/* The distance of fp32 from fp64, relative to a tensor's largest entry. */
static const double LOGITS = 1e-5, LOSS = 1e-5, GRADIENT = 1e-5, AFTER = 1e-4;

static const char *const cases[] = {
    "lora",
    "lora_all_linear",
    "lora_one_layer",
    "lora_regex",
    "lora_patterns",
    "rslora",
    "dora",
    "dora_all_linear",
    "ia3",
    "ia3_attention",
    "prompt",
    "ptuning_mlp",
    "ptuning_lstm",
    "prefix",
    "prefix_projection",
    "adapter_double_seq_bn",
    "adapter_seq_bn",
    "adapter_par_bn",
    "adapter_pre_norm",
    "lora_exclude",
    "ia3_inputs",
    "lora_head",
};
enum { CASE_COUNT = sizeof cases / sizeof *cases };

/* The base with the case's adapter on it, and the adapter's optimizer. */
struct tuned {
    struct golden golden;
    struct device *device;
    struct rank rank;
    struct peft *peft;
    struct base *base;
    struct training_runner *model;
    struct param_store *store; /* the adapter's */
    struct gradient_sync sync;
    struct optimizer optimizer;
};

static void load_base(struct tuned *t) {
    struct param_store *store = base_store(t->base);
    struct ckpt_tensors *tensors;
    struct ckpt_flat flat = ckpt_flat_weights(store, t->rank.exec.stream);
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    test_ok(ckpt_open_model(t->golden.base, &tensors));
    test_ok(ckpt_read(tensors, store->map.table, &array, 1));
    ckpt_close(tensors);
}

static void load_adapter(struct tuned *t) {
    struct test_values all = test_values(t->store, t->rank.exec.stream);
    for (int id = 0; id < t->store->map.table->count; id++) {
        const struct param *row = &t->store->map.table->rows[id];
        double *values = golden_param(&t->golden, row, GOLDEN_START);
        for (int64_t i = 0; i < param_elements(row); i++)
            all.weights[t->store->map.places[id].offset + i] = (float)values[i];
        free(values);
    }
    test_ok(test_values_put(&all, t->rank.exec.stream));
}

static void tuned_open(struct tuned *t, const char *name) {
    *t = (struct tuned){0};
    golden_open(&t->golden, name);
    const struct golden *g = &t->golden;
    struct model_options options = {.base.config = g->model, .base.dtype = DTYPE_F32, .max_rows = g->rows};
    struct peft_options adapters = {.adapters = &g->config, .count = 1, .model = &options, .trains = true};
    struct optimizer_options adamw = {.beta1 = g->optimizer.beta1,
                                      .beta2 = g->optimizer.beta2,
                                      .epsilon = g->optimizer.epsilon,
                                      .weight_decay = g->optimizer.weight_decay};
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &t->device));
    test_ok(rank_open_single(&t->rank, t->device, 1));
    test_ok(peft_open(&adapters, &t->rank, &t->peft));
    t->store = peft_store(t->peft);
    test_ok(optimizer_plan(&t->rank, t->store->map.flat_elements, 1, t->store->map.type));
    options.hooks = peft_hooks(t->peft);
    test_ok(test_open_training(&options, &t->rank, NULL, &t->base, &t->model));
    test_ok(peft_allocate(t->peft));
    assert_int_equal(peft_virtual_tokens(t->peft), g->virtual_tokens);
    golden_covers(g, t->store->map.table);
    load_base(t);
    peft_set_base(t->peft, base_store(t->base));
    load_adapter(t);
    test_ok(gradient_sync_open(&t->sync, &t->rank, t->store, &(const struct gradient_sync_options){0}));
    test_ok(optimizer_open(&t->optimizer, &adamw, &t->sync));
    test_ok(optimizer_reset(&t->optimizer));
}

static void tuned_close(struct tuned *t) {
    optimizer_close(&t->optimizer);
    gradient_sync_close(&t->sync);
    test_close_training(&t->base, &t->model);
    peft_close(t->peft);
    rank_close(&t->rank);
    device_close(t->device);
    golden_close(&t->golden);
}

static void check_logits(struct tuned *t) {
    struct model_batch batch = golden_batch(&t->golden, -1);
    int64_t count;
    double *expected = golden_expected(&t->golden, "logits", &count);
    assert_int_equal(count, t->golden.rows * t->golden.model.vocab_size);
    float *logits = malloc((size_t)count * sizeof *logits);
    assert_non_null(logits);
    test_ok(peft_begin(t->peft));
    test_ok(model_logits(t->model, &batch, logits));
    double error = test_max_error(logits, expected, (size_t)count);
    if (!(error <= LOGITS))
        fail_msg("%s: logits are off by %g of the largest", t->golden.name, error);
    free(logits);
    free(expected);
}

/* The gradients of a global batch: all samples at once, or each as a micro batch of its own. */
static double backward(struct tuned *t, bool is_split) {
    double loss;
    int64_t count = is_split ? t->golden.samples : 1;
    test_ok(peft_begin(t->peft));
    for (int64_t i = 0; i < count; i++) {
        struct model_batch batch = golden_batch(&t->golden, is_split ? i : -1);
        struct model_pass pass = {.is_first_micro_batch = i == 0, .is_last_micro_batch = i == count - 1};
        test_ok(test_train_step(t->model, &batch, &pass));
    }
    test_ok(peft_end(t->peft));
    test_ok(model_loss(t->model, &loss));
    return loss;
}

static void check_params(struct tuned *t, enum golden_kind kind, double bound, const char *what) {
    struct test_values all = test_values(t->store, t->rank.exec.stream);
    for (int id = 0; id < t->store->map.table->count; id++) {
        const struct param *row = &t->store->map.table->rows[id];
        double *expected = golden_param(&t->golden, row, kind);
        const float *ours = (kind == GOLDEN_GRADIENT ? all.gradients : all.weights) + t->store->map.places[id].offset;
        double error = test_max_error(ours, expected, (size_t)param_elements(row));
        if (!(error <= bound))
            fail_msg("%s: %s %s is off by %g of its largest", t->golden.name, what, row->name, error);
        free(expected);
    }
    test_values_free(&all);
}

static void check_loss(const struct tuned *t, double loss, int64_t step, double bound) {
    int64_t count;
    double *expected = golden_expected(&t->golden, "losses", &count);
    assert_int_equal(count, t->golden.optimizer.steps);
    if (!(fabs(loss - expected[step]) <= bound * expected[step]))
        fail_msg("%s: loss before step %lld is %.9g, expected %.9g", t->golden.name, (long long)step + 1, loss,
                 expected[step]);
    free(expected);
}

static void equals_peft(void **state) {
    struct tuned t;
    tuned_open(&t, *state);
    check_logits(&t);
    for (int is_split = 0; is_split < 2; is_split++) {
        check_loss(&t, backward(&t, is_split), 0, LOSS);
        check_params(&t, GOLDEN_GRADIENT, GRADIENT, is_split ? "gradient, sample by sample, of" : "gradient of");
    }
    for (int64_t step = 0; step < t.golden.optimizer.steps; step++) {
        double norm;
        check_loss(&t, backward(&t, false), step, LOSS);
        test_ok(optimizer_step(&t.optimizer, t.golden.optimizer.lr, &norm));
    }
    check_params(&t, GOLDEN_AFTER, AFTER, "after the steps");
    tuned_close(&t);
}

static void every_case_is_run(void **state) {
    (void)state;
    char **names;
    size_t count = golden_cases(&names);
    for (size_t i = 0; i < count; i++) {
        bool is_run = false;
        for (int c = 0; c < CASE_COUNT; c++)
            is_run = is_run || !strcmp(names[i], cases[c]);
        if (!is_run)
            fail_msg("%s stands in the directory and is not run", names[i]);
    }
    assert_int_equal(count, CASE_COUNT);
    golden_free_cases(names, count);
}

static struct CMUnitTest test_of(const char *name) {
    return (struct CMUnitTest){.name = name, .test_func = equals_peft, .initial_state = (void *)(uintptr_t)name};
}

int main(void) {
    char **family_names;
    size_t family_count = golden_family_cases(&family_names);
    struct CMUnitTest tests[CASE_COUNT + 1] = {cmocka_unit_test(every_case_is_run)};
    struct CMUnitTest *family_tests = calloc(family_count, sizeof *family_tests);
    if (!family_tests)
        return 1;
    for (int i = 0; i < CASE_COUNT; i++)
        tests[i + 1] = test_of(cases[i]);
    for (size_t i = 0; i < family_count; i++)
        family_tests[i] = test_of(family_names[i]);
    int failed = cmocka_run_group_tests_name("equals_peft", tests, NULL, NULL);
    failed += _cmocka_run_group_tests("equals_peft_of_families", family_tests, family_count, NULL, NULL);
    free(family_tests);
    golden_free_cases(family_names, family_count);
    return failed;
}
