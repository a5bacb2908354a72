/* Texts drawn at random against golden/samples.json, which tools/golden/sample_vectors.py makes by the definition: the
 * token that a seed, a sample's number and a position give stays what it is. */
#include "infer/engine.h"
#include "infer/generate.h"
#include "support/test.h"

#include <jansson.h>

enum { SAMPLES = 2, LONGEST = 64 };

static void check_vector(struct engine *engine, json_t *vector, size_t number) {
    json_t *prompt = json_object_get(vector, "prompt"), *texts = json_object_get(vector, "texts");
    int32_t ids[LONGEST];
    struct generated out[SAMPLES];
    assert_int_equal(json_array_size(texts), SAMPLES);
    for (size_t i = 0; i < json_array_size(prompt); i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    struct ask ask;
    ask_begin(&ask);
    ask.max_tokens = (int64_t)json_array_size(json_array_get(texts, 0));
    ask.choices = SAMPLES;
    ask.sampling =
        (struct sampling){.temperature = json_real_value(json_object_get(vector, "temperature")),
                          .top_p = json_real_value(json_object_get(vector, "top_p")),
                          .repetition_penalty = json_real_value(json_object_get(vector, "repetition_penalty")),
                          .top_k = json_integer_value(json_object_get(vector, "top_k")),
                          .seed = strtoull(json_string_value(json_object_get(vector, "seed")), NULL, 10)};
    struct generate_options options = {
        .prompt = ids, .prompt_length = (int64_t)json_array_size(prompt), .slot = -1, .ask = &ask};
    test_ok(generate(engine, NULL, &options, out));
    for (size_t s = 0; s < SAMPLES; s++) {
        json_t *text = json_array_get(texts, s);
        assert_int_equal(out[s].tokens.count, json_array_size(text));
        for (size_t i = 0; i < json_array_size(text); i++)
            if (out[s].tokens.ids[i] != json_integer_value(json_array_get(text, i)))
                fail_msg("vector %zu, sample %zu, token %zu: %d", number, s, i, out[s].tokens.ids[i]);
        generated_free(&out[s]);
    }
}

static void draws_are_the_recorded_ones(void **state) {
    (void)state;
    struct engine *engine;
    json_t *vectors = json_load_file(TEST_DATA "/infer/golden/samples.json", 0, NULL);
    test_ok(engine_open(&(struct engine_options){.device = test_device(),
                                                 .model = TEST_DATA "/commands/golden/tiny/model",
                                                 .threads = 1,
                                                 .max_rows = 16,
                                                 .max_logit_rows = 16,
                                                 .max_sequences = SAMPLES},
                        &engine));
    assert_true(json_array_size(vectors) > 20);
    for (size_t i = 0; i < json_array_size(vectors); i++)
        check_vector(engine, json_array_get(vectors, i), i);
    json_decref(vectors);
    engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(draws_are_the_recorded_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
