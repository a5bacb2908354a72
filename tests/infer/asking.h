/* Requests to a scheduler over a false engine, and what came back of each: every callback is checked when it comes, and
 * check_asked compares all texts with what false_text says. */
#pragma once

#include "false_engine.h"

enum { ASKED_PROMPT = 400, ASKED_CHOICES = 3, ASKED_TOKENS = 128, ASKED_IDS = 4 };

struct asked {
    struct scheduler *scheduler;
    struct false_engine *engine;
    struct scheduler_request request;
    uint64_t number;
    int32_t prompt[ASKED_PROMPT], ids[ASKED_IDS];
    struct logit_bias bias[ASKED_IDS];
    int64_t starts, dones, cached, prompt_logprobs, submitted_at, started_at, first_token_at, ended_at; /* steps */
    int64_t count[ASKED_CHOICES], ends[ASKED_CHOICES];
    int32_t token[ASKED_CHOICES][ASKED_TOKENS];
    enum scheduler_end reason[ASKED_CHOICES];
    int64_t stops_after; /* on_token says so; 0: never */
    bool was_cancelled, is_paused;
    int64_t *events, cancel_at; /* counts all callbacks; cancels in the one with this number */
    struct asked *cancels;      /* which request; NULL: this one */
};

static inline void cancel_asked(struct asked *asked) {
    asked->was_cancelled = true;
    scheduler_cancel(asked->scheduler, asked->number);
}

static inline void note_event(struct asked *asked) {
    if (asked->dones)
        fail_msg("a callback of request %llu after its last", (unsigned long long)asked->number);
    if (asked->events && ++*asked->events == asked->cancel_at)
        cancel_asked(asked->cancels ? asked->cancels : asked);
}

static inline void note_start(void *context, int64_t cached) {
    struct asked *asked = context;
    asked->starts++;
    asked->cached = cached;
    asked->started_at = asked->engine->steps;
    assert_true(cached >= 0 && cached < asked->request.prompt_length);
    note_event(asked);
}

static inline void check_top(const struct scheduler_token *token, int64_t count) {
    assert_int_equal(token->top_count, count);
    for (int64_t i = 0; i < count; i++)
        assert_true(token->top_token[i] >= 0 && token->top_logprob[i] <= 0);
}

/* Returns the first token of the prompt whose log-probability is due. */
static inline int64_t first_logprob(const struct scheduler_request *request) {
    int64_t predicted = !request->virtual_tokens_predict;
    return request->first_prompt_logprob > predicted ? request->first_prompt_logprob : predicted;
}

/* Returns how many are due. */
static inline int64_t count_logprobs(const struct scheduler_request *request) {
    int64_t first = first_logprob(request);
    return first < request->prompt_length ? request->prompt_length - first : 0;
}

static inline bool note_token(void *context, int64_t choice, const struct scheduler_token *token) {
    struct asked *asked = context;
    struct false_text text;
    if (asked->was_cancelled || asked->ends[choice] || asked->starts != 1)
        fail_msg("a token of a text that was cancelled, has ended or has not begun");
    if (asked->request.wants_prompt_logprobs && choice == 0)
        assert_int_equal(asked->prompt_logprobs, count_logprobs(&asked->request));
    check_top(token, asked->request.top_count);
    int64_t at = asked->count[choice]++;
    asked->token[choice][at] = token->token;
    asked->first_token_at = asked->first_token_at ? asked->first_token_at : asked->engine->steps;
    if (at % 8 == 0) { /* of some: the tokens themselves are compared at the end */
        false_text(&asked->request, choice, &text, NULL);
        assert_true(at < text.count);
        assert_true(token->logprob == text.logprob[at] || (asked->request.grammar && !asked->request.wants_logprobs));
    }
    assert_int_equal(token->is_end, at >= asked->request.min_tokens && false_ends(&asked->request, token->token));
    note_event(asked);
    return asked->count[choice] == asked->stops_after;
}

static inline void note_prompt_logprob(void *context, int64_t index, const struct scheduler_token *token) {
    struct asked *asked = context;
    struct false_score expected[ASKED_PROMPT];
    struct false_text text;
    assert_false(asked->was_cancelled);
    assert_int_equal(index, asked->prompt_logprobs++ + first_logprob(&asked->request));
    assert_int_equal(token->token, asked->prompt[index]);
    check_top(token, asked->request.prompt_top_count);
    false_text(&asked->request, 0, &text, expected);
    assert_true(token->logprob == expected[index].logprob);
    assert_int_equal(token->is_greedy, expected[index].is_greedy);
    note_event(asked);
}

static inline void note_end(void *context, int64_t choice, enum scheduler_end reason) {
    struct asked *asked = context;
    asked->ends[choice]++;
    asked->reason[choice] = reason;
    asked->ended_at = asked->engine->steps;
    note_event(asked);
}

static inline void note_done(void *context) {
    struct asked *asked = context;
    note_event(asked);
    asked->dones++;
}

/* Prepares a request in which every setting has no effect; the caller changes it. */
static inline void prepare_asked(struct asked *asked, struct scheduler *scheduler, struct false_engine *engine,
                                 int64_t prompt_length, int32_t first_token, int64_t max_tokens) {
    *asked = (struct asked){.scheduler = scheduler, .engine = engine};
    for (int64_t i = 0; i < prompt_length; i++)
        asked->prompt[i] = (int32_t)((first_token + i * i) % FALSE_VOCAB);
    asked->request = (struct scheduler_request){
        .prompt = asked->prompt,
        .prompt_length = prompt_length,
        .slot = -1,
        .max_tokens = max_tokens,
        .choices = 1,
        .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
        .calls = {note_start, note_token, note_prompt_logprob, note_end, note_done},
        .context = asked,
    };
}

static inline int submit_asked(struct asked *asked, enum scheduler_refusal *refusal) {
    asked->submitted_at = asked->engine->steps;
    return scheduler_submit(asked->scheduler, &asked->request, &asked->number, refusal);
}

static inline void submit_taken(struct asked *asked) {
    enum scheduler_refusal refusal;
    test_ok(submit_asked(asked, &refusal));
    assert_int_equal(refusal, SCHEDULER_TAKEN);
    assert_true(asked->number > 0);
}

/* All choices ended once, for a reason that can be, with the tokens that they have alone. */
static inline void check_asked(const struct asked *asked) {
    const struct scheduler_request *request = &asked->request;
    assert_int_equal(asked->dones, 1);
    assert_true(asked->starts <= 1);
    for (int64_t choice = 0; choice < request->choices; choice++) {
        struct false_text text;
        enum scheduler_end reason = asked->reason[choice];
        int64_t count = asked->count[choice];
        assert_int_equal(asked->ends[choice], 1);
        false_text(request, choice, &text, NULL);
        assert_true(count <= text.count);
        assert_memory_equal(asked->token[choice], text.token, (size_t)count * sizeof(int32_t));
        if (asked->stops_after && count == asked->stops_after)
            assert_true(reason == SCHEDULER_STOP || asked->was_cancelled);
        else if (reason == SCHEDULER_STOP || reason == SCHEDULER_LENGTH) {
            assert_int_equal(count, text.count);
            assert_int_equal(reason, text.reason);
        } else if (reason == SCHEDULER_CANCELLED)
            assert_true(asked->was_cancelled);
        else if (reason == SCHEDULER_DEADLINE)
            assert_true(request->deadline != 0 && asked->engine->clock >= request->deadline);
    }
}

/* Steps until there is nothing to do. */
static inline void run_to_the_end(struct scheduler *scheduler, int64_t most) {
    for (int64_t i = 0; i < most; i++) {
        int acted = scheduler_step(scheduler);
        if (acted == 0)
            return;
        assert_int_equal(acted, 1);
    }
    fail_msg("there is something to do after %lld steps", (long long)most);
}
