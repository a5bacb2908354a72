/* Frozen adapters below those that train: every kind below every kind. Gradients are those of a stack in which both
 * train, no layout changes them, and the frozen values stay. */
#include "peft/prompt_support.h"

static const struct peft_config kinds[] = {
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 3, .lora_dropout = 0.3, .target_modules = EVERYTHING},
    {.type = PEFT_LORA, .r = 2, .lora_alpha = 3, .use_dora = true, .target_modules = EVERYTHING},
    {.type = PEFT_IA3},
    {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1, .adapter_pre_norm = true},
    {.type = PEFT_ADAPTER, .bottleneck = 3, .adapter_scaling = 1, .adapter_style = PEFT_PARALLEL},
    {.type = PEFT_PROMPT, .num_virtual_tokens = 2},
    {.type = PEFT_PTUNING, .num_virtual_tokens = 2, .encoder_hidden_size = 10},
    {.type = PEFT_PREFIX, .num_virtual_tokens = 2},
};
enum { KINDS = sizeof kinds / sizeof *kinds, WITHOUT_DROPOUT = 0 };

static bool changes_weights(const struct peft_config *config) {
    return config->type == PEFT_LORA || config->type == PEFT_IA3;
}

/* True for what a server stacks: one prefix, and nothing that changes weights beside DoRA. */
static bool may_stack(const struct peft_config *a, const struct peft_config *b) {
    if (a->type == PEFT_PREFIX && b->type == PEFT_PREFIX)
        return false;
    return !((a->use_dora && changes_weights(b)) || (b->use_dora && changes_weights(a)));
}

static struct prompt_stack stack_on(const struct peft_config *frozen, const struct peft_config *trained) {
    struct prompt_stack stack = {
        .adapters = {*trained}, .count = 1, .frozen = {*frozen}, .frozen_count = 1, .dtype = DTYPE_F32, .shaken = 0.3f};
    stack.adapters[0].lora_dropout = WITHOUT_DROPOUT;
    return stack;
}

/* Copies the values of one stack's rows from `first` on to all rows of another. */
static void copy_rows(const struct test_values *from, int first, struct param_store *to, struct stream *stream) {
    struct test_values values = test_values(to, stream);
    for (int id = 0; id < to->map.table->count; id++)
        memcpy(values.weights + to->map.places[id].offset, from->weights + from->store->map.places[first + id].offset,
               (size_t)param_local_elements(to, id) * sizeof(float));
    test_ok(test_values_put(&values, stream));
}

/* Both train in `whole`; on the other one the same values of the first are frozen. */
static void compare_with_both(const struct prompt_stack *stack) {
    static const struct rank_grid alone = {1, 1, 1, 1, 1};
    const struct prompt_stack both = {
        .adapters = {stack->frozen[0], stack->adapters[0]}, .count = 2, .dtype = DTYPE_F32, .shaken = 0.3f};
    struct prompt_run whole, run;
    double losses[2];
    test_ok(prompt_open(&whole, &both, &alone, NULL, false));
    test_ok(prompt_train(&whole, false, &losses[0]));
    struct test_values expected = test_values(peft_store(whole.peft), whole.rank.exec.stream);
    test_ok(prompt_open(&run, stack, &alone, NULL, false));
    struct param_store *frozen = peft_store((struct peft *)peft_frozen(run.peft)), *store = peft_store(run.peft);
    int first = frozen->map.table->count;
    assert_int_equal(first + store->map.table->count, expected.store->map.table->count);
    copy_rows(&expected, 0, frozen, run.rank.exec.stream);
    copy_rows(&expected, first, store, run.rank.exec.stream);
    test_ok(prompt_train(&run, false, &losses[1]));
    struct test_values found = test_values(store, run.rank.exec.stream);
    assert_memory_equal(&losses[0], &losses[1], sizeof *losses);
    for (int id = 0; id < store->map.table->count; id++)
        assert_memory_equal(found.gradients + store->map.places[id].offset,
                            expected.gradients + expected.store->map.places[first + id].offset,
                            (size_t)param_local_elements(store, id) * sizeof(float));
    test_values_free(&found);
    test_values_free(&expected);
    prompt_close(&run);
    prompt_close(&whole);
}

/* A p-tuning below is a table like a prompt, and its encoder in a stack of both. */
static void gradients_have_the_bits_of_a_stack_of_both(void **state) {
    (void)state;
    for (int below = 0; below < KINDS; below++)
        for (int above = 0; above < KINDS; above++) {
            struct prompt_stack stack = stack_on(&kinds[below], &kinds[above]);
            if (may_stack(&kinds[below], &kinds[above]) && kinds[below].type != PEFT_PTUNING)
                compare_with_both(&stack);
        }
}

/* Each kind once below, and once above. */
static void every_layout_equals_one_rank(void **state) {
    (void)state;
    for (int below = 0; below < KINDS; below++) {
        struct prompt_stack stack = stack_on(&kinds[below], &kinds[(below + 3) % KINDS]);
        prompt_check_layouts(&stack);
        prompt_check_sharded(&stack);
    }
}

static void what_no_server_stacks_is_refused(void **state) {
    (void)state;
    for (int below = 0; below < KINDS; below++)
        for (int above = 0; above < KINDS; above++) {
            struct prompt_stack stack = stack_on(&kinds[below], &kinds[above]);
            struct prompt_run run;
            if (may_stack(&kinds[below], &kinds[above]))
                continue;
            test_fails(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false), STATUS_USAGE,
                       kinds[below].type == PEFT_PREFIX ? "adapters 0 and 1 are both prefixes"
                                                        : "DoRA cannot be stacked with");
            prompt_close(&run);
        }
}

/* An input that other adapters would see unscaled, on either side. */
static void a_scaled_input_stands_alone(void **state) {
    (void)state;
    const struct peft_config inputs = {
        .type = PEFT_IA3, .target_modules = LIST("c_attn"), .feedforward_modules = LIST("c_attn")};
    for (int is_below = 0; is_below < 2; is_below++) {
        struct prompt_stack stack = is_below ? stack_on(&inputs, &kinds[0]) : stack_on(&kinds[0], &inputs);
        struct prompt_run run;
        test_fails(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false), STATUS_USAGE,
                   "with other adapters only");
        prompt_close(&run);
    }
}

/* A pass and its backward change no frozen value. The adapter below drops nothing, so an evaluation has the bits of the
 * pass. */
static void frozen_values_stay(void **state) {
    (void)state;
    for (int below = 0; below < KINDS; below++) {
        struct prompt_stack stack =
            stack_on(&kinds[below], &(struct peft_config){.type = PEFT_PROMPT, .num_virtual_tokens = 1});
        struct prompt_run run;
        double losses[2];
        stack.has_dropout = true;
        test_ok(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
        struct param_store *frozen = peft_store((struct peft *)peft_frozen(run.peft));
        struct stream *stream = run.rank.exec.stream;
        size_t bytes = param_weight_bytes(frozen);
        char *before = malloc(bytes), *after = malloc(bytes);
        test_ok(test_read(stream, before, test_array(frozen, PARAM_WEIGHTS), bytes));
        assert_int_equal(param_gradient_bytes(frozen), 0);
        test_ok(prompt_train(&run, false, &losses[0]));
        test_ok(prompt_train(&run, true, &losses[1]));
        test_ok(test_read(stream, after, test_array(frozen, PARAM_WEIGHTS), bytes));
        assert_memory_equal(before, after, bytes);
        assert_memory_equal(&losses[0], &losses[1], sizeof *losses);
        free(before);
        free(after);
        prompt_close(&run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_have_the_bits_of_a_stack_of_both),
        cmocka_unit_test(every_layout_equals_one_rank),
        cmocka_unit_test(what_no_server_stacks_is_refused),
        cmocka_unit_test(a_scaled_input_stands_alone),
        cmocka_unit_test(frozen_values_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
