/* The engine: the cached path against the uncached one, rows that do not know their neighbours, shared pages, limits,
 * generation. */
#include "infer/engine.h"
#include "infer/generate.h"
#include "infer/score.h"
#include "infer/sequences.h"
#include "pretrained/pretrained.h"
#include "support/allocations.h"
#include "support/passes.h"
#include "support/runner.h"
#include "support/test.h"
#include "support/tiny_model.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>

enum { T = 24, V = 29 }; /* of the d8_deep golden model */

static const char *model_directory(void) {
    return TEST_DATA "/model/golden/d8_deep";
}

static struct engine *open_engine(int precision, int threads) {
    struct engine_options options = {.device = test_device(),
                                     .is_batch_invariant = true,
                                     .model = model_directory(),
                                     .precision = precision,
                                     .threads = threads,
                                     .max_rows = 64,
                                     .max_logit_rows = 64,
                                     .max_sequences = 4};
    struct engine *engine;
    test_ok(engine_open(&options, &engine));
    return engine;
}

static int32_t token_at(int text, int i) {
    return (int32_t)((unsigned)(i * (7 + 4 * text) + text) % V);
}

/* log p of each next token of `text` by the training forward over the whole text. */
static void uncached(int text, int64_t count, float *logprobs) {
    struct pretrained files;
    int32_t tokens[T], positions[T], labels[T];
    uint32_t zero[T] = {0};
    float weight[T] = {0};
    test_ok(pretrained_open(model_directory(), NULL, &files));
    struct device *device;
    struct rank rank;
    struct base *base;
    struct training_runner *model;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(rank_open_single(&rank, device, 1));
    struct model_options options = {
        .base.config = files.config, .base.dtype = DTYPE_F32, .base.trains = true, .max_rows = T};
    test_ok(test_open_training(&options, &rank, NULL, &base, &model));
    struct param_store *store = base_store(base);
    struct ckpt_flat flat = ckpt_flat_weights(store, rank.exec.stream);
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    test_ok(ckpt_read(files.tensors, store->map.table, &array, 1));
    pretrained_close(&files);
    for (int i = 0; i < count; i++) {
        tokens[i] = token_at(text, i);
        labels[i] = token_at(text, i + 1);
        positions[i] = i;
    }
    struct model_batch batch = {.rows = count,
                                .tokens = tokens,
                                .positions = positions,
                                .sample = zero,
                                .token = zero,
                                .segments = 1,
                                .segment_start = (int64_t[]){0, count},
                                .labels = labels,
                                .loss_weight = weight};
    test_ok(test_evaluate(model, &batch));
    test_ok(test_row_losses(model, &batch, logprobs));
    for (int i = 0; i < count; i++)
        logprobs[i] = -logprobs[i];
    test_close_training(&base, &model);
    rank_close(&rank);
    device_close(device);
}

static struct engine_row row_of(int sequence, int text, int i) {
    return (struct engine_row){
        .token = token_at(text, i), .sequence = sequence, .wants_logits = true, .label = token_at(text, i + 1)};
}

/* All rows of a text in one step. */
static void prefill(struct engine *engine, int text, int count, float *logprobs) {
    struct engine_row rows[T];
    struct engine_result results[T];
    int sequence = engine_sequence_new(engine);
    assert_true(sequence >= 0);
    for (int i = 0; i < count; i++)
        rows[i] = row_of(sequence, text, i);
    test_ok(engine_step(engine, rows, count, results));
    for (int i = 0; i < count; i++)
        logprobs[i] = results[i].label_logprob;
    engine_sequence_close(engine, sequence);
}

static void cached_equals_uncached(void **state) {
    (void)state;
    struct engine *engine = open_engine(PRECISION_FP32, 2);
    for (int text = 0; text < 3; text++) {
        float ours[T], expected[T];
        uncached(text, T, expected);
        prefill(engine, text, T, ours);
        for (int i = 0; i < T; i++)
            if (!(fabsf(ours[i] - expected[i]) <= 1e-5f * (1 + fabsf(expected[i]))))
                fail_msg("text %d, token %d: %.9g cached, %.9g uncached", text, i, ours[i], expected[i]);
    }
    engine_close(engine);
}

/* The same text in one step, a token a step, and mixed with two other texts in uneven pieces: identical bits. */
static void a_rows_bits_do_not_depend_on_other_rows(void **state) {
    (void)state;
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        struct engine *engine = open_engine(precision, 2), *single = open_engine(precision, 1);
        float whole[3][T];
        for (int text = 0; text < 3; text++) {
            prefill(engine, text, T, whole[text]);
            float one_thread[T];
            prefill(single, text, T, one_thread);
            assert_memory_equal(whole[text], one_thread, sizeof one_thread);
        }
        int sequence = engine_sequence_new(engine);
        for (int i = 0; i < T; i++) {
            struct engine_row row = row_of(sequence, 0, i);
            struct engine_result result;
            test_ok(engine_step(engine, &row, 1, &result));
            assert_memory_equal(&result.label_logprob, &whole[0][i], sizeof(float));
        }
        engine_sequence_close(engine, sequence);
        int sequences[3], done[3] = {0};
        for (int text = 0; text < 3; text++)
            sequences[text] = engine_sequence_new(engine);
        for (uint32_t step = 0; done[0] + done[1] + done[2] < 3 * T; step++) {
            struct engine_row rows[64];
            struct engine_result results[64];
            int count = 0, from[3];
            for (int text = 0; text < 3; text++) {
                from[text] = done[text];
                int part = (int)(philox(1, step, (uint32_t)text, 0, 0).word[0] % 7);
                for (int i = 0; i < part && done[text] < T; i++)
                    rows[count++] = row_of(sequences[text], text, done[text]++);
            }
            if (count)
                test_ok(engine_step(engine, rows, count, results));
            for (int text = 0, row = 0; text < 3; text++)
                for (int i = from[text]; i < done[text]; i++)
                    assert_memory_equal(&results[row++].label_logprob, &whole[text][i], sizeof(float));
        }
        for (int text = 0; text < 3; text++)
            engine_sequence_close(engine, sequences[text]);
        engine_close(engine);
        engine_close(single);
    }
}

/* A text whose beginning another has computed: its own rows have the bits of the whole text's. */
static void a_found_beginning_gives_the_same_bits(void **state) {
    (void)state;
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        struct engine *engine = open_engine(precision, 2);
        float whole[T];
        int32_t tokens[T];
        struct engine_row rows[T];
        struct engine_result results[T];
        int64_t cached;
        for (int i = 0; i < T; i++)
            tokens[i] = token_at(1, i);
        struct sequence_beginning text = {.slot = -1, .tokens = tokens, .count = T};
        int first = engine_sequence_open(engine, &text, &cached);
        assert_int_equal(cached, 0);
        engine_sequence_close(engine, first);
        prefill(engine, 1, T, whole);
        int sequence = engine_sequence_open(engine, &text, &cached);
        assert_int_equal(cached, KV_PAGE_TOKENS);
        for (int i = KV_PAGE_TOKENS; i < T; i++)
            rows[i - KV_PAGE_TOKENS] = row_of(sequence, 1, i);
        test_ok(engine_step(engine, rows, T - KV_PAGE_TOKENS, results));
        for (int i = KV_PAGE_TOKENS; i < T; i++)
            assert_memory_equal(&results[i - KV_PAGE_TOKENS].label_logprob, &whole[i], sizeof(float));
        engine_sequence_close(engine, sequence);
        /* Whoever asks for less than a page more finds nothing of another salt, nor where it does not look. */
        text.salt = 1;
        engine_sequence_close(engine, engine_sequence_open(engine, &text, &cached));
        assert_int_equal(cached, 0);
        text = (struct sequence_beginning){.slot = -1, .tokens = tokens, .count = KV_PAGE_TOKENS};
        engine_sequence_close(engine, engine_sequence_open(engine, &text, &cached));
        assert_int_equal(cached, 0); /* the last token's row must be run */
        engine_close(engine);
    }
}

/* Two texts with the same tokens in one step: the second gives up its page for the first one's, which a third may take
 * at once. */
static void equal_texts_in_one_step_share_their_pages(void **state) {
    (void)state;
    struct engine *engine = open_engine(PRECISION_FP32, 2);
    float whole[2][T];
    struct engine_row rows[3 * T];
    struct engine_result results[3 * T];
    prefill(engine, 2, T, whole[1]);
    engine_close(engine);
    engine = open_engine(PRECISION_FP32, 2);
    int64_t all = engine_pages_available(engine);
    int sequences[3], count = 0;
    for (int k = 0; k < 3; k++) {
        sequences[k] = engine_sequence_new(engine);
        for (int i = 0; i < 20; i++)
            rows[count++] = row_of(sequences[k], k == 2 ? 2 : 1, i);
    }
    test_ok(engine_step(engine, rows, count, results));
    assert_int_equal(all - engine_pages_available(engine), 5);
    for (int i = 0; i < 20; i++) {
        assert_memory_equal(&results[i].label_logprob, &results[20 + i].label_logprob, sizeof(float));
        assert_memory_equal(&results[40 + i].label_logprob, &whole[1][i], sizeof(float));
    }
    for (int k = 0; k < 3; k++) /* and they continue separately */
        rows[k] = row_of(sequences[k], k == 2 ? 2 : 1, 20);
    test_ok(engine_step(engine, rows, 3, results));
    assert_memory_equal(&results[0].label_logprob, &results[1].label_logprob, sizeof(float));
    assert_memory_equal(&results[2].label_logprob, &whole[1][20], sizeof(float));
    engine_close(engine);
}

/* Sequences that come, grow over pages, fork, sample and go: the same round allocates nothing the second time. */
static void nothing_is_allocated_in_a_step(void **state) {
    (void)state;
    if (!allocations_can_be_counted())
        test_skip("this build has an allocator that cannot be counted");
    struct sampling sampling = {.temperature = 0.7, .top_p = 0.9, .top_k = 20, .repetition_penalty = 1.2};
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        struct engine *engine = open_engine(precision, 2);
        for (int round = 0; round < 2; round++) {
            struct engine_row rows[T];
            struct engine_result results[T];
            if (round)
                allocations_start();
            int parent = engine_sequence_new(engine);
            for (int i = 0; i < T - 4; i++) {
                rows[i] = row_of(parent, 0, i);
                rows[i].sampling = &sampling;
            }
            int statuses = engine_step(engine, rows, T - 4, results);
            int child = engine_sequence_new(engine);
            for (int i = T - 4; i < T; i++) {
                struct engine_row pair[] = {row_of(parent, 0, i), row_of(child, 1, i - T + 4)};
                pair[1].sampling = &sampling;
                statuses |= engine_step(engine, pair, 2, results);
            }
            engine_sequence_close(engine, child);
            engine_sequence_close(engine, parent);
            if (round)
                assert_int_equal(allocations_stop(), 0);
            assert_int_equal(statuses, STATUS_OK);
        }
        engine_close(engine);
    }
}

static void what_does_not_fit_is_refused_and_changes_nothing(void **state) {
    (void)state;
    struct engine_options options = {.device = test_device(),
                                     .model = model_directory(),
                                     .precision = -1,
                                     .max_rows = 40,
                                     .max_logit_rows = 4,
                                     .max_sequences = 3,
                                     .cache_tokens = 32};
    struct engine *engine;
    test_ok(engine_open(&options, &engine));
    struct engine_row rows[48];
    struct engine_result results[48];
    int a = engine_sequence_new(engine), b = engine_sequence_new(engine), c = engine_sequence_new(engine);
    test_fails(engine_sequence_new(engine), STATUS_MEMORY, "3 sequences");
    for (int i = 0; i < 48; i++)
        rows[i] = (struct engine_row){.token = 1, .sequence = a, .label = -1};
    test_fails(engine_step(engine, rows, 41, results), STATUS_INVALID, "41 rows");
    test_fails(engine_step(engine, rows, 25, results), STATUS_INVALID, "24 positions");
    rows[3].sequence = 3;
    test_fails(engine_step(engine, rows, 4, results), STATUS_INVALID, "row 3: no sequence 3");
    rows[3].sequence = a;
    assert_int_equal(engine_sequence_length(engine, a), 0);
    rows[0].token = V;
    test_fails(engine_step(engine, rows, 1, results), STATUS_INVALID, "vocabulary");
    rows[0].token = 1;
    for (int i = 0; i < 5; i++)
        rows[i].wants_logits = true;
    test_fails(engine_step(engine, rows, 5, results), STATUS_INVALID, "logits of 5 rows");
    for (int i = 0; i < 5; i++)
        rows[i].wants_logits = false;
    rows[1].sequence = b;
    rows[2].sequence = c;
    test_fails(engine_step(engine, rows, 3, results), STATUS_INVALID, "2 free pages");
    assert_int_equal(engine_sequence_length(engine, b), 0);
    test_ok(engine_step(engine, rows, 2, results));
    engine_sequence_close(engine, c);
    assert_true(engine_sequence_new(engine) >= 0);
    test_fails(engine_step(engine, rows + 2, 1, results), STATUS_INVALID, "0 free pages of 2");
    engine_sequence_close(engine, b);
    test_ok(engine_step(engine, rows + 2, 1, results)); /* one page was free again */
    engine_close(engine);
}

static void scores_equal_the_uncached_path(void **state) {
    (void)state;
    struct engine_options options = {.device = test_device(),
                                     .model = model_directory(),
                                     .precision = -1,
                                     .max_rows = 7,
                                     .max_logit_rows = 5,
                                     .max_sequences = 1};
    struct engine *engine;
    test_ok(engine_open(&options, &engine));
    int32_t tokens[T + 1];
    float ours[T + 1], expected[T];
    for (int i = 0; i <= T; i++)
        tokens[i] = token_at(1, i);
    uncached(1, T - 1, expected);
    test_ok(score_tokens(engine, tokens, T, ours));
    for (int i = 1; i < T; i++)
        assert_true(fabsf(ours[i] - expected[i - 1]) <= 1e-5f * (1 + fabsf(expected[i - 1])));
    test_fails(score_tokens(engine, tokens, T + 1, ours), STATUS_INVALID, "25 tokens");
    tokens[3] = -1;
    test_fails(score_tokens(engine, tokens, T, ours), STATUS_INVALID, "vocabulary");
    test_ok(score_tokens(engine, tokens, 0, ours)); /* nothing to say about nothing */
    engine_close(engine);
}

static struct ask ask_for(int64_t max_tokens, int64_t choices, double temperature) {
    struct ask ask;
    ask_begin(&ask);
    ask.max_tokens = max_tokens;
    ask.choices = choices;
    ask.sampling.temperature = temperature;
    return ask;
}

static void run_generate(struct engine *engine, double temperature, uint64_t seed, int64_t samples,
                         struct generated *out) {
    struct ask ask = ask_for(12, samples, temperature);
    ask.sampling.seed = seed;
    struct generate_options options = {.prompt = (int32_t[]){3, 1, 4}, .prompt_length = 3, .slot = -1, .ask = &ask};
    test_ok(generate(engine, NULL, &options, out));
}

static void equal_seeds_give_equal_texts(void **state) {
    (void)state;
    struct engine *engine = open_engine(-1, 2);
    struct generated one[4], two[4], greedy[4];
    run_generate(engine, 1, 5, 3, one);
    run_generate(engine, 1, 5, 1, two); /* a choice does not depend on how many there are */
    run_generate(engine, 0, 1, 2, greedy);
    assert_int_equal(one[0].tokens.count, 12);
    assert_memory_equal(one[0].tokens.ids, two[0].tokens.ids, 12 * sizeof(int32_t));
    assert_memory_not_equal(one[0].tokens.ids, one[1].tokens.ids, 12 * sizeof(int32_t));
    assert_memory_equal(greedy[0].tokens.ids, greedy[1].tokens.ids, 12 * sizeof(int32_t));
    for (int i = 0; i < 3; i++)
        generated_free(&one[i]);
    generated_free(&two[0]);
    run_generate(engine, 1, 6, 1, two);
    run_generate(engine, 1, 5, 1, one);
    assert_memory_not_equal(one[0].tokens.ids, two[0].tokens.ids, 12 * sizeof(int32_t));
    generated_free(&one[0]);
    generated_free(&two[0]);
    for (int i = 0; i < 2; i++)
        generated_free(&greedy[i]);
    /* All sequences went back: the engine can be filled again. */
    for (int i = 0; i < 4; i++)
        assert_true(engine_sequence_new(engine) >= 0);
    engine_close(engine);
}

static void a_text_ends_at_the_last_position_or_at_its_end_token(void **state) {
    (void)state;
    struct engine *engine = open_engine(-1, 2);
    const struct ask ask = ask_for(100, 1, 0);
    struct generate_options options = {.prompt = (int32_t[]){3, 1, 4}, .prompt_length = 3, .slot = -1, .ask = &ask};
    struct generated out;
    test_ok(generate(engine, NULL, &options, &out));
    assert_int_equal(out.tokens.count, T - 3 + 1); /* the token after the last position is drawn, and not run */
    assert_int_equal(out.reason, FINISH_LENGTH);
    const struct ask_ends ends = {.prompt = {.ids = {V - 1, out.tokens.ids[4]}, .count = 2}};
    options.ends = &ends;
    size_t first = 0;
    while (out.tokens.ids[first] != ends.prompt.ids[0] && out.tokens.ids[first] != ends.prompt.ids[1])
        first++;
    generated_free(&out);
    test_ok(generate(engine, NULL, &options, &out));
    assert_int_equal(out.tokens.count, first);
    assert_int_equal(out.reason, FINISH_STOP);
    generated_free(&out);
    int32_t prompt[T + 1] = {0};
    options.prompt = prompt;
    options.prompt_length = T + 1;
    test_fails(generate(engine, NULL, &options, &out), STATUS_INVALID, "24 positions");
    engine_close(engine);
}

static void more_samples_than_sequences_are_written_in_turn(void **state) {
    (void)state;
    struct engine_options options = {.device = test_device(),
                                     .model = model_directory(),
                                     .precision = -1,
                                     .max_rows = 2,
                                     .max_logit_rows = 4,
                                     .max_sequences = 2};
    struct engine *engine;
    struct generated out[5], large[5];
    const struct ask ask = ask_for(6, 5, 1);
    struct generate_options texts = {.prompt = (int32_t[]){3, 1, 4}, .prompt_length = 3, .slot = -1, .ask = &ask};
    test_ok(engine_open(&options, &engine));
    test_ok(generate(engine, NULL, &texts, out));
    engine_close(engine);
    engine = open_engine(-1, 1);
    test_ok(generate(engine, NULL, &texts, large));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(out[i].tokens.count, 6);
        assert_memory_equal(out[i].tokens.ids, large[i].tokens.ids, 6 * sizeof(int32_t));
        generated_free(&out[i]);
        generated_free(&large[i]);
    }
    engine_close(engine);
}

/* With a penalty no greedy text of this small model repeats a token that is not far ahead of the others. */
static void a_penalty_changes_what_was_seen(void **state) {
    (void)state;
    struct engine *engine = open_engine(-1, 1);
    struct ask ask = ask_for(8, 1, 0);
    ask.sampling.repetition_penalty = 100;
    struct generate_options options = {.prompt = (int32_t[]){3, 1, 4}, .prompt_length = 3, .slot = -1, .ask = &ask};
    struct generated out;
    test_ok(generate(engine, NULL, &options, &out));
    bool seen[V] = {[1] = true, [3] = true, [4] = true};
    for (size_t i = 0; i < out.tokens.count; i++) {
        assert_false(seen[out.tokens.ids[i]]);
        seen[out.tokens.ids[i]] = true;
    }
    generated_free(&out);
    engine_close(engine);
}

/* Bytes of this process that are in memory. */
static double resident(void) {
    long long pages, in_memory;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lld %lld", &pages, &in_memory), 2);
    fclose(file);
    return (double)in_memory * (double)sysconf(_SC_PAGESIZE);
}

/* Returns how much the memory of an open engine grows; *cache: of which the cache. */
static double grown(bool touches_cache, double *cache) {
    struct model_config shape = tiny_model(
        &(const struct tiny_model){.layers = 1, .hidden = 64, .heads = 1, .ffn = 64, .positions = 1024, .vocab = V});
    struct engine_options options = {.device = test_device(),
                                     .random = &shape,
                                     .precision = PRECISION_FP32,
                                     .threads = 1,
                                     .max_rows = 1,
                                     .max_logit_rows = 1,
                                     .max_sequences = 128,
                                     .touches_cache = touches_cache};
    struct engine *engine;
    double before = resident();
    test_ok(engine_open(&options, &engine));
    double after = resident();
    *cache = device_host_reads(engine_rank(engine)->device)
                 ? (double)(2 * shape.hidden_size * 4) * (double)(shape.max_position_embeddings * 128)
                 : 0;
    engine_close(engine);
    return after - before;
}

static void a_touched_cache_is_in_memory_before_the_first_step(void **state) {
    double cache;
    (void)state;
    assert_true(grown(false, &cache) <= 0.5 * cache || cache == 0);
    assert_true(grown(true, &cache) >= 0.9 * cache);
}

/* While signals are requests, as in jobs that answer many texts. */
static void a_request_to_stop_ends_the_loading(void **state) {
    (void)state;
    struct engine_options options = {.device = test_device(),
                                     .model = model_directory(),
                                     .precision = -1,
                                     .max_rows = 4,
                                     .max_logit_rows = 4,
                                     .max_sequences = 3};
    struct engine *engine;
    stop_watch_begin();
    raise(SIGTERM);
    test_fails(engine_open(&options, &engine), STATUS_INTERRUPTED, "stopped by SIGTERM while the model was loaded");
    assert_int_equal(stop_take(), SIGTERM);
    stop_watch_end();
    test_ok(engine_open(&options, &engine));
    engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_equals_uncached),
        cmocka_unit_test(a_rows_bits_do_not_depend_on_other_rows),
        cmocka_unit_test(a_found_beginning_gives_the_same_bits),
        cmocka_unit_test(equal_texts_in_one_step_share_their_pages),
        cmocka_unit_test(nothing_is_allocated_in_a_step),
        cmocka_unit_test(a_touched_cache_is_in_memory_before_the_first_step),
        cmocka_unit_test(what_does_not_fit_is_refused_and_changes_nothing),
        cmocka_unit_test(scores_equal_the_uncached_path),
        cmocka_unit_test(equal_seeds_give_equal_texts),
        cmocka_unit_test(a_text_ends_at_the_last_position_or_at_its_end_token),
        cmocka_unit_test(more_samples_than_sequences_are_written_in_turn),
        cmocka_unit_test(a_request_to_stop_ends_the_loading),
        cmocka_unit_test(a_penalty_changes_what_was_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
