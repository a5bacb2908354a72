/* Scoring: log-probabilities of the tokens of texts. Only the leader calls these functions. */
#pragma once

#include "infer/engine.h"

/* A text, its slot, and the buffer for its log-probabilities. */
struct score_text {
    int slot;
    const int32_t *tokens; /* [count] */
    int64_t count;
    float *logprobs; /* [count] */
};
/* Sets logprobs[i] = log p(tokens[i] | tokens[0 .. i-1]) for i >= 1, and for i = 0 if engine_slot_predicts_first;
 * otherwise logprobs[0] is not changed. Scores as many texts at once as the engine has room for. STATUS_INVALID as
 * engine_check_tokens; errors of the engine. */
int score_texts(struct engine *engine, struct score_text *texts, int64_t count);
/* Scores one text with the engine's opened slot. Errors as score_texts. */
int score_tokens(struct engine *engine, const int32_t *tokens, int64_t count, float *logprobs);
