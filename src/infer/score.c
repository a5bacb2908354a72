/* Log-probabilities of given tokens: a request of the scheduler that writes nothing. */
#include "infer/infer.h"

struct scoring {
    float *logprobs;
    bool is_done;
};

static void on_prompt_logprob(void *context, int64_t index, const struct scheduler_token *token) {
    struct scoring *scoring = context;
    scoring->logprobs[index] = token->logprob;
}

static void on_done(void *context) {
    struct scoring *scoring = context;
    scoring->is_done = true;
}

int score_tokens(struct engine *engine, const int32_t *tokens, int64_t count, float *logprobs) {
    struct scoring scoring = {.logprobs = logprobs};
    struct scheduler *scheduler = NULL;
    enum scheduler_refusal refusal;
    uint64_t number;
    int slot = engine_opened_slot(engine);
    struct scheduler_request request = {
        .prompt = tokens,
        .prompt_length = count,
        .slot = slot,
        .stem_tokens = engine_slot_stem(engine, slot),
        .stem_predicts = engine_slot_predicts_first(engine, slot),
        .sampling = {.top_p = 1, .repetition_penalty = 1},
        .wants_prompt_logprobs = true,
        .calls = {.on_prompt_logprob = on_prompt_logprob, .on_done = on_done},
        .context = &scoring,
    };
    int status = engine_check_tokens(engine, slot, "", tokens, count);
    if (status || count == 0)
        return status;
    status = engine_open_scheduler(engine, &(struct scheduler_options){0}, &scheduler);
    if (!status)
        status = scheduler_submit(scheduler, &request, &number, &refusal);
    while (!scoring.is_done && status >= 0)
        status = scheduler_step(scheduler);
    if (scheduler)
        scheduler_close(scheduler);
    return status < 0 ? status : STATUS_OK;
}
