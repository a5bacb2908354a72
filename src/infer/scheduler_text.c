/* A text from waiting to its end, and what its steps brought. */
#include "scheduler-internal.h"

/* ---- importance ---- */

void text_take_place(struct scheduler *s, struct text *text) {
    struct share *client = text->request->client;
    struct text *above = client->least, *below = NULL;
    text->place = text->serial;
    for (; above && text_yields_to(above, text); above = above->above) {
        uint64_t place = above->place;
        above->place = text->place;
        text->place = place;
        below = above;
    }
    text->above = above;
    text->below = below;
    if (above)
        above->below = text;
    *(below ? &below->above : &client->least) = text;
    if (below)
        text_sort(s->running, s->running_count, text_is_before);
}

static void leave_place(struct text *text) {
    if (text->above)
        text->above->below = text->below;
    *(text->below ? &text->below->above : &text->request->client->least) = text->above;
}

/* ---- waiting and running ---- */

void text_wait(struct scheduler *s, struct text *text) {
    text->state = TEXT_WAITS;
    text->blocked_at = -1;
    text->next = NULL;
    text->previous = s->last_waiting;
    *(s->last_waiting ? &s->last_waiting->next : &s->waiting) = text;
    s->last_waiting = text;
    s->waiting_count++;
}

static void wait_no_more(struct scheduler *s, struct text *text) {
    *(text->previous ? &text->previous->next : &s->waiting) = text->next;
    *(text->next ? &text->next->previous : &s->last_waiting) = text->previous;
    s->waiting_count--;
}

void text_run(struct scheduler *s, struct text *text, int sequence, int64_t cached) {
    wait_no_more(s, text);
    text->state = TEXT_RUNS;
    text->sequence = sequence;
    text->submitted = cached;
    int64_t at = s->running_count++;
    for (; at > 0 && text_is_before(text, s->running[at - 1]); at--)
        s->running[at] = s->running[at - 1];
    s->running[at] = text;
}

static void run_no_more(struct scheduler *s, struct text *text) {
    int64_t at = 0;
    while (s->running[at] != text)
        at++;
    s->running_count--;
    if (s->stalled == text)
        s->stalled = NULL;
    memmove(&s->running[at], &s->running[at + 1], (size_t)(s->running_count - at) * sizeof(struct text *));
    if (s->failure)
        return;
    s->engine.sequence_close(s->engine.self, text->sequence);
    s->closed++;
}

void text_preempt(struct scheduler *s, struct text *text) {
    run_no_more(s, text);
    text_wait(s, text);
    s->stats.preemptions++;
}

void text_end(struct scheduler *s, struct text *text, enum scheduler_end reason) {
    struct request *request = text->request;
    if (text->state == TEXT_ENDED)
        return;
    if (!text->is_ending)
        text->reason = reason;
    text->is_ending = true;
    if (text->under_way)
        return;
    if (text->state == TEXT_RUNS)
        run_no_more(s, text);
    else
        wait_no_more(s, text);
    text->state = TEXT_ENDED;
    leave_place(text);
    if (text->choice == 0) {
        s->queued_tokens -= request->queued_tokens;
        request->queued_tokens = 0;
    }
    share_end(request->client, request->adapter);
    share_end(&s->everybody, request->client);
    if (request->asked.calls.on_end)
        request->asked.calls.on_end(request->asked.context, text->choice, text->reason);
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

static bool ends_text(const struct text *text, int32_t token) {
    const struct scheduler_request *asked = &text->request->asked;
    if (text->count - asked->prompt_length <= asked->min_tokens)
        return false;
    return (!asked->ignore_eos && is_among(token, asked->end_ids, asked->end_count)) ||
           is_among(token, asked->stop_ids, asked->stop_count);
}

void request_charge(struct request *request, double cost) {
    request->client->counter += cost / request->client->weight;
    request->adapter->counter += cost;
}

static void give_token(struct scheduler *s, struct text *text, const struct engine_result *result) {
    struct request *request = text->request;
    const struct scheduler_request *asked = &request->asked;
    if (result->token < 0 || result->token >= s->options.vocab) {
        text_end(s, text, SCHEDULER_FAILED);
        return;
    }
    text->tokens[text->count++] = result->token;
    sampler_add(&text->sampler, result->token);
    request_charge(request, s->options.out_weight);
    struct scheduler_token token = {.token = result->token,
                                    .is_end = ends_text(text, result->token),
                                    .logprob = result->logprob,
                                    .top_count = asked->top_count,
                                    .top_token = result->top_token,
                                    .top_logprob = result->top_logprob};
    bool stops = asked->calls.on_token && asked->calls.on_token(asked->context, text->choice, &token);
    if (stops || token.is_end)
        text_end(s, text, SCHEDULER_STOP);
    else if (text->count - asked->prompt_length == asked->max_tokens)
        text_end(s, text, SCHEDULER_LENGTH);
}

static void give_prompt_logprobs(const struct step_text *of, const struct engine_result *results) {
    struct request *request = of->text->request;
    const struct scheduler_request *asked = &request->asked;
    for (int64_t i = 0; i < of->rows && !request->is_cancelled; i++) {
        if (!text_row_is_scored(of->text, of->start + i))
            continue;
        const struct engine_result *result = &results[of->first_row + i];
        int64_t index = request->given_logprobs++;
        struct scheduler_token token = {.token = asked->prompt[index],
                                        .logprob = result->label_logprob,
                                        .top_count = asked->prompt_top_count,
                                        .top_token = result->top_token,
                                        .top_logprob = result->top_logprob};
        if (asked->calls.on_prompt_logprob)
            asked->calls.on_prompt_logprob(asked->context, index, &token);
    }
}

void text_give(struct scheduler *s, const struct step_text *of, const struct engine_result *results) {
    struct text *text = of->text;
    const struct request *request = text->request;
    if (!text->is_ending)
        give_prompt_logprobs(of, results);
    if (text->is_ending || request->is_cancelled)
        text_end(s, text, SCHEDULER_CANCELLED);
    else if (of->draws)
        give_token(s, text, &results[of->first_row + of->rows - 1]);
    else if (!text->under_way && text_is_complete(text))
        text_end(s, text, SCHEDULER_LENGTH);
}
