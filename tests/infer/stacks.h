/* Stacks of the golden adapters on their base: engines that serve them, and the forward that trains them. */
#pragma once

#include "infer/engine.h"
#include "infer/score.h"
#include "pretrained/pretrained.h"
#include "support/runner.h"
#include "support/store.h"
#include "support/test.h"

#include <math.h>

enum { V = 61, POSITIONS = 32, ROWS = 64 }; /* of the golden base */

static const char *stacks_root = "golden"; /* in tests/peft: of another family "families/llama" */

static inline const char *base_directory(void) {
    static _Thread_local char directory[512];
    snprintf(directory, sizeof directory, TEST_DATA "/peft/%s/base", stacks_root);
    return directory;
}

static inline int32_t token_at(int text, int64_t i) {
    return (int32_t)((unsigned)(i * (7 + 4 * text) + text) % V);
}

/* ---- stacks of adapters ---- */

/* Cases below stacks_root, or directories by their whole paths. "prompt:N" and "prefix:N" are made here, of N virtual
 * tokens, and "lora:N" of rank N. */
enum { PARTS = 4 };
struct stack {
    const char *parts[PARTS];
    size_t count;
    int64_t prefix, virtual_tokens;
};

struct directories {
    char *name[PARTS];
};

static inline void read_base(struct model_config *config) {
    struct pretrained base;
    test_ok(pretrained_read_config(base_directory(), &base));
    *config = base.config;
    pretrained_close(&base);
}

struct made {
    int type;
    int64_t number; /* of virtual tokens, or the rank */
    const char *directory;
};

/* A LoRA begins with zeros, and would change nothing. */
static inline void fill_zeros(struct peft *peft, struct stream *stream) {
    struct test_values values = test_values(peft_store(peft), stream);
    for (int64_t i = 0; i < values.store->map.flat_elements; i++)
        if (values.weights[i] == 0)
            values.weights[i] = 0.01f * (float)(i * 7 % 11 - 5);
    test_ok(test_values_put(&values, stream));
}

/* Random values, written as a finished training writes them. */
static inline int make_adapter(struct comm *world, void *context) {
    const struct made *made = context;
    struct model_options options = {.base.dtype = DTYPE_F32, .base.trains = true, .max_rows = ROWS};
    struct peft_config config = {.type = made->type};
    if (made->type == PEFT_LORA)
        config.r = config.lora_alpha = (double)made->number;
    else
        config.num_virtual_tokens = made->number, config.prompt_tuning_init = PEFT_INIT_RANDOM;
    struct peft_options adapters = {.adapters = &config, .count = 1, .model = &options, .trains = true};
    struct device *device;
    struct rank rank;
    struct peft *peft;
    struct peft_texts texts;
    read_base(&options.base.config);
    options.base.chunks[0].count = options.base.config.num_layers;
    options.base.chunk_count = 1;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(rank_open(&rank, &(const struct rank_grid){1, 1, 1, 1, 1}, world, device, 1));
    test_ok(peft_open(&adapters, &rank, &peft));
    test_ok(rank_allocate_workspace(&rank));
    test_ok(peft_allocate(peft));
    test_ok(peft_initialise(peft, 3));
    if (made->type == PEFT_LORA)
        fill_zeros(peft, rank.exec.stream);
    test_ok(peft_texts_make(&config, 1, &options.base.config, base_directory(), &(struct peft_notes){0}, &texts));
    test_ok(peft_export(
        peft, &(struct peft_export){.texts = texts.items, .text_count = texts.count, .directory = made->directory}));
    peft_texts_free(&texts);
    peft_close(peft);
    rank_close(&rank);
    device_close(device);
    return STATUS_OK;
}

static inline void find_stack(const struct stack *stack, struct directories *directories) {
    for (size_t i = 0; i < stack->count; i++) {
        const char *part = stack->parts[i], *number = strchr(part, ':');
        if (number) {
            int type = *part == 'l' ? PEFT_LORA : part[2] == 'o' ? PEFT_PROMPT : PEFT_PREFIX;
            directories->name[i] = test_directory();
            struct made made = {type, atoi(number + 1), directories->name[i]};
            test_ok(comm_local_run(1, make_adapter, &made));
        } else if ((*part == '/' ? asprintf(&directories->name[i], "%s", part)
                                 : asprintf(&directories->name[i], TEST_DATA "/peft/%s/%s", stacks_root, part)) < 0) {
            fail();
        }
    }
}

static inline void forget_stack(const struct stack *stack, struct directories *directories) {
    for (size_t i = 0; i < stack->count; i++)
        free(directories->name[i]);
}

/* The caller says what is not of every engine here. */
static inline struct engine *open_engine(const struct stack *stack, struct engine_options options) {
    struct directories directories;
    struct engine *engine;
    find_stack(stack, &directories);
    options.device = test_device();
    options.model = base_directory();
    options.adapters = (const char *const *)directories.name;
    options.adapter_count = stack->count;
    options.max_logit_rows = options.max_rows;
    test_ok(engine_open(&options, &engine));
    forget_stack(stack, &directories);
    return engine;
}

/* ---- the forward that trains: a step of it, without dropout ---- */

struct trained {
    struct device *device;
    struct rank rank;
    struct peft_files *files;
    struct peft *peft;
    struct base *base;
    struct training_runner *model;
};

static inline void trained_open(struct trained *t, const struct stack *stack) {
    struct directories directories;
    struct model_options options = {.base.dtype = DTYPE_F32, .max_rows = ROWS};
    struct ckpt_tensors *tensors;
    *t = (struct trained){0};
    find_stack(stack, &directories);
    read_base(&options.base.config);
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &t->device));
    test_ok(rank_open_single(&t->rank, t->device, 1));
    test_ok(peft_files_open((const char *const *)directories.name, stack->count, true, &t->files));
    struct peft_options adapters = {.adapters = peft_files_configs(t->files), .count = peft_files_count(t->files)};
    adapters.model = &options;
    adapters.trains = true;
    test_ok(peft_open(&adapters, &t->rank, &t->peft));
    options.hooks = peft_hooks(t->peft);
    test_ok(test_open_training(&options, &t->rank, NULL, &t->base, &t->model));
    struct param_store *store = base_store(t->base);
    struct ckpt_flat flat = ckpt_flat_weights(store, t->rank.exec.stream);
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    test_ok(ckpt_open_model(base_directory(), &tensors));
    test_ok(ckpt_read(tensors, store->map.table, &array, 1));
    ckpt_close(tensors);
    test_ok(peft_allocate(t->peft));
    peft_set_base(t->peft, store);
    test_ok(peft_load(t->peft, t->files));
    test_ok(peft_begin(t->peft));
    assert_int_equal(peft_prefix_tokens(t->peft), stack->prefix);
    assert_int_equal(peft_virtual_tokens(t->peft), stack->virtual_tokens);
    forget_stack(stack, &directories);
}

static inline void trained_close(struct trained *t) {
    test_close_training(&t->base, &t->model);
    peft_close(t->peft);
    peft_files_close(t->files);
    rank_close(&t->rank);
    device_close(t->device);
}

/* logprobs[i] = log p(token i); that of the first token where a virtual one predicts it. */
static inline void trained_logprobs(struct trained *t, const struct stack *stack, int text, int64_t count,
                                    float *logprobs) {
    int32_t tokens[ROWS], positions[ROWS], labels[ROWS];
    uint32_t zero[ROWS] = {0};
    float weight[ROWS] = {0}, losses[ROWS];
    int64_t ahead = stack->virtual_tokens, rows = ahead + count - 1;
    for (int64_t i = 0; i < rows; i++) {
        tokens[i] = i < ahead ? (int32_t)(V + i) : token_at(text, i - ahead);
        labels[i] = i + 1 < ahead ? 0 : token_at(text, i + 1 - ahead);
        positions[i] = (int32_t)(stack->prefix + i);
    }
    struct model_batch batch = {.rows = rows,
                                .tokens = tokens,
                                .positions = positions,
                                .sample = zero,
                                .token = zero,
                                .segments = 1,
                                .segment_start = (int64_t[]){0, rows},
                                .labels = labels,
                                .loss_weight = weight};
    struct model_pass pass = {.is_first_micro_batch = true, .is_last_micro_batch = true};
    test_ok(model_train_step(t->model, &batch, &pass));
    test_ok(model_row_losses(t->model, &batch, losses));
    for (int64_t i = ahead ? 0 : 1; i < count; i++)
        logprobs[i] = -losses[ahead + i - 1];
}

/* ---- the same answers ---- */

static inline int64_t longest_text(const struct stack *stack) {
    return POSITIONS - stack->prefix - stack->virtual_tokens;
}

static inline int score(struct engine *engine, int text, int64_t count, float *logprobs) {
    int32_t tokens[POSITIONS];
    for (int64_t i = 0; i < count; i++)
        tokens[i] = token_at(text, i);
    return score_tokens(engine, tokens, count, logprobs);
}

static inline bool is_near(float ours, float expected) {
    return fabsf(ours - expected) <= 1e-5f * (1 + fabsf(expected));
}
