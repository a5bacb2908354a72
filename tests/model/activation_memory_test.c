/* What a layer keeps for its backward, in bf16: the bytes of the plan, which is the allocation, against the formulas of
 * Korthikanti et al. (arXiv 2205.05198), from which masks and attention weights are missing because they are never
 * kept. */
#include "model/support.h"

enum { S = 256, B = 2, H = 512, HEADS = 8 };

static double plan_activations(int64_t layers, int tensors, bool is_sequence_parallel,
                               struct model_recompute recompute) {
    struct device *device;
    struct rank rank;
    struct model_plan plan;
    struct model *none;
    struct rank_grid grid = {tensors, 1, 1, 1, 1};
    struct model_options options = {.config = {.num_layers = layers,
                                               .hidden_size = H,
                                               .num_attention_heads = HEADS,
                                               .num_query_groups = HEADS,
                                               .ffn_hidden_size = 4 * H,
                                               .max_position_embeddings = S,
                                               .vocab_size = 1000,
                                               .hidden_dropout = 0.1,
                                               .attention_dropout = 0.1,
                                               .layernorm_epsilon = 1e-5,
                                               .add_bias_linear = true},
                                    .dtype = DTYPE_BF16,
                                    .use = MODEL_TRAIN,
                                    .recompute = recompute,
                                    .max_rows = S * B};
    test_ok(device_open("cpu", 0, 1, &device));
    test_ok(rank_sketch(&rank, &grid, tensors - 1, device));
    rank.is_sequence_parallel = is_sequence_parallel;
    test_ok(model_open(&options, &rank, true, &plan, &none));
    rank_close(&rank);
    device_close(device);
    return (double)plan.activations;
}

/* In units of s b h. Layers 8 and 4 make whole groups of recomputation. */
static double a_layer(int tensors, bool is_sequence_parallel, struct model_recompute recompute) {
    return (plan_activations(8, tensors, is_sequence_parallel, recompute) -
            plan_activations(4, tensors, is_sequence_parallel, recompute)) /
           4 / ((double)S * B * H);
}

static void a_layer_keeps_no_more_than_the_formulas(void **state) {
    (void)state;
    const struct model_recompute none = {0};
    const struct model_recompute modules = {.how = RECOMPUTE_SELECTIVE, .layernorm = true, .mlp_act = true};
    const struct model_recompute full = {.how = RECOMPUTE_UNIFORM, .num_layers = 1};
    for (int t = 1; t <= 4; t *= 2) {
        assert_true(a_layer(t, false, none) <= 10 + 24.0 / t);
        assert_true(a_layer(t, false, none) >
                    8 + 24.0 / t); /* what the list of kept tensors comes to, and statistics */
        assert_true(a_layer(t, true, none) <= 34.0 / t);
        assert_true(a_layer(t, true, modules) <= 21.0 / t);
        assert_true(a_layer(t, true, full) <= 2.0 / t + 0.01);
        assert_true(a_layer(t, false, full) <= 2.01);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_layer_keeps_no_more_than_the_formulas)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
