/* Rows of an engine's step, and their results. */
#pragma once

#include "infer/constraint.h"
#include "infer/sampler.h"

/* The token of a row that runs the slot's next virtual token. */
enum { ENGINE_VIRTUAL_TOKEN = -1 };

/* One row of a step: the next token of a sequence. Rows of one sequence are in the order of its tokens. The caller
 * keeps what a row points to unchanged until the step is collected. */
struct engine_row {
    int32_t token; /* or ENGINE_VIRTUAL_TOKEN */
    int32_t sequence;
    bool wants_logits;
    int32_t label;                       /* with wants_logits: report log p(label); -1: none */
    int32_t top_count;                   /* with wants_logits: number of likeliest tokens to report */
    const struct sampling *sampling;     /* with wants_logits: draw the next token; NULL: do not */
    const struct sample_change *changes; /* [change_count] for that draw */
    int64_t change_count;
    /* With sampling: the draw is under its mask, which may still be in the making. NULL: every id is allowed. */
    struct constraint *constraint;
    bool is_again; /* the sequence's last token once more, because its draw had no mask */
};

/* The error message for a log-probability that is not finite. */
#define ENGINE_NO_PROBABILITY "a token has no probability: the model's numbers are broken"

/* The results of a row that wants logits. Log-probabilities are computed from the unchanged logits; they are NaN when
 * any logit is not finite. */
struct engine_result {
    int32_t token; /* drawn; -1: none, also when the mask was late */
    float logprob; /* of the drawn token */
    float label_logprob;
    bool is_greedy;           /* the label is the likeliest token, and has the lowest id of equal ones */
    const int32_t *top_token; /* [top_count] likeliest first; valid until the engine's next collect */
    const float *top_logprob; /* [top_count] */
};
