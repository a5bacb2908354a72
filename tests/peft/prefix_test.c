/* Prefix tuning: gradients, layouts, where the file's columns go, refusals. */
#include "peft/prompt_support.h"

static struct prompt_stack stack_of(bool is_projected, int64_t tokens) {
    return (struct prompt_stack){.adapters = {{.type = PEFT_PREFIX,
                                               .num_virtual_tokens = tokens,
                                               .prefix_projection = is_projected,
                                               .encoder_hidden_size = is_projected ? 10 : 0}},
                                 .count = 1,
                                 .dtype = DTYPE_F32};
}

static void gradients_equal_differences(void **state) {
    (void)state;
    for (int is_projected = 0; is_projected < 2; is_projected++) {
        struct prompt_stack stack = stack_of(is_projected, 3);
        prompt_check_differences(&stack);
    }
}

static void every_layout_equals_one_rank(void **state) {
    (void)state;
    for (int is_projected = 0; is_projected < 2; is_projected++) {
        struct prompt_stack stack = stack_of(is_projected, 3);
        prompt_check_layouts(&stack);
    }
}

static void a_folded_projection_serves_the_same_bits(void **state) {
    (void)state;
    for (int is_projected = 0; is_projected < 2; is_projected++) {
        struct prompt_stack stack = stack_of(is_projected, 3);
        prompt_check_fold(&stack);
    }
}

static void a_prompt_stands_behind_a_prefix(void **state) {
    (void)state;
    struct prompt_stack stack = stack_of(true, 3);
    stack.adapters[stack.count++] = (struct peft_config){.type = PEFT_PROMPT, .num_virtual_tokens = 4};
    prompt_check_differences(&stack);
    prompt_check_layouts(&stack);
}

/* Keys and values of layer l are columns [2 l C, ...) and [(2 l + 1) C, ...) of the file's rows. */
static void keys_and_values_are_the_files_columns(void **state) {
    (void)state;
    struct prompt_stack stack = stack_of(false, 3);
    struct prompt_run run;
    test_ok(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    struct param_store *store = peft_store(run.peft);
    enum { C = 16 };
    test_ok(peft_begin(run.peft));
    struct test_values values = test_values(store, run.rank.exec.stream);
    for (int l = 0; l < LAYERS; l++) {
        struct hook_prefix prefix;
        const struct prefix_hook *hook = &hook_table_prefixes(peft_hooks(run.peft), l)->hook[0];
        test_ok(hook->prefix(hook->self, 0, l, &prefix));
        assert_int_equal(prefix.tokens, 3);
        for (int which = 0; which < 2; which++) {
            const struct param_slice *slice = &store->map.table->rows[l].slices[which];
            assert_string_equal(slice->name, "prompt_embeddings");
            assert_true(slice->is_transposed && slice->file_rows == 2 * LAYERS * C);
            assert_int_equal(slice->file_start, (2 * l + which) * C);
            const float *features = values.weights + store->map.places[l].offset + slice->row * 3;
            float given[3 * C];
            test_ok(test_read(run.rank.exec.stream, given, which ? prefix.v : prefix.k, sizeof given));
            for (int64_t e = 0; e < 3 * C; e++)
                assert_true(given[e] == features[e % C * 3 + e / C]);
        }
    }
    test_values_free(&values);
    prompt_close(&run);
}

static void parameters_equal_the_formulas(void **state) {
    (void)state;
    const int64_t C = 16, H = 10, V = 3;
    const int64_t expected[] = {2 * LAYERS * V * C, V * C + C * H + H + (H + 1) * 2 * LAYERS * C};
    for (int is_projected = 0; is_projected < 2; is_projected++) {
        struct prompt_stack stack = stack_of(is_projected, V);
        struct prompt_run run;
        test_ok(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
        assert_int_equal(param_table_elements(peft_store(run.peft)->map.table, true), expected[is_projected]);
        prompt_close(&run);
    }
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    struct prompt_run run;
    struct prompt_stack stack = stack_of(false, SAMPLE_MOST);
    test_fails(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false), STATUS_USAGE,
               "peft.num_virtual_tokens 16");
    prompt_close(&run);
    stack = stack_of(false, 3);
    stack.adapters[stack.count++] = stack.adapters[0];
    test_fails(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false), STATUS_USAGE,
               "both prefixes");
    prompt_close(&run);
    stack = stack_of(false, 3);
    stack.family = "mistral";
    test_fails(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false), STATUS_UNSUPPORTED,
               "a window of 5 tokens");
    prompt_close(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_differences),
        cmocka_unit_test(every_layout_equals_one_rank),
        cmocka_unit_test(a_folded_projection_serves_the_same_bits),
        cmocka_unit_test(a_prompt_stands_behind_a_prefix),
        cmocka_unit_test(keys_and_values_are_the_files_columns),
        cmocka_unit_test(parameters_equal_the_formulas),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
