/* The engine on models whose layers see a window: what lies before it leaves the cache, and no bit changes. */
#include "infer/engine.h"
#include "infer/sequences.h"
#include "model/family.h"
#include "support/test.h"
#include "support/tiny_model.h"

enum { TOKENS = 200, WINDOW = 37, V = 61 };

static struct engine *open_engine(bool has_full_layer, int64_t cache_tokens) {
    struct model_config shape = tiny_model(&(const struct tiny_model){
        .layers = 2, .hidden = 48, .heads = 4, .ffn = 64, .positions = TOKENS, .vocab = V, .init_std = 0.3});
    tiny_model_become(&shape, "mistral", 2, 12);
    shape.window = WINDOW;
    shape.layernorm_epsilon = 1e-6;
    shape.add_qkv_bias = has_full_layer;
    shape.untie_embeddings_and_output_weights = true;
    shape.full_layers[0] = has_full_layer;
    test_ok(model_family_choose(&shape));
    struct engine_options options = {.device = test_device(),
                                     .random = &shape,
                                     .precision = PRECISION_FP32,
                                     .threads = 2,
                                     .max_rows = TOKENS,
                                     .max_logit_rows = TOKENS,
                                     .max_sequences = 2,
                                     .cache_tokens = cache_tokens,
                                     .has_no_prefix_cache = true};
    struct engine *engine;
    test_ok(engine_open(&options, &engine));
    return engine;
}

static struct engine_row row_of(int sequence, int i) {
    return (struct engine_row){
        .token = i * 7 % V, .sequence = sequence, .wants_logits = true, .label = (i + 1) * 7 % V};
}

/* Runs the text in steps of `rows` rows; *held: the most pages that it had after a step. */
static void run(struct engine *engine, int rows, float *logprobs, int64_t *held) {
    int sequence = engine_sequence_new(engine);
    int64_t all = engine_pages_available(engine);
    *held = 0;
    for (int first = 0; first < TOKENS; first += rows) {
        struct engine_row batch[TOKENS];
        struct engine_result results[TOKENS];
        int count = TOKENS - first < rows ? TOKENS - first : rows;
        for (int i = 0; i < count; i++)
            batch[i] = row_of(sequence, first + i);
        test_ok(engine_step(engine, batch, count, results));
        for (int i = 0; i < count; i++)
            logprobs[first + i] = results[i].label_logprob;
        int64_t now = all - engine_pages_available(engine);
        *held = now > *held ? now : *held;
    }
    engine_sequence_close(engine, sequence);
    assert_int_equal(engine_pages_available(engine), all);
}

/* A text's pages, but for those of the window, its own parent, and the one that is being filled. */
static const int64_t MOST = (WINDOW + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS + 2;

static void pages_before_every_window_go_back(void **state) {
    (void)state;
    float whole[TOKENS], stepwise[TOKENS];
    int64_t held;
    struct engine *engine = open_engine(false, 2 * TOKENS);
    run(engine, TOKENS, whole, &held);
    assert_true(held <= MOST);
    for (int rows = 1; rows <= 25; rows += 8) {
        run(engine, rows, stepwise, &held);
        assert_true(held <= MOST);
        assert_memory_equal(stepwise, whole, sizeof whole);
    }
    engine_close(engine);
}

/* The cache has room for the window alone, and both texts continue. */
static void a_text_that_is_longer_than_the_cache_is_written(void **state) {
    (void)state;
    float whole[TOKENS], small[TOKENS];
    int64_t held;
    struct engine *engine = open_engine(false, 2 * TOKENS);
    run(engine, TOKENS, whole, &held);
    engine_close(engine);
    engine = open_engine(false, (MOST + 1) * KV_PAGE_TOKENS);
    run(engine, 8, small, &held);
    assert_memory_equal(small, whole, sizeof whole);
    engine_close(engine);
}

static void a_layer_without_a_window_keeps_them(void **state) {
    (void)state;
    float logprobs[TOKENS];
    int64_t held;
    struct engine *engine = open_engine(true, 2 * TOKENS);
    run(engine, 1, logprobs, &held);
    assert_int_equal(held, (TOKENS + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS);
    engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_before_every_window_go_back),
        cmocka_unit_test(a_text_that_is_longer_than_the_cache_is_written),
        cmocka_unit_test(a_layer_without_a_window_keeps_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
