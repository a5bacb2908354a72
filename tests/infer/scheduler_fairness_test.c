/* Fair shares: of clients by their weights, of the adapters of a client, and of equals in their order. */
#include "asking.h"

#include <malloc.h>

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

static int64_t tokens_of_client(uint64_t client) {
    int64_t tokens = 0;
    for (int i = 0; i < ASKED; i++)
        if (asked[i].number && asked[i].request.client == client)
            tokens += asked[i].count[0];
    return tokens;
}

static void submit_for(int i, uint64_t client, double weight, uint64_t adapter, int64_t max_tokens) {
    struct asked *a = prepare(i, 4, max_tokens);
    a->request.client = client;
    a->request.weight = weight;
    a->request.adapter = adapter;
    submit_taken(a);
}

static void clients_share_by_their_weights(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_sequences = 4});
    memset(asked, 0, sizeof asked);
    for (int i = 0; i < 40; i++) /* the first client came first with all that it has */
        submit_for(i, 1, 1, 0, 20);
    for (int i = 40; i < 64; i++)
        submit_for(i, 2, 3, 0, 20);
    while (tokens_of_client(2) < 20 * 20)
        scheduler_step(scheduler);
    /* Three times as much, to within what the texts that run at once may be off. */
    assert_in_range(tokens_of_client(1), 20 * 20 / 3 - 4 * 22, 20 * 20 / 3 + 4 * 22);
    finish(64);
}

static void long_texts_count_for_more(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_sequences = 4});
    memset(asked, 0, sizeof asked);
    for (int i = 0; i < 10; i++)
        submit_for(i, 1, 1, 0, 80);
    for (int i = 10; i < 60; i++)
        submit_for(i, 2, 1, 0, 10);
    while (tokens_of_client(2) < 350)
        scheduler_step(scheduler);
    assert_in_range(tokens_of_client(1), 350 - 2 * 80, 350 + 2 * 80 + 100);
    finish(60);
}

/* Whoever comes after a long silence has no claim for it, and no disadvantage either. */
static void a_client_that_comes_late_is_lifted_to_the_others(void **state) {
    (void)state;
    for (int had_before = 0; had_before < 2; had_before++) {
        begin(&(struct scheduler_options){.max_sequences = 2});
        memset(asked, 0, sizeof asked);
        if (had_before) {
            submit_for(60, 2, 1, 0, 5);
            run_to_the_end(scheduler, 100);
        }
        for (int i = 0; i < 30; i++)
            submit_for(i, 1, 1, 0, 20);
        for (int i = 0; i < 150; i++)
            scheduler_step(scheduler);
        int64_t first = tokens_of_client(1), second = tokens_of_client(2);
        assert_true(first > 250);
        for (int i = 30; i < 60; i++)
            submit_for(i, 2, 1, 0, 20);
        for (int i = 0; i < 150; i++)
            scheduler_step(scheduler);
        first = tokens_of_client(1) - first;
        second = tokens_of_client(2) - second;
        assert_in_range(first, 150 - 45, 150 + 45);
        assert_in_range(second, 150 - 45, 150 + 45);
        finish(60);
    }
}

/* Nor does a short silence forgive what a client has had. */
static void a_client_keeps_what_it_owes(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_sequences = 1});
    memset(asked, 0, sizeof asked);
    submit_for(0, 1, 1, 0, 100);
    for (int i = 1; i < 8; i++)
        submit_for(i, 2, 1, 0, 10);
    while (!asked[0].dones)
        scheduler_step(scheduler);
    submit_for(9, 3, 1, 0, 1);  /* somebody new, who does not get its place */
    submit_for(8, 1, 1, 0, 10); /* again */
    finish(10);
    for (int i = 1; i < 8; i++)
        assert_true(asked[i].ended_at < asked[8].ended_at);
}

/* A text that was preempted is not paid for twice. */
static void a_preempted_text_is_paid_once(void **state) {
    (void)state;
    false_start(&engine, &(struct scheduler_options){.max_sequences = 1}, false, &scheduler);
    memset(asked, 0, sizeof asked);
    submit_for(8, 2, 1, 0, 1); /* so that the second is active from the beginning */
    scheduler_pause(scheduler, asked[8].number);
    prepare(0, 200, 20)->request.client = 1;
    submit_taken(&asked[0]);
    for (int i = 1; i < 5; i++) { /* others need its place */
        for (int k = 0; k < 6; k++)
            scheduler_step(scheduler);
        scheduler_pause(scheduler, asked[0].number);
        submit_for(i, 3, 1, 0, 1);
        run_to_the_end(scheduler, 100);
        scheduler_resume(scheduler, asked[0].number);
    }
    assert_int_equal(preemptions(), 4);
    prepare(5, 300, 20)->request.client = 2;
    submit_taken(&asked[5]);
    submit_for(6, 2, 1, 0, 5);
    submit_for(7, 1, 1, 0, 5);
    scheduler_resume(scheduler, asked[8].number);
    finish(9);
    assert_true(asked[7].started_at < asked[6].started_at);
}

static void clients_that_are_gone_take_no_memory(void **state) {
    (void)state;
    begin(&(struct scheduler_options){0});
    size_t held = 0;
    for (int i = 0; i < 1000; i++) {
        prepare(0, 4, 2)->request.client = (uint64_t)i;
        asked[0].request.adapter = (uint64_t)i % 7;
        submit_taken(&asked[0]);
        run_to_the_end(scheduler, 10);
        held = i == 50 ? mallinfo2().uordblks : held;
    }
    size_t held_then = mallinfo2().uordblks;
    finish(1);
    assert_true(held_then <= held + 1000);
}

static void adapters_of_a_client_take_turns(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_sequences = 1});
    memset(asked, 0, sizeof asked);
    for (int i = 0; i < 12; i++)
        submit_for(i, 1, 1, i < 8 ? 1 : 2, 10);
    while (!asked[11].dones)
        scheduler_step(scheduler);
    int64_t others = 0;
    for (int i = 0; i < 8; i++)
        others += asked[i].dones;
    assert_in_range(others, 3, 4);
    finish(12);
}

static void equals_come_in_their_order(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_sequences = 2});
    for (int i = 0; i < 10; i++)
        submit(i, 5, 10);
    finish(10);
    for (int i = 1; i < 10; i++)
        assert_true(asked[i].started_at >= asked[i - 1].started_at);
}

static void submit_urgent(int i, uint64_t client, int32_t priority, int64_t max_tokens) {
    struct asked *a = prepare(i, 4, max_tokens);
    a->request.client = client;
    a->request.priority = priority;
    submit_taken(a);
}

/* A client that calls all of its requests urgent gets no more than one that does not. */
static void a_priority_costs_other_clients_nothing(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_sequences = 4});
    memset(asked, 0, sizeof asked);
    for (int i = 0; i < 40; i++)
        submit_urgent(i, 1, INT32_MIN + i % 3, 20);
    for (int i = 40; i < 64; i++)
        submit_urgent(i, 2, 0, 20);
    while (tokens_of_client(2) < 20 * 20)
        scheduler_step(scheduler);
    assert_in_range(tokens_of_client(1), 20 * 20 - 4 * 22, 20 * 20 + 4 * 22);
    finish(64);
}

/* Each of client 1's requests is more urgent than the one that runs: it takes that one's place, and no other. */
static void an_urgent_text_takes_the_place_of_its_own_client(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_sequences = 2});
    memset(asked, 0, sizeof asked);
    submit_urgent(0, 1, 9, 60);
    submit_urgent(1, 2, 0, 60);
    for (int i = 0; i < 5; i++)
        scheduler_step(scheduler);
    submit_urgent(2, 2, 0, 60); /* waits for its client's first text */
    for (int i = 3; i < 8; i++) {
        submit_urgent(i, 1, 8 - i, 10);
        for (int k = 0; k < 4; k++)
            scheduler_step(scheduler);
    }
    int64_t taken = preemptions();
    finish(8);
    assert_int_equal(taken, 5);
    /* Not one of the other client's steps was lost. */
    assert_in_range(asked[1].ended_at - asked[1].first_token_at, 59, 60);
    for (int i = 3; i < 8; i++)
        assert_true(asked[i].ended_at < asked[0].ended_at);
    assert_true(asked[7].ended_at < asked[3].ended_at);
}

/* A place is free, and the other client is due: the urgent text takes its own client's place, not that one. */
static void an_urgent_text_takes_no_free_place_of_another(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_sequences = 2});
    memset(asked, 0, sizeof asked);
    submit_urgent(0, 1, 9, 60);
    for (int i = 0; i < 5; i++)
        scheduler_step(scheduler);
    submit_urgent(1, 2, 0, 20);
    submit_urgent(2, 1, 0, 20);
    for (int i = 0; i < 5; i++)
        scheduler_step(scheduler);
    assert_int_equal(preemptions(), 1);
    assert_true(asked[1].starts == 1 && asked[2].starts == 1);
    finish(3);
}

/* Three texts of a client and one of another compete for pages for two. Among clients importance goes by age, and an
 * urgent text takes the place of its client's oldest. */
static void an_urgent_text_has_its_clients_oldest_place(void **state) {
    (void)state;
    for (int urgent = 0; urgent < 2; urgent++) {
        begin(&(struct scheduler_options){.max_sequences = 3, .pages = 10});
        memset(asked, 0, sizeof asked);
        submit_urgent(0, 1, 5, 100);
        submit_urgent(1, 2, 0, 100);
        for (int i = 0; i < 3; i++)
            scheduler_step(scheduler);
        submit_urgent(2, 1, urgent ? 0 : 5, 100);
        finish(3);
        if (urgent)
            assert_true(asked[2].ended_at < asked[0].ended_at);
        else
            assert_true(asked[0].ended_at < asked[2].ended_at);
        assert_true(asked[1].ended_at <= asked[urgent ? 0 : 2].ended_at);
    }
}

static void submit_prompt(int i, uint64_t client, double weight, int64_t prompt_length) {
    struct asked *a = prepare(i, prompt_length, 2);
    a->request.client = client;
    a->request.weight = weight;
    submit_taken(a);
}

/* Two prompts of a client take 25 steps; another client's short one needs none of them for itself. */
static void a_short_prompt_joins_the_next_step(void **state) {
    (void)state;
    for (int depth = 1; depth <= 2; depth++) {
        begin(&(struct scheduler_options){.max_rows = 32, .depth = depth});
        memset(asked, 0, sizeof asked);
        submit_prompt(0, 1, 1, 400);
        submit_prompt(1, 1, 1, 400);
        for (int i = 0; i < 3; i++)
            scheduler_step(scheduler);
        for (int i = 2; i < 5; i++) {
            submit_prompt(i, 2, 1, 2);
            int64_t rows = engine.last_rows;
            while (!asked[i].dones)
                scheduler_step(scheduler);
            assert_int_equal(rows, 32);
            assert_in_range(asked[i].first_token_at - asked[i].submitted_at, 1, depth);
            for (int k = 0; k < 2; k++) /* and it leaves the rest of a step to the others */
                scheduler_step(scheduler);
            assert_int_equal(engine.last_rows, 32);
        }
        assert_int_equal(asked[1].dones, 0);
        finish(5);
    }
}

/* One client gets 24 of 32 rows and the other 8, while both have as many. */
static void prompts_share_a_step_by_weight(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_rows = 32});
    memset(asked, 0, sizeof asked);
    submit_prompt(0, 1, 1, 80);
    submit_prompt(1, 2, 3, 240);
    submit_prompt(2, 2, 3, 400);
    finish(3);
    assert_int_equal(asked[0].first_token_at, 10);
    assert_int_equal(asked[1].first_token_at, 10);
}

/* The other client gets the rows that a client does not need. Beside prompts of 8 rows, 24 rows of a long one run in
 * each step, not 16. */
static void what_a_client_does_not_need_goes_to_the_other(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_rows = 32});
    memset(asked, 0, sizeof asked);
    submit_prompt(0, 1, 1, 400);
    for (int i = 1; i <= 4; i++) {
        prepare(i, 8, 0)->request.client = 2;
        submit_taken(&asked[i]);
        scheduler_step(scheduler);
        assert_int_equal(engine.last_prefill_rows, 32);
        assert_int_equal(asked[i].starts, 1);
    }
    finish(5);
}

/* A prompt that was cancelled costs its client the rows that ran. */
static void a_prompt_is_charged_as_it_runs(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_rows = 32, .max_sequences = 1});
    memset(asked, 0, sizeof asked);
    submit_prompt(0, 1, 1, 400);
    submit_prompt(1, 2, 1, 100);
    scheduler_step(scheduler);
    cancel_asked(&asked[0]);
    scheduler_step(scheduler);
    submit_prompt(3, 2, 1, 2); /* its client will have had 100 rows */
    submit_prompt(2, 1, 1, 2); /* and this one had 32 */
    finish(4);
    assert_true(asked[2].started_at < asked[3].started_at);
    assert_true(asked[1].started_at < asked[2].started_at);
}

/* Prompts that share the steps get pages to their ends: none that starts takes another's. */
static void prompts_that_share_steps_keep_their_pages(void **state) {
    (void)state;
    begin(&(struct scheduler_options){.max_rows = 32, .pages = 400 / FALSE_PAGE + 8});
    memset(asked, 0, sizeof asked);
    for (int i = 0; i < 4; i++)
        submit_prompt(i, (uint64_t)i, 1, 300);
    submit_prompt(4, 5, 1, 40);
    run_to_the_end(scheduler, 1000);
    assert_int_equal(preemptions(), 0);
    finish(5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_prompt_joins_the_next_step),
        cmocka_unit_test(prompts_share_a_step_by_weight),
        cmocka_unit_test(what_a_client_does_not_need_goes_to_the_other),
        cmocka_unit_test(a_prompt_is_charged_as_it_runs),
        cmocka_unit_test(prompts_that_share_steps_keep_their_pages),
        cmocka_unit_test(clients_share_by_their_weights),
        cmocka_unit_test(long_texts_count_for_more),
        cmocka_unit_test(a_client_that_comes_late_is_lifted_to_the_others),
        cmocka_unit_test(a_client_keeps_what_it_owes),
        cmocka_unit_test(a_preempted_text_is_paid_once),
        cmocka_unit_test(clients_that_are_gone_take_no_memory),
        cmocka_unit_test(adapters_of_a_client_take_turns),
        cmocka_unit_test(equals_come_in_their_order),
        cmocka_unit_test(a_priority_costs_other_clients_nothing),
        cmocka_unit_test(an_urgent_text_takes_the_place_of_its_own_client),
        cmocka_unit_test(an_urgent_text_takes_no_free_place_of_another),
        cmocka_unit_test(an_urgent_text_has_its_clients_oldest_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
