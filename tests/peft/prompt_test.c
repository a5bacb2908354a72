/* Prompt tuning and p-tuning: gradients, layouts, initial rows, refusals. */
#include "peft/prompt_support.h"

static struct prompt_stack one(struct peft_config config) {
    return (struct prompt_stack){.adapters = {config}, .count = 1, .dtype = DTYPE_F32};
}

static struct peft_config prompt(int64_t tokens, int init) {
    return (struct peft_config){.type = PEFT_PROMPT, .num_virtual_tokens = tokens, .prompt_tuning_init = init};
}

static struct peft_config encoded(int64_t tokens, int encoder, int64_t layers) {
    return (struct peft_config){.type = PEFT_PTUNING,
                                .num_virtual_tokens = tokens,
                                .encoder_reparameterization_type = encoder,
                                .encoder_hidden_size = 10,
                                .encoder_num_layers = layers};
}

/* Three layers: dropout stands twice. */
static struct peft_config dropped(int64_t tokens) {
    struct peft_config config = encoded(tokens, PEFT_LSTM, 3);
    config.encoder_dropout = 0.4;
    return config;
}

/* Every method of this file, and two of them in a row. */
static struct prompt_stack stack_at(int number) {
    switch (number) {
    case 0:
        return one(prompt(4, PEFT_INIT_SAMPLE_VOCAB));
    case 1:
        return one(encoded(4, PEFT_MLP, 2));
    case 2:
        return one(encoded(3, PEFT_LSTM, 2));
    case 3:
        return one(encoded(1, PEFT_LSTM, 1));
    case 4:
        return one(dropped(5));
    default:
        return (struct prompt_stack){
            .adapters = {encoded(3, PEFT_MLP, 2), prompt(2, PEFT_INIT_RANDOM)}, .count = 2, .dtype = DTYPE_F32};
    }
}
enum { STACKS = 6 };

static void gradients_equal_differences(void **state) {
    (void)state;
    for (int i = 0; i < STACKS; i++) {
        struct prompt_stack stack = stack_at(i);
        prompt_check_differences(&stack);
    }
}

static void every_layout_equals_one_rank(void **state) {
    (void)state;
    for (int i = 0; i < STACKS; i++) {
        struct prompt_stack stack = stack_at(i);
        prompt_check_layouts(&stack);
    }
}

static void a_folded_encoder_serves_the_same_bits(void **state) {
    (void)state;
    for (int i = 0; i < STACKS; i++) {
        struct prompt_stack stack = stack_at(i);
        prompt_check_fold(&stack);
    }
}

/* The base and its adapters, in host memory. */
struct both {
    struct test_values base, adapters;
};

static struct both values_of(struct prompt_run *run) {
    return (struct both){test_values(base_store(run->base), run->rank.exec.stream),
                         test_values(peft_store(run->peft), run->rank.exec.stream)};
}

static void both_free(struct both *both) {
    test_values_free(&both->base);
    test_values_free(&both->adapters);
}

static const float *row_of_base(const struct both *both, int64_t token) {
    const struct param_store *store = both->base.store;
    int id = param_table_find(store->map.table, "embedding.token.weight", 0);
    return both->base.weights + store->map.places[id].offset + token * store->map.places[id].shape[1];
}

static void a_prompt_starts_as_the_rows_of_a_text(void **state) {
    (void)state;
    static const int32_t text[] = {7, 30, 2};
    struct prompt_stack stack = one(prompt(5, PEFT_INIT_TEXT));
    stack.adapters[0].prompt_tuning_init_ids = text;
    stack.adapters[0].prompt_tuning_init_count = 3;
    struct prompt_run run;
    test_ok(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    struct param_store *store = peft_store(run.peft);
    struct both both = values_of(&run);
    const float *rows = both.adapters.weights + store->map.places[0].offset;
    int64_t C = store->map.places[0].shape[1];
    for (int i = 0; i < 5; i++)
        assert_memory_equal(rows + i * C, row_of_base(&both, text[i % 3]), (size_t)C * sizeof *rows);
    both_free(&both);
    prompt_close(&run);
    prompt_check_layouts(&stack);
}

static void a_prompt_starts_in_the_vocabulary_by_default(void **state) {
    (void)state;
    struct prompt_stack stack = one((struct peft_config){.type = PEFT_PROMPT, .num_virtual_tokens = 6});
    struct prompt_run run;
    test_ok(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    struct param_store *store = peft_store(run.peft);
    struct both both = values_of(&run);
    int64_t C = store->map.places[0].shape[1], different = 0, last = -1;
    for (int i = 0; i < 6; i++) {
        const float *row = both.adapters.weights + store->map.places[0].offset + i * C;
        int64_t token = 0;
        while (token < VOCAB && memcmp(row, row_of_base(&both, token), (size_t)C * sizeof *row) != 0)
            token++;
        assert_true(token < VOCAB);
        different += token != last;
        last = token;
    }
    assert_true(different > 2);
    both_free(&both);
    prompt_close(&run);
}

/* A row of a prompt that is a token's does what the token does. */
static void a_virtual_token_is_a_row_like_any(void **state) {
    (void)state;
    static const int32_t text[] = {3, 9};
    struct prompt_stack stack = one(prompt(2, PEFT_INIT_TEXT));
    stack.adapters[0].prompt_tuning_init_ids = text;
    stack.adapters[0].prompt_tuning_init_count = 2;
    struct prompt_run run;
    struct model_batch batch;
    test_ok(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    test_ok(peft_begin(run.peft));
    prompt_batch(run.peft, 0, &batch);
    float *logits = malloc((size_t)batch.rows * VOCAB * sizeof *logits),
          *plain = malloc((size_t)batch.rows * VOCAB * 4);
    test_ok(model_logits(run.model, &batch, logits));
    int32_t tokens[ROWS_MOST];
    for (int64_t i = 0; i < batch.rows; i++)
        tokens[i] = batch.tokens[i] >= VOCAB ? text[batch.tokens[i] - VOCAB] : batch.tokens[i];
    batch.tokens = tokens;
    test_ok(model_logits(run.model, &batch, plain));
    assert_memory_equal(logits, plain, (size_t)batch.rows * VOCAB * sizeof *logits);
    tokens[0] = VOCAB + 2;
    test_fails(model_logits(run.model, &batch, plain), STATUS_INVALID, "token 33");
    free(logits);
    free(plain);
    prompt_close(&run);
}

static int64_t parameters(struct peft_config config) {
    struct prompt_stack stack = one(config);
    struct prompt_run run;
    test_ok(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
    int64_t count = param_table_elements(peft_store(run.peft)->map.table, true);
    prompt_close(&run);
    return count;
}

static void parameters_equal_the_formulas(void **state) {
    (void)state;
    const int64_t C = 16, H = 10, V = 3;
    assert_int_equal(parameters(prompt(V, PEFT_INIT_RANDOM)), V * C);
    assert_int_equal(parameters(encoded(V, PEFT_MLP, 2)), V * C + (C * H + H) + (H * H + H) + (H * C + C));
    assert_int_equal(parameters(encoded(V, PEFT_LSTM, 2)), V * C + 2 * (4 * H * (C + H) + 8 * H) +
                                                               2 * (4 * H * 3 * H + 8 * H) + 4 * H * H + 2 * H +
                                                               2 * H * C + C);
}

/* bf16 weights, the encoder in fp32: the loss is near that of fp32. */
static void bf16_is_near(void **state) {
    (void)state;
    for (int i = 0; i < STACKS; i++) {
        struct prompt_stack stack = stack_at(i);
        double loss[2];
        for (int k = 0; k < 2; k++) {
            struct prompt_run run;
            stack.dtype = k ? DTYPE_BF16 : DTYPE_F32;
            int status = prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false);
            if (!status)
                status = prompt_train(&run, false, &loss[k]);
            prompt_close(&run);
            if (status == STATUS_UNSUPPORTED)
                test_skip("no bf16 products on this processor");
            test_ok(status);
        }
        assert_true(fabs(loss[1] - loss[0]) < 0.02 * loss[0]);
    }
}

enum { ENCODED = 5, ENCODED_BYTES = ENCODED * 16 * sizeof(float) };

/* The virtual rows, as the model gets them. */
static void read_virtual_table(struct prompt_run *run, float rows_read[]) {
    const struct token_hook *hook = &hook_table_tokens(peft_hooks(run->peft))->hook[0];
    struct hook_virtual rows;
    hook->borrow_rows(hook->self, &rows);
    test_ok(test_read(run->rank.exec.stream, rows_read, rows.table, ENCODED_BYTES));
    hook->return_rows(hook->self);
}

static void open_alone(struct prompt_run *run, struct peft_config config) {
    struct prompt_stack stack = one(config);
    test_ok(prompt_open(run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false));
}

/* As torch's LSTM: none where nothing trains, and other masks in every batch, which the batch alone decides. */
static void dropout_of_an_encoder_is_keyed_by_the_batch(void **state) {
    (void)state;
    struct prompt_run run, plain;
    float first[ENCODED_BYTES / 4], second[ENCODED_BYTES / 4], undropped[ENCODED_BYTES / 4];
    open_alone(&run, dropped(ENCODED));
    open_alone(&plain, encoded(ENCODED, PEFT_LSTM, 3));
    test_ok(peft_begin(plain.peft));
    read_virtual_table(&plain, undropped);
    test_ok(peft_begin_batch(run.peft, 8));
    read_virtual_table(&run, first);
    test_ok(peft_begin_batch(run.peft, 16));
    read_virtual_table(&run, second);
    assert_memory_not_equal(first, second, ENCODED_BYTES);
    assert_memory_not_equal(first, undropped, ENCODED_BYTES);
    test_ok(peft_begin_batch(run.peft, 8));
    read_virtual_table(&run, second);
    assert_memory_equal(first, second, ENCODED_BYTES);
    test_ok(peft_begin(run.peft));
    read_virtual_table(&run, second);
    assert_memory_equal(undropped, second, ENCODED_BYTES);
    prompt_close(&plain);
    prompt_close(&run);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    static const struct {
        struct peft_config config;
        const char *text;
    } cases[] = {
        {{.type = PEFT_PROMPT}, "peft.num_virtual_tokens 0"},
        {{.type = PEFT_PROMPT, .num_virtual_tokens = SAMPLE_MOST}, "16 positions"},
        {{.type = PEFT_PTUNING, .num_virtual_tokens = 2, .encoder_hidden_size = -1}, "peft.encoder_hidden_size"},
        {{.type = PEFT_PTUNING, .num_virtual_tokens = 2, .encoder_num_layers = 99}, "peft.encoder_num_layers"},
        {{.type = PEFT_PTUNING, .num_virtual_tokens = 2, .encoder_dropout = 1}, "peft.encoder_dropout"},
        {{.type = PEFT_PROMPT, .num_virtual_tokens = 2, .prompt_tuning_init = PEFT_INIT_TEXT}, "init_text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct prompt_stack stack = one(cases[i].config);
        struct prompt_run run;
        test_fails(prompt_open(&run, &stack, &(const struct rank_grid){1, 1, 1, 1, 1}, NULL, false), STATUS_USAGE,
                   cases[i].text);
        prompt_close(&run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_differences),
        cmocka_unit_test(every_layout_equals_one_rank),
        cmocka_unit_test(a_folded_encoder_serves_the_same_bits),
        cmocka_unit_test(a_prompt_starts_as_the_rows_of_a_text),
        cmocka_unit_test(a_prompt_starts_in_the_vocabulary_by_default),
        cmocka_unit_test(a_virtual_token_is_a_row_like_any),
        cmocka_unit_test(parameters_equal_the_formulas),
        cmocka_unit_test(bf16_is_near),
        cmocka_unit_test(dropout_of_an_encoder_is_keyed_by_the_batch),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
