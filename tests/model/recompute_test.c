/* Recomputed values equal kept ones: every form of recomputation gives the same losses and gradients, and takes less
 * memory. */
#include "model/support.h"
#include "support/passes.h"

#include <stdlib.h>

enum { T = 12, SAMPLES = 2, ROWS = T * SAMPLES, LAYERS = 5, V = 37 };

static struct model_options make_options(struct model_recompute recompute) {
    struct model_config config = tiny_model(&(const struct tiny_model){
        .layers = LAYERS, .hidden = 16, .heads = 2, .ffn = 48, .positions = T, .vocab = V, .init_std = 0.2});
    config.hidden_dropout = config.embedding_dropout = 0.1;
    config.attention_dropout = 0.2;
    return (struct model_options){.base.config = config,
                                  .base.dtype = DTYPE_F32,
                                  .base.trains = true,
                                  .train.recompute = recompute,
                                  .max_rows = ROWS};
}

struct outcome {
    double losses[2];
    float *gradients;
    int64_t count;
    size_t activations;
};

static struct outcome train(struct model_recompute recompute) {
    struct test_model t = {0};
    struct outcome outcome = {0};
    struct model_plan plan;
    struct model_options options = make_options(recompute);
    test_ok(device_open(test_device(), DEVICE_FIRST, 2, &t.device));
    test_ok(rank_open_single(&t.rank, t.device, 1));
    test_ok(test_open_training(&options, &t.rank, &plan, &t.base, &t.model));
    test_ok(base_initialise(t.base, 3));
    for (uint32_t micro = 0; micro < 2; micro++) {
        struct model_batch batch = test_batch(SAMPLES, T, V, micro, NULL);
        struct model_pass pass = {
            .is_first_micro_batch = micro == 0, .is_last_micro_batch = micro == 1, .has_dropout = true};
        test_ok(test_train_step(t.model, &batch, &pass));
        test_ok(model_loss(t.model, &outcome.losses[micro]));
    }
    const struct param_store *store = base_store(t.base);
    outcome.count = store->map.flat_elements;
    outcome.activations = plan.activations;
    outcome.gradients = test_copy(t.rank.exec.stream, test_array(store, PARAM_GRADIENTS), param_gradient_bytes(store));
    test_model_close(&t);
    return outcome;
}

/* `bound`: of a gradient, over the largest; 0: equal bits. */
static void check(struct model_recompute recompute, double bound, bool is_smaller) {
    struct outcome kept = train((struct model_recompute){0}), again = train(recompute);
    float largest = 0;
    for (int64_t i = 0; i < kept.count; i++)
        largest = fmaxf(largest, fabsf(kept.gradients[i]));
    assert_int_equal(again.count, kept.count);
    for (int i = 0; i < 2; i++)
        assert_true(again.losses[i] == kept.losses[i]);
    for (int64_t i = 0; i < kept.count; i++)
        if (!(fabsf(again.gradients[i] - kept.gradients[i]) <= (float)bound * largest))
            fail_msg("gradient %lld: %.9g, kept %.9g", (long long)i, (double)again.gradients[i],
                     (double)kept.gradients[i]);
    if (is_smaller)
        assert_true(again.activations < kept.activations);
    free(kept.gradients);
    free(again.gradients);
}

static void groups_of_layers_are_computed_again_to_the_bit(void **state) {
    (void)state;
    for (int64_t n = 1; n <= LAYERS + 1; n++)
        check((struct model_recompute){.how = RECOMPUTE_UNIFORM, .num_layers = n}, 0, n < LAYERS - 1);
}

static void the_first_layers_are_computed_again_to_the_bit(void **state) {
    (void)state;
    for (int64_t n = 1; n <= LAYERS + 1; n++)
        check((struct model_recompute){.how = RECOMPUTE_BLOCK, .num_layers = n}, 0, n > 1);
}

/* GELU by itself rounds like GELU after a product, within a bit or two. */
static void norms_and_activations_are_computed_again(void **state) {
    (void)state;
    for (int which = 0; which < 4; which++)
        check((struct model_recompute){.how = RECOMPUTE_SELECTIVE, .layernorm = which & 1, .mlp_act = which & 2},
              which & 2 ? 1e-6 : 0, which > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_layers_are_computed_again_to_the_bit),
        cmocka_unit_test(the_first_layers_are_computed_again_to_the_bit),
        cmocka_unit_test(norms_and_activations_are_computed_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
