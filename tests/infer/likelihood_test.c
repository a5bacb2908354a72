/* Log-probabilities of continuations: the sums of those of their tokens, whatever is shared, and however small the
 * cache is. */
#include "infer/likelihood.h"
#include "infer/score.h"
#include "infer/sequences.h"
#include "support/test.h"

#include <math.h>

enum { V = 29, GROUPS = 6, CHOICES = 4, COUNT = GROUPS * CHOICES, CONTEXT = 19, LONGEST = 24 }; /* of d8_deep */

static struct engine *open_engine(int64_t cache_tokens, bool has_no_prefix_cache) {
    struct engine_options options = {.device = test_device(),
                                     .model = TEST_DATA "/model/golden/d8_deep",
                                     .precision = PRECISION_FP32,
                                     .threads = 2,
                                     .max_rows = 32,
                                     .max_logit_rows = 8,
                                     .max_sequences = 8,
                                     .cache_tokens = cache_tokens,
                                     .has_no_prefix_cache = has_no_prefix_cache};
    struct engine *engine;
    test_ok(engine_open(&options, &engine));
    return engine;
}

static int32_t draw(uint32_t i) {
    return (int32_t)(philox(5, i, 0, 0, (uint32_t)RNG_TEST << 24).word[0] % V);
}

/* Requests of groups; those of a group have the same context. */
static void make_requests(struct likelihood_list *list, struct likelihood *share[COUNT]) {
    test_ok(likelihood_list_reserve(list, COUNT));
    for (uint32_t i = 0; i < COUNT; i++) {
        int64_t wanted = 1 + i % CHOICES;
        list->items[i] =
            (struct likelihood){.start = (int64_t)list->ids.count, .count = CONTEXT + wanted, .first = CONTEXT};
        for (uint32_t k = 0; k < CONTEXT + wanted; k++)
            test_ok(token_buffer_add(&list->ids, draw(k < CONTEXT ? i / CHOICES * 100 + k : 1000 + i * 100 + k)));
        share[i] = &list->items[i];
    }
    list->count = COUNT;
}

/* The sum over the tokens of a continuation, scored as a whole text. */
static double score_whole(struct engine *engine, const int32_t *tokens, const struct likelihood *request) {
    float logprobs[LONGEST];
    double sum = 0;
    test_ok(score_tokens(engine, tokens, request->count, logprobs));
    for (int64_t i = request->first; i < request->count; i++)
        sum += (double)logprobs[i];
    return sum;
}

/* True when each token of the continuation is the first of the likeliest ones. */
static bool is_greedy_whole(struct engine *engine, const int32_t *tokens, const struct likelihood *request) {
    bool is_greedy = true;
    int sequence = engine_sequence_new(engine);
    for (int64_t i = 0; i + 1 < request->count; i++) {
        struct engine_row row = {
            .token = tokens[i], .sequence = sequence, .wants_logits = true, .label = -1, .top_count = 1};
        struct engine_result result;
        test_ok(engine_step(engine, &row, 1, &result));
        if (i + 1 >= request->first)
            is_greedy &= result.top_token[0] == tokens[i + 1];
    }
    engine_sequence_close(engine, sequence);
    return is_greedy;
}

/* Gives half of the continuations the likeliest tokens. */
static void make_greedy(struct engine *engine, struct likelihood_list *list) {
    for (int i = 0; i < COUNT; i += 2) {
        int32_t *tokens = list->ids.ids + list->items[i].start;
        int sequence = engine_sequence_new(engine);
        for (int64_t k = 0; k + 1 < list->items[i].count; k++) {
            struct engine_row row = {
                .token = tokens[k], .sequence = sequence, .wants_logits = true, .label = -1, .top_count = 1};
            struct engine_result result;
            test_ok(engine_step(engine, &row, 1, &result));
            if (k + 1 >= list->items[i].first)
                tokens[k + 1] = result.top_token[0];
        }
        engine_sequence_close(engine, sequence);
    }
}

static void sums_and_flags_are_those_of_whole_texts(void **state) {
    (void)state;
    struct engine *engine = open_engine(0, false), *alone = open_engine(0, true);
    struct likelihood_list list = {0};
    struct likelihood *share[COUNT];
    int greedy = 0;
    make_requests(&list, share);
    make_greedy(alone, &list);
    test_ok(likelihood_compute(engine, -1, list.ids.ids, share, COUNT));
    for (int i = 0; i < COUNT; i++) {
        const int32_t *tokens = list.ids.ids + list.items[i].start;
        assert_true(list.items[i].logprob == score_whole(alone, tokens, &list.items[i]));
        assert_int_equal(list.items[i].is_greedy, is_greedy_whole(alone, tokens, &list.items[i]));
        assert_int_equal(list.items[i].cached, i % CHOICES ? KV_PAGE_TOKENS : 0); /* the context runs once */
        greedy += list.items[i].is_greedy;
    }
    assert_in_range(greedy, COUNT / 2, COUNT - 1);
    likelihood_list_free(&list);
    engine_close(engine);
    engine_close(alone);
}

/* Two pages hold one request at a time, and three force requests out of their pages. */
static void a_small_cache_gives_the_same_results(void **state) {
    (void)state;
    struct likelihood_list list = {0};
    struct likelihood *share[COUNT], expected[COUNT];
    make_requests(&list, share);
    for (int pages = 12; pages >= 2; pages = pages > 3 ? 3 : pages - 1) {
        struct engine *engine = open_engine(pages * KV_PAGE_TOKENS, false);
        test_ok(likelihood_compute(engine, -1, list.ids.ids, share, COUNT));
        for (int i = 0; i < COUNT; i++) {
            expected[i] = pages == 12 ? list.items[i] : expected[i];
            assert_true(list.items[i].logprob == expected[i].logprob);
            assert_int_equal(list.items[i].is_greedy, expected[i].is_greedy);
        }
        engine_close(engine);
    }
    likelihood_list_free(&list);
}

static void a_token_outside_the_vocabulary_is_refused(void **state) {
    (void)state;
    struct engine *engine = open_engine(0, false);
    const int32_t ids[] = {1, V};
    struct likelihood request = {.count = 2, .first = 1}, *share = &request;
    test_fails(likelihood_compute(engine, -1, ids, &share, 1), STATUS_INVALID, "token 29 is not in the vocabulary");
    engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_flags_are_those_of_whole_texts),
        cmocka_unit_test(a_small_cache_gives_the_same_results),
        cmocka_unit_test(a_token_outside_the_vocabulary_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
