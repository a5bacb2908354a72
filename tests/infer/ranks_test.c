/* An engine of several ranks gives the answers of one. */
#include "infer/engine.h"
#include "infer/score.h"
#include "infer/sequences.h"
#include "support/test.h"
#include "support/tiny_model.h"

#include <math.h>

/* Numbers that nothing divides but what must: heads and the feed-forward width by 4. */
enum { V = 61, T = 40, TEXTS = 3, STEPS = 30 };

/* Initial values so large that likely and unlikely tokens are far apart. */
static struct model_config config_of(bool untied) {
    struct model_config config = tiny_model(&(const struct tiny_model){
        .layers = 4, .hidden = 24, .heads = 4, .ffn = 52, .positions = T, .vocab = V, .init_std = 0.4});
    config.embedding_dropout = -1;
    config.activation = ACTIVATION_GELU_TANH;
    config.untie_embeddings_and_output_weights = untied;
    return config;
}

struct answers {
    float score[TEXTS][T];
    int32_t greedy[TEXTS][STEPS], drawn[TEXTS][STEPS];
    float greedy_logprob[TEXTS][STEPS], drawn_logprob[TEXTS][STEPS];
    int32_t penalised[STEPS];
};

static int32_t token_at(int text, int i) {
    return (int32_t)((unsigned)(i * (7 + 4 * text) + text) % V);
}

/* Each text continues a prompt of its own, all of them together, the first two from the same one. */
static int write(struct engine *engine, const struct sampling *sampling, int32_t tokens[TEXTS][STEPS],
                 float logprobs[TEXTS][STEPS]) {
    int sequences[TEXTS], status = STATUS_OK;
    int32_t next[TEXTS];
    struct engine_row rows[T];
    struct engine_result results[T];
    sequences[0] = engine_sequence_new(engine);
    for (int i = 0; i < 5; i++)
        rows[i] = (struct engine_row){.token = token_at(0, i), .sequence = sequences[0], .label = -1};
    status = engine_step(engine, rows, 5, results);
    sequences[1] = engine_sequence_new(engine);
    for (int i = 0; i < 5; i++)
        rows[i].sequence = sequences[1];
    if (!status)
        status = engine_step(engine, rows, 5, results);
    sequences[2] = engine_sequence_new(engine);
    for (int t = 0; t < TEXTS; t++)
        next[t] = token_at(t, 5);
    for (int step = 0; step < STEPS && !status; step++) {
        struct sampling own[TEXTS];
        for (int t = 0; t < TEXTS; t++) {
            own[t] = *sampling;
            own[t].choice = (uint32_t)t;
            rows[t] = (struct engine_row){
                .token = next[t], .sequence = sequences[t], .wants_logits = true, .label = -1, .sampling = &own[t]};
        }
        status = engine_step(engine, rows, TEXTS, results);
        for (int t = 0; t < TEXTS; t++) {
            next[t] = tokens[t][step] = results[t].token;
            logprobs[t][step] = results[t].logprob;
        }
    }
    for (int t = 0; t < TEXTS; t++)
        engine_sequence_close(engine, sequences[t]);
    return status;
}

static int answer(struct engine *engine, struct answers *answers) {
    int32_t tokens[T], many[TEXTS][STEPS];
    float unused[TEXTS][STEPS];
    int status = STATUS_OK;
    for (int text = 0; text < TEXTS && !status; text++) {
        for (int i = 0; i < T; i++)
            tokens[i] = token_at(text, i);
        status = score_tokens(engine, tokens, T, answers->score[text]);
    }
    struct sampling greedy = {.top_p = 1, .repetition_penalty = 1},
                    drawn = {.temperature = 1.1, .top_p = 0.9, .top_k = 40, .repetition_penalty = 1, .seed = 5},
                    penalised = {.temperature = 0, .top_p = 1, .repetition_penalty = 1.5};
    if (!status)
        status = write(engine, &greedy, answers->greedy, answers->greedy_logprob);
    if (!status)
        status = write(engine, &drawn, answers->drawn, answers->drawn_logprob);
    if (!status)
        status = write(engine, &penalised, many, unused);
    memcpy(answers->penalised, many[2], sizeof answers->penalised);
    return status;
}

struct run {
    struct rank_grid grid;
    struct model_config config;
    int precision;
    int64_t first_layers, last_layers;
    struct answers answers[8]; /* of each rank */
    bool leads[8];
    size_t bytes[8];
};

static int run_rank(struct comm *world, void *context) {
    struct run *run = context;
    struct engine *engine = NULL;
    struct engine_options options = {.device = test_device(),
                                     .world = world->size > 1 ? world : NULL,
                                     .grid = run->grid,
                                     .first_layers = run->first_layers,
                                     .last_layers = run->last_layers,
                                     .random = &run->config,
                                     .precision = run->precision,
                                     .threads = 1,
                                     .max_rows = 64,
                                     .max_logit_rows = 37, /* a text is scored in two steps */
                                     .max_sequences = 4};
    int status = engine_open(&options, &engine);
    if (!status) {
        run->bytes[world->rank] = engine_planned_bytes(engine);
        run->leads[world->rank] = engine_leads(engine);
        status = engine_leads(engine) ? answer(engine, &run->answers[world->rank]) : engine_follow(engine);
    }
    if (!status)
        status = engine_end(engine);
    if (status)
        comm_abort(world, status_text());
    engine_close(engine);
    return status;
}

static struct run *run_on(struct rank_grid grid, const struct model_config *config, int precision) {
    struct run *run = calloc(1, sizeof *run);
    assert_non_null(run);
    *run = (struct run){.grid = grid, .config = *config, .precision = precision};
    test_ok(comm_local_run(rank_grid_size(&grid), run_rank, run));
    return run;
}

static void assert_near(const float *ours, const float *one, int count, const char *what) {
    for (int i = 0; i < count; i++)
        if (!(fabsf(ours[i] - one[i]) <= 1e-5f * fmaxf(1, fabsf(one[i]))))
            fail_msg("%s %d: %.9g on ranks, %.9g on one", what, i, ours[i], one[i]);
}

static void check_layout(struct rank_grid grid) {
    for (int untied = 0; untied <= 1; untied++) {
        struct model_config config = config_of(untied);
        struct run *one = run_on((struct rank_grid){1, 1, 1, 1, 1}, &config, PRECISION_FP32);
        struct run *many = run_on(grid, &config, PRECISION_FP32);
        const struct answers *a = &one->answers[0];
        for (int r = 0; r < rank_grid_size(&grid); r++) {
            const struct answers *b = &many->answers[r];
            if (!many->leads[r])
                continue;
            assert_memory_equal(b, &many->answers[0], sizeof *b); /* of each of the data-parallel models */
            for (int t = 0; t < TEXTS; t++)
                assert_near(b->score[t] + 1, a->score[t] + 1, T - 1, "token");
            assert_memory_equal(b->greedy, a->greedy, sizeof a->greedy);
            assert_memory_equal(b->drawn, a->drawn, sizeof a->drawn);
            assert_memory_equal(b->penalised, a->penalised, sizeof a->penalised);
            assert_near(b->greedy_logprob[0], a->greedy_logprob[0], TEXTS * STEPS, "greedy token");
            assert_near(b->drawn_logprob[0], a->drawn_logprob[0], TEXTS * STEPS, "drawn token");
        }
        free(one);
        free(many);
    }
}

static void tensor_ranks_give_the_answers_of_one(void **state) {
    (void)state;
    check_layout((struct rank_grid){2, 1, 1, 1, 1});
    check_layout((struct rank_grid){4, 1, 1, 1, 1});
}

static void stages_give_the_answers_of_one(void **state) {
    (void)state;
    check_layout((struct rank_grid){1, 1, 1, 1, 2});
    check_layout((struct rank_grid){1, 1, 1, 1, 4});
    check_layout((struct rank_grid){2, 1, 1, 1, 2});
    check_layout((struct rank_grid){2, 1, 1, 2, 2});
}

static void stages_may_be_uneven(void **state) {
    (void)state;
    struct model_config config = config_of(false);
    struct run *one = run_on((struct rank_grid){1, 1, 1, 1, 1}, &config, PRECISION_FP32);
    for (int uneven = 1; uneven <= 3; uneven++) {
        struct run *many = calloc(1, sizeof *many);
        assert_non_null(many);
        *many = (struct run){.grid = {1, 1, 1, 1, 2},
                             .config = config,
                             .precision = PRECISION_FP32,
                             .first_layers = uneven == 3 ? 1 : 0,
                             .last_layers = uneven == 3 ? 0 : uneven};
        test_ok(comm_local_run(2, run_rank, many));
        assert_memory_equal(&many->answers[0], &one->answers[0], sizeof one->answers[0]); /* the same sums */
        free(many);
    }
    free(one);
}

static void data_parallel_ranks_each_have_the_whole_model(void **state) {
    (void)state;
    check_layout((struct rank_grid){2, 1, 1, 2, 1});
}

/* In bf16 sums of parts are rounded: nothing is equal, but all ranks have the same, and a rank has its share of memory.
 */
static void a_rank_holds_its_share(void **state) {
    (void)state;
    struct model_config config = config_of(false);
    config.hidden_size = 160;
    config.ffn_hidden_size = 640;
    config.init_method_std = 0.1;
    struct run *one = run_on((struct rank_grid){1, 1, 1, 1, 1}, &config, PRECISION_BF16);
    struct run *many = run_on((struct rank_grid){4, 1, 1, 1, 1}, &config, PRECISION_BF16);
    double error = 0;
    for (int t = 0; t < TEXTS; t++)
        for (int i = 1; i < T; i++)
            error += fabs(many->answers[0].score[t][i] - one->answers[0].score[t][i]) / (TEXTS * (T - 1));
    assert_true(error > 0 && error < 0.2);
    if (!((double)many->bytes[1] < 0.4 * (double)one->bytes[0]))
        fail_msg("%zu bytes a tensor rank, %zu on one", many->bytes[1], one->bytes[0]);
    free(many);
    many = run_on((struct rank_grid){1, 1, 1, 1, 4}, &config, PRECISION_BF16);
    assert_memory_equal(&many->answers[0], &one->answers[0], sizeof one->answers[0]); /* nothing is rounded anew */
    if (!((double)many->bytes[1] < 0.4 * (double)one->bytes[0]))
        fail_msg("%zu bytes a stage, %zu on one", many->bytes[1], one->bytes[0]);
    free(one);
    free(many);
}

static void layouts_that_cannot_be_are_refused_by_all(void **state) {
    (void)state;
    struct run *run = calloc(1, sizeof *run);
    assert_non_null(run);
    *run = (struct run){.grid = {3, 1, 1, 1, 1}, .config = config_of(false), .precision = PRECISION_FP32};
    test_fails(comm_local_run(3, run_rank, run), STATUS_USAGE, "model.num_attention_heads 4 is not divisible");
    free(run);
    struct engine_options options = {
        .device = test_device(), .model = TEST_DATA "/model/golden/d8_deep", .grid = {2, 1, 1, 2, 1}};
    test_fails(engine_check(&options, false), STATUS_USAGE, "4 ranks with parallel.tensor_model_parallel_size 2");
    options.model = "/nowhere";
    test_fails(engine_check(&options, true), STATUS_NOT_FOUND, "/nowhere");
    options = (struct engine_options){
        .device = test_device(), .model = TEST_DATA "/model/golden/d8_deep", .grid = {1, 1, 1, 1, 4}};
    test_fails(engine_check(&options, false), STATUS_USAGE, "layers");
}

/* A rank that fails ends the others' wait for it. */
static int fail_one(struct comm *world, void *context) {
    struct engine_options options = {.device = test_device(),
                                     .world = world,
                                     .grid = {2, 1, 1, 1, 1},
                                     .model = world->rank ? TEST_DATA "/model/golden/d8_deep" : context,
                                     .precision = -1,
                                     .threads = 1,
                                     .max_rows = 8,
                                     .max_logit_rows = 8,
                                     .max_sequences = 1};
    struct engine *engine = NULL;
    int status = engine_open(&options, &engine);
    engine_close(engine);
    return status;
}

static void the_rank_that_cannot_open_is_named(void **state) {
    (void)state;
    test_fails(comm_local_run(2, fail_one, "/nowhere"), STATUS_NOT_FOUND, "rank 0: cannot open /nowhere");
    test_ok(comm_local_run(2, fail_one, TEST_DATA "/model/golden/d8_deep"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_ranks_give_the_answers_of_one),
        cmocka_unit_test(stages_give_the_answers_of_one),
        cmocka_unit_test(stages_may_be_uneven),
        cmocka_unit_test(data_parallel_ranks_each_have_the_whole_model),
        cmocka_unit_test(a_rank_holds_its_share),
        cmocka_unit_test(layouts_that_cannot_be_are_refused_by_all),
        cmocka_unit_test(the_rank_that_cannot_open_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
