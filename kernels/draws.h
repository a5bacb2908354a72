/* Arguments of the operation that draws tokens (ops.h). */
#pragma once

#include "base/base.h"

enum { SAMPLE_MAX_TOP = 20 };

/* A change of one id's logit in the next draw of a row. */
struct sample_change {
    int32_t id;
    int32_t count; /* occurrences in the output */
    float bias;    /* added to the logit; -INFINITY: banned */
    bool is_seen;  /* in the prompt or the output */
};

/* How one row's next token is drawn. The steps, in order:
 *     1. each changed logit gets its bias;
 *     2. the repetition penalty divides positive logits of seen ids, and multiplies negative ones;
 *     3. the presence penalty is subtracted where the count is above 0;
 *     4. the frequency penalty times the count is subtracted;
 *     5. logits are divided by the temperature;
 *     6. top_k, top_p and min_p remove ids; min_p keeps ids with at least min_p of the likeliest id's probability.
 *
 * The likeliest id always stays; of equal logits, lower ids come first. With temperature 0, the token is the largest
 * logit after the penalties.
 *
 * A row with a mask draws allowed ids only, whatever their changes: all steps see no other ids. If no allowed logit is
 * finite, the token is the lowest allowed id. If no id is allowed, it is -1. */
struct sample_row {
    float temperature;
    float top_p;   /* 1: all */
    float min_p;   /* 0: all */
    int32_t top_k; /* 0: all */
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed;
    uint32_t choice, position;          /* keys of the draw's random number */
    int32_t first_change, change_count; /* in the call's `changes`: each id at most once, in any order */
    int32_t top_count;                  /* likeliest ids to return, whether allowed or not: 0 .. SAMPLE_MAX_TOP */
    int32_t mask; /* number of its mask among the call's `masks`, from 1; 0: every id is allowed */
    bool draws;   /* false: the token is -1 and its log-probability 0 */
};
/* Returns the 32-bit words of a mask: bit id % 32 of word id / 32 is set if the id is allowed. */
BASE_INLINE int64_t sample_mask_words(int64_t vocab) {
    return (vocab + 31) / 32;
}

/* Draws the next token of each row. Log-probabilities are those of the plain logits, before any change; they are NaN if
 * a logit of the row is not finite. */
struct sample {
    int64_t rows, vocab, stride;
    enum dtype type;
    const void *logits; /* [N, stride] */
    const struct sample_row *row;
    const struct sample_change *changes; /* of all rows; NULL if no row has any */
    const uint32_t *masks;               /* [masks, sample_mask_words] NULL if no row has any */
    int32_t *token;                      /* [N] out */
    float *logprob;                      /* [N] out, of the token; may be NULL */
    /* [N, SAMPLE_MAX_TOP] out: the likeliest ids of the plain logits, the likeliest first; -1 and 0 after the last.
     * NULL if no row asks for any. */
    int32_t *top_token;
    float *top_logprob;
};
