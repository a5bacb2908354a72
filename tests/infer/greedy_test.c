/* The engine with models of Llama's variants: the greedy tokens of `transformers`, which each beat the second best by
 * more than 1e-3. */
#include "infer/engine.h"
#include "infer/sequences.h"
#include "model/golden.h"

enum { PROMPT = 11, TOKENS = 64 };

static int32_t likeliest(struct engine *engine, int sequence, const int32_t *tokens, int64_t count) {
    struct engine_row rows[PROMPT];
    struct engine_result results[PROMPT];
    for (int64_t i = 0; i < count; i++)
        rows[i] = (struct engine_row){.token = tokens[i], .sequence = sequence, .label = -1};
    rows[count - 1].wants_logits = true;
    rows[count - 1].top_count = 1;
    test_ok(engine_step(engine, rows, count, results));
    return results[count - 1].top_token[0];
}

static int32_t id_at(const json_t *steps, const char *key, size_t index) {
    return (int32_t)json_integer_value(json_array_get(json_object_get(steps, key), index));
}

static void check_case(const char *name) {
    struct golden g;
    struct engine *engine;
    golden_open(&g, name);
    struct engine_options options = {.device = test_device(),
                                     .model = g.directory,
                                     .precision = PRECISION_FP32,
                                     .threads = 2,
                                     .max_rows = PROMPT,
                                     .max_logit_rows = 1,
                                     .max_sequences = 1};
    json_t *steps = golden_steps(&g);
    assert_int_equal(json_array_size(json_object_get(steps, "prompt")), PROMPT);
    assert_int_equal(json_array_size(json_object_get(steps, "greedy")), TOKENS);
    test_ok(engine_open(&options, &engine));
    int32_t tokens[PROMPT];
    for (size_t i = 0; i < PROMPT; i++)
        tokens[i] = id_at(steps, "prompt", i);
    int sequence = engine_sequence_new(engine);
    for (size_t i = 0; i < TOKENS; i++) {
        tokens[0] = likeliest(engine, sequence, tokens, i ? 1 : PROMPT);
        if (tokens[0] != id_at(steps, "greedy", i))
            fail_msg("%s: greedy token %zu is %d, expected %d", name, i, tokens[0], id_at(steps, "greedy", i));
    }
    engine_sequence_close(engine, sequence);
    engine_close(engine);
    json_decref(steps);
    golden_close(&g);
}

static void greedy_tokens_are_those_of_transformers(void **state) {
    (void)state;
    static const char *const cases[] = {GOLDEN_VARIANTS};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(cases[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy_tokens_are_those_of_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
