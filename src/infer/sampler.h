/* Sampling options, and the logits that earlier tokens change.
 *
 * The order of the changes is: logit_bias and banned ids, repetition penalty (ids of prompt and output), presence and
 * frequency penalties (counts of the output), temperature, top_k, top_p, min_p. A sampler lists the ids of one
 * completion whose logits change, each once, and is updated by each token. Only opening allocates memory. */
#pragma once

#include "kernels/ops.h"

struct sampling {
    double temperature;  /* 0: take the largest logit */
    double top_p, min_p; /* top_p 0: take the largest logit */
    int64_t top_k;       /* 0, -1: all */
    double repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed;   /* answers in JSON show it as a signed number */
    uint32_t choice; /* number of the completion of one prompt; a draw's random number is a function of (seed, choice,
                        position) */
};

struct logit_bias {
    int32_t id;
    float bias;
};

/* The options of a completion's sampler. Arrays are copied. */
struct sampler_options {
    const struct sampling *sampling;
    const int32_t *prompt;
    int64_t prompt_length, max_tokens;
    const struct logit_bias *bias;
    int64_t bias_count;
    const int32_t *banned; /* until the completion has min_tokens tokens */
    int64_t banned_count, min_tokens;
};

struct sampler {
    struct sample_change *change; /* [count] in the order of first use */
    int64_t count, capacity;
    int32_t *index; /* [index_count] index of an id's change by its hash; -1: none */
    int64_t index_count;
    int32_t *banned;    /* [banned_count] */
    float *banned_bias; /* [banned_count] their bias after the ban */
    int64_t banned_count, min_tokens, length;
    bool counts_output, sees_prompt;
};

/* Opens a sampler. It takes no memory when the options change no logits. STATUS_MEMORY. */
int sampler_open(struct sampler *sampler, const struct sampler_options *options);
void sampler_close(struct sampler *sampler);
/* Adds a drawn token. */
void sampler_add(struct sampler *sampler, int32_t token);
