/* Scoring: log-probabilities of the tokens of texts. The leader calls. */
#ifndef CAMBIUM_INFER_SCORE_H
#define CAMBIUM_INFER_SCORE_H

#include "infer/engine.h"

/* A text of a slot, and where its log-probabilities go. */
struct score_text {
    int slot;
    const int32_t *tokens; /* [count] */
    int64_t count;
    float *logprobs; /* [count] */
};
/* logprobs[i] = log p(tokens[i] | tokens[0 .. i-1]) for i >= 1, and for 0 where engine_slot_predicts_first; else
 * logprobs[0] is not touched. As many texts at once as the engine has room for. STATUS_INVALID as engine_check_tokens.
 */
int score_texts(struct engine *engine, struct score_text *texts, int64_t count);
/* One text of the opened slot. */
int score_tokens(struct engine *engine, const int32_t *tokens, int64_t count, float *logprobs);

#endif
