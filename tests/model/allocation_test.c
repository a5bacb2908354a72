/* Whatever allocation of a model fails, at whichever rank: that rank says so, the others are released, and nothing is
 * left. */
#include "model/support.h"

#include "support/failing.h"
#include "support/passes.h"

enum { T = 8, SAMPLES = 3, ROWS = T * SAMPLES, V = TEST_VOCAB, DEADLINE = 60 /* seconds */ };

static struct model_options make_options(bool trains) {
    return (struct model_options){.base.config = test_config(2, T),
                                  .base.dtype = DTYPE_F32,
                                  .base.trains = trains,
                                  .max_rows = ROWS,
                                  .infer.max_logit_rows = 1,
                                  .infer.max_sequences = 1,
                                  .infer.max_pages = 2};
}

/* ---- config.json ---- */

static int write_and_read(void *context) {
    const struct model_text_ends three = {.count = 3, .eos = {3, 1, 4}};
    struct model_config config, read;
    enum dtype dtype;
    struct model_text_ends ends;
    char *text = NULL;
    int status = model_read_config(context, "config.json", &config, &dtype, &ends);
    if (!status)
        status = model_write_config(&config, DTYPE_F32, &three, &text);
    if (!status)
        status = model_read_config(text, "config.json", &read, &dtype, &ends);
    if (!status)
        status = model_family_choose(&read);
    if (!status)
        status = model_read_generation_config("{\"eos_token_id\":[2]}", "generation_config.json", &read, &ends);
    free(text);
    return status;
}

/* A model that no family is like: a text is made of what is in the way. */
static int choose_none(void *context) {
    struct model_config config = *(const struct model_config *)context;
    int status = model_family_choose(&config);
    return status == STATUS_USAGE ? STATUS_OK : status;
}

static void a_config_is_written_and_read(void **state) {
    static const char *const texts[] = {
        "{" TINY_GPT2_KEYS(2, 9) "}",
        "{\"model_type\":\"llama\",\"vocab_size\":9,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}",
        "{\"model_type\":\"qwen3\",\"vocab_size\":9,\"num_hidden_layers\":2,\"use_sliding_window\":true,"
        "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
        "{\"model_type\":\"phi3\",\"vocab_size\":9,\"partial_rotary_factor\":0.5}",
    };
    struct model_config none = make_options(true).base.config;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_int_equal(failing_try_all(write_and_read, (void *)(uintptr_t)texts[i], 300), 0);
    none.swiglu = true;
    assert_int_equal(failing_try_all(choose_none, &none, 300), 0);
}

/* ---- training ---- */

static int train_rank(struct comm *world, void *context) {
    struct model_options options = make_options(true);
    struct test_model t;
    struct model_batch batch = test_batch(SAMPLES, T, V, 0, NULL);
    struct model_pass pass = {.is_first_micro_batch = true, .is_last_micro_batch = true};
    float losses[ROWS];
    double loss;
    const struct rank_grid grid = {*(int *)context, 1, 1, 1, 1};
    int status = test_model_open_rank(&t, &options, &grid, world, grid.tensor > 1);
    if (!status)
        status = base_initialise(t.base, 77);
    if (!status)
        status = test_train_step(t.model, &batch, &pass);
    if (!status)
        status = model_loss(t.model, &loss);
    if (!status)
        status = test_row_losses(t.model, &batch, losses);
    if (status)
        comm_abort(world, status_text());
    test_model_close(&t);
    return status;
}

static int train(void *context) {
    test_ends_within(DEADLINE);
    return comm_local_run(*(int *)context, train_rank, context);
}

static void models_that_train_open_and_close(void **state) {
    (void)state;
    for (int tensors = 1; tensors <= 2; tensors++)
        assert_int_equal(failing_try_all(train, &tensors, 200), 0);
}

static int plan(const struct model_options *options, struct device *device) {
    struct rank rank = {0};
    struct model_plan found;
    rank_sketch(&rank, &(const struct rank_grid){2, 1, 1, 1, 2}, 1, device);
    int status = test_plan_training(options, &rank, &found);
    rank_close(&rank);
    return status;
}

static int evaluate(void *context) {
    const struct model_options options = make_options(false);
    struct model_batch batch = test_batch(SAMPLES, T, V, 0, NULL);
    struct test_model t;
    float logits[ROWS * V];
    (void)context;
    int status = test_model_open_rank(&t, &options, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false);
    if (!status)
        status = test_evaluate(t.model, &batch);
    if (!status)
        status = model_logits(t.model, &batch, logits);
    if (!status)
        status = plan(&options, t.device);
    test_model_close(&t);
    return status;
}

static void models_that_evaluate_open_and_close(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(evaluate, NULL, 200), 0);
}

/* ---- inference ---- */

static int fill(void *context, int id) {
    struct test_model *t = context;
    return param_initialise(base_store(t->base), t->rank.exec.stream, 77, id);
}

static int infer_row(struct test_model *t) {
    float logprob[2];
    int32_t token, is_greedy;
    const struct model_step_result result = {
        .token = &token, .logprob = &logprob[0], .label_logprob = &logprob[1], .is_greedy = &is_greedy};
    int status = model_infer(t->inference, test_one_row());
    return status ? status : model_infer_results(t->inference, &result);
}

static int infer(void *context) {
    const struct model_options options = make_options(false);
    struct test_model t = {0};
    (void)context;
    int status = device_open(test_device(), DEVICE_FIRST, 1, &t.device);
    if (!status)
        status = rank_open_single(&t.rank, t.device, 1);
    if (!status)
        status = test_open_inference(&options, &t.rank, NULL, &t.base, &t.inference);
    if (!status)
        status = base_fill(t.base, (struct param_fill){.fill = fill, .context = &t});
    if (!status)
        status = inference_open_pages(t.inference, 2);
    if (!status)
        status = infer_row(&t);
    test_model_close(&t);
    return status;
}

static void models_that_infer_open_and_close(void **state) {
    (void)state;
    assert_int_equal(failing_try_all(infer, NULL, 200), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_config_is_written_and_read),
        cmocka_unit_test(models_that_train_open_and_close),
        cmocka_unit_test(models_that_evaluate_open_and_close),
        cmocka_unit_test(models_that_infer_open_and_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
