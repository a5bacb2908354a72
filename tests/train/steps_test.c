/* AdamW on whole models of Llama's variants: the losses of torch's, in fp64. */
#include "model/golden.h"
#include "optim/optim.h"
#include "support/passes.h"

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static double loss_of(struct test_model *t, const struct golden *g) {
    struct model_batch batch = golden_batch(g, 0, g->B);
    struct model_pass pass = {.is_first_micro_batch = true, .is_last_micro_batch = true};
    double loss;
    test_ok(test_train_step(t->model, &batch, &pass));
    test_ok(model_loss(t->model, &loss));
    return loss;
}

/* Adam divides a gradient by its own size, and so keeps the relative error of its smallest entries. An entry that fp32
 * knows to 1e-3 of itself moves its weight by lr to 1e-3. Each step adds such errors, which the loss mostly
 * averages. */
static void check_case(const char *name) {
    struct golden g;
    struct test_model t = {0};
    struct gradient_sync sync;
    struct optimizer optimizer;
    golden_open(&g, name);
    json_t *steps = golden_steps(&g), *adamw = json_object_get(steps, "adamw"),
           *losses = json_object_get(steps, "losses");
    const json_t *betas = json_object_get(adamw, "betas");
    struct optimizer_options options = {.beta1 = json_number_value(json_array_get(betas, 0)),
                                        .beta2 = json_number_value(json_array_get(betas, 1)),
                                        .epsilon = number(adamw, "eps"),
                                        .weight_decay = number(steps, "weight_decay"),
                                        .clip_grad = number(steps, "clip_grad")};
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &t.device));
    test_ok(rank_open_single(&t.rank, t.device, 1));
    test_ok(optimizer_plan(&t.rank, 1 << 20, 1, DTYPE_F32));
    struct model_options model = {
        .base.config = g.config, .base.dtype = DTYPE_F32, .base.trains = true, .max_rows = g.N};
    test_ok(test_open_training(&model, &t.rank, NULL, &t.base, &t.model));
    test_model_load(&t, g.directory);
    test_ok(gradient_sync_open(&sync, &t.rank, base_store(t.base), &(const struct gradient_sync_options){0}));
    test_ok(optimizer_open(&optimizer, &options, &sync));
    test_ok(optimizer_reset(&optimizer));
    for (size_t step = 0; step < json_array_size(losses); step++) {
        double norm, loss = loss_of(&t, &g), expected = json_number_value(json_array_get(losses, step));
        if (!(fabs(loss - expected) <= 5e-4 * expected))
            fail_msg("%s: the loss before step %zu is %.9g, expected %.9g", name, step + 1, loss, expected);
        test_ok(optimizer_step(&optimizer, number(adamw, "lr"), &norm));
    }
    assert_int_equal(json_array_size(losses), 21);
    json_decref(steps);
    optimizer_close(&optimizer);
    gradient_sync_close(&sync);
    test_model_close(&t);
    golden_close(&g);
}

static void twenty_steps_follow_torch(void **state) {
    (void)state;
    static const char *const cases[] = {GOLDEN_VARIANTS};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(cases[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(twenty_steps_follow_torch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
