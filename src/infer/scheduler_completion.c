/* The life of a completion, from waiting to its end, and the results of its steps. */
#include "scheduler-internal.h"

/* ---- importance ---- */

void completion_take_place(struct scheduler *s, struct completion *completion) {
    struct share *client = completion->request->client;
    struct completion *above = client->least, *below = NULL;
    completion->place = completion->serial;
    for (; above && completion_yields_to(above, completion); above = above->above) {
        uint64_t place = above->place;
        above->place = completion->place;
        completion->place = place;
        below = above;
    }
    completion->above = above;
    completion->below = below;
    if (above)
        above->below = completion;
    *(below ? &below->above : &client->least) = completion;
    if (below)
        completion_sort(s->running, s->running_count, completion_is_before);
}

static void leave_place(struct completion *completion) {
    if (completion->above)
        completion->above->below = completion->below;
    *(completion->below ? &completion->below->above : &completion->request->client->least) = completion->above;
}

/* ---- waiting and running ---- */

void completion_wait(struct scheduler *s, struct completion *completion) {
    completion->state = COMPLETION_WAITS;
    completion->blocked_at = -1;
    completion->next = NULL;
    completion->previous = s->last_waiting;
    *(s->last_waiting ? &s->last_waiting->next : &s->waiting) = completion;
    s->last_waiting = completion;
    s->waiting_count++;
}

static void wait_no_more(struct scheduler *s, struct completion *completion) {
    *(completion->previous ? &completion->previous->next : &s->waiting) = completion->next;
    *(completion->next ? &completion->next->previous : &s->last_waiting) = completion->previous;
    s->waiting_count--;
}

void completion_run(struct scheduler *s, struct completion *completion, int sequence, int64_t cached) {
    wait_no_more(s, completion);
    completion->state = COMPLETION_RUNS;
    completion->sequence = sequence;
    completion->submitted = cached;
    completion->is_again = completion->is_held = false;
    int64_t at = s->running_count++;
    for (; at > 0 && completion_is_before(completion, s->running[at - 1]); at--)
        s->running[at] = s->running[at - 1];
    s->running[at] = completion;
}

static void run_no_more(struct scheduler *s, struct completion *completion) {
    int64_t at = 0;
    while (s->running[at] != completion)
        at++;
    s->running_count--;
    if (s->stalled == completion)
        s->stalled = NULL;
    memmove(&s->running[at], &s->running[at + 1], (size_t)(s->running_count - at) * sizeof(struct completion *));
    if (s->failure)
        return;
    s->engine.sequence_close(s->engine.self, completion->sequence);
    s->closed++;
}

void completion_preempt(struct scheduler *s, struct completion *completion) {
    run_no_more(s, completion);
    completion_wait(s, completion);
    s->stats.preemptions++;
}

void completion_end(struct scheduler *s, struct completion *completion, enum scheduler_end reason) {
    struct request *request = completion->request;
    if (completion->state == COMPLETION_ENDED)
        return;
    if (!completion->is_ending)
        completion->reason = reason;
    completion->is_ending = true;
    if (completion->under_way)
        return;
    if (completion->state == COMPLETION_RUNS)
        run_no_more(s, completion);
    else
        wait_no_more(s, completion);
    completion->state = COMPLETION_ENDED;
    constraint_close(completion->constraint);
    completion->constraint = NULL;
    leave_place(completion);
    if (completion->choice == 0) {
        s->queued_tokens -= request->queued_tokens;
        request->queued_tokens = 0;
    }
    share_end(request->client, request->adapter);
    share_end(&s->everybody, request->client);
    if (request->asked.calls.on_end)
        request->asked.calls.on_end(request->asked.context, completion->choice, completion->reason);
    if (++request->ended == request->asked.choices)
        s->done_requests++;
}

/* ---- results ---- */

static bool is_among(int32_t id, const int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static bool ends_completion(const struct completion *completion, int32_t token) {
    const struct scheduler_request *asked = &completion->request->asked;
    if (completion->constraint && is_among(token, asked->end_ids, asked->end_count))
        return true; /* also before min_tokens: nothing else was allowed */
    if (completion->count - asked->prompt_length <= asked->min_tokens)
        return false;
    return (!asked->ignore_eos && is_among(token, asked->end_ids, asked->end_count)) ||
           is_among(token, asked->stop_ids, asked->stop_count);
}

void request_charge(struct request *request, double cost) {
    request->client->counter += cost / request->client->weight;
    request->adapter->counter += cost;
}

static void give_token(struct scheduler *s, struct completion *completion, const struct engine_result *result) {
    struct request *request = completion->request;
    const struct scheduler_request *asked = &request->asked;
    if (result->token < 0 || result->token >= s->options.vocab) {
        completion_end(s, completion, SCHEDULER_FAILED);
        return;
    }
    completion->tokens[completion->count++] = result->token;
    sampler_add(&completion->sampler, result->token);
    request_charge(request, s->options.out_weight);
    struct scheduler_token token = {.token = result->token,
                                    .is_end = ends_completion(completion, result->token),
                                    .logprob = result->logprob,
                                    .top_count = asked->top_count,
                                    .top_token = result->top_token,
                                    .top_logprob = result->top_logprob};
    bool stops = asked->calls.on_token && asked->calls.on_token(asked->context, completion->choice, &token);
    if (stops || token.is_end)
        completion_end(s, completion, SCHEDULER_STOP);
    else if (completion->constraint) {
        completion->is_full = completion->count - asked->prompt_length == asked->max_tokens;
        constraint_take(completion->constraint, result->token);
    } else if (completion->count - asked->prompt_length == asked->max_tokens)
        completion_end(s, completion, SCHEDULER_LENGTH);
}

void completion_settle(struct scheduler *s, struct completion *completion, double until) {
    enum constraint_next next = CONSTRAINT_FORCED;
    while (next == CONSTRAINT_FORCED && completion->state == COMPLETION_RUNS && !completion->request->is_cancelled) {
        int32_t token;
        next = constraint_find(completion->constraint, until, &token);
        completion->is_held = (completion->is_again || completion->is_full) && next == CONSTRAINT_UNKNOWN;
        s->has_settled |= next != CONSTRAINT_UNKNOWN && next != CONSTRAINT_DRAWS;
        if (completion->is_full && next != CONSTRAINT_UNKNOWN)
            completion_end(s, completion, next == CONSTRAINT_OVER ? SCHEDULER_STOP : SCHEDULER_LENGTH);
        else if (next == CONSTRAINT_FORCED) { /* a row whose mask was late has run already */
            completion->submitted += completion->is_again;
            completion->is_again = false;
            give_token(s, completion, &(struct engine_result){.token = token});
        } else if (next == CONSTRAINT_OVER || next == CONSTRAINT_FAILED)
            completion_end(s, completion, next == CONSTRAINT_OVER ? SCHEDULER_STOP : SCHEDULER_MASK);
    }
}

/* Lets a completion whose mask was late run its row once more. */
static void draw_again(struct scheduler *s, struct completion *completion) {
    completion->submitted--;
    completion->is_again = true;
    s->stats.late_masks++;
}

static void give_prompt_logprobs(const struct step_completion *of, const struct engine_result *results) {
    struct request *request = of->completion->request;
    const struct scheduler_request *asked = &request->asked;
    for (int64_t i = 0; i < of->rows && !request->is_cancelled; i++) {
        if (!completion_row_is_scored(of->completion, of->start + i))
            continue;
        const struct engine_result *result = &results[of->first_row + i];
        int64_t index = request->given_logprobs++;
        struct scheduler_token token = {.token = asked->prompt[index],
                                        .logprob = result->label_logprob,
                                        .is_greedy = result->is_greedy,
                                        .top_count = asked->prompt_top_count,
                                        .top_token = result->top_token,
                                        .top_logprob = result->top_logprob};
        if (asked->calls.on_prompt_logprob)
            asked->calls.on_prompt_logprob(asked->context, index, &token);
    }
}

void completion_report(struct scheduler *s, const struct step_completion *of, const struct engine_result *results) {
    struct completion *completion = of->completion;
    const struct request *request = completion->request;
    if (!completion->is_ending)
        give_prompt_logprobs(of, results);
    if (completion->is_ending || request->is_cancelled)
        completion_end(s, completion, SCHEDULER_CANCELLED);
    else if (of->draws && completion->constraint && results[of->first_row + of->rows - 1].token < 0)
        draw_again(s, completion);
    else if (of->draws)
        give_token(s, completion, &results[of->first_row + of->rows - 1]);
    else if (!completion->under_way && completion_is_complete(completion))
        completion_end(s, completion, SCHEDULER_LENGTH);
}
