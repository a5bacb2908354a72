/* Adapters that a layout meets unevenly: ranks that divide by no number of tensor ranks, layers of one stage alone,
 * stacks. Every method on a base of which each data rank holds a share. Losses and every gradient are those of one
 * rank.
 */
#include "peft/prompt_support.h"

static struct prompt_stack stack_of(const struct peft_config *adapters, int count) {
    struct prompt_stack stack = {.count = count, .dtype = DTYPE_F32, .shaken = 0.3f};
    for (int i = 0; i < count; i++)
        stack.adapters[i] = adapters[i];
    return stack;
}

static void any_rank_on_any_degree(void **state) {
    (void)state;
    static const int64_t ranks[] = {1, 3};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        for (int is_dora = 0; is_dora < 2; is_dora++) {
            struct peft_config config = {.type = PEFT_LORA,
                                         .r = ranks[i],
                                         .lora_alpha = 2,
                                         .use_dora = is_dora,
                                         .use_rslora = !is_dora,
                                         .target_modules = EVERYTHING,
                                         .rank_pattern = LIST("h.2.mlp.c_fc=5")};
            struct prompt_stack stack = stack_of(&config, 1);
            prompt_check_layouts(&stack);
        }
}

static const struct peft_config methods[] = {
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = EVERYTHING},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .use_dora = true},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = LIST("mlp.c_proj")},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .target_modules = LIST("c_fc")},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .use_dora = true, .target_modules = LIST("c_fc", "lm_head")},
    {.type = PEFT_IA3},
    {.type = PEFT_IA3, .target_modules = LIST("mlp.c_proj")},
    {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_activation = PEFT_SWISH, .adapter_scaling = 1},
    {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_style = PEFT_PFEIFFER, .adapter_scaling = 1},
    {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_style = PEFT_PARALLEL, .adapter_scaling = 1},
};

static const struct config_list layers[] = {LIST("0"), LIST("3"), LIST("1", "2")};

/* The first layers, the last one, those around a cut: other stages have nothing that trains. */
static void stages_without_trainable_weights(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++)
        for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
            struct prompt_stack stack = stack_of(&methods[m], 1);
            stack.adapters[0].layers_to_transform = layers[l];
            prompt_check_layouts(&stack);
        }
}

static const struct prompt_stack stacks[] = {
    {.count = 2,
     .adapters = {{.type = PEFT_LORA, .r = 3, .lora_alpha = 2, .target_modules = EVERYTHING}, {.type = PEFT_IA3}}},
    {.count = 2,
     .adapters = {{.type = PEFT_PROMPT, .num_virtual_tokens = 2}, {.type = PEFT_LORA, .r = 1, .lora_alpha = 2}}},
    {.count = 2,
     .adapters = {{.type = PEFT_LORA, .r = 1, .lora_alpha = 2, .use_dora = true, .layers_to_transform = LIST("3")},
                  {.type = PEFT_PREFIX, .num_virtual_tokens = 3}}},
    {.count = 3,
     .adapters = {{.type = PEFT_PTUNING, .num_virtual_tokens = 2, .encoder_hidden_size = 10},
                  {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1, .layers_to_transform = LIST("0", "3")},
                  {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .layers_to_transform = LIST("1")}}},
};

static void stacks_in_every_layout(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++) {
        struct prompt_stack stack = stack_of(stacks[i].adapters, stacks[i].count);
        prompt_check_layouts(&stack);
    }
}

/* Ranges of what a place computes at once, and on four tensor ranks two that hold the same keys and values. */
static const struct prompt_stack of_ranges[] = {
    {.count = 1, .adapters = {{.type = PEFT_LORA, .r = 3, .lora_alpha = 2, .target_modules = LIST("all-linear")}}},
    {.count = 1,
     .adapters = {{.type = PEFT_LORA,
                   .r = 1,
                   .lora_alpha = 2,
                   .use_dora = true,
                   .target_modules = LIST("k_proj", "v_proj", "up_proj", "o_proj")}}},
    {.count = 1, .adapters = {{.type = PEFT_LORA, .r = 3, .lora_alpha = 2, .target_modules = LIST("lm_head")}}},
    {.count = 1, .adapters = {{.type = PEFT_IA3}}},
    {.count = 1, .adapters = {{.type = PEFT_IA3, .target_modules = LIST("all-linear")}}},
    {.count = 1,
     .adapters = {{.type = PEFT_IA3,
                   .target_modules = LIST("all-linear"),
                   .feedforward_modules = LIST("k_proj", "gate_proj", "o_proj")}}},
    {.count = 1, .adapters = {{.type = PEFT_PREFIX, .num_virtual_tokens = 3}}},
    {.count = 1,
     .adapters =
         {{.type = PEFT_PREFIX, .num_virtual_tokens = 3, .prefix_projection = true, .encoder_hidden_size = 10}}},
    {.count = 1, .adapters = {{.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1}}},
    {.count = 3,
     .adapters = {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .layers_to_transform = LIST("1", "2")},
                  {.type = PEFT_IA3},
                  {.type = PEFT_PREFIX, .num_virtual_tokens = 2}}},
};

static void ranges_in_every_layout(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "qwen3"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (size_t i = 0; i < sizeof of_ranges / sizeof *of_ranges; i++) {
            struct prompt_stack stack = stack_of(of_ranges[i].adapters, of_ranges[i].count);
            stack.family = families[f];
            prompt_check_layouts(&stack);
        }
}

/* The methods that read the base in their own ways: dropout before a product, norms outside a pass, rows of the
 * embedding. */
static const int32_t text[] = {3, 1, 4};
static const struct peft_config with_dropout[] = {
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .lora_dropout = 0.2, .target_modules = EVERYTHING},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 2, .lora_dropout = 0.2, .use_dora = true, .target_modules = EVERYTHING},
    {.type = PEFT_PROMPT, .num_virtual_tokens = 3},
    {.type = PEFT_PROMPT,
     .num_virtual_tokens = 3,
     .prompt_tuning_init = PEFT_INIT_TEXT,
     .prompt_tuning_init_ids = text,
     .prompt_tuning_init_count = 3},
    {.type = PEFT_PTUNING, .num_virtual_tokens = 2, .encoder_hidden_size = 10},
    {.type = PEFT_PREFIX, .num_virtual_tokens = 3},
};

static void check_sharded(const struct peft_config *adapters, int count, bool has_dropout, const char *family) {
    struct prompt_stack stack = stack_of(adapters, count);
    stack.has_dropout = has_dropout;
    stack.family = family;
    prompt_check_sharded(&stack);
}

static void every_method_trains_alike_on_a_sharded_base(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++)
        check_sharded(&methods[m], 1, false, NULL);
    for (size_t m = 0; m < sizeof with_dropout / sizeof *with_dropout; m++)
        check_sharded(&with_dropout[m], 1, true, NULL);
}

static void so_do_stacks_and_ranges(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        check_sharded(stacks[i].adapters, stacks[i].count, false, NULL);
    for (size_t i = 0; i < sizeof of_ranges / sizeof *of_ranges; i++)
        check_sharded(of_ranges[i].adapters, of_ranges[i].count, false, "llama");
}

static const struct unsaid {
    struct peft_config config;
    const char *expected;
} unsaid[] = {
    {{.type = PEFT_LORA, .r = 2, .lora_alpha = 2},
     "peft.target_modules: PEFT has no default for phi3: give some of self_attn.qkv_proj, self_attn.o_proj, "
     "mlp.gate_up_proj and mlp.down_proj"},
    {{.type = PEFT_IA3}, "peft.target_modules: PEFT has no default for phi3"},
    {{.type = PEFT_IA3, .target_modules = LIST("down_proj")}, "peft.feedforward_modules: PEFT has no default"},
};

static void a_family_without_defaults_asks_for_targets(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof unsaid / sizeof *unsaid; i++) {
        struct prompt_stack stack = stack_of(&unsaid[i].config, 1);
        struct prompt_run run;
        stack.family = "phi3";
        test_fails(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false), STATUS_USAGE,
                   unsaid[i].expected);
        prompt_close(&run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_rank_on_any_degree),
        cmocka_unit_test(stages_without_trainable_weights),
        cmocka_unit_test(stacks_in_every_layout),
        cmocka_unit_test(ranges_in_every_layout),
        cmocka_unit_test(every_method_trains_alike_on_a_sharded_base),
        cmocka_unit_test(so_do_stacks_and_ranges),
        cmocka_unit_test(a_family_without_defaults_asks_for_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
