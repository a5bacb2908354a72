/* Scores texts by requests of the scheduler that draw no tokens. */
#include "infer/score.h"
#include "infer/slots.h"

static void on_prompt_logprob(void *context, int64_t index, const struct scheduler_token *token) {
    const struct score_text *text = context;
    text->logprobs[index] = token->logprob;
}

static int submit(struct engine *engine, struct scheduler *scheduler, struct score_text *text) {
    enum scheduler_refusal refusal;
    uint64_t number;
    struct scheduler_request request = {
        .prompt = text->tokens,
        .prompt_length = text->count,
        .slot = text->slot,
        .virtual_tokens = engine_slot_virtual_tokens(engine, text->slot),
        .virtual_tokens_predict = engine_slot_predicts_first(engine, text->slot),
        .sampling = {.top_p = 1, .repetition_penalty = 1},
        .wants_prompt_logprobs = true,
        .calls = {.on_prompt_logprob = on_prompt_logprob},
        .context = text,
    };
    return scheduler_submit(scheduler, &request, &number, &refusal);
}

int score_texts(struct engine *engine, struct score_text *texts, int64_t count) {
    struct scheduler *scheduler;
    int status = STATUS_OK;
    for (int64_t i = 0; i < count && !status; i++)
        status = engine_check_tokens(engine, texts[i].slot, "", texts[i].tokens, texts[i].count);
    if (!status)
        status = engine_open_scheduler(engine, &(struct scheduler_options){0}, &scheduler);
    TRY(status);
    for (int64_t i = 0; i < count && !status; i++)
        if (texts[i].count)
            status = submit(engine, scheduler, &texts[i]);
    while (!status && (status = scheduler_step(scheduler)) == 1)
        status = STATUS_OK;
    scheduler_close(scheduler);
    return status;
}

int score_tokens(struct engine *engine, const int32_t *tokens, int64_t count, float *logprobs) {
    struct score_text text = {
        .slot = engine_opened_slot(engine), .tokens = tokens, .count = count, .logprobs = logprobs};
    return score_texts(engine, &text, 1);
}
