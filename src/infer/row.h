/* Rows of a step of the engine, and what they give. */
#ifndef CAMBIUM_INFER_ROW_H
#define CAMBIUM_INFER_ROW_H

#include "infer/sampler.h"

/* As a row's token: the next token of the slot's stem, what its adapters put before every text. */
enum { ENGINE_STEM = -1 };

/* One row of a step: the next token of a sequence. Rows of one sequence stand in their order. What a row points to
 * stays as it is until the step was collected. */
struct engine_row {
    int32_t token; /* or ENGINE_STEM */
    int32_t sequence;
    bool wants_logits;
    int32_t label;                       /* with wants_logits: also log p(label); -1: none */
    int32_t top_count;                   /* with wants_logits: the likeliest tokens; 0: none */
    const struct sampling *sampling;     /* with wants_logits: draw the next token; NULL: none */
    const struct sample_change *changes; /* [change_count] for that draw */
    int64_t change_count;
};

/* The message where a log-probability is not finite. */
#define ENGINE_NO_PROBABILITY "a token has no probability: the model's numbers are broken"

/* The results of a row that wants logits. Log-probabilities are those of the plain
 * logits; they are not numbers where any of these logits is not finite. */
struct engine_result {
    int32_t token; /* drawn; -1: none */
    float logprob; /* of the drawn token */
    float label_logprob;
    const int32_t *top_token; /* [top_count] the likeliest first; the engine's, until its next collect */
    const float *top_logprob; /* [top_count] */
};

#endif
