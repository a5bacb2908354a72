/* The engine gives what peft gives in fp64 with each adapter of tests/peft/families. */
#include "infer/engine.h"
#include "infer/score.h"
#include "peft/golden.h"
#include "support/test.h"

#include <math.h>

enum { ROWS = 64 };

static double logprob_of(const double *logits, int64_t vocabulary, int32_t token) {
    double largest = logits[0], sum = 0;
    for (int64_t i = 1; i < vocabulary; i++)
        largest = fmax(largest, logits[i]);
    for (int64_t i = 0; i < vocabulary; i++)
        sum += exp(logits[i] - largest);
    return logits[token] - largest - log(sum);
}

/* Checks a sample's own tokens; the first one if a virtual token predicts it. */
static void check_sample(const struct golden *golden, struct engine *engine, int64_t sample, const double *logits) {
    struct model_batch batch = golden_batch(golden, sample);
    int64_t ahead = golden->virtual_tokens, count = batch.rows - ahead, V = golden->model.vocab_size;
    float logprobs[ROWS];
    test_ok(score_tokens(engine, batch.tokens + ahead, count, logprobs));
    for (int64_t i = ahead ? 0 : 1; i < count; i++) {
        double expected = logprob_of(logits + (ahead + i - 1) * V, V, batch.tokens[ahead + i]);
        if (!(fabs((double)logprobs[i] - expected) <= 1e-5 * (1 + fabs(expected))))
            fail_msg("%s: sample %lld, token %lld: %.9g, in fp64 %.9g", golden->name, (long long)sample, (long long)i,
                     (double)logprobs[i], expected);
    }
}

static void serves_what_peft_gives(void **state) {
    struct golden golden;
    struct engine *engine;
    int64_t count;
    golden_open(&golden, *state);
    const char *adapter = golden.directory;
    struct engine_options options = {.device = test_device(),
                                     .model = golden.base,
                                     .adapters = &adapter,
                                     .adapter_count = 1,
                                     .precision = PRECISION_FP32,
                                     .threads = 1,
                                     .max_rows = ROWS,
                                     .max_logit_rows = ROWS,
                                     .max_sequences = 1};
    test_ok(engine_open(&options, &engine));
    double *logits = golden_expected(&golden, "logits", &count);
    int64_t row = 0;
    for (int64_t i = 0; i < golden.samples; i++) {
        check_sample(&golden, engine, i, logits + row * golden.model.vocab_size);
        row += golden_batch(&golden, i).rows;
    }
    free(logits);
    engine_close(engine);
    golden_close(&golden);
}

int main(void) {
    char **names;
    size_t count = golden_family_cases(&names);
    struct CMUnitTest *tests = calloc(count, sizeof *tests);
    if (!tests)
        return 1;
    for (size_t i = 0; i < count; i++)
        tests[i] =
            (struct CMUnitTest){.name = names[i], .test_func = serves_what_peft_gives, .initial_state = names[i]};
    int failed = _cmocka_run_group_tests("family_adapters", tests, count, NULL, NULL);
    free(tests);
    golden_free_cases(names, count);
    return failed;
}
