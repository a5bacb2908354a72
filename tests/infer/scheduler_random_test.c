/* Requests of every kind, cancelled, paused and late, under every kind of pressure: each ends once, with the text that
 * it has alone, and no page is lost. */
#include "asking.h"

#include "support/allocations.h"

enum { REQUESTS = 100 };

static struct false_engine engine;
static struct asked asked[REQUESTS];

struct trial {
    uint64_t seed, random;
    struct scheduler *scheduler;
    int64_t taken, preemptions, cached, refused, paused, late;
    int allocated;
};

static uint32_t draw(struct trial *t, uint32_t below) {
    return philox(t->random++, 7, 0, 0, 0).word[0] % below;
}

static bool one_in(struct trial *t, uint32_t n) {
    return draw(t, n) == 0;
}

static void draw_options(struct trial *t, struct scheduler_options *o) {
    static const double stretches[] = {0, 1, 2.5};
    *o = (struct scheduler_options){
        .max_rows = one_in(t, 8) ? 1 : 2 + draw(t, 60),
        .max_logit_rows = one_in(t, 8) ? 1 : 2 + draw(t, 20),
        .max_sequences = 1 + draw(t, 12),
        .max_positions = 240,
        .pages = 15 + draw(t, 40),
        .depth = 1 + (int)draw(t, 3),
        .prefill_stretch = stretches[draw(t, 3)],
        .max_requests = one_in(t, 2) ? 12 + draw(t, 20) : 0,
        .max_queued_tokens = one_in(t, 3) ? 300 : 0,
    };
}

static void draw_sampling(struct trial *t, struct asked *a) {
    struct sampling *s = &a->request.sampling;
    s->seed = draw(t, 3);
    if (one_in(t, 3))
        s->repetition_penalty = 1.2;
    if (one_in(t, 3))
        s->presence_penalty = 0.5;
    if (one_in(t, 4))
        s->frequency_penalty = 0.25;
    if (one_in(t, 4)) {
        for (int i = 0; i < ASKED_IDS; i++)
            a->bias[i] = (struct logit_bias){(int32_t)draw(t, 10), one_in(t, 4) ? -INFINITY : (float)draw(t, 9) - 4};
        a->request.bias = a->bias;
        a->request.bias_count = ASKED_IDS;
    }
    for (int i = 0; i < ASKED_IDS; i++)
        a->ids[i] = (int32_t)draw(t, FALSE_VOCAB);
    a->request.end_ids = a->ids;
    a->request.end_count = draw(t, 3);
    a->request.stop_ids = a->ids + 2;
    a->request.stop_count = draw(t, 2);
    a->request.ignore_eos = one_in(t, 4);
    a->request.min_tokens = one_in(t, 3) ? draw(t, 20) : 0;
}

static void draw_request(struct trial *t, struct asked *a) {
    static const int64_t most[] = {4, 16, 40, 100};
    int64_t length = 1 + draw(t, (uint32_t)most[draw(t, 4)]), tokens = draw(t, (uint32_t)most[draw(t, 4)]);
    prepare_asked(a, t->scheduler, &engine, length, one_in(t, 2) ? 0 : (int32_t)draw(t, FALSE_VOCAB), tokens);
    struct scheduler_request *r = &a->request;
    draw_sampling(t, a);
    r->slot = (int)draw(t, FALSE_SLOTS + 1) - 1;
    r->virtual_tokens = false_virtual_count(r->slot);
    r->virtual_tokens_predict = r->slot == 2;
    r->salt = one_in(t, 5);
    r->choices = one_in(t, 4) ? 1 + draw(t, ASKED_CHOICES) : 1;
    r->wants_prompt_logprobs = one_in(t, 4);
    r->first_prompt_logprob = one_in(t, 2) ? draw(t, (uint32_t)length + 2) : 0;
    r->prompt_top_count = (int32_t)draw(t, FALSE_TOP + 1);
    r->top_count = (int32_t)draw(t, FALSE_TOP + 1);
    r->priority = one_in(t, 5) ? (int32_t)draw(t, 3) - 1 : 0;
    r->client = draw(t, 4);
    r->weight = 1 + draw(t, 3);
    r->adapter = (uint64_t)r->slot;
    r->deadline = one_in(t, 12) ? engine.clock + draw(t, 60) : 0;
    a->stops_after = one_in(t, 5) ? 1 + draw(t, 10) : 0;
}

/* Some of the ways in which a caller meddles, with requests that run and with some that are gone. */
static void meddle(struct trial *t) {
    if (t->taken == 0)
        return;
    struct asked *a = &asked[draw(t, (uint32_t)t->taken)];
    switch (draw(t, 40)) {
    case 0:
        if (!a->dones)
            cancel_asked(a);
        scheduler_cancel(t->scheduler, a->number);
        break;
    case 1:
    case 2:
        a->is_paused = true;
        scheduler_pause(t->scheduler, a->number);
        t->paused++;
        break;
    default:
        a->is_paused = false;
        scheduler_resume(t->scheduler, a->number);
    }
}

static int step(struct trial *t) {
    allocations_start();
    int acted = scheduler_step(t->scheduler);
    t->allocated += allocations_stop();
    assert_true(acted >= 0);
    for (int i = 0; i < t->taken && acted == 0; i++)
        if (!asked[i].dones && !asked[i].is_paused)
            fail_msg("nothing to do, and request %d of trial %llu stands", i, (unsigned long long)t->seed);
    return acted;
}

static void run_trial(struct trial *t, uint64_t seed) {
    struct scheduler_options options;
    struct scheduler_stats stats;
    enum scheduler_refusal refusal;
    t->seed = seed;
    t->random = seed << 32;
    draw_options(t, &options);
    false_start(&engine, &options, !one_in(t, 4), &t->scheduler);
    engine.prefill_row_seconds = 0.05;
    uint32_t pace = 2 + draw(t, 6);
    bool is_quiet = one_in(t, 3);
    for (t->taken = 0; t->taken < REQUESTS;) {
        draw_request(t, &asked[t->taken]);
        for (int64_t steps = draw(t, pace); steps-- > 0;)
            step(t);
        if (!is_quiet)
            meddle(t);
        int status = submit_asked(&asked[t->taken], &refusal);
        t->refused += status != STATUS_OK;
        t->taken += status == STATUS_OK;
        if (status)
            assert_true(refusal == SCHEDULER_QUEUED_REQUESTS || refusal == SCHEDULER_QUEUED_TOKENS ||
                        refusal == SCHEDULER_TOO_LARGE || refusal == SCHEDULER_TOO_LONG);
    }
    for (int i = 0; i < REQUESTS; i++) {
        asked[i].is_paused = false;
        scheduler_resume(t->scheduler, asked[i].number);
    }
    int64_t most = 40000;
    while (step(t) && most--)
        ;
    assert_true(most > 0);
    scheduler_read_stats(t->scheduler, &stats);
    assert_int_equal(stats.waiting + stats.running + stats.queued_tokens, 0);
    assert_true(scheduler_next_deadline(t->scheduler) == 0);
    t->preemptions += stats.preemptions;
    assert_true(engine.most_sequences <= options.max_sequences);
    for (int i = 0; i < REQUESTS; i++) {
        check_asked(&asked[i]);
        t->cached += asked[i].cached;
        t->late += asked[i].reason[0] == SCHEDULER_DEADLINE;
    }
    false_stop(&engine, t->scheduler);
}

static void random_requests_end_once_with_the_text_they_have_alone(void **state) {
    (void)state;
    struct trial t = {0};
    uint64_t trials = test_is_long() ? 1000 : 100;
    for (uint64_t seed = 1; seed <= trials; seed++)
        run_trial(&t, seed);
    run_trial(&t, 317); /* texts that find no page one after the other, and one that would */
    /* And all of it happened. */
    assert_true(t.preemptions > 100 && t.cached > 1000 && t.refused > 100 && t.paused > 100 && t.late > 10);
    if (allocations_can_be_counted())
        assert_int_equal(t.allocated, 0);
}

/* ---- a cancel in every place ---- */

/* Two requests, one of them with two choices; the first is cancelled in one of all the callbacks, or between two
 * steps. Returns how many callbacks there were. */
static int64_t cancel_at(int depth, int64_t event, int64_t before_step, bool is_other) {
    struct scheduler *scheduler;
    int64_t events = 0, steps = 0;
    false_start(&engine, &(struct scheduler_options){.depth = depth, .max_rows = 7, .max_sequences = 2}, true,
                &scheduler);
    for (int i = 0; i < 2; i++) {
        struct asked *a = &asked[i];
        prepare_asked(a, scheduler, &engine, 18, 3 * i, 5);
        a->request.choices = 2 - i;
        a->request.wants_prompt_logprobs = i == 0;
        a->events = &events;
        a->cancel_at = event;
        a->cancels = is_other ? &asked[!i] : NULL;
        submit_taken(a);
    }
    do
        if (++steps == before_step)
            cancel_asked(&asked[0]);
    while (scheduler_step(scheduler));
    assert_true(steps < 100);
    if (steps < before_step) /* after all was over */
        cancel_asked(&asked[0]);
    for (int i = 0; i < 2; i++)
        check_asked(&asked[i]);
    false_stop(&engine, scheduler);
    return events;
}

static void a_request_may_be_cancelled_anywhere(void **state) {
    (void)state;
    for (int depth = 1; depth <= 3; depth++) {
        int64_t events = cancel_at(depth, -1, -1, false);
        assert_true(events > 30);
        for (int64_t event = 1; event <= events; event++) {
            cancel_at(depth, event, -1, false);
            cancel_at(depth, event, -1, true);
        }
        for (int64_t step_number = 1; step_number < 40; step_number++)
            cancel_at(depth, -1, step_number, false);
    }
}

/* The scheduler is closed, or the engine fails, in the middle. */
static void every_request_ends_once_when_the_scheduler_ends(void **state) {
    (void)state;
    for (int depth = 1; depth <= 3; depth++)
        for (int64_t steps = 0; steps < 20; steps++)
            for (int way = 0; way < 3; way++) {
                struct scheduler *scheduler;
                enum scheduler_refusal refusal;
                false_start(&engine, &(struct scheduler_options){.depth = depth, .max_sequences = 3}, true, &scheduler);
                engine.fails_at = way == 1 ? steps + 1 : 0;
                engine.fails_submit_at = way == 2 ? steps + 1 : 0;
                for (int i = 0; i < 6; i++) {
                    prepare_asked(&asked[i], scheduler, &engine, 30, i, 12);
                    asked[i].request.choices = 1 + i % 2;
                    if (i < 5)
                        submit_taken(&asked[i]);
                }
                int acted = 1;
                for (int64_t i = 0; i <= steps && acted > 0; i++)
                    acted = scheduler_step(scheduler);
                if (way) {
                    test_fails(acted, STATUS_PEER, "rank 3");
                    test_fails(scheduler_step(scheduler), STATUS_PEER, "failed");
                    assert_int_equal(submit_asked(&asked[5], &refusal), STATUS_INVALID);
                    assert_int_equal(refusal, SCHEDULER_ENGINE_FAILED);
                }
                for (int i = 0; i < 5; i++)
                    asked[i].was_cancelled = true; /* by the close */
                scheduler_close(scheduler);
                for (int i = 0; i < 5; i++)
                    check_asked(&asked[i]);
                if (way == 0)
                    assert_int_equal(held_pages(&engine), 0);
                kv_pool_close(&engine.pool);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_requests_end_once_with_the_text_they_have_alone),
        cmocka_unit_test(a_request_may_be_cancelled_anywhere),
        cmocka_unit_test(every_request_ends_once_when_the_scheduler_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
