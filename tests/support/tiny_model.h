/* The small models of tests. */
#pragma once

#include "model/family.h"

struct tiny_model {
    int64_t layers, hidden, heads, ffn, positions, vocab;
    double init_std; /* of the initial values */
};
/* A model of GPT-2's family: every head has keys of its own; tied, with biases, without dropout. */
struct model_config tiny_model(const struct tiny_model *sizes);
/* Makes it one of Llama's relatives, by name: its norm, rotary positions, gated MLP, biases and window; `groups` heads
 * of keys and values, each of `channels`. Fails the test where there is no such family. */
void tiny_model_become(struct model_config *config, const char *family, int64_t groups, int64_t channels);

/* The keys of a GPT-2's config.json, without braces; both arguments are literals. */
#define TINY_GPT2_KEYS(layers, vocab) "\"model_type\":\"gpt2\"," TINY_GPT2_SIZES(layers, vocab)
/* Without the family. */
#define TINY_GPT2_SIZES(layers, vocab)                                                                                 \
    "\"n_layer\":" #layers ",\"n_embd\":8,\"n_head\":2,\"n_positions\":4,\"vocab_size\":" #vocab
