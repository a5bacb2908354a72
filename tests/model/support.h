/* A model opened for a test: device, rank and model, with weights from a directory or given initial values; a batch of
 * draws for it. */
#pragma once

#include "ckpt/ckpt.h"
#include "model/model.h"
#include "support/device.h"
#include "support/runner.h"
#include "support/store.h"
#include "support/test.h"
#include "support/tiny_model.h"

#include <math.h>

/* ---- a model ---- */

/* A vocabulary that divides by no number of ranks, and heads and widths that divide by 2 and 4. */
enum { TEST_HIDDEN = 24, TEST_HEADS = 4, TEST_FFN = 40, TEST_VOCAB = 31 };

/* Tied, without dropout. */
static inline struct model_config test_config(int64_t layers, int64_t positions) {
    return tiny_model(&(const struct tiny_model){.layers = layers,
                                                 .hidden = TEST_HIDDEN,
                                                 .heads = TEST_HEADS,
                                                 .ffn = TEST_FFN,
                                                 .positions = positions,
                                                 .vocab = TEST_VOCAB,
                                                 .init_std = 0.2});
}

struct test_model {
    struct device *device;
    struct rank rank;
    struct base *base;
    struct training_runner *model; /* one of the two is open */
    struct inference_runner *inference;
};

static inline void test_model_open(struct test_model *t, struct model_options options) {
    *t = (struct test_model){0};
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &t->device));
    test_ok(rank_open_single(&t->rank, t->device, 1));
    test_ok(test_open_training(&options, &t->rank, NULL, &t->base, &t->model));
}

/* Its weights come from base_fill. */
static inline void test_inference_open(struct test_model *t, struct model_options options, struct model_plan *plan) {
    *t = (struct test_model){0};
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &t->device));
    test_ok(rank_open_single(&t->rank, t->device, 1));
    test_ok(test_open_inference(&options, &t->rank, plan, &t->base, &t->inference));
}

/* A rank of a grid, on one thread. What was opened is there to be closed, whatever failed. */
static inline int test_model_open_rank(struct test_model *t, const struct model_options *options,
                                       const struct rank_grid *grid, struct comm *world, bool is_sequence_parallel) {
    *t = (struct test_model){0};
    int status = device_open(test_device(), DEVICE_FIRST, 1, &t->device);
    if (!status)
        status = rank_open(&t->rank, grid, world, t->device, 1);
    t->rank.is_sequence_parallel = is_sequence_parallel;
    return status ? status : test_open_training(options, &t->rank, NULL, &t->base, &t->model);
}

/* A step of inference: token 0 at position 0 of sequence 0, whose pages are 0 and 1, with its logits. */
static inline const struct model_step *test_one_row(void) {
    static const int32_t zero[2];
    static const struct id_change pages[2] = {{0, 0}, {1, 1}};
    static const struct model_step step = {.rows = 1,
                                           .tokens = zero,
                                           .positions = zero,
                                           .sequence = zero,
                                           .cached = zero,
                                           .place = zero,
                                           .page_change_count = 2,
                                           .page_changes = pages,
                                           .logit_rows = 1,
                                           .logit_row = zero,
                                           .labels = zero};
    return &step;
}

static inline void test_model_close(struct test_model *t) {
    inference_close(t->inference);
    test_close_training(&t->base, &t->model);
    rank_close(&t->rank);
    device_close(t->device);
}

static inline struct model_config test_read_config(const char *directory) {
    struct strbuf text = STRBUF_INIT;
    struct model_config config;
    enum dtype dtype;
    struct model_text_ends ends;
    test_ok(ckpt_read_config(directory, &text));
    test_ok(model_read_config(strbuf_text(&text), directory, &config, &dtype, &ends));
    strbuf_free(&text);
    return config;
}

static inline void test_model_load(struct test_model *t, const char *directory) {
    struct param_store *store = base_store(t->base);
    struct ckpt_tensors *tensors;
    test_ok(ckpt_open_model(directory, &tensors));
    struct ckpt_flat flat = ckpt_flat_weights(store, t->rank.exec.stream);
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    test_ok(ckpt_read(tensors, store->map.table, &array, 1));
    ckpt_close(tensors);
}

/* The model's weights and gradients, in host memory. */
static inline struct test_values test_model_values(struct test_model *t) {
    return test_values(base_store(t->base), t->rank.exec.stream);
}

/* A weight or gradient of a parameter, by our name. */
static inline float *test_weight(const struct test_values *values, const char *name) {
    int id = param_table_find(values->store->map.table, name, 0);
    assert_true(id >= 0);
    return values->weights + values->store->map.places[id].offset;
}
static inline float *test_gradient(const struct test_values *values, const char *name) {
    return values->gradients + (test_weight(values, name) - values->weights);
}

/* ---- a batch ---- */

enum { TEST_MICRO_BATCHES = 2, TEST_BATCH_ROWS = 640, TEST_SAMPLES = 16 };

/* Drawn tokens and labels in samples of one length. A micro batch stays until this thread makes the same one again.
 * Each row's loss counts a 32nd, every fifth's nothing; *weight, where it is not NULL, is for other weights. */
static inline struct model_batch test_batch(uint32_t samples, uint32_t length, uint32_t vocab, uint32_t micro,
                                            float **weight) {
    static _Thread_local struct {
        int32_t tokens[TEST_BATCH_ROWS], positions[TEST_BATCH_ROWS], labels[TEST_BATCH_ROWS];
        uint32_t sample[TEST_BATCH_ROWS], token[TEST_BATCH_ROWS];
        float weight[TEST_BATCH_ROWS];
        int64_t start[TEST_SAMPLES + 1];
    } batches[TEST_MICRO_BATCHES], *b;
    uint32_t rows = samples * length;
    assert_true(micro < TEST_MICRO_BATCHES && rows <= TEST_BATCH_ROWS && samples <= TEST_SAMPLES);
    b = &batches[micro];
    for (uint32_t i = 0; i < rows; i++) {
        struct philox draw = philox(5, i, micro, 0, 0);
        b->tokens[i] = (int32_t)(draw.word[0] % vocab);
        b->labels[i] = (int32_t)(draw.word[1] % vocab);
        b->positions[i] = (int32_t)(i % length);
        b->token[i] = i % length;
        b->sample[i] = i / length + micro * samples;
        b->weight[i] = i % 5 == 4 ? 0 : 1.0f / 32;
    }
    for (uint32_t s = 0; s <= samples; s++)
        b->start[s] = s * length;
    if (weight)
        *weight = b->weight;
    return (struct model_batch){.rows = rows,
                                .tokens = b->tokens,
                                .positions = b->positions,
                                .sample = b->sample,
                                .token = b->token,
                                .segments = samples,
                                .segment_start = b->start,
                                .labels = b->labels,
                                .loss_weight = b->weight};
}
