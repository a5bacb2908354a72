/* Adapters read a frozen base: in a pass while the pass has unsharded its unit, and outside one after
 * unsharding it themselves. Weights of the base are counted, as in tests/model/units_test.c. */
#include "peft/bank.h"
#include "peft/support.h"
#include "support/counting.h"

static const int32_t text[] = {3, 1, 4};

/* Readers of the base: DoRA's norms outside a pass, its product with dropout and IA3's inputs inside; the first rows of
 * prompts. */
static const struct peft_config stacks[][2] = {
    {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .use_dora = true, .target_modules = EVERYTHING}},
    {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .use_dora = true, .lora_dropout = 0.2, .target_modules = EVERYTHING}},
    {{.type = PEFT_IA3}},
    {{.type = PEFT_PROMPT,
      .num_virtual_tokens = 2,
      .prompt_tuning_init = PEFT_INIT_TEXT,
      .prompt_tuning_init_ids = text,
      .prompt_tuning_init_count = 3}},
    {{.type = PEFT_PROMPT, .num_virtual_tokens = 2, .prompt_tuning_init = PEFT_INIT_SAMPLE_VOCAB},
     {.type = PEFT_LORA, .r = 2, .lora_alpha = 2}},
};
enum { STACKS = sizeof stacks / sizeof *stacks, LAYERS = 2 };

static const struct model_recompute recomputations[] = {
    {.how = RECOMPUTE_NONE},
    {.how = RECOMPUTE_SELECTIVE, .layernorm = true, .mlp_act = true},
    {.how = RECOMPUTE_UNIFORM, .num_layers = 1},
};
enum { RECOMPUTATIONS = sizeof recomputations / sizeof *recomputations };

struct scene {
    int stack, recomputation;
    bool is_sequence_parallel;
};

/* DoRA reads the base outside a pass when it begins, and before each global batch, for a pair at each of four places.
 * Prompts read it when they begin. */
static int expect_reads(const struct scene *scene) {
    const struct peft_config *first = stacks[scene->stack];
    int status = counting_expect(PARAM_UNIT_FIRST, PARAM_READ, first->type == PEFT_PROMPT, true);
    for (int layer = 0; layer < LAYERS && !status; layer++)
        status = counting_expect(layer, PARAM_READ, first->use_dora ? 8 : 0, true);
    return status;
}

static int run_rank(struct comm *world, void *context) {
    const struct scene *scene = context;
    const struct peft_config *stack = stacks[scene->stack];
    const struct rank_grid grid = {world->size, 1, 1, 1, 1};
    struct tuned_options options = {.adapters = stack,
                                    .count = stack[1].r ? 2 : 1,
                                    .recompute = recomputations[scene->recomputation],
                                    .has_dropout = true,
                                    .dtype = DTYPE_F32,
                                    .storage = counting_begin(&storage_whole)};
    struct device *device;
    struct rank rank;
    struct tuned tuned = {0};
    double loss;
    int status = device_open(test_device(), DEVICE_FIRST, 1, &device);
    if (!status)
        status = rank_open(&rank, &grid, world, device, 1);
    rank.is_sequence_parallel = scene->is_sequence_parallel;
    if (!status)
        status = tuned_open(&tuned, &options, &rank);
    if (!status)
        status = tuned_run(&tuned, true, &loss);
    if (!status)
        status = counting_check();
    if (!status)
        status = expect_reads(scene);
    if (status)
        comm_abort(world, status_text());
    tuned_close(&tuned);
    rank_close(&rank);
    device_close(device);
    return status;
}

static void a_base_is_unsharded_while_adapters_read_it(void **state) {
    (void)state;
    for (int tensors = 1; tensors <= 2; tensors++)
        for (int s = 0; s < STACKS; s++) {
            struct scene scene = {.stack = s,
                                  .recomputation = (s + tensors) % RECOMPUTATIONS,
                                  .is_sequence_parallel = tensors > 1 && s % 2};
            if (comm_local_run(tensors, run_rank, &scene))
                fail_msg("stack %d, recomputation %d, %d ranks%s: %s", s, scene.recomputation, tensors,
                         scene.is_sequence_parallel ? " that cut the sequence" : "", status_text());
        }
}

/* ---- a bank ---- */

/* The files of a DoRA on the tests' base. */
static char *write_dora(void) {
    struct tuned_options options = {.adapters = stacks[0], .count = 1, .dtype = DTYPE_F32};
    const struct model_config base = tuned_base(false);
    char *root = test_directory();
    struct device *device;
    struct rank rank;
    struct tuned tuned;
    struct peft_texts texts;
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &device));
    test_ok(rank_open_single(&rank, device, 1));
    test_ok(tuned_open(&tuned, &options, &rank));
    test_ok(peft_texts_make(stacks[0], 1, &base, "base", &(struct peft_notes){0}, &texts));
    test_ok(peft_export(tuned.peft,
                        &(struct peft_export){.texts = texts.items, .text_count = texts.count, .directory = root}));
    peft_texts_free(&texts);
    tuned_close(&tuned);
    rank_close(&rank);
    device_close(device);
    return root;
}

static int fill(void *context, int id) {
    struct test_model *test = context;
    return param_initialise(base_store(test->base), test->rank.exec.stream, 77, id);
}

static void load(struct peft_bank *bank, const char *directory) {
    struct peft_files *files;
    bool is_ready = false;
    test_ok(peft_files_open(&directory, 1, false, &files));
    test_ok(peft_bank_begin(bank, files, 0));
    while (!is_ready)
        test_ok(peft_bank_continue(bank, 1, &is_ready));
    assert_int_equal(peft_bank_commit(bank), 0);
    peft_files_close(files);
}

static void so_while_an_adapter_becomes_an_image(void **state) {
    (void)state;
    char *directory = write_dora();
    struct test_model test;
    struct peft_bank *bank;
    struct model_options options = {.base.config = tuned_base(false),
                                    .max_rows = 4,
                                    .infer.max_logit_rows = 1,
                                    .infer.max_sequences = 1,
                                    .infer.max_pages = 1,
                                    .base.chunk_count = 1,
                                    .base.chunks = {{0, LAYERS}},
                                    .base.storage = counting_begin(&storage_packed)};
    test_ok(device_open(test_device(), DEVICE_FIRST, 1, &test.device));
    test_ok(rank_open_single(&test.rank, test.device, 1));
    test_ok(peft_bank_open(&options, &test.rank, &bank));
    options.hooks = peft_bank_hooks(bank);
    test_ok(test_open_inference(&options, &test.rank, NULL, &test.base, &test.inference));
    peft_bank_set_base(bank, base_store(test.base));
    test_ok(base_fill(test.base, (struct param_fill){.fill = fill, .context = &test}));
    test_ok(peft_bank_allocate(bank, 1 << 20));
    counting_reset();
    load(bank, directory);
    test_ok(counting_check());
    for (int layer = 0; layer < LAYERS; layer++) /* the norms and biases of four places */
        test_ok(counting_expect(layer, PARAM_READ, 4, true));
    test_close_inference(&test.base, &test.inference);
    peft_bank_close(bank);
    rank_close(&test.rank);
    device_close(test.device);
    free(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_base_is_unsharded_while_adapters_read_it),
        cmocka_unit_test(so_while_an_adapter_becomes_an_image),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
