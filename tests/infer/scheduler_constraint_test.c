/* Constrained completions of the scheduler: what they write, what a late mask costs, and how they end. */
#include "asking.h"

#include <pthread.h>

#define ABC "abcabcabcabcabcabcabcabc"
enum { ASKED = 40, EXTRA_ID = 55, TOKENS = 60, END = 49, SPECIAL = 48 };

static struct false_engine engine;
static struct scheduler *scheduler;
static struct asked asked[ASKED];
static struct grammar_vocabulary *vocabulary;
static struct constraint_pool *pool;
static struct scheduler_stats stats;

/* A gate for the threads that make masks: while it is closed, they stop after the masks that they begin. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static double mask_seconds;

static void on_mask(void *self, double seconds) {
    pthread_mutex_lock(&gate);
    mask_seconds += seconds;
    pthread_mutex_unlock(&gate);
}

/* Letters, some words, an end, a special token, and ids that the model does not have. */
static int open_all(void **state) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz", *const words[] = {"ab",    "bc",  "cat", "dog",
                                                                                  "hello", "hel", "lo",  "og"};
    static const int32_t ends[] = {END};
    struct grammar_token tokens[TOKENS] = {{0}};
    (void)state;
    for (int i = 0; i < 26; i++)
        tokens[i] = (struct grammar_token){.bytes = letters + i, .length = 1};
    for (int i = 0; i < 8; i++)
        tokens[26 + i] = (struct grammar_token){.bytes = words[i], .length = strlen(words[i])};
    tokens[END] = (struct grammar_token){.bytes = "<end>", .length = 5, .is_special = true};
    tokens[SPECIAL] = (struct grammar_token){.bytes = "<special>", .length = 9, .is_special = true};
    tokens[EXTRA_ID] = (struct grammar_token){.bytes = "!", .length = 1};
    test_ok(grammar_vocabulary_open(tokens, TOKENS, ends, 1, &vocabulary));
    test_ok(constraint_pool_open(&(struct constraint_pool_options){.threads = 1, .on_mask = on_mask}, &pool));
    return 0;
}

static int close_all(void **state) {
    (void)state;
    constraint_pool_close(pool);
    grammar_vocabulary_close(vocabulary);
    return 0;
}

static struct grammar *compile(enum grammar_kind kind, const char *text) {
    const struct grammar_source source = {.kind = kind, .text = text, .length = strlen(text)};
    const struct grammar_limits limits = {.seconds = 10, .bytes = 1 << 24};
    struct grammar_report report = {0};
    struct grammar *grammar = NULL;
    test_ok(grammar_compile(&source, vocabulary, &limits, &report, &grammar));
    grammar_report_free(&report);
    return grammar;
}

/* `patience`: real seconds that steps wait for masks. */
static void begin(const struct scheduler_options *given, double patience) {
    struct scheduler_options options = *given;
    options.constraints = pool;
    options.mask_words = (int64_t)grammar_vocabulary_words(vocabulary);
    false_start(&engine, &options, true, &scheduler);
    engine.mask_patience = patience;
    engine.step_seconds = patience > 0 ? 320 : 1e-6; /* planning waits a 32nd */
}

static struct asked *prepare(int i, int64_t prompt_length, int64_t max_tokens, struct grammar *grammar) {
    static const int32_t end = END;
    prepare_asked(&asked[i], scheduler, &engine, prompt_length, 7 * i, max_tokens);
    asked[i].request.grammar = grammar;
    asked[i].request.end_ids = &end;
    asked[i].request.end_count = 1;
    asked[i].request.sampling.seed = (uint64_t)i;
    return &asked[i];
}

static void finish(int count) {
    run_to_the_end(scheduler, 100000);
    scheduler_read_stats(scheduler, &stats);
    for (int i = 0; i < count; i++)
        check_asked(&asked[i]);
    false_stop(&engine, scheduler);
}

/* Submits requests of all kinds. Returns how many. */
static int submit_mixed(struct grammar *const *grammars) {
    for (int i = 0; i < ASKED; i++) {
        struct asked *a = prepare(i, 1 + i * 13 % 60, 1 + i * 7 % 80, i % 4 == 3 ? NULL : grammars[i % 3]);
        a->request.choices = i % 5 == 0 ? 3 : 1;
        a->request.slot = i % 3 - 1;
        a->request.virtual_tokens = false_virtual_count(a->request.slot);
        a->request.min_tokens = i % 6 == 1 ? 4 : 0;
        a->request.wants_logprobs = i % 7 == 2;
        a->request.top_count = i % 7 == 2 ? 2 : 0;
        a->request.wants_prompt_logprobs = i % 9 == 4;
        a->request.sampling.frequency_penalty = i % 8 == 1 ? 0.5 : 0;
        a->request.client = (uint64_t)(i % 3);
        submit_taken(a);
    }
    return ASKED;
}

static void completions_follow_their_grammars(void **state) {
    (void)state;
    struct grammar *const grammars[] = {compile(GRAMMAR_CHOICE, "[\"catdog\", \"catalog\", \"hello\", \"help\"]"),
                                        compile(GRAMMAR_CHOICE, "[\"xyzxyzcat\", \"xyzxyzdog\"]"),
                                        compile(GRAMMAR_CHOICE, "[\"a\", \"" ABC ABC "\", \"" ABC ABC "zz\"]")};
    const struct scheduler_options options[] = {
        {.depth = 1}, {.depth = 3}, {.pages = 11}, {.max_rows = 4, .pages = 11}};
    int64_t preemptions = 0;
    for (int o = 0; o < 4; o++)
        for (int patience = 0; patience < 2; patience++) {
            begin(&options[o], 10 * patience);
            finish(submit_mixed(grammars));
            preemptions += stats.preemptions;
            if (patience)
                assert_int_equal(stats.late_masks, 0);
        }
    assert_true(preemptions > 0);
    for (int i = 0; i < 3; i++)
        grammar_release(grammars[i]);
}

static void a_late_mask_costs_its_own_row_a_step(void **state) {
    (void)state;
    struct grammar *grammar = compile(GRAMMAR_CHOICE, "[\"cat\", \"dog\"]");
    pthread_mutex_lock(&gate);
    begin(&(struct scheduler_options){0}, 0);
    submit_taken(prepare(0, 5, 100, grammar));
    submit_taken(prepare(1, 5, 20, NULL));
    for (int step = 1; step <= 10; step++) {
        assert_int_equal(scheduler_step(scheduler), 1);
        assert_int_equal(asked[0].count[0], 0);
        assert_int_equal(asked[1].count[0], step);
    }
    scheduler_read_stats(scheduler, &stats);
    assert_int_equal(stats.late_masks, 1); /* it does not run again before the mask is there */
    pthread_mutex_unlock(&gate);
    finish(2);
    assert_int_equal(asked[0].reason[0], SCHEDULER_STOP);
    grammar_release(grammar);
}

static void a_late_mask_alone_is_waited_for(void **state) {
    (void)state;
    struct grammar *grammar = compile(GRAMMAR_CHOICE, "[\"cat\", \"dog\"]");
    pthread_mutex_lock(&gate);
    begin(&(struct scheduler_options){0}, 0);
    submit_taken(prepare(0, 5, 100, grammar));
    for (int step = 0; step < 5; step++)
        assert_int_equal(scheduler_step(scheduler), 1);
    assert_int_equal(engine.steps, 1);
    pthread_mutex_unlock(&gate);
    finish(1);
    grammar_release(grammar);
}

/* Begins with a step, after which planning knows a step's time, and waits for masks. */
static void begin_patiently(void) {
    begin(&(struct scheduler_options){0}, 10);
    submit_taken(prepare(0, 5, 1, NULL));
    run_to_the_end(scheduler, 2);
    engine.steps = engine.draws = 0;
}

static void forced_tokens_run_as_rows_of_a_chunk(void **state) {
    (void)state;
    struct grammar *grammar = compile(GRAMMAR_CHOICE, "[\"xyzxyzw\", \"xyzxyzv\"]"),
                   *forced = compile(GRAMMAR_CHOICE, "[\"xyzxyz\"]");
    begin_patiently();
    submit_taken(prepare(0, 5, 100, grammar));
    finish(1);
    assert_int_equal(engine.steps, 1);
    assert_int_equal(engine.draws, 1);
    assert_int_equal(engine.last_rows, 5 + 6);
    assert_int_equal(asked[0].count[0], 7);
    assert_int_equal(asked[0].reason[0], SCHEDULER_STOP); /* without a step that draws the end */
    /* All are drawn when log-probabilities are wanted. */
    begin_patiently();
    prepare(0, 5, 100, grammar)->request.wants_logprobs = true;
    submit_taken(&asked[0]);
    finish(1);
    assert_int_equal(engine.draws, 7);
    /* A text without a choice needs no step, and ends where it has to. */
    begin_patiently();
    submit_taken(prepare(0, 5, 4, forced));
    submit_taken(prepare(1, 5, 40, forced));
    prepare(2, 5, 40, forced)->stops_after = 3;
    submit_taken(&asked[2]);
    finish(3);
    assert_int_equal(engine.draws, 0);
    assert_int_equal(asked[0].count[0], 4);
    assert_int_equal(asked[0].reason[0], SCHEDULER_LENGTH);
    assert_int_equal(asked[1].count[0], 6);
    assert_int_equal(asked[1].reason[0], SCHEDULER_STOP);
    assert_int_equal(asked[2].count[0], 3);
    grammar_release(grammar);
    grammar_release(forced);
}

static void the_end_comes_when_only_it_may_follow(void **state) {
    (void)state;
    struct grammar *one = compile(GRAMMAR_CHOICE, "[\"a\"]"), *more = compile(GRAMMAR_CHOICE, "[\"a\", \"axx\"]");
    begin(&(struct scheduler_options){0}, 10);
    prepare(0, 5, 100, one)->request.min_tokens = 5; /* nothing but the end is allowed after the first */
    submit_taken(&asked[0]);
    prepare(1, 5, 100, more)->request.min_tokens = 2; /* after the first, another id is */
    submit_taken(&asked[1]);
    finish(2);
    assert_int_equal(asked[0].count[0], 1);
    assert_int_equal(asked[1].count[0], 3);
    assert_int_equal(asked[0].reason[0], SCHEDULER_STOP);
    assert_int_equal(asked[1].reason[0], SCHEDULER_STOP);
    grammar_release(one);
    grammar_release(more);
}

static void a_completion_without_a_mask_ends_with_an_error(void **state) {
    (void)state;
    struct grammar *grammar = compile(GRAMMAR_CHOICE, "[\"cat!\"]"); /* of an id that the model does not have */
    begin(&(struct scheduler_options){0}, 10);
    prepare(0, 5, 100, grammar)->request.calls.on_token = NULL; /* it compares with the whole text */
    submit_taken(&asked[0]);
    submit_taken(prepare(1, 5, 20, NULL));
    run_to_the_end(scheduler, 100);
    assert_int_equal(asked[0].reason[0], SCHEDULER_MASK);
    check_asked(&asked[1]);
    false_stop(&engine, scheduler);
    grammar_release(grammar);
}

static void cancelled_and_paused_completions_leave_their_masks(void **state) {
    (void)state;
    struct grammar *grammar = compile(GRAMMAR_CHOICE, "[\"catdog\", \"catalog\", \"hello\", \"help\"]");
    for (int round = 0; round < 20; round++) {
        begin(&(struct scheduler_options){.pages = 14}, 0);
        pthread_mutex_lock(&gate);
        for (int i = 0; i < 8; i++)
            submit_taken(prepare(i, 5 + i, 20, grammar));
        scheduler_step(scheduler);
        for (int i = 0; i < 8; i += 2)
            cancel_asked(&asked[i]);
        for (int i = 1; i < 8; i += 2)
            scheduler_pause(scheduler, asked[i].number);
        for (int i = 0; i < 3; i++)
            scheduler_step(scheduler);
        pthread_mutex_unlock(&gate);
        for (int i = 1; i < 8; i += 2)
            scheduler_resume(scheduler, asked[i].number);
        if (round % 2)
            finish(8);
        else
            false_stop(&engine, scheduler); /* while masks are in the making */
    }
    grammar_release(grammar);
}

static void a_constraint_that_cannot_run_is_refused(void **state) {
    (void)state;
    struct grammar *grammar = compile(GRAMMAR_CHOICE, "[\"cat\"]");
    enum scheduler_refusal refusal;
    begin(&(struct scheduler_options){0}, 0);
    prepare(0, 5, 100, grammar)->request.ignore_eos = true;
    test_fails(submit_asked(&asked[0], &refusal), STATUS_INVALID, "ignore_eos");
    assert_int_equal(refusal, SCHEDULER_WRONG);
    false_stop(&engine, scheduler);
    false_start(&engine, &(struct scheduler_options){0}, true, &scheduler);
    prepare(0, 5, 100, grammar);
    test_fails(submit_asked(&asked[0], &refusal), STATUS_INVALID, "without threads");
    false_stop(&engine, scheduler);
    grammar_release(grammar);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completions_follow_their_grammars),
        cmocka_unit_test(a_late_mask_costs_its_own_row_a_step),
        cmocka_unit_test(a_late_mask_alone_is_waited_for),
        cmocka_unit_test(forced_tokens_run_as_rows_of_a_chunk),
        cmocka_unit_test(the_end_comes_when_only_it_may_follow),
        cmocka_unit_test(a_completion_without_a_mask_ends_with_an_error),
        cmocka_unit_test(cancelled_and_paused_completions_leave_their_masks),
        cmocka_unit_test(a_constraint_that_cannot_run_is_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
