/* Methods that begin as the identity, before their first step. Every bit is the base's, in the training forward and in
 * the engine with their files, in fp32 and in bf16. */
#include "infer/engine.h"
#include "infer/score.h"
#include "peft/support.h"
#include "pretrained/pretrained.h"
#include "support/passes.h"

enum { TOKENS = 32, VOCAB = 61 }; /* of the golden base */

static const struct named {
    const char *name;
    struct peft_config config;
} methods[] = {
    {"lora", {.type = PEFT_LORA, .r = 3, .lora_alpha = 6}},
    {"lora everywhere", {.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .target_modules = EVERYTHING}},
    {"rslora everywhere",
     {.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .use_rslora = true, .target_modules = EVERYTHING}},
    {"dora", {.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .use_dora = true}},
    {"dora everywhere", {.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .use_dora = true, .target_modules = EVERYTHING}},
    {"ia3", {.type = PEFT_IA3}},
    {"ia3 everywhere", {.type = PEFT_IA3, .target_modules = EVERYTHING, .feedforward_modules = LIST("mlp.c_proj")}},
    {"houlsby", {.type = PEFT_ADAPTER, .bottleneck = 5, .adapter_scaling = 1}},
    {"pfeiffer with a norm",
     {.type = PEFT_ADAPTER,
      .bottleneck = 5,
      .adapter_style = PEFT_PFEIFFER,
      .adapter_pre_norm = true,
      .adapter_scaling = 1}},
    {"parallel", {.type = PEFT_ADAPTER, .bottleneck = 5, .adapter_style = PEFT_PARALLEL, .adapter_scaling = 4}},
};
enum { METHODS = sizeof methods / sizeof *methods };

/* On a family with projections that are ranges of a place's outputs. */
static const struct named of_ranges[] = {
    {"lora", {.type = PEFT_LORA, .r = 3, .lora_alpha = 6}},
    {"lora everywhere", {.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .target_modules = LIST("all-linear")}},
    {"dora everywhere",
     {.type = PEFT_LORA, .r = 3, .lora_alpha = 6, .use_dora = true, .target_modules = LIST("all-linear")}},
    {"ia3", {.type = PEFT_IA3}},
    {"ia3 everywhere", {.type = PEFT_IA3, .target_modules = LIST("all-linear")}},
    {"houlsby", {.type = PEFT_ADAPTER, .bottleneck = 5, .adapter_scaling = 1}},
};
enum { OF_RANGES = sizeof of_ranges / sizeof *of_ranges };

static const char *root = "golden"; /* of the base, in tests/peft */

static const char *base_directory(void) {
    static _Thread_local char directory[512];
    snprintf(directory, sizeof directory, TEST_DATA "/peft/%s/base", root);
    return directory;
}

static int32_t token_at(int64_t i) {
    return (int32_t)((unsigned)(i * i + 7 * i) % VOCAB);
}

/* ---- the forward that trains ---- */

struct trained {
    struct rank rank;
    struct device *device;
    struct peft *peft; /* NULL: the base alone */
    struct base *base;
    struct training_runner *model;
};

static void read_base(struct model_config *config) {
    struct pretrained base;
    test_ok(pretrained_read_config(base_directory(), &base));
    *config = base.config;
    if (!strcmp(root, "golden"))
        config->hidden_dropout = config->embedding_dropout = 0.1; /* the same masks */
    config->attention_dropout = 0.1;
    pretrained_close(&base);
}

static void load_base(struct trained *t) {
    struct ckpt_tensors *tensors;
    struct param_store *store = base_store(t->base);
    struct ckpt_flat flat = ckpt_flat_weights(store, t->rank.exec.stream);
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    test_ok(ckpt_open_model(base_directory(), &tensors));
    test_ok(ckpt_read(tensors, store->map.table, &array, 1));
    ckpt_close(tensors);
}

/* `config` NULL: the base alone. */
static void trained_open(struct trained *t, const struct peft_config *config, enum dtype dtype, struct comm *world) {
    struct model_options options = {.base.dtype = dtype, .max_rows = TOKENS};
    struct peft_options adapters = {.adapters = config, .count = 1, .model = &options, .trains = true};
    *t = (struct trained){0};
    read_base(&options.base.config);
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &t->device));
    test_ok(rank_open(&t->rank, &(const struct rank_grid){1, 1, 1, 1, 1}, world, t->device, 1));
    if (config) {
        test_ok(peft_open(&adapters, &t->rank, &t->peft));
        options.hooks = peft_hooks(t->peft);
    }
    test_ok(test_open_training(&options, &t->rank, NULL, &t->base, &t->model));
    load_base(t);
    if (!config)
        return;
    test_ok(peft_allocate(t->peft));
    peft_set_base(t->peft, base_store(t->base));
    test_ok(peft_initialise(t->peft, 3));
    test_ok(peft_begin(t->peft));
}

static void trained_close(struct trained *t) {
    test_close_training(&t->base, &t->model);
    if (t->peft)
        peft_close(t->peft);
    rank_close(&t->rank);
    device_close(t->device);
}

struct answers {
    float losses[2][TOKENS]; /* with the base's dropout, and without */
    float logits[TOKENS * VOCAB];
    float served[TOKENS];
};

static void ask_trained(struct trained *t, struct answers *answers) {
    int32_t tokens[TOKENS], positions[TOKENS], labels[TOKENS];
    uint32_t sample[TOKENS] = {0}, token[TOKENS];
    float weight[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = token_at(i);
        labels[i] = token_at(i + 1);
        positions[i] = i;
        token[i] = (uint32_t)i;
        weight[i] = 1.0f / TOKENS;
    }
    struct model_batch batch = {.rows = TOKENS,
                                .tokens = tokens,
                                .positions = positions,
                                .sample = sample,
                                .token = token,
                                .segments = 1,
                                .segment_start = (int64_t[]){0, TOKENS},
                                .labels = labels,
                                .loss_weight = weight};
    struct model_pass pass = {.is_first_micro_batch = true, .is_last_micro_batch = true, .has_dropout = true};
    test_ok(test_train_step(t->model, &batch, &pass));
    test_ok(test_row_losses(t->model, &batch, answers->losses[0]));
    test_ok(test_evaluate(t->model, &batch));
    test_ok(test_row_losses(t->model, &batch, answers->losses[1]));
    test_ok(model_logits(t->model, &batch, answers->logits));
}

/* ---- the engine ---- */

static void ask_engine(const char *adapter, int precision, struct answers *answers) {
    struct engine *engine;
    struct engine_options options = {.device = test_device(),
                                     .model = base_directory(),
                                     .adapters = &adapter,
                                     .adapter_count = adapter != NULL,
                                     .precision = precision,
                                     .threads = 1,
                                     .max_rows = TOKENS,
                                     .max_logit_rows = TOKENS,
                                     .max_sequences = 1};
    int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = token_at(i);
    test_ok(engine_open(&options, &engine));
    answers->served[0] = 0; /* nothing predicts the first */
    test_ok(score_tokens(engine, tokens, TOKENS, answers->served));
    answers->served[0] = 0;
    engine_close(engine);
}

struct begun {
    const struct named *method;
    enum dtype dtype;
    const char *directory;
    struct answers *answers;
};

/* The answers of a fresh adapter, and its files. */
static int begin(struct comm *world, void *context) {
    const struct begun *begun = context;
    struct trained trained;
    struct peft_texts texts;
    struct model_config base;
    read_base(&base);
    trained_open(&trained, &begun->method->config, begun->dtype, world);
    ask_trained(&trained, begun->answers);
    test_ok(peft_texts_make(&begun->method->config, 1, &base, base_directory(), &(struct peft_notes){0}, &texts));
    test_ok(peft_export(
        trained.peft,
        &(struct peft_export){.texts = texts.items, .text_count = texts.count, .directory = begun->directory}));
    peft_texts_free(&texts);
    trained_close(&trained);
    return STATUS_OK;
}

static void check(int precision, const struct named *named, int count) {
    static struct answers base, tuned;
    enum dtype dtype = precision == PRECISION_BF16 ? DTYPE_BF16 : DTYPE_F32;
    struct trained plain;
    trained_open(&plain, NULL, dtype, NULL);
    ask_trained(&plain, &base);
    trained_close(&plain);
    ask_engine(NULL, precision, &base);
    for (int m = 0; m < count; m++) {
        char *directory = test_directory();
        struct begun begun = {.method = &named[m], .dtype = dtype, .directory = directory, .answers = &tuned};
        test_ok(comm_local_run(1, begin, &begun));
        ask_engine(directory, precision, &tuned);
        const char *other = memcmp(base.losses[0], tuned.losses[0], sizeof base.losses[0])
                                ? "the training step's losses"
                            : memcmp(base.losses[1], tuned.losses[1], sizeof base.losses[1]) ? "the validation's losses"
                            : memcmp(base.logits, tuned.logits, sizeof base.logits)          ? "the logits"
                            : memcmp(base.served, tuned.served, sizeof base.served)          ? "what the engine serves"
                                                                                             : NULL;
        if (other)
            fail_msg("%s, %s: other bits in %s", named[m].name, dtype_name(dtype), other);
        free(directory);
    }
}

static void methods_begin_as_the_base_in_fp32(void **state) {
    (void)state;
    check(PRECISION_FP32, methods, METHODS);
}

static void methods_begin_as_the_base_in_bf16(void **state) {
    (void)state;
    test_skip_without_bf16();
    check(PRECISION_BF16, methods, METHODS);
}

static void ranges_begin_as_the_base(void **state) {
    (void)state;
    static const char *const roots[] = {"families/llama", "families/qwen3"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        root = roots[i];
        check(PRECISION_FP32, of_ranges, OF_RANGES);
        if (test_has_bf16())
            check(PRECISION_BF16, of_ranges, OF_RANGES);
        root = "golden";
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(methods_begin_as_the_base_in_fp32),
        cmocka_unit_test(methods_begin_as_the_base_in_bf16),
        cmocka_unit_test(ranges_begin_as_the_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
