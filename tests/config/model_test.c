/* config: the keys of a model. */
#include "resolve.h"

#define ROPE "--model.position_embedding_type=rope "
#define YARN                                                                                                           \
    "--model.position_embedding_type=yarn --model.yarn_rotary_scaling_factor=4 "                                       \
    "--model.yarn_original_max_position_embeddings=16 "

static void rotations_that_contradict_themselves_are_refused(void **state) {
    (void)state;
    cannot_be("--model.rotary_base=5e5",
              "model.rotary_base 500000 with model.position_embedding_type learned_absolute");
    cannot_be("--model.rotary_percent=0.5", "model.rotary_percent 0.5 with");
    cannot_be("--model.rotary_seq_len_interpolation_factor=2", "model.rotary_seq_len_interpolation_factor 2 with");
    cannot_be("--model.use_rope_scaling", "model.use_rope_scaling: expected with model.position_embedding_type rope");
    cannot_be(YARN "--model.use_rope_scaling", "model.use_rope_scaling: expected with");
    cannot_be("--model.rope_scaling_factor=8", "model.rope_scaling_factor 8 with");
    cannot_be(ROPE "--model.rope_low_freq_factor=1", "model.rope_low_freq_factor 1 without model.use_rope_scaling");
    cannot_be(ROPE "--model.rope_high_freq_factor=2", "model.rope_high_freq_factor 2 without model.use_rope_scaling");
    cannot_be(ROPE "--model.rope_original_max_position_embeddings=64",
              "model.rope_original_max_position_embeddings 64: expected with model.use_rope_scaling");
    cannot_be(ROPE "--model.use_rope_scaling --model.rope_low_freq_factor=4",
              "model.rope_high_freq_factor 4: expected more than model.rope_low_freq_factor 4");
    cannot_be(ROPE "--model.use_rope_scaling --model.rotary_seq_len_interpolation_factor=2",
              "model.rope_scaling_factor 8 with model.rotary_seq_len_interpolation_factor: expected one scaling");
    cannot_be(ROPE "--model.yarn_rotary_scaling_factor=2", "model.yarn_rotary_scaling_factor 2 without");
    cannot_be(ROPE "--model.yarn_beta_fast=2", "model.yarn_beta_fast 2 without");
    cannot_be(ROPE "--model.yarn_beta_slow=2", "model.yarn_beta_slow 2 without");
    cannot_be(ROPE "--model.yarn_attention_factor=2", "model.yarn_attention_factor 2 without");
    cannot_be(ROPE "--model.yarn_original_max_position_embeddings=9",
              "model.yarn_original_max_position_embeddings 9: expected with model.position_embedding_type yarn");
    cannot_be("--model.position_embedding_type=yarn --model.yarn_rotary_scaling_factor=2",
              "model.yarn_original_max_position_embeddings is not given");
    cannot_be("--model.position_embedding_type=yarn --model.yarn_original_max_position_embeddings=9",
              "model.yarn_rotary_scaling_factor is not given");
    cannot_be(YARN "--model.yarn_beta_slow=32", "model.yarn_beta_fast 32: expected more than model.yarn_beta_slow 32");
    cannot_be(YARN "--model.rotary_seq_len_interpolation_factor=2", "yarn: expected one scaling");
    cannot_be(YARN "--model.rope_scaling_factor=2", "yarn: expected one scaling");
    cannot_be(ROPE "--model.rotary_base=1", "model.rotary_base 1: expected more than 1");
    cannot_be(ROPE "--model.kv_channels=15", "model.rotary_percent 1 of model.kv_channels 15 makes 15 columns");
    cannot_be(ROPE "--model.rotary_percent=0.45", "model.rotary_percent 0.45 of model.kv_channels 16 makes 7 columns");
    cannot_be(ROPE "--model.rotary_percent=0.05", "makes 0 columns: expected an even number above 0");
}

static void windows_that_contradict_themselves_are_refused(void **state) {
    (void)state;
    cannot_be("--model.window_size=8", "model.window_size 8: expected W,0");
    cannot_be("--model.window_size=8,1", "model.window_size 8,1: expected W,0");
    cannot_be("--model.window_size=8,0,0", "model.window_size 8,0: expected W,0");
    cannot_be("--model.window_size=-1,0", "model.window_size -1,0: expected W,0");
    cannot_be("--model.window_size=1048576,0", "expected W,0, where a token sees itself and W, at most 1048575");
    cannot_be("--model.window_attn_skip_freq=2", "model.window_attn_skip_freq 2: expected with model.window_size");
    cannot_be("--model.window_size=8,0 --model.window_attn_skip_freq=0",
              "expected a number from 1 to 10000, or one for");
    cannot_be("--model.window_size=8,0 --model.window_attn_skip_freq=x", "model.window_attn_skip_freq x: expected");
    cannot_be("--model.window_size=8,0 --model.window_attn_skip_freq=1", "skip_freq 1: no layer has the window");
    cannot_be("--model.window_size=8,0 --model.window_attn_skip_freq=0,0", "skip_freq of zeros: no layer has");
    cannot_be("--model.window_size=8,0 --model.window_attn_skip_freq=0,1,1", "has 3 numbers for 2 layers");
    cannot_be("--model.window_size=8,0 --model.window_attn_skip_freq=0,2", "skip_freq 2: expected 1 for a window or 0");
}

static void the_parts_of_a_model_follow_from_its_keys(void **state) {
    (void)state;
    struct options o;
    test_ok(resolve(&o, "")); /* GPT-2's have no rotation and no window */
    assert_int_equal(o.run.model.kv_channels, 16);
    assert_true(o.run.model.rotary.base == 0 && o.run.model.rotary.percent == 0 && o.run.model.window == 0);
    test_ok(resolve(&o, ROPE "--model.swiglu --model.num_query_groups=2 --model.kv_channels=24 --model.add_qkv_bias "
                             "--model.add_bias_linear=false --model.normalization=RMSNorm --model.qk_layernorm"));
    assert_int_equal(o.run.model.ffn_hidden_size, 128); /* int(256 * 2 / 3 / 64) * 64 */
    assert_int_equal(o.run.model.normalization, NORMALIZATION_RMS);
    assert_int_equal(o.run.model.kv_channels, 24);
    assert_true(o.run.model.rotary.base == 10000 && o.run.model.rotary.percent == 1);
    assert_true(o.run.model.rotary.interpolation == 1 && o.run.model.rotary.factor == 0);
    assert_true(o.run.model.add_qkv_bias && !o.run.model.add_bias_linear && o.run.model.qk_layernorm);
    test_ok(resolve(&o, "--model.add_qkv_bias")); /* all of them have biases */
    assert_true(!o.run.model.add_qkv_bias && o.run.model.add_bias_linear);
    test_ok(resolve(&o, ROPE "--model.use_rope_scaling"));
    assert_true(o.run.model.rotary.factor == 8 && o.run.model.rotary.low == 1 && o.run.model.rotary.high == 4);
    assert_int_equal(o.run.model.rotary.original_positions, 8192);
    test_ok(resolve(&o, YARN));
    assert_true(o.run.model.rotary.yarn_factor == 4 && o.run.model.rotary.attention_factor == 0);
    assert_true(o.run.model.rotary.beta_fast == 32 && o.run.model.rotary.beta_slow == 1);
    assert_int_equal(o.run.model.rotary.original_positions, 16);
    test_ok(resolve(&o, "--model.window_size=7,0"));
    assert_int_equal(o.run.model.window, 8);
    assert_false(model_layer_is_full(&o.run.model, 0) || model_layer_is_full(&o.run.model, 1));
}

/* Layers 0 to 5, x for one without a window. */
static void check_layers(const char *flags, const char *layers) {
    struct options o;
    test_ok(resolve(&o, flags));
    for (int64_t l = 0; l < 6; l++)
        assert_int_equal(model_layer_is_full(&o.run.model, l), layers[l] == 'x');
}

static void a_window_skips_layers_as_in_megatron(void **state) {
    (void)state;
    check_layers("--model.num_layers=6 --model.window_size=7,0", "......");
    check_layers("--model.num_layers=6 --model.window_size=7,0 --model.window_attn_skip_freq=3", "..x..x");
    check_layers("--model.num_layers=6 --model.window_size=7,0 --model.window_attn_skip_freq=4", "...x..");
    check_layers("--model.num_layers=6 --model.window_size 7 0 --model.window_attn_skip_freq=0,1,1,0,0,1", "x..xx.");
}

static void the_dump_says_what_became_of_a_model(void **state) {
    (void)state;
    static const struct {
        const char *flags, *has, *lacks;
    } cases[] = {
        {"", "    kv_channels: 16\n", "rotary_"},
        {"", "    position_embedding_type: learned_absolute\n", "window_"},
        {ROPE, "    rotary_base: 10000\n    rotary_percent: 1\n", "rope_scaling_factor"},
        {ROPE "--model.rotary_seq_len_interpolation_factor=2.5", "    rotary_seq_len_interpolation_factor: 2.5\n",
         "yarn_"},
        {ROPE "--model.use_rope_scaling", "    rope_original_max_position_embeddings: 8192\n", "yarn_"},
        {ROPE "--model.rope_scaling_factor=32", "    use_rope_scaling: true\n    rope_scaling_factor: 32\n", "yarn_"},
        {YARN, "    yarn_original_max_position_embeddings: 16\n", "rope_original"},
        {"--model.window_size=7,0", "    window_size: [7, 0]\n", "window_attn"},
        {"--model.num_layers=6 --model.window_size=7,0 --model.window_attn_skip_freq=0,1,1,0,0,1",
         "    window_attn_skip_freq: [0, 1, 1, 0, 0, 1]\n", "rotary_"},
        {"--model.num_layers=6 --model.window_size=7,0 --model.window_attn_skip_freq=1,1,0,1,1,0",
         "    window_attn_skip_freq: [3]\n", "rotary_"},
        {"--model.num_layers=6 --model.window_size=7,0 --model.window_attn_skip_freq=7", "    window_size: [7, 0]\n",
         "window_attn"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct options o, again = {0};
        struct config *config;
        test_ok(resolve(&o, cases[i].flags));
        o.config = NULL; /* and the texts of `resolve` are gone */
        o.run.data.data_path = (struct config_list){0};
        o.run.data.split = o.run.tokenizer.path = NULL;
        o.run.parallel.recompute_modules = (struct config_list){0};
        char *first = dump(&o), *at = strstr(first, "\ndata:");
        if (!strstr(first, cases[i].has) || strstr(first, cases[i].lacks))
            fail_msg("%s: %s", cases[i].flags, first);
        test_ok(read_text(&again, &config, first));
        test_ok(run_config_resolve(&again.run));
        char *second = dump(&again);
        assert_memory_equal(first, second, at - first);
        assert_memory_equal(&o.run.model, &again.run.model, offsetof(struct model_config, add_mlp_bias) + 1);
        free(first);
        free(second);
        config_free(config);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotations_that_contradict_themselves_are_refused),
        cmocka_unit_test(windows_that_contradict_themselves_are_refused),
        cmocka_unit_test(the_parts_of_a_model_follow_from_its_keys),
        cmocka_unit_test(a_window_skips_layers_as_in_megatron),
        cmocka_unit_test(the_dump_says_what_became_of_a_model),
    };
    return cmocka_run_group_tests(tests, open_directory, forget_directory);
}
