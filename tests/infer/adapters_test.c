/* The engine with adapters that stand before the texts: against the forward that trains them, shared pages, limits. */
#include "infer/generate.h"
#include "infer/score.h"
#include "infer/sequences.h"
#include "infer/slots.h"
#include "stacks.h"
#include "support/allocations.h"

/* ---- the same answers ---- */

static const struct stack stacks[] = {
    {{"prompt"}, 1, 0, 5},
    {{"ptuning_mlp"}, 1, 0, 5},
    {{"ptuning_lstm"}, 1, 0, 5},
    {{"prefix"}, 1, 5, 0},
    {{"prefix_projection"}, 1, 5, 0},
    {{"prompt:1"}, 1, 0, 1},
    {{"prompt:16"}, 1, 0, 16}, /* a full page */
    {{"prefix:16"}, 1, 16, 0},
    {{"prefix:27"}, 1, 27, 0},
    {{"prompt", "lora_all_linear"}, 2, 0, 5},
    {{"ia3", "prefix"}, 2, 5, 0},
    {{"prompt", "ptuning_mlp", "prefix", "adapter_seq_bn"}, 4, 5, 10},
    {{"dora_all_linear", "prefix:16", "ptuning_lstm"}, 3, 16, 5},
    {{"lora_patterns"}, 1, 0, 0},
    {{"lora_head"}, 1, 0, 0},
    {{"rslora"}, 1, 0, 0},
    {{"dora"}, 1, 0, 0},
    {{"ia3"}, 1, 0, 0},
    {{"ia3_attention"}, 1, 0, 0},
    {{"ia3_inputs"}, 1, 0, 0},
    {{"adapter_par_bn"}, 1, 0, 0},
    {{"adapter_double_seq_bn"}, 1, 0, 0},
    {{"adapter_pre_norm"}, 1, 0, 0},
};
enum { STACKS = sizeof stacks / sizeof *stacks };
static const struct stack of_a_prefix = {{"prefix"}, 1, 5, 0};
static const struct stack of_all = {{"prompt", "ptuning_lstm", "prefix", "ia3"}, 4, 5, 10};
static const struct stack mixed = {{"prefix", "prompt:13", "lora_all_linear"}, 3, 5, 13};

static void served_equals_the_forward_that_trains(void **state) {
    (void)state;
    for (size_t s = 0; s < STACKS; s++) {
        const struct stack *stack = &stacks[s];
        struct trained trained;
        struct engine *engine =
            open_engine(stack, (struct engine_options){.threads = 1, .max_rows = 7, .max_sequences = 1});
        trained_open(&trained, stack);
        assert_int_equal(engine_slot_predicts_first(engine, engine_opened_slot(engine)), stack->virtual_tokens > 0);
        for (int text = 0; text < 3; text++) {
            float ours[POSITIONS], expected[POSITIONS];
            int64_t count = text == 0 ? 2 : longest_text(stack);
            ours[0] = expected[0] = -1;
            trained_logprobs(&trained, stack, text, count, expected);
            test_ok(score(engine, text, count, ours));
            for (int64_t i = 0; i < count; i++)
                if (!is_near(ours[i], expected[i]))
                    fail_msg("stack %zu, text %d, token %lld: %.9g served, %.9g trained", s, text, (long long)i,
                             (double)ours[i], (double)expected[i]);
        }
        trained_close(&trained);
        engine_close(engine);
    }
}

struct served {
    struct rank_grid grid;
    int64_t first_layers;
    const struct stack *stack;
    struct directories directories;
    const float *expected; /* [POSITIONS] of one rank */
    const int32_t *greedy; /* [8] */
};

static struct generate_options greedy_options(const struct engine *engine, const int32_t *prompt, struct ask *ask) {
    ask_begin(ask);
    ask->max_tokens = 8;
    ask->sampling.temperature = 0;
    return (struct generate_options){
        .prompt = prompt, .prompt_length = 3, .slot = engine_opened_slot(engine), .ask = ask};
}

static int serve_rank(struct comm *world, void *context) {
    const struct served *served = context;
    struct engine *engine = NULL;
    struct generated text = {0};
    float ours[POSITIONS] = {0};
    struct engine_options options = {.device = test_device(),
                                     .model = base_directory(),
                                     .world = world,
                                     .grid = served->grid,
                                     .first_layers = served->first_layers,
                                     .adapters = (const char *const *)served->directories.name,
                                     .adapter_count = served->stack->count,
                                     .threads = 1,
                                     .max_rows = 7,
                                     .max_logit_rows = 7,
                                     .max_sequences = 1};
    int status = engine_open(&options, &engine);
    if (!status && !engine_leads(engine)) {
        status = engine_follow(engine);
        engine_close(engine);
        return status;
    }
    if (!status)
        status = score(engine, 1, longest_text(served->stack), ours);
    for (int64_t i = served->stack->virtual_tokens ? 0 : 1; i < longest_text(served->stack) && !status; i++)
        if (!is_near(ours[i], served->expected[i]))
            status = status_fail(STATUS_INVALID, "token %lld: %.9g, of one rank %.9g", (long long)i, (double)ours[i],
                                 (double)served->expected[i]);
    if (!status) {
        struct ask ask;
        const struct generate_options greedy = greedy_options(engine, (int32_t[]){3, 1, 4}, &ask);
        status = generate(engine, NULL, &greedy, &text);
    }
    if (!status && memcmp(text.tokens.ids, served->greedy, 8 * sizeof(int32_t)))
        status = status_fail(STATUS_INVALID, "another text than that of one rank");
    if (!status)
        status = engine_end(engine);
    if (status)
        comm_abort(world, status_text());
    generated_free(&text);
    engine_close(engine);
    return status;
}

static void layouts_serve_what_one_rank_serves(void **state) {
    (void)state;
    static const struct rank_grid grids[] = {{2, 1, 1, 1, 1}, {1, 1, 1, 1, 2}, {1, 1, 1, 1, 3}, {2, 1, 1, 1, 2}};
    const struct stack *const served_stacks[] = {&of_a_prefix, &of_all, &mixed};
    for (size_t s = 0; s < sizeof served_stacks / sizeof *served_stacks; s++) {
        struct served served = {.stack = served_stacks[s]};
        struct engine *engine =
            open_engine(served.stack, (struct engine_options){.threads = 1, .max_rows = 7, .max_sequences = 1});
        struct ask ask;
        struct generate_options greedy = greedy_options(engine, (int32_t[]){3, 1, 4}, &ask);
        struct generated text;
        float expected[POSITIONS];
        test_ok(score(engine, 1, longest_text(served.stack), expected));
        test_ok(generate(engine, NULL, &greedy, &text));
        engine_close(engine);
        served.expected = expected;
        served.greedy = text.tokens.ids;
        find_stack(served.stack, &served.directories);
        for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
            served.grid = grids[g];
            served.first_layers = grids[g].pipeline == 2 ? 2 : 0;
            if (comm_local_run(rank_grid_size(&grids[g]), serve_rank, &served))
                fail_msg("stack %zu, tensor %d, pipeline %d: %s", s, grids[g].tensor, grids[g].pipeline, status_text());
        }
        forget_stack(served.stack, &served.directories);
        generated_free(&text);
    }
}

/* ---- rows do not know their neighbours ---- */

enum { T = 12 };

/* Row `i` of a text, from -virtual on; rows from the last virtual token on want the next token's log-probability. */
static struct engine_row row_of(int sequence, int text, int64_t i) {
    return (struct engine_row){.token = i < 0 ? ENGINE_VIRTUAL_TOKEN : token_at(text, i),
                               .sequence = sequence,
                               .wants_logits = i >= -1,
                               .label = i >= -1 ? token_at(text, i + 1) : -1};
}

enum { VIRTUAL_TOKENS = 18 }; /* of `mixed`: 5 of a prefix, and 13 virtual tokens */

/* [T] of the last virtual token and of all but the last token, in one step. */
static void prefill(struct engine *engine, int text, float *logprobs) {
    struct engine_row rows[VIRTUAL_TOKENS + T - 1];
    struct engine_result results[VIRTUAL_TOKENS + T - 1];
    int sequence = engine_sequence_new(engine);
    assert_true(sequence >= 0);
    for (int i = 0; i < VIRTUAL_TOKENS + T - 1; i++)
        rows[i] = row_of(sequence, text, i - VIRTUAL_TOKENS);
    test_ok(engine_step(engine, rows, VIRTUAL_TOKENS + T - 1, results));
    for (int i = 0; i < T; i++)
        logprobs[i] = results[VIRTUAL_TOKENS - 1 + i].label_logprob;
    engine_sequence_close(engine, sequence);
}

/* Three texts in uneven pieces, their virtual tokens as well. */
static void check_mixed(struct engine *engine, float whole[3][T]) {
    int sequences[3], done[3] = {-VIRTUAL_TOKENS, -VIRTUAL_TOKENS, -VIRTUAL_TOKENS};
    for (int text = 0; text < 3; text++)
        assert_true((sequences[text] = engine_sequence_new(engine)) >= 0);
    for (uint32_t step = 0; done[0] + done[1] + done[2] < 3 * (T - 1); step++) {
        struct engine_row rows[3 * T];
        struct engine_result results[3 * T];
        float expected[3 * T];
        int count = 0;
        for (int text = 0; text < 3; text++) {
            int part = (int)(philox(1, step, (uint32_t)text, 0, 0).word[0] % 5);
            for (int i = 0; i < part && done[text] < T - 1; i++, done[text]++) {
                expected[count] = done[text] >= -1 ? whole[text][done[text] + 1] : 0;
                rows[count++] = row_of(sequences[text], text, done[text]);
            }
        }
        if (!count)
            continue;
        test_ok(engine_step(engine, rows, count, results));
        for (int i = 0; i < count; i++)
            if (rows[i].wants_logits)
                assert_memory_equal(&results[i].label_logprob, &expected[i], sizeof(float));
    }
    for (int text = 0; text < 3; text++) {
        assert_int_equal(engine_sequence_length(engine, sequences[text]), VIRTUAL_TOKENS + T - 1);
        engine_sequence_close(engine, sequences[text]);
    }
}

static void a_rows_bits_do_not_depend_on_other_rows(void **state) {
    (void)state;
    float exact[T] = {0};
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        struct engine_options options = {.precision = precision, .threads = 2, .max_rows = 3 * T, .max_sequences = 3};
        struct engine *engine = open_engine(&mixed, options);
        options.threads = 1;
        struct engine *single = open_engine(&mixed, options);
        float whole[3][T], other[T];
        for (int text = 0; text < 3; text++) {
            prefill(engine, text, whole[text]);
            prefill(single, text, other);
            assert_memory_equal(whole[text], other, sizeof other);
        }
        check_mixed(engine, whole);
        for (int i = 0; i < T && precision == PRECISION_FP32; i++)
            exact[i] = whole[0][i];
        for (int i = 0; i < T; i++) /* 8 bits in every product of three layers */
            assert_true(fabsf(whole[0][i] - exact[i]) < 0.2f);
        /* An engine whose steps are so small that it opens in many, a token a step. */
        options.max_rows = 2;
        struct engine *small = open_engine(&mixed, options);
        int sequence = engine_sequence_new(small);
        for (int i = -VIRTUAL_TOKENS; i < T - 1; i++) {
            struct engine_row row = row_of(sequence, 0, i);
            struct engine_result result;
            test_ok(engine_step(small, &row, 1, &result));
            if (row.wants_logits)
                assert_memory_equal(&result.label_logprob, &whole[0][i + 1], sizeof(float));
        }
        engine_close(small);
        engine_close(single);
        engine_close(engine);
    }
}

static void a_text_does_not_depend_on_the_texts_beside_it(void **state) {
    (void)state;
    struct engine *engine =
        open_engine(&mixed, (struct engine_options){.threads = 1, .max_rows = 16, .max_sequences = 4});
    struct ask ask;
    struct generate_options options = greedy_options(engine, (int32_t[]){3, 1, 4}, &ask);
    ask.sampling = (struct sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1.3, .seed = 5};
    struct generated together[4], alone;
    ask.choices = 4;
    test_ok(generate(engine, NULL, &options, together));
    ask.choices = 1;
    test_ok(generate(engine, NULL, &options, &alone));
    assert_int_equal(alone.tokens.count, 8);
    assert_memory_equal(alone.tokens.ids, together[0].tokens.ids, 8 * sizeof(int32_t));
    for (int i = 0; i < 4; i++)
        generated_free(&together[i]);
    generated_free(&alone);
    engine_close(engine);
}

/* ---- pages ---- */

/* Starts a sequence with its virtual tokens and one more token; *cached: tokens that it found. */
static int start_text(struct engine *engine, int64_t virtual_tokens, int32_t token, int64_t *cached) {
    struct engine_row rows[POSITIONS];
    struct engine_result results[POSITIONS];
    struct sequence_beginning text = {.slot = engine_opened_slot(engine), .tokens = &token, .count = 1};
    int sequence = engine_sequence_open(engine, &text, cached);
    if (sequence < 0)
        return sequence;
    for (int64_t i = *cached; i <= virtual_tokens; i++)
        rows[i - *cached] = (struct engine_row){
            .token = i < virtual_tokens ? ENGINE_VIRTUAL_TOKEN : token, .sequence = sequence, .label = -1};
    return engine_step(engine, rows, virtual_tokens + 1 - *cached, results);
}

static void sequences_share_what_stands_before_them(void **state) {
    (void)state;
    static const struct stack full = {{"prefix:16"}, 1, 16, 0};
    static const struct stack partial = {{"prompt:17"}, 1, 0, 17};
    int64_t cached;
    struct engine_options options = {
        .threads = 1, .max_rows = 18, .max_sequences = 4, .cache_tokens = 4 * KV_PAGE_TOKENS};
    /* A full page that all share, and one of its own for each. */
    struct engine *engine = open_engine(&full, options);
    for (int i = 0; i < 3; i++) {
        test_ok(start_text(engine, 16, i, &cached));
        assert_int_equal(cached, i ? 16 : 0);
    }
    test_fails(start_text(engine, 16, 3, &cached), STATUS_INVALID, "0 free pages of 4");
    for (int i = 0; i < 4; i++)
        engine_sequence_close(engine, i);
    assert_int_equal(engine_pages_available(engine), 4);
    test_ok(start_text(engine, 16, 0, &cached)); /* what nobody holds is still there */
    assert_int_equal(cached, 16);
    engine_close(engine);
    engine = open_engine(&partial, options);
    for (int i = 0; i < 3; i++) {
        test_ok(start_text(engine, 17, i, &cached));
        assert_int_equal(cached, i ? 16 : 0);
    }
    engine_close(engine);
    options.has_no_prefix_cache = true;
    engine = open_engine(&full, options);
    for (int i = 0; i < 2; i++) {
        test_ok(start_text(engine, 16, i, &cached));
        assert_int_equal(cached, 0);
    }
    engine_close(engine);
}

static void nothing_is_allocated_with_adapters(void **state) {
    (void)state;
    if (!allocations_can_be_counted())
        test_skip("this build has an allocator that cannot be counted");
    struct engine *engine =
        open_engine(&mixed, (struct engine_options){.threads = 1, .max_rows = 32, .max_sequences = 4});
    float logprobs[T];
    prefill(engine, 0, logprobs);
    allocations_start();
    prefill(engine, 1, logprobs);
    assert_int_equal(allocations_stop(), 0);
    engine_close(engine);
}

/* ---- limits ---- */

static void virtual_tokens_take_positions(void **state) {
    (void)state;
    struct engine *engine =
        open_engine(&mixed, (struct engine_options){.threads = 1, .max_rows = 40, .max_sequences = 1});
    int64_t room = longest_text(&mixed);
    int32_t prompt[POSITIONS] = {0};
    float logprobs[POSITIONS];
    struct engine_row rows[POSITIONS + 1];
    struct engine_result results[POSITIONS + 1];
    struct generated text;
    struct ask ask;
    struct generate_options options = greedy_options(engine, (int32_t[]){3, 1, 4}, &ask);
    assert_int_equal(room, 14);
    test_ok(engine_check_tokens(engine, engine_opened_slot(engine), "", prompt, room));
    test_fails(engine_check_tokens(engine, engine_opened_slot(engine), "the prompt has ", prompt, room + 1),
               STATUS_INVALID,
               "the prompt has 15 tokens, with the adapters' 18 virtual tokens more than the model's 32 positions");
    test_fails(score_tokens(engine, prompt, room + 1, logprobs), STATUS_INVALID, "18 virtual tokens");
    int sequence = engine_sequence_new(engine);
    for (int i = 0; i < POSITIONS + 1; i++)
        rows[i] = (struct engine_row){
            .token = i < VIRTUAL_TOKENS ? ENGINE_VIRTUAL_TOKEN : i, .sequence = sequence, .label = -1};
    test_fails(engine_step(engine, rows, POSITIONS + 1, results), STATUS_INVALID, "18 virtual tokens");
    assert_int_equal(engine_sequence_length(engine, sequence), 0);
    rows[0].token = 3;
    test_fails(engine_step(engine, rows, 1, results), STATUS_INVALID, "sequence 0 starts with virtual tokens");
    rows[0] =
        (struct engine_row){.token = ENGINE_VIRTUAL_TOKEN, .sequence = sequence, .wants_logits = true, .label = -1};
    test_fails(engine_step(engine, rows, 1, results), STATUS_INVALID, "a prefix has no logits");
    rows[0].wants_logits = false;
    test_ok(engine_step(engine, rows, POSITIONS, results));
    engine_sequence_close(engine, sequence);
    sequence = engine_sequence_new(engine);
    test_ok(engine_step(engine, rows, VIRTUAL_TOKENS, results));
    test_fails(engine_step(engine, rows, 1, results), STATUS_INVALID, "sequence 0 has no more virtual tokens");
    rows[0].token = V;
    test_fails(engine_step(engine, rows, 1, results), STATUS_INVALID, "vocabulary");
    engine_sequence_close(engine, sequence);
    ask.max_tokens = 100;
    test_ok(generate(engine, NULL, &options, &text));
    assert_int_equal(text.tokens.count, room - 3 + 1); /* the token after the last position is drawn, and not run */
    generated_free(&text);
    engine_close(engine);
}

static void more_virtual_tokens_than_positions_are_refused(void **state) {
    (void)state;
    static const struct stack most = {{"prefix:26", "prompt"}, 2, 26, 5};
    static const struct stack over = {{"prefix:27", "prompt"}, 2, 27, 5};
    struct engine_options options = {.device = test_device(), .threads = 1, .max_rows = 8, .max_sequences = 1};
    float logprobs[1];
    struct engine *engine = open_engine(&most, options);
    test_ok(score(engine, 0, 1, logprobs));
    assert_true(logprobs[0] < 0);
    engine_close(engine);
    struct directories directories;
    find_stack(&over, &directories);
    options.model = base_directory();
    options.adapters = (const char *const *)directories.name;
    options.adapter_count = 2;
    options.max_logit_rows = 8;
    test_fails(engine_open(&options, &engine), STATUS_USAGE, "32 positions");
    forget_stack(&over, &directories);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(served_equals_the_forward_that_trains),
        cmocka_unit_test(layouts_serve_what_one_rank_serves),
        cmocka_unit_test(a_rows_bits_do_not_depend_on_other_rows),
        cmocka_unit_test(a_text_does_not_depend_on_the_texts_beside_it),
        cmocka_unit_test(sequences_share_what_stands_before_them),
        cmocka_unit_test(nothing_is_allocated_with_adapters),
        cmocka_unit_test(virtual_tokens_take_positions),
        cmocka_unit_test(more_virtual_tokens_than_positions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
