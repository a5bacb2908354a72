/* How the next token of a text is drawn, and what a text's past changes in it.
 *
 * The order of the changes is: logit_bias and banned ids, repetition penalty (ids of prompt and output), presence and
 * frequency penalties (counts of the output alone), temperature, top_k, top_p, min_p. A sampler keeps for one text the
 * ids whose logits change, each once, and goes on with each token; nothing is allocated after its opening. */
#ifndef CAMBIUM_INFER_SAMPLER_H
#define CAMBIUM_INFER_SAMPLER_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

struct sampling {
    double temperature; /* 0: the largest logit */
    double top_p, min_p;
    int64_t top_k; /* 0: all */
    double repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed;
    uint32_t choice; /* which of several samples of one prompt; a draw is keyed by (seed, choice, position) */
};

struct logit_bias {
    int32_t id;
    float bias;
};

/* A text's options for its sampler. Arrays are copied. */
struct sampler_options {
    const struct sampling *sampling;
    const int32_t *prompt;
    int64_t prompt_length, max_tokens;
    const struct logit_bias *bias;
    int64_t bias_count;
    const int32_t *banned; /* until the text has min_tokens tokens */
    int64_t banned_count, min_tokens;
};

struct sampler {
    struct sample_change *change; /* [count] in the order in which the ids came */
    int64_t count, capacity;
    int32_t *index; /* [index_count] change of an id by its hash, -1: none */
    int64_t index_count;
    int32_t *banned;    /* [banned_count] */
    float *banned_bias; /* [banned_count] when they are banned no longer */
    int64_t banned_count, min_tokens, length;
    bool counts_output, sees_prompt;
};

/* A sampler has no changes, and needs no memory, where nothing of the kind is asked. STATUS_MEMORY. */
int sampler_open(struct sampler *sampler, const struct sampler_options *options);
void sampler_close(struct sampler *sampler);
/* A token was drawn. */
void sampler_add(struct sampler *sampler, int32_t token);

#endif
