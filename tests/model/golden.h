/* A case of tools/golden/model_vectors.py: a model, a batch, and what `transformers` makes of them in fp64. */
#pragma once

#include "model/support.h"

#include <jansson.h>

/* Those of Llama's variants, which have steps.json. */
#define GOLDEN_VARIANTS                                                                                                \
    "llama_wide_heads", "llama_biases_linear", "llama_3", "mistral_window", "qwen2_tied", "qwen2_yarn_windows",        \
        "qwen3", "phi3_partial"

struct golden {
    char directory[512];
    struct model_config config;
    int64_t B, T, N;
    int32_t *tokens, *positions, *labels;
    uint32_t *sample, *token;
    float *weight;
    int64_t *starts;
    struct safetensors *expected;
};

static inline void golden_open(struct golden *g, const char *name) {
    snprintf(g->directory, sizeof g->directory, "%s/model/golden/%s", TEST_DATA, name);
    g->config = test_read_config(g->directory);
    char path[600];
    snprintf(path, sizeof path, "%s/batch.json", g->directory);
    json_t *batch = json_load_file(path, 0, NULL);
    assert_non_null(batch);
    json_t *tokens = json_object_get(batch, "tokens"), *labels = json_object_get(batch, "labels");
    g->B = (int64_t)json_array_size(tokens);
    g->T = (int64_t)json_array_size(json_array_get(tokens, 0));
    g->N = g->B * g->T;
    g->tokens = calloc((size_t)g->N, 4);
    g->positions = calloc((size_t)g->N, 4);
    g->labels = calloc((size_t)g->N, 4);
    g->sample = calloc((size_t)g->N, 4);
    g->token = calloc((size_t)g->N, 4);
    g->weight = calloc((size_t)g->N, 4);
    g->starts = calloc((size_t)g->B + 1, 8);
    int64_t counted = 0;
    for (int64_t i = 0; i < g->N; i++) {
        json_int_t label =
            json_integer_value(json_array_get(json_array_get(labels, (size_t)(i / g->T)), (size_t)(i % g->T)));
        g->tokens[i] =
            (int32_t)json_integer_value(json_array_get(json_array_get(tokens, (size_t)(i / g->T)), (size_t)(i % g->T)));
        g->positions[i] = (int32_t)(i % g->T);
        g->labels[i] = label < 0 ? 0 : (int32_t)label;
        g->weight[i] = label < 0 ? 0 : 1;
        counted += label >= 0;
    }
    for (int64_t i = 0; i < g->N; i++)
        g->weight[i] /= (float)counted;
    for (int64_t i = 0; i <= g->B; i++)
        g->starts[i] = i * g->T;
    json_decref(batch);
    snprintf(path, sizeof path, "%s/expected.safetensors", g->directory);
    test_ok(safetensors_open(path, &g->expected));
}

static inline void golden_close(struct golden *g) {
    safetensors_close(g->expected);
    free(g->tokens);
    free(g->positions);
    free(g->labels);
    free(g->sample);
    free(g->token);
    free(g->weight);
    free(g->starts);
}

/* Samples [first, first + count) as a batch. */
static inline struct model_batch golden_batch(const struct golden *g, int64_t first, int64_t count) {
    int64_t at = first * g->T;
    return (struct model_batch){.rows = count * g->T,
                                .tokens = g->tokens + at,
                                .positions = g->positions + at,
                                .sample = g->sample + at,
                                .token = g->token + at,
                                .segments = count,
                                .segment_start = g->starts,
                                .labels = g->labels + at,
                                .loss_weight = g->weight + at};
}

/* The case's steps.json: a new reference. */
static inline json_t *golden_steps(const struct golden *g) {
    char path[600];
    snprintf(path, sizeof path, "%s/steps.json", g->directory);
    json_t *steps = json_load_file(path, 0, NULL);
    assert_non_null(steps);
    return steps;
}
