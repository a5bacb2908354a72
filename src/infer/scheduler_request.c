/* Accepts requests: refuses those that can never run or are too many, copies the others and lets them wait. */
#include "scheduler-internal.h"

static int refuse(enum scheduler_refusal *refusal, enum scheduler_refusal reason) {
    *refusal = reason;
    return reason == SCHEDULER_QUEUED_REQUESTS || reason == SCHEDULER_QUEUED_TOKENS || reason == SCHEDULER_NO_MEMORY
               ? STATUS_MEMORY
               : STATUS_INVALID;
}

static int check_ids(const char *what, const int32_t *ids, int64_t count, int64_t vocab) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return status_fail(STATUS_INVALID, "%s %d is not in the vocabulary of %lld", what, ids[i],
                               (long long)vocab);
    return STATUS_OK;
}

static int check_values(const struct scheduler *s, const struct scheduler_request *asked) {
    if (asked->prompt_length < 1)
        return status_fail(STATUS_INVALID, "a request without a token");
    if (asked->virtual_tokens < 0 || asked->max_tokens < -1 || asked->min_tokens < 0 || asked->choices < 0 ||
        !(asked->weight >= 0) || asked->top_count < 0 || asked->prompt_top_count < 0 || asked->first_prompt_logprob < 0)
        return status_fail(STATUS_INVALID, "a request with a negative number");
    if (asked->grammar && (!s->options.constraints || asked->ignore_eos))
        return status_fail(STATUS_INVALID, "a constraint %s",
                           asked->ignore_eos ? "that ignore_eos cannot go beyond"
                                             : "in a scheduler without threads for it");
    int status = check_ids("token", asked->prompt, asked->prompt_length, s->options.vocab);
    THEN(status, check_ids("end id", asked->end_ids, asked->end_count, s->options.vocab));
    THEN(status, check_ids("stop id", asked->stop_ids, asked->stop_count, s->options.vocab));
    for (int64_t i = 0; i < asked->bias_count && !status; i++)
        status = check_ids("id of a bias", &asked->bias[i].id, 1, s->options.vocab);
    return status;
}

/* Checks that the request can run by itself, and fills in max_tokens. Its last token, drawn or not, needs no row. */
static int check_length(const struct scheduler *s, struct scheduler_request *asked, enum scheduler_refusal *refusal) {
    const struct scheduler_options *o = &s->options;
    int64_t page_rows = o->pages * o->page_tokens, most = page_rows < o->max_positions ? page_rows : o->max_positions;
    int64_t before = asked->virtual_tokens + asked->prompt_length;
    if (asked->max_tokens < 0)
        asked->max_tokens = most + 1 - before > 1 ? most + 1 - before : 1;
    int64_t after = asked->max_tokens - 1; /* rows of drawn tokens; -1: the prompt's last token needs none either */
    if (after > o->max_positions - before) {
        refuse(refusal, SCHEDULER_TOO_LONG);
        return status_fail(STATUS_INVALID, "%lld tokens and %lld to be written: the context has %lld positions",
                           (long long)before, (long long)asked->max_tokens, (long long)o->max_positions);
    }
    if (after > page_rows - before) {
        refuse(refusal, SCHEDULER_TOO_LARGE);
        return status_fail(STATUS_INVALID, "%lld tokens and %lld to be written: the KV cache holds %lld",
                           (long long)before, (long long)asked->max_tokens, (long long)page_rows);
    }
    return STATUS_OK;
}

static int check_queue(const struct scheduler *s, const struct scheduler_request *asked,
                       enum scheduler_refusal *refusal) {
    const struct scheduler_options *o = &s->options;
    int64_t completions = s->waiting_count + s->running_count, tokens = asked->virtual_tokens + asked->prompt_length;
    if (o->max_requests && asked->choices > o->max_requests - completions)
        return status_fail(
            refuse(refusal, asked->choices > o->max_requests ? SCHEDULER_WRONG : SCHEDULER_QUEUED_REQUESTS),
            "%lld completions beside %lld that wait or run: at most %lld are accepted", (long long)asked->choices,
            (long long)completions, (long long)o->max_requests);
    if (o->max_queued_tokens && s->queued_tokens && tokens > o->max_queued_tokens - s->queued_tokens)
        return status_fail(refuse(refusal, SCHEDULER_QUEUED_TOKENS),
                           "a prompt of %lld tokens beside %lld that wait: at most %lld are accepted",
                           (long long)tokens, (long long)s->queued_tokens, (long long)o->max_queued_tokens);
    return STATUS_OK;
}

static int32_t *copy_ids(int32_t **at, const int32_t *ids, int64_t count) {
    int32_t *copy = *at;
    if (count)
        memcpy(copy, ids, (size_t)count * sizeof *ids);
    *at += count;
    return copy;
}

static int open_completion(const struct scheduler *s, struct request *request, int64_t choice, int32_t **at) {
    const struct scheduler_request *asked = &request->asked;
    struct completion *completion = &request->completion[choice];
    int32_t banned_count = (int32_t)(asked->stop_count + (asked->ignore_eos ? 0 : asked->end_count));
    completion->request = request;
    completion->choice = choice;
    completion->count = asked->prompt_length;
    completion->tokens = copy_ids(at, asked->prompt, asked->prompt_length);
    *at += asked->max_tokens;
    completion->sampling = asked->sampling;
    completion->sampling.choice += (uint32_t)choice;
    /* request_copy stored the stop ids before the end ids. */
    TRY(sampler_open(&completion->sampler, &(struct sampler_options){.sampling = &completion->sampling,
                                                                     .prompt = asked->prompt,
                                                                     .prompt_length = asked->prompt_length,
                                                                     .max_tokens = asked->max_tokens,
                                                                     .bias = asked->bias,
                                                                     .bias_count = asked->bias_count,
                                                                     .banned = asked->stop_ids,
                                                                     .banned_count = banned_count,
                                                                     .min_tokens = asked->min_tokens}));
    const struct constraint_options options = {.grammar = asked->grammar,
                                               .words = s->options.mask_words,
                                               .vocab = s->options.vocab,
                                               .draws_all = asked->wants_logprobs};
    return asked->grammar && asked->max_tokens
               ? constraint_open(s->options.constraints, &options, &completion->constraint)
               : STATUS_OK;
}

/* Copies a request with its arrays, except the biases, which its samplers copy. */
static int request_copy(const struct scheduler *s, const struct scheduler_request *asked, struct request **out) {
    int64_t completion_ids = asked->prompt_length + asked->max_tokens;
    int64_t ids = asked->choices * completion_ids + asked->stop_count + asked->end_count;
    struct request *request = calloc(1, sizeof *request + (size_t)asked->choices * sizeof *request->completion);
    TRY(status_allocated(request));
    request->asked = *asked;
    request->given_logprobs = asked->virtual_tokens_predict ? 0 : 1;
    if (asked->first_prompt_logprob > request->given_logprobs)
        request->given_logprobs = asked->first_prompt_logprob;
    request->queued_tokens = asked->virtual_tokens + asked->prompt_length;
    int32_t *at = request->ids = malloc((size_t)ids * sizeof *request->ids);
    int status = status_allocated(at);
    if (at) {
        request->asked.stop_ids = copy_ids(&at, asked->stop_ids, asked->stop_count);
        request->asked.end_ids = copy_ids(&at, asked->end_ids, asked->end_count);
    }
    for (int64_t choice = 0; choice < asked->choices && !status; choice++)
        status = open_completion(s, request, choice, &at);
    if (status) {
        request_free(request);
        return status;
    }
    request->asked.prompt = request->completion[0].tokens;
    request->asked.bias = NULL;
    *out = request;
    return STATUS_OK;
}

void request_free(struct request *request) {
    for (int64_t i = 0; i < request->asked.choices; i++) {
        constraint_close(request->completion[i].constraint);
        sampler_close(&request->completion[i].sampler);
    }
    free(request->ids);
    free(request);
}

static void enqueue(struct scheduler *s, struct request *request) {
    request->number = ++s->last_number;
    request->previous = s->last_request;
    *(s->last_request ? &s->last_request->next : &s->requests) = request;
    s->last_request = request;
    s->queued_tokens += request->queued_tokens;
    for (int64_t i = 0; i < request->asked.choices; i++) {
        struct completion *completion = &request->completion[i];
        completion->serial = ++s->last_serial;
        share_begin(&s->everybody, request->client);
        share_begin(request->client, request->adapter);
        completion_take_place(s, completion);
        completion_wait(s, completion);
    }
}

int scheduler_submit(struct scheduler *s, const struct scheduler_request *given, uint64_t *number,
                     enum scheduler_refusal *refusal) {
    struct scheduler_request asked = *given;
    asked.choices = given->choices ? given->choices : 1;
    asked.weight = given->weight != 0 ? given->weight : 1;
    *number = 0;
    if (s->failure)
        return status_fail(refuse(refusal, SCHEDULER_ENGINE_FAILED), "the engine has failed");
    *refusal = SCHEDULER_WRONG;
    TRY(check_values(s, &asked));
    TRY(check_length(s, &asked, refusal));
    TRY(check_queue(s, &asked, refusal));
    struct request *request = NULL;
    *refusal = SCHEDULER_NO_MEMORY;
    TRY(request_copy(s, &asked, &request));
    request->client = share_find(&s->everybody, asked.client, asked.weight);
    request->adapter = request->client ? share_find(request->client, asked.adapter, 1) : NULL;
    if (!request->adapter) {
        request_free(request);
        return status_no_memory();
    }
    enqueue(s, request);
    *number = request->number;
    *refusal = SCHEDULER_TAKEN;
    return STATUS_OK;
}
