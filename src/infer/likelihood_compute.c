/* Computes log-probabilities of continuations by requests of the scheduler. A request whose beginning another one runs
 * is submitted after that beginning has run, and finds it in the prefix cache. */
#include "infer/likelihood.h"
#include "infer/slots.h"

#include <math.h>

/* A request under way. */
struct asked {
    struct likelihood *request;
    const struct asked *leader; /* the request that runs its beginning; NULL: none */
    int64_t shared;             /* tokens that it has from there, in whole pages */
    int64_t *expected;          /* such tokens of all requests that wait to start */
    bool is_submitted, has_begun;
};

static void on_start(void *context, int64_t cached) {
    struct asked *asked = context;
    asked->request->cached = cached;
    *asked->expected -= asked->shared;
}

static void on_prompt_logprob(void *context, int64_t index, const struct scheduler_token *token) {
    struct asked *asked = context;
    asked->has_begun = true;
    asked->request->logprob += (double)token->logprob;
    asked->request->is_greedy &= token->is_greedy;
}

static int submit(struct engine *engine, struct scheduler *scheduler, int slot, const int32_t *ids,
                  struct asked *asked) {
    enum scheduler_refusal refusal;
    uint64_t number;
    struct scheduler_request request = {
        .prompt = ids + asked->request->start,
        .prompt_length = asked->request->count,
        .slot = slot,
        .virtual_tokens = engine_slot_virtual_tokens(engine, slot),
        .virtual_tokens_predict = engine_slot_predicts_first(engine, slot),
        .sampling = {.top_p = 1, .repetition_penalty = 1},
        .wants_prompt_logprobs = true,
        .first_prompt_logprob = asked->request->first,
        .calls = {.on_start = on_start, .on_prompt_logprob = on_prompt_logprob},
        .context = asked,
    };
    asked->is_submitted = true;
    *asked->expected += asked->shared;
    asked->request->logprob = 0;
    asked->request->is_greedy = true;
    return scheduler_submit(scheduler, &request, &number, &refusal);
}

/* Returns how many tokens the contexts of both begin with alike, in whole pages. The row of the last token before the
 * continuation runs in any case. */
static int64_t count_shared(const int32_t *ids, const struct likelihood *a, const struct likelihood *b) {
    int64_t most = (a->first < b->first ? a->first : b->first) - 1, count = 0;
    while (count < most && ids[a->start + count] == ids[b->start + count])
        count++;
    return count / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
}

/* Lets each request follow the first of those before it that begin like it. */
static void find_leaders(struct asked *asked, int64_t count, const int32_t *ids) {
    const struct asked *leader = NULL;
    for (int64_t i = 0; i < count; i++) {
        int64_t shared = leader ? count_shared(ids, leader->request, asked[i].request) : 0;
        asked[i].shared = shared;
        if (shared)
            asked[i].leader = leader;
        else
            leader = &asked[i];
    }
}

/* Submits requests in their order until enough tokens wait for the next steps, beside those that the cache is expected
 * to have. *first: the first that may be due. */
static int submit_due(struct engine *engine, struct scheduler *scheduler, int slot, const int32_t *ids,
                      struct asked *asked, int64_t count, int64_t *first) {
    struct scheduler_stats stats;
    int64_t enough = 2 * engine_max_rows(engine);
    int status = STATUS_OK;
    while (*first < count && asked[*first].is_submitted)
        ++*first;
    scheduler_read_stats(scheduler, &stats);
    for (int64_t i = *first; i < count && !status && stats.queued_tokens - *asked->expected < enough; i++) {
        if (asked[i].is_submitted || (asked[i].leader && !asked[i].leader->has_begun))
            continue;
        status = submit(engine, scheduler, slot, ids, &asked[i]);
        scheduler_read_stats(scheduler, &stats);
    }
    return status;
}

static int check_results(const struct asked *asked, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(asked[i].request->logprob))
            return status_fail(STATUS_INVALID, ENGINE_NO_PROBABILITY);
    return STATUS_OK;
}

static int run(struct engine *engine, int slot, const int32_t *ids, struct asked *asked, int64_t count) {
    struct scheduler *scheduler;
    int64_t first = 0;
    int acted = 1, status = engine_open_scheduler(engine, &(struct scheduler_options){0}, &scheduler);
    TRY(status);
    while (!status && acted > 0) {
        status = submit_due(engine, scheduler, slot, ids, asked, count, &first);
        acted = status ? status : scheduler_step(scheduler);
        status = acted < 0 ? acted : status;
    }
    scheduler_close(scheduler);
    return status ? status : check_results(asked, count);
}

int likelihood_compute(struct engine *engine, int slot, const int32_t *ids, struct likelihood *const *requests,
                       int64_t count) {
    int64_t expected = 0;
    struct asked *asked = calloc((size_t)count + 1, sizeof *asked);
    TRY(status_allocated(asked));
    for (int64_t i = 0; i < count; i++)
        asked[i] = (struct asked){.request = requests[i], .expected = &expected};
    find_leaders(asked, count, ids);
    int status = run(engine, slot, ids, asked, count);
    free(asked);
    return status;
}
