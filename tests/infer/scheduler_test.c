/* The scheduler's promises, one a test. scheduler_random_test.c does everything at once. */
#include "asking.h"

enum { ASKED = 64 };

static struct false_engine engine;
static struct scheduler *scheduler;
static struct asked asked[ASKED];

static void begin(const struct scheduler_options *options) {
    false_start(&engine, options, true, &scheduler);
}

static struct asked *prepare(int i, int64_t prompt_length, int64_t max_tokens) {
    prepare_asked(&asked[i], scheduler, &engine, prompt_length, 7 * i, max_tokens);
    return &asked[i];
}

static void submit(int i, int64_t prompt_length, int64_t max_tokens) {
    submit_taken(prepare(i, prompt_length, max_tokens));
}

static void finish(int count) {
    run_to_the_end(scheduler, 100000);
    for (int i = 0; i < count; i++)
        check_asked(&asked[i]);
    false_stop(&engine, scheduler);
}

static int64_t preemptions(void) {
    struct scheduler_stats stats;
    scheduler_read_stats(scheduler, &stats);
    return stats.preemptions;
}

/* ---- what is taken ---- */

static void assert_refused(struct asked *a, int status, enum scheduler_refusal reason, const char *text) {
    enum scheduler_refusal refusal;
    test_fails(submit_asked(a, &refusal), status, text);
    assert_int_equal(refusal, reason);
    assert_int_equal(a->number, 0);
}

static void what_can_never_run_is_refused_at_once(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_positions = 64, .pages = 3, .max_requests = 5});
    assert_refused(prepare(0, 40, 26), STATUS_INVALID, SCHEDULER_TOO_LONG,
                   "40 tokens and 26 to be written: the context has 64 positions");
    assert_refused(prepare(0, 66, 0), STATUS_INVALID, SCHEDULER_TOO_LONG, "66 tokens and 0");
    assert_refused(prepare(0, 20, INT64_MAX), STATUS_INVALID, SCHEDULER_TOO_LONG, "20 tokens");
    assert_refused(prepare(0, 40, 10), STATUS_INVALID, SCHEDULER_TOO_LARGE,
                   "40 tokens and 10 to be written: the KV cache holds 48");
    assert_refused(prepare(0, 49, -1), STATUS_INVALID, SCHEDULER_TOO_LARGE, "49 tokens and 1");
    assert_refused(prepare(0, 0, 1), STATUS_INVALID, SCHEDULER_WRONG, "a request without a token");
    prepare(0, 3, 1)->prompt[1] = FALSE_VOCAB;
    assert_refused(&asked[0], STATUS_INVALID, SCHEDULER_WRONG, "token 50 is not in the vocabulary of 50");
    prepare(0, 3, 1)->request.min_tokens = -1;
    assert_refused(&asked[0], STATUS_INVALID, SCHEDULER_WRONG, "a negative number");
    struct asked *a = prepare(0, 3, 1);
    a->request.stop_ids = (int32_t[]){-4};
    a->request.stop_count = 1;
    assert_refused(a, STATUS_INVALID, SCHEDULER_WRONG, "stop id -4");
    prepare(0, 3, 1)->request.choices = 6;
    assert_refused(&asked[0], STATUS_INVALID, SCHEDULER_WRONG, "6 completions beside 0 that wait or run: at most 5");
    prepare(0, 30, 20)->request.virtual_tokens = 16; /* each counts */
    assert_refused(&asked[0], STATUS_INVALID, SCHEDULER_TOO_LONG, "46 tokens and 20");
    assert_int_equal(scheduler_step(scheduler), 0);
    finish(0);
}

static void the_longest_text_runs(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_positions = 64, .pages = 4});
    submit(0, 64, 1);
    submit(1, 1, 64);
    submit(2, 30, -1);
    asked[2].request.max_tokens = 35; /* to the end of the context */
    finish(3);
}

static void a_full_queue_refuses_for_now(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_requests = 3, .max_queued_tokens = 100, .max_rows = 64});
    submit(0, 90, 5);
    assert_refused(prepare(1, 11, 5), STATUS_MEMORY, SCHEDULER_QUEUED_TOKENS,
                   "a prompt of 11 tokens beside 90 that wait: at most 100 are accepted");
    submit(1, 10, 5);
    prepare(2, 1, 1)->request.choices = 2;
    assert_refused(&asked[2], STATUS_MEMORY, SCHEDULER_QUEUED_REQUESTS, "2 completions beside 2 that wait or run");
    scheduler_step(scheduler);
    assert_refused(prepare(2, 75, 5), STATUS_MEMORY, SCHEDULER_QUEUED_TOKENS, "beside 36");
    submit(2, 64, 5);
    run_to_the_end(scheduler, 1000);
    submit(3, 200, 5); /* alone, more than the limit */
    finish(4);
}

static void a_scheduler_that_cannot_work_is_not_opened(void **state) {
    (void)state;
    static const struct scheduler_engine calls;
    static const struct scheduler_options good = {.max_rows = 1,
                                                  .max_logit_rows = 1,
                                                  .max_sequences = 1,
                                                  .max_positions = 1,
                                                  .page_tokens = 1,
                                                  .pages = 1,
                                                  .vocab = 1,
                                                  .depth = 1};
    struct scheduler_options o = good;
    test_ok(scheduler_open(&calls, &o, &scheduler));
    scheduler_close(scheduler);
    o.max_logit_rows = 0;
    test_fails(scheduler_open(&calls, &o, &scheduler), STATUS_INVALID, "steps of 1 rows and 0 with logits");
    o = good;
    o.depth = 65;
    test_fails(scheduler_open(&calls, &o, &scheduler), STATUS_INVALID, "65 steps under way: 1 to 64");
    o = good;
    o.prefill_stretch = 0.5;
    test_fails(scheduler_open(&calls, &o, &scheduler), STATUS_INVALID, "stretched to 0.5 times");
    o = good;
    o.pages = 0;
    test_fails(scheduler_open(&calls, &o, &scheduler), STATUS_INVALID, "without sequences, positions, pages");
}

/* ---- the prefix cache ---- */

static void a_cached_beginning_is_not_prefilled_again(void **state) {
    (void)state;
    begin(&(struct scheduler_options){0});
    for (int i = 0; i < 6; i++) {
        prepare_asked(&asked[i], scheduler, &engine, 64, 0, 3);
        struct scheduler_request *r = &asked[i].request;
        if (i == 2)
            r->salt = 5;
        if (i == 3)
            r->wants_prompt_logprobs = true;
        if (i == 4) {
            r->slot = 1; /* 5 virtual tokens */
            r->virtual_tokens = 5;
        }
        if (i == 5) {
            *r = asked[4].request;
            r->context = &asked[5];
            r->prompt = asked[5].prompt;
        }
        struct scheduler_stats before, after;
        scheduler_read_stats(scheduler, &before);
        submit_taken(&asked[i]);
        run_to_the_end(scheduler, 100);
        scheduler_read_stats(scheduler, &after);
        static const int64_t cached[] = {0, 48, 0, 0, 0, 59}, rows[] = {64, 16, 64, 64, 69, 5};
        assert_int_equal(asked[i].cached, cached[i]);
        assert_int_equal(after.prefill_rows - before.prefill_rows, rows[i]);
    }
    finish(6);
}

/* The second request runs the row before its first wanted token, and those after it. */
static void rows_before_the_first_wanted_token_come_from_the_cache(void **state) {
    (void)state;
    begin(&(struct scheduler_options){0});
    for (int i = 0; i < 4; i++) {
        prepare_asked(&asked[i], scheduler, &engine, 70, 0, 0);
        struct scheduler_request *r = &asked[i].request;
        static const int64_t first[] = {49, 49, 48, 90};
        r->wants_prompt_logprobs = true;
        r->first_prompt_logprob = first[i];
        struct scheduler_stats before, after;
        scheduler_read_stats(scheduler, &before);
        submit_taken(&asked[i]);
        run_to_the_end(scheduler, 100);
        scheduler_read_stats(scheduler, &after);
        static const int64_t cached[] = {0, 48, 32, 64}, logprobs[] = {21, 21, 22, 0};
        assert_int_equal(asked[i].cached, cached[i]);
        assert_int_equal(after.prefill_rows - before.prefill_rows, 69 - cached[i]);
        assert_int_equal(asked[i].prompt_logprobs, logprobs[i]);
    }
    finish(4);
}

static void the_last_token_of_a_scored_prompt_needs_no_row(void **state) {
    (void)state;
    enum scheduler_refusal refusal;
    begin(&(struct scheduler_options){.max_positions = 32, .pages = 2});
    prepare(0, 33, 0)->request.wants_prompt_logprobs = true;
    submit_taken(&asked[0]);
    run_to_the_end(scheduler, 100);
    assert_int_equal(asked[0].prompt_logprobs, 32);
    prepare(1, 34, 0)->request.wants_prompt_logprobs = true;
    test_fails(submit_asked(&asked[1], &refusal), STATUS_INVALID, "the context has 32 positions");
    assert_int_equal(refusal, SCHEDULER_TOO_LONG);
    finish(1);
}

static void choices_of_a_prompt_share_its_pages(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_rows = 200});
    prepare(0, 100, 9)->request.choices = 3;
    submit_taken(&asked[0]);
    run_to_the_end(scheduler, 100);
    struct scheduler_stats stats;
    scheduler_read_stats(scheduler, &stats);
    assert_int_equal(stats.prefill_rows, 100 + 2 * 4);
    assert_memory_not_equal(asked[0].token[0], asked[0].token[1], sizeof asked[0].token[0]);
    assert_memory_not_equal(asked[0].token[1], asked[0].token[2], sizeof asked[0].token[0]);
    finish(1);
}

static void a_prompt_alone_is_scored(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_rows = 16, .max_logit_rows = 4});
    for (int i = 0; i < 3; i++) {
        prepare(i, i == 1 ? 1 : 50, 0)->request.wants_prompt_logprobs = true;
        asked[i].request.prompt_top_count = 3;
        if (i == 2) {
            asked[i].request.slot = 2;
            asked[i].request.virtual_tokens = 20;
            asked[i].request.virtual_tokens_predict = true;
        }
        submit_taken(&asked[i]);
    }
    finish(3);
    assert_int_equal(asked[0].prompt_logprobs, 49);
    assert_int_equal(asked[1].prompt_logprobs, 0);
    assert_int_equal(asked[2].prompt_logprobs, 50);
    for (int i = 0; i < 3; i++)
        assert_int_equal(asked[i].reason[0], SCHEDULER_LENGTH);
}

/* ---- steps ---- */

static void prefill_continues_while_completions_are_written(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_rows = 8, .max_logit_rows = 8, .max_sequences = 9});
    for (int i = 0; i < 8; i++)
        submit(i, 1, 120);
    for (int i = 0; i < 10; i++)
        scheduler_step(scheduler);
    int64_t before = engine.steps;
    submit(8, 100, 5); /* all rows of a step have a text, and yet */
    while (!asked[8].first_token_at) {
        scheduler_step(scheduler);
        assert_int_equal(engine.last_rows, 8);
        assert_int_equal(engine.last_prefill_rows, asked[8].first_token_at ? engine.last_prefill_rows : 1);
    }
    assert_int_equal(engine.steps - before, 100);
    for (int i = 0; i < 8; i++) /* and each of them continues: 7 rows a step for 8 completions */
        assert_true(asked[i].count[0] >= 9 + 100 * 7 / 8 - 1);
    finish(9);
}

static void texts_are_spread_over_the_steps_under_way(void **state) {
    (void)state;
    static const struct { int depth, texts; } cases[] = {{1, 8}, {2, 8}, {3, 8}, {2, 5}, {4, 3}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int depth = cases[c].depth, texts = cases[c].texts, most = (texts + depth - 1) / depth;
        begin(&(struct scheduler_options){.depth = depth, .max_sequences = 8});
        for (int i = 0; i < texts; i++)
            submit(i, 4, i < texts / 2 ? 40 : 90);
        for (int i = 0; i < 20; i++)
            scheduler_step(scheduler);
        int64_t least = texts;
        for (int i = 0; i < 2 * depth; i++) {
            scheduler_step(scheduler);
            assert_true(engine.last_decode_rows <= most);
            least = engine.last_decode_rows < least ? engine.last_decode_rows : least;
        }
        assert_true(least >= texts / depth - 1 && least >= (texts >= depth));
        /* Fewer texts are spread anew. */
        while (!asked[0].dones)
            scheduler_step(scheduler);
        for (int i = 0; i < 4 * depth; i++)
            scheduler_step(scheduler);
        int64_t left = texts - texts / 2;
        assert_true(engine.last_decode_rows <= (left + depth - 1) / depth);
        finish(texts);
    }
}

static void chunks_of_a_prompt_follow_each_other(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.depth = 3, .max_rows = 20});
    submit(0, 100, 2);
    scheduler_step(scheduler);
    assert_int_equal(engine.steps, 3); /* though none was collected before the third */
    finish(1);
    assert_int_equal(engine.steps, 6);
}

static void logits_that_are_no_numbers_end_their_text_alone(void **state) {
    (void)state;
    begin(&(struct scheduler_options){0});
    engine.bad_logits_at = 6;
    for (int i = 0; i < 3; i++)
        submit(i, 5, 10);
    finish(3);
    int64_t failed = 0;
    for (int i = 0; i < 3; i++)
        failed += asked[i].reason[0] == SCHEDULER_FAILED;
    assert_int_equal(failed, 1);
}

/* ---- the stretch ---- */

/* Four texts are written while long prompts come. */
struct stretch {
    double limit; /* prefill_stretch */
    int depth;
    int prompts;
    bool comes_at_once;                       /* no step without prefill was measured before */
    int changes_at;                           /* a step, 0: none */
    double step_seconds, prefill_row_seconds; /* then */
    int settles;                              /* steps that may be longer: at first, and after the change */
    double row_growth;
};

static bool has_prompts_left(int prompts) {
    for (int i = 4; i < 4 + prompts; i++)
        if (!asked[i].first_token_at)
            return true;
    return false;
}

/* How much longer the longest step with prefill was than one without. */
static double measure_stretch(const struct stretch *c) {
    begin(&(struct scheduler_options){.max_rows = 250,
                                      .prefill_stretch = c->limit,
                                      .row_growth = c->row_growth,
                                      .max_sequences = 32,
                                      .depth = c->depth});
    engine.row_growth = c->row_growth;
    engine.step_seconds = 0.010;
    engine.decode_row_seconds = 0.001;
    engine.prefill_row_seconds = 0.0006;
    for (int i = 0; i < 4; i++)
        submit(i, 4, 126);
    for (int i = 0; i < 5 * c->depth && !c->comes_at_once; i++)
        scheduler_step(scheduler);
    for (int i = 4; i < 4 + c->prompts; i++)
        submit(i, 300, 2);
    double longest = 0;
    int64_t without = 0, group = (4 + c->depth - 1) / c->depth;
    for (int steps = 0; has_prompts_left(c->prompts) && steps < 115 * c->depth; steps++) {
        if (c->changes_at && steps == c->changes_at) {
            engine.step_seconds = c->step_seconds;
            engine.prefill_row_seconds = c->prefill_row_seconds;
        }
        scheduler_step(scheduler);
        int64_t rows = engine.collected_decode_rows > group ? engine.collected_decode_rows : group;
        double stretched = engine.last_seconds / (engine.step_seconds + engine.decode_row_seconds * (double)rows);
        bool has_settled = steps >= c->settles && (steps < c->changes_at || steps >= c->changes_at + c->settles);
        longest = has_settled && stretched > longest ? stretched : longest;
        without += engine.collected_prefill_rows == 0;
    }
    assert_true(without <= 2 + 2 * c->depth); /* except for measurements, prefill continues in each step */
    struct scheduler_stats stats;
    scheduler_read_stats(scheduler, &stats);
    if (c->limit == 2.5)
        assert_true(fabs(stats.prefill_row_seconds / engine.prefill_row_seconds - 1) < 0.25);
    finish(4 + c->prompts);
    return longest;
}

static void steps_with_prefill_are_stretched_so_far_and_no_further(void **state) {
    (void)state;
    static const struct stretch cases[] = {
        {2.5, 1, 4, false, 0, 0, 0, 2, 0},
        {2.5, 3, 4, false, 0, 0, 0, 6, 0},
        {2.5, 1, 4, true, 0, 0, 0, 6, 0},
        {2.5, 1, 4, false, 6, 0.010, 0.002, 12, 0}, /* prefill becomes slower */
        {2.5, 3, 4, false, 6, 0.010, 0.002, 18, 0},
        {2.5, 1, 13, false, 10, 0.004, 0.0006, 90, 0}, /* texts become faster: after OLD steps that is seen */
        {2.5, 1, 4, false, 0, 0, 0, 2, 0.005},         /* the last rows of a prompt cost 2.5 times the first ones */
        {2.5, 3, 4, false, 0, 0, 0, 6, 0.005},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double stretched = measure_stretch(&cases[i]);
        if (stretched > 2.5 * 1.06 || stretched < 2.5 * 0.85)
            fail_msg("case %zu: a step of %g times one without prefill, where 2.5 are allowed", i, stretched);
    }
    assert_true(measure_stretch(&(struct stretch){.depth = 1, .prompts = 4}) > 8);               /* without a limit */
    assert_true(measure_stretch(&(struct stretch){.limit = 1, .depth = 1, .prompts = 1}) < 1.1); /* a row a step */
}

/* One text that is written has steps as long as it would have them beside all that wait. */
static void many_that_wait_come_in_by_long_steps(void **state) {
    (void)state;
    enum { TEXTS = 16 };
    struct scheduler_stats stats;
    int long_steps = 0;
    begin(&(struct scheduler_options){.max_rows = 250, .prefill_stretch = 2.5, .max_sequences = TEXTS});
    engine.step_seconds = 0.010;
    engine.decode_row_seconds = 0.001;
    engine.prefill_row_seconds = 0.0006;
    for (int i = 0; i < TEXTS; i++)
        submit(i, 4, 20);
    while (!asked[TEXTS - 1].dones)
        scheduler_step(scheduler);
    submit(TEXTS, 4, 120);
    for (int i = 0; i < 5; i++)
        scheduler_step(scheduler);
    for (int i = 1; i < TEXTS; i++)
        submit(TEXTS + i, 300, 2);
    for (int i = 0; i < 40; i++) {
        scheduler_step(scheduler);
        scheduler_read_stats(scheduler, &stats);
        double texts = (double)(stats.running + stats.waiting);
        double stretched = engine.last_seconds / (engine.step_seconds + texts * engine.decode_row_seconds);
        assert_true(stretched < 2.5 * 1.1);
        long_steps += stretched > 2.5 * 0.85;
    }
    assert_true(long_steps > 30);
    finish(2 * TEXTS);
}

static void one_slow_step_says_little(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_rows = 250, .prefill_stretch = 2, .max_sequences = 12});
    engine.step_seconds = 0.010;
    engine.prefill_row_seconds = 0.001;
    submit(0, 4, 120);
    for (int i = 0; i < 20; i++) {
        engine.step_seconds = i == 18 ? 3 : 0.010; /* the machine was elsewhere */
        scheduler_step(scheduler);
    }
    submit(1, 300, 2);
    submit(2, 300, 2);
    for (int i = 0; i < 20; i++) {
        scheduler_step(scheduler);
        assert_true(engine.last_seconds < 0.010 * 2 * 1.25);
    }
    finish(3);
}

/* ---- pages ---- */

static void the_newest_text_gives_its_pages_back(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.pages = 8, .max_sequences = 4});
    for (int i = 0; i < 4; i++)
        submit(i, 10, 60);
    while (!asked[0].dones) {
        scheduler_step(scheduler);
        assert_true(asked[0].count[0] >= asked[1].count[0] && asked[1].count[0] >= asked[3].count[0]);
    }
    assert_int_equal(asked[0].ended_at - asked[0].started_at, 60); /* it never waited */
    assert_true(preemptions() > 0);
    finish(4);
}

static void less_important_texts_give_their_pages_first(void **state) {
    (void)state;
    for (int way = 0; way < 4; way++) { /* they need their pages in the same steps or not, the oldest matters or not */
        int apart = way / 2, best = way % 2 ? 0 : 2, worst = 2 - best;
        begin(&(struct scheduler_options){.pages = 8, .max_sequences = 4});
        for (int i = 0; i < 3; i++) {
            prepare(i, 10 + (apart ? 0 : i), 60)->request.priority = best ? 2 - i : i;
            submit_taken(&asked[i]);
            scheduler_step(scheduler);
        }
        while (!asked[best].dones)
            scheduler_step(scheduler);
        assert_int_equal(asked[best].ended_at - asked[best].started_at, 60);
        assert_true(!asked[worst].dones && asked[worst].count[0] < asked[1].count[0]);
        finish(3);
        assert_true(asked[1].ended_at < asked[worst].ended_at);
    }
}

/* Four texts of lower priority are written, and take pages while the prompt is prefilled in small chunks. */
static void a_prompt_takes_pages_from_less_important_texts(void **state) {
    (void)state;
    int64_t preempted = 0;
    for (int length = 1; length <= 32; length++) {
        begin(&(struct scheduler_options){.pages = 18, .max_sequences = 5, .max_rows = 10});
        for (int i = 1; i < 5; i++)
            submit(i, length + i % 3, 100);
        for (int i = 0; i < 15; i++)
            scheduler_step(scheduler);
        prepare(0, 160, 2)->request.priority = -1;
        submit_taken(&asked[0]);
        while (!asked[0].dones)
            scheduler_step(scheduler);
        /* At least six rows a step; where it met a lack of pages, it lost that step. */
        assert_in_range(asked[0].first_token_at - asked[0].submitted_at, 16, 160 / 6 + 3);
        preempted += preemptions();
        finish(5);
    }
    assert_true(preempted > 32);
}

/* Texts for which there are too few pages at once. */
static void submit_too_many(int texts, int way) {
    for (int i = 0; i < texts; i++) {
        struct asked *a = prepare(i, way % 2 ? 10 : 8 + 2 * i, 58);
        a->request.priority = way / 2 == 0 ? 0 : way / 2 == 1 ? -i : i * 2 % 5;
        submit_taken(a);
        if (way / 2 == 1)
            scheduler_step(scheduler);
    }
}

static void texts_that_fit_one_at_a_time_all_end(void **state) {
    (void)state;
    for (int depth = 1; depth <= 5; depth++)
        for (int pages = 5; pages <= 14; pages++)
            for (int texts = 2; texts <= 7; texts++)
                for (int way = 0; way < 6; way++) {
                    begin(&(struct scheduler_options){.pages = pages, .max_sequences = 7, .depth = depth});
                    submit_too_many(texts, way);
                    finish(texts);
                }
}

static void a_cancelled_text_keeps_nobody_waiting(void **state) {
    (void)state;
    for (int depth = 1; depth <= 3; depth++)
        for (int way = 0; way < 6; way++)
            for (int cancelled = 0; cancelled < 3; cancelled++)
                for (int at = 15; at < 70; at++) {
                    begin(&(struct scheduler_options){.pages = 6, .max_sequences = 3, .depth = depth});
                    submit_too_many(3, way);
                    for (int i = 0; i < at; i++)
                        scheduler_step(scheduler);
                    if (!asked[cancelled].dones)
                        cancel_asked(&asked[cancelled]);
                    finish(3);
                }
}

static void no_text_begins_on_the_last_page_of_those_that_run(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.pages = 3});
    submit(0, 10, 20);
    submit(1, 5, 20);
    scheduler_step(scheduler);
    submit(2, 5, 8);
    while (!asked[0].dones)
        scheduler_step(scheduler);
    assert_int_equal(preemptions(), 0); /* there was a page for it, which the first took later */
    assert_int_equal(asked[2].starts, 0);
    finish(3);
}

static void a_large_text_gets_its_pages_in_a_stream_of_small_ones(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.pages = 12, .max_sequences = 6});
    for (int i = 1; i < 5; i++)
        submit(i, 20, 12);
    scheduler_step(scheduler);
    submit(0, 160, 20);
    int64_t bound = engine.steps + 60;
    for (int i = 5; !asked[0].first_token_at; i++) { /* of a client of its own, and always two of it */
        assert_true(engine.steps < bound && i < ASKED);
        submit(i, 20, 12);
        for (int step_number = 0; step_number < 3; step_number++)
            scheduler_step(scheduler);
    }
    run_to_the_end(scheduler, 10000);
    finish(5);
}

/* ---- priorities, deadlines, pauses ---- */

static void a_higher_priority_goes_before_what_waits_and_what_runs(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_sequences = 2});
    for (int i = 0; i < 5; i++)
        submit(i, 5, 20);
    for (int i = 0; i < 5; i++)
        scheduler_step(scheduler);
    prepare(5, 5, 20)->request.priority = -1;
    submit_taken(&asked[5]);
    prepare(6, 5, 20)->request.priority = 1;
    submit_taken(&asked[6]);
    scheduler_step(scheduler);
    assert_int_equal(asked[5].starts, 1);
    assert_int_equal(preemptions(), 1);
    finish(7);
    assert_int_equal(asked[5].ended_at - asked[5].submitted_at, 20);
    for (int i = 0; i < 6; i++)
        assert_true(asked[i].ended_at < asked[6].ended_at);
}

static void a_prompt_of_higher_priority_passes_a_long_one(void **state) {
    (void)state;
    for (int depth = 1; depth <= 3; depth += 2) { /* with three steps under way, always one of the long one */
        begin(&(struct scheduler_options){.max_rows = 10, .depth = depth});
        submit(0, 300, 2);
        for (int i = 0; i < 5; i++)
            scheduler_step(scheduler);
        prepare(1, 20, 2)->request.priority = -1;
        submit_taken(&asked[1]);
        finish(2);
        assert_in_range(asked[1].first_token_at - asked[1].submitted_at, 2, 1 + depth);
    }
}

static void a_deadline_counts_the_queue(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_sequences = 1});
    submit(0, 5, 100);
    for (int i = 1; i < 3; i++) {
        prepare(i, 5, 10)->request.deadline = 20.5 + 90 * (i - 1); /* a step is a second */
        submit_taken(&asked[i]);
    }
    assert_true(scheduler_next_deadline(scheduler) == 20.5);
    while (!asked[1].dones)
        scheduler_step(scheduler);
    assert_int_equal(engine.steps, 22);
    assert_int_equal(asked[1].starts, 0);
    assert_true(scheduler_next_deadline(scheduler) == 110.5);
    finish(3);
    assert_int_equal(asked[1].reason[0], SCHEDULER_DEADLINE);
    assert_int_equal(asked[2].reason[0], SCHEDULER_LENGTH); /* just in time */
    begin(&(struct scheduler_options){0});
    prepare(0, 5, 100)->request.deadline = 10.5;
    submit_taken(&asked[0]);
    finish(1);
    assert_int_equal(asked[0].reason[0], SCHEDULER_DEADLINE);
    assert_int_equal(asked[0].count[0], 11);
}

static void a_cancelled_text_leaves_its_pages_at_the_next_step(void **state) {
    (void)state;
    begin(&(struct scheduler_options){0});
    submit(0, 100, 50);
    submit(1, 5, 50);
    for (int i = 0; i < 5; i++)
        scheduler_step(scheduler);
    assert_int_equal(held_pages(&engine), 8);
    cancel_asked(&asked[0]);
    scheduler_step(scheduler);
    assert_int_equal(asked[0].dones, 1);
    assert_int_equal(held_pages(&engine), 1);
    finish(2);
}

static void a_paused_text_stands_still_and_may_lose_its_pages(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.pages = 6, .max_sequences = 2});
    submit(0, 20, 40);
    for (int i = 0; i < 5; i++)
        scheduler_step(scheduler);
    scheduler_pause(scheduler, asked[0].number);
    assert_int_equal(scheduler_step(scheduler), 0); /* nothing can run */
    assert_int_equal(preemptions(), 0);             /* and nobody needs its pages */
    submit(1, 40, 40);
    while (!asked[1].dones)
        assert_int_equal(scheduler_step(scheduler), 1);
    assert_int_equal(preemptions(), 1); /* older as it is */
    assert_int_equal(asked[0].count[0], 5);
    assert_int_equal(scheduler_step(scheduler), 0);
    submit(2, 5, 3);
    scheduler_pause(scheduler, asked[2].number);
    assert_int_equal(scheduler_step(scheduler), 0);
    scheduler_resume(scheduler, asked[2].number);
    scheduler_resume(scheduler, asked[0].number);
    finish(3);
}

static void a_prompt_that_is_paused_stands_still(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_rows = 10});
    submit(0, 100, 2);
    for (int i = 0; i < 3; i++)
        scheduler_step(scheduler);
    scheduler_pause(scheduler, asked[0].number);
    assert_int_equal(scheduler_step(scheduler), 0);
    scheduler_resume(scheduler, asked[0].number);
    finish(1);
    assert_int_equal(engine.steps, 11);
}

/* Whenever it is paused, and whatever it waits for then. */
static void a_paused_text_keeps_nobody_waiting(void **state) {
    (void)state;
    for (int depth = 1; depth <= 3; depth++)
        for (int paused = 0; paused < 3; paused++)
            for (int at = 1; at < 90; at++) {
                begin(&(struct scheduler_options){.pages = 6, .max_sequences = 3, .depth = depth});
                for (int i = 0; i < 3; i++)
                    submit(i, 10 + i, 60);
                for (int i = 0; i < at; i++)
                    scheduler_step(scheduler);
                scheduler_pause(scheduler, asked[paused].number);
                run_to_the_end(scheduler, 1000);
                for (int i = 0; i < 3; i++)
                    assert_true(i == paused || asked[i].dones);
                scheduler_resume(scheduler, asked[paused].number);
                finish(3);
            }
}

static void paused_texts_leave_their_sequences_to_others(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_sequences = 2});
    for (int i = 0; i < 4; i++)
        submit(i, 5, 20);
    scheduler_step(scheduler);
    scheduler_pause(scheduler, asked[0].number);
    scheduler_pause(scheduler, asked[1].number);
    run_to_the_end(scheduler, 100);
    assert_true(asked[2].dones && asked[3].dones && !asked[0].dones && !asked[1].dones);
    scheduler_resume(scheduler, asked[0].number);
    scheduler_resume(scheduler, asked[1].number);
    finish(4);
}

/* ---- work beside the steps ---- */

static void steps_leave_a_share_of_their_time_and_prompts_none(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.slice_share = 0.1, .slice_seconds = 0.01, .max_rows = 8});
    engine.step_seconds = 0.5;
    assert_true(scheduler_spare(scheduler) == 0.01); /* nothing runs */
    submit(0, 20, 12);
    assert_true(scheduler_spare(scheduler) == 0); /* its prompt waits */
    scheduler_step(scheduler);
    assert_true(scheduler_spare(scheduler) == 0); /* a part of it does */
    for (int i = 0; i < 6; i++)
        scheduler_step(scheduler);
    double share = 0.1 * (engine.step_seconds + engine.decode_row_seconds), spare = scheduler_spare(scheduler);
    if (!(fabs(spare - share) <= 1e-9))
        fail_msg("%g seconds are left beside a step, expected %g", spare, share);
    submit(1, 3, 1);
    assert_true(scheduler_spare(scheduler) == 0);
    finish(2);
}

static void kinds_of_slices_have_their_own_cost(void **state) {
    (void)state;
    struct slice_cost cost = {0};
    assert_true(slice_cost_rate(&cost, SLICE_HEAD) == 0);
    for (int i = 0; i < 100; i++) {
        const struct slice slice = {.work = {[SLICE_PRODUCT] = 10, [SLICE_HEAD] = i % 2 ? 0 : 4},
                                    .seconds = {[SLICE_PRODUCT] = i < 50 ? 5 : 20, [SLICE_HEAD] = i % 2 ? 0 : 1}};
        slice_cost_learn(&cost, &slice);
    }
    double product = slice_cost_rate(&cost, SLICE_PRODUCT);
    assert_true(product > 1.8 && product < 2); /* recent ones count more */
    assert_true(slice_cost_rate(&cost, SLICE_HEAD) == 0.25);
    assert_true(slice_cost_rate(&cost, SLICE_UPDATE) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_can_never_run_is_refused_at_once),
        cmocka_unit_test(the_longest_text_runs),
        cmocka_unit_test(a_full_queue_refuses_for_now),
        cmocka_unit_test(a_scheduler_that_cannot_work_is_not_opened),
        cmocka_unit_test(a_cached_beginning_is_not_prefilled_again),
        cmocka_unit_test(rows_before_the_first_wanted_token_come_from_the_cache),
        cmocka_unit_test(the_last_token_of_a_scored_prompt_needs_no_row),
        cmocka_unit_test(choices_of_a_prompt_share_its_pages),
        cmocka_unit_test(a_prompt_alone_is_scored),
        cmocka_unit_test(prefill_continues_while_completions_are_written),
        cmocka_unit_test(texts_are_spread_over_the_steps_under_way),
        cmocka_unit_test(chunks_of_a_prompt_follow_each_other),
        cmocka_unit_test(logits_that_are_no_numbers_end_their_text_alone),
        cmocka_unit_test(steps_with_prefill_are_stretched_so_far_and_no_further),
        cmocka_unit_test(many_that_wait_come_in_by_long_steps),
        cmocka_unit_test(one_slow_step_says_little),
        cmocka_unit_test(the_newest_text_gives_its_pages_back),
        cmocka_unit_test(less_important_texts_give_their_pages_first),
        cmocka_unit_test(a_prompt_takes_pages_from_less_important_texts),
        cmocka_unit_test(texts_that_fit_one_at_a_time_all_end),
        cmocka_unit_test(a_cancelled_text_keeps_nobody_waiting),
        cmocka_unit_test(no_text_begins_on_the_last_page_of_those_that_run),
        cmocka_unit_test(a_large_text_gets_its_pages_in_a_stream_of_small_ones),
        cmocka_unit_test(a_higher_priority_goes_before_what_waits_and_what_runs),
        cmocka_unit_test(a_prompt_of_higher_priority_passes_a_long_one),
        cmocka_unit_test(a_deadline_counts_the_queue),
        cmocka_unit_test(a_cancelled_text_leaves_its_pages_at_the_next_step),
        cmocka_unit_test(a_paused_text_stands_still_and_may_lose_its_pages),
        cmocka_unit_test(a_prompt_that_is_paused_stands_still),
        cmocka_unit_test(a_paused_text_keeps_nobody_waiting),
        cmocka_unit_test(paused_texts_leave_their_sequences_to_others),
        cmocka_unit_test(steps_leave_a_share_of_their_time_and_prompts_none),
        cmocka_unit_test(kinds_of_slices_have_their_own_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
