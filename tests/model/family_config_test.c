/* config.json of Llama's variants: the value of a missing key, what is read from either form of a rotation, what is
 * written, and what is refused. */
#include "model/model.h"
#include "support/test.h"
#include "support/tiny_model.h"

#include "base/base.h"

#include <jansson.h>
#include <stddef.h>

static int read_text(const char *text, struct model_config *config) {
    enum dtype dtype;
    struct model_text_ends ends;
    return model_read_config(text, "f", config, &dtype, &ends);
}

static void read_object(const json_t *object, struct model_config *config) {
    char *text = json_dumps(object, 0);
    test_ok(read_text(text, config));
    free(text);
}

static bool is_same(const struct model_config *a, const struct model_config *b) {
    return !memcmp(a, b, offsetof(struct model_config, add_mlp_bias) + sizeof a->add_mlp_bias);
}

static json_t *load(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/model/golden/%s", TEST_DATA, name);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    return root;
}

/* ---- defaults ---- */

/* Facts of tools/golden/family_defaults.py. */
static void a_missing_key_is_what_transformers_puts_there(void **state) {
    (void)state;
    json_t *facts = load("family_defaults.json"), *family;
    const char *name, *key;
    json_object_foreach(facts, name, family) {
        json_t *base = json_object_get(family, "base"), *value;
        struct model_config whole, without, with;
        json_object_set_new(base, "model_type", json_string(name));
        read_object(base, &whole);
        json_object_foreach(json_object_get(family, "defaults"), key, value) {
            json_t *changed = json_copy(base);
            json_object_del(changed, key);
            read_object(changed, &without);
            json_object_set(changed, key, value);
            read_object(changed, &with);
            if (!is_same(&without, &with))
                fail_msg("%s: another default of %s", name, key);
            bool is_mathematics = strcmp(key, "hidden_act") && strcmp(key, "pretraining_tp") &&
                                  strcmp(key, "eos_token_id"); /* these say nothing else */
            if (is_same(&without, &whole) == is_mathematics)
                fail_msg("%s: %s is not read", name, key);
            json_decref(changed);
        }
    }
    json_decref(facts);
}

static void yarn_has_the_defaults_of_its_paper(void **state) {
    (void)state;
    struct model_config config;
    test_ok(read_text("{\"model_type\":\"qwen2\",\"max_position_embeddings\":77,"
                      "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":null}}",
                      &config));
    assert_int_equal(config.position_embedding, POSITION_YARN);
    assert_true(config.rotary.yarn_factor == 4 && config.rotary.attention_factor == 0);
    assert_true(config.rotary.beta_fast == 32 && config.rotary.beta_slow == 1);
    assert_int_equal(config.rotary.original_positions, 77);
}

static void a_scaled_rotation_has_more_positions(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        int64_t positions;
    } cases[] = {
        {"64", 64},
        {"64,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}", 160},
        {"64,\"rope_scaling\":{\"type\":\"linear\",\"factor\":1}", 64},
        {"65,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":1.5}", 97},
        {"64,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}", 256},
        {"64,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32}", 128},
        {"128,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32}", 128},
        {"256,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32}", 256},
        {"1000,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":1000000}", MODEL_MAX_POSITIONS},
        {"64,\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4}", 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config config;
        char text[256];
        snprintf(text, sizeof text, "{\"model_type\":\"qwen2\",\"max_position_embeddings\":%s}", cases[i].keys);
        test_ok(read_text(text, &config));
        assert_int_equal(model_positions(&config), cases[i].positions);
    }
}

/* ---- reading ---- */

#define LLAMA  "{\"model_type\":\"llama\",\"hidden_size\":48,\"num_attention_heads\":4"
#define PHI3   "{\"model_type\":\"phi3\",\"hidden_size\":48,\"num_attention_heads\":4"
#define LLAMA3 "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":64"
#define YARN                                                                                                           \
    "\"factor\":4,\"original_max_position_embeddings\":64,\"beta_fast\":16,\"beta_slow\":2,\"attention_factor\":1.5"

static void both_forms_of_a_rotation_say_the_same(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {LLAMA ",\"rope_theta\":5e5}", LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e5}}"},
        {LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":null}", LLAMA ",\"rope_parameters\":{\"rope_theta\":500000}}"},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}",
         LLAMA ",\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.5,\"rope_theta\":10000}}"},
        {LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3 "}}",
         LLAMA ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":5e5," LLAMA3 "}}"},
        {LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"rope_type\":\"yarn\"," YARN "}}",
         LLAMA ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"truncate\":true,\"rope_theta\":10000," YARN "}}"},
        {PHI3 ",\"partial_rotary_factor\":0.5,\"rope_theta\":5e5}",
         PHI3 ",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.5,\"rope_theta\":5e5}}"},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", /* both at once */
         LLAMA ",\"rope_theta\":10000,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
               "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":10000}}"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct model_config old, new;
        test_ok(read_text(pairs[i][0], &old));
        test_ok(read_text(pairs[i][1], &new));
        if (!is_same(&old, &new))
            fail_msg("%s and %s", pairs[i][0], pairs[i][1]);
        json_t *root = json_loads(pairs[i][1], 0, NULL), *parameters = json_object_get(root, "rope_parameters");
        if (json_object_get(parameters, "rope_theta")) /* what it says is what became of it */
            assert_true(json_number_value(json_object_get(parameters, "rope_theta")) == new.rotary.base);
        if (json_object_get(parameters, "factor"))
            assert_true(json_number_value(json_object_get(parameters, "factor")) ==
                        new.rotary.factor + new.rotary.yarn_factor +
                            (new.rotary.interpolation > 1 ? new.rotary.interpolation : 0));
        json_decref(root);
    }
}

/* Checks layers 0 to 3, x for one without a window. */
static void check_window(const char *text, int64_t window, const char *layers) {
    struct model_config config;
    test_ok(read_text(text, &config));
    assert_int_equal(config.window, window);
    for (int64_t l = 0; l < 4; l++)
        assert_int_equal(model_layer_is_full(&config, l), layers[l] == 'x');
}

#define FOUR(family, more) "{\"model_type\":\"" family "\",\"num_hidden_layers\":4" more "}"
#define FULL               "\"full_attention\""
#define SLIDING            "\"sliding_attention\""

static void windows_are_where_the_keys_put_them(void **state) {
    (void)state;
    check_window(FOUR("llama", ",\"sliding_window\":5"), 0, "xxxx"); /* its class has none */
    check_window(FOUR("mistral", ""), 4096, "....");
    check_window(FOUR("mistral", ",\"sliding_window\":5"), 5, "....");
    check_window(FOUR("mistral", ",\"sliding_window\":null"), 0, "xxxx");
    check_window(FOUR("phi3", ""), 0, "xxxx");
    check_window(FOUR("phi3", ",\"sliding_window\":5"), 5, "....");
    check_window(FOUR("qwen2", ",\"sliding_window\":5,\"max_window_layers\":0"), 0, "xxxx");
    check_window(FOUR("qwen2", ",\"sliding_window\":5,\"use_sliding_window\":true"), 0, "xxxx"); /* from layer 28 on */
    check_window(FOUR("qwen2", ",\"sliding_window\":5,\"use_sliding_window\":true,\"max_window_layers\":1"), 5, "x...");
    check_window(FOUR("qwen3", ",\"use_sliding_window\":true,\"max_window_layers\":3"), 4096, "xxx.");
    check_window(FOUR("qwen3", ",\"use_sliding_window\":true,\"sliding_window\":null,\"max_window_layers\":0"), 0,
                 "xxxx");
    check_window(FOUR("qwen3", ",\"use_sliding_window\":true,\"sliding_window\":5,\"max_window_layers\":3,"
                               "\"layer_types\":[" FULL "," SLIDING "," FULL "," SLIDING "]"),
                 5, "x.x.");
    check_window(FOUR("qwen3", ",\"layer_types\":[" FULL "," FULL "," FULL "," FULL "]"), 0, "xxxx");
}

static void biases_and_norms_are_those_of_the_family(void **state) {
    (void)state;
    static const struct {
        const char *family, *more;
        bool qkv, output, mlp, heads;
    } cases[] = {
        {"llama", "", false, false, false, false},
        {"llama", ",\"attention_bias\":true", true, true, false, false},
        {"llama", ",\"mlp_bias\":true", false, false, true, false},
        {"llama", ",\"attention_bias\":true,\"mlp_bias\":true", true, true, true, false},
        {"mistral", ",\"attention_bias\":true,\"mlp_bias\":true", false, false, false, false},
        {"qwen2", ",\"attention_bias\":false", true, false, false, false},
        {"qwen3", "", false, false, false, true},
        {"qwen3", ",\"attention_bias\":true,\"mlp_bias\":true", true, true, false, true},
        {"phi3", ",\"attention_bias\":true", false, false, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        struct model_config config;
        snprintf(text, sizeof text, "{\"model_type\":\"%s\"%s}", cases[i].family, cases[i].more);
        test_ok(read_text(text, &config));
        assert_int_equal(model_has_bias(&config, ATTACH_QKV), cases[i].qkv);
        assert_int_equal(model_has_bias(&config, ATTACH_PROJECTION), cases[i].output);
        assert_int_equal(model_has_bias(&config, ATTACH_FC1), cases[i].mlp);
        assert_int_equal(model_has_bias(&config, ATTACH_FC2), cases[i].mlp);
        assert_int_equal(config.qk_layernorm, cases[i].heads);
        assert_int_equal(config.normalization, NORMALIZATION_RMS);
        assert_true(config.swiglu);
    }
}

static void what_is_not_built_or_cannot_be_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *text, *error;
        int status;
    } bad[] = {
        {LLAMA ",\"hidden_act\":\"gelu\"}", "f: 'hidden_act' \"gelu\" is not supported (supported: silu)",
         STATUS_UNSUPPORTED},
        {LLAMA ",\"num_experts\":8}", "f: 'num_experts' is not supported", STATUS_UNSUPPORTED},
        {LLAMA ",\"num_local_experts\":8}", "f: 'num_local_experts' is not supported", STATUS_UNSUPPORTED},
        {LLAMA ",\"no_rope_layers\":[1]}", "f: 'no_rope_layers' is not supported", STATUS_UNSUPPORTED},
        {LLAMA ",\"pretraining_tp\":2}", "f: 'pretraining_tp': more than 1 is not supported", STATUS_UNSUPPORTED},
        {LLAMA ",\"auto_map\":{\"AutoModelForCausalLM\":\"modeling_x.XForCausalLM\"}}",
         "f: 'auto_map': code of the model's own is not supported", STATUS_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}",
         "f: 'rope_scaling': \"dynamic\" is not supported (supported: default, linear, llama3, yarn)",
         STATUS_UNSUPPORTED},
        {LLAMA ",\"rope_parameters\":{\"rope_type\":\"longrope\"}}",
         "f: 'rope_parameters': \"longrope\" is not supported", STATUS_UNSUPPORTED},
        {LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}}",
         "f: 'rope_parameters': 'full_attention': a rotation by the kind of layer is not supported",
         STATUS_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":{\"type\":\"yarn\"," YARN ",\"mscale\":1}}", "f: 'mscale' is not supported",
         STATUS_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":{\"type\":\"yarn\"," YARN ",\"mscale_all_dim\":1}}",
         "f: 'mscale_all_dim' is not supported", STATUS_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":{\"type\":\"yarn\"," YARN ",\"truncate\":false}}",
         "f: 'truncate': false is not supported", STATUS_UNSUPPORTED},
        {LLAMA ",\"partial_rotary_factor\":0.5}", "f: 'partial_rotary_factor' 0.5: a llama turns whole heads",
         STATUS_UNSUPPORTED},
        {PHI3 ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}",
         "f: 'rope_scaling': \"yarn\" is not supported (supported: default)", STATUS_UNSUPPORTED},
        {PHI3 ",\"rope_scaling\":{\"type\":\"su\",\"long_factor\":[1],\"short_factor\":[1]}}",
         "\"su\" is not supported", STATUS_UNSUPPORTED},
        {LLAMA ",\"rope_scaling\":[2]}", "f: 'rope_scaling' must be an object", STATUS_INVALID},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}", "f: 'factor' is missing", STATUS_INVALID},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}", "f: 'factor' must be a number from 1",
         STATUS_INVALID},
        {LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", "f: 'low_freq_factor' is missing",
         STATUS_INVALID},
        {LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":0,\"high_freq_factor\":4}}",
         "f: 'low_freq_factor' must be a number from", STATUS_INVALID},
        {LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}}",
         "f: model.rope_high_freq_factor 4: expected more than", STATUS_INVALID},
        {LLAMA ",\"rope_theta\":-1}", "f: 'rope_theta' must be a number from 1", STATUS_INVALID},
        {LLAMA ",\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":1e6}}",
         "f: 'rope_theta' is 10000, but 1e+06 in the object that says how to rotate", STATUS_INVALID},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
               "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":3}}",
         "f: 'rope_scaling' and 'rope_parameters' contradict each other", STATUS_INVALID},
        {"{\"model_type\":\"llama\",\"hidden_size\":50,\"num_attention_heads\":4,\"head_dim\":8}",
         "f: 'hidden_size' must be a multiple of 'num_attention_heads' 4", STATUS_INVALID},
        {LLAMA ",\"num_key_value_heads\":3}", "f: model.num_attention_heads 4 is not divisible by", STATUS_INVALID},
        {LLAMA ",\"head_dim\":11}", "makes 11 columns: expected an even number", STATUS_INVALID},
        {LLAMA ",\"attention_dropout\":1}", "f: 'attention_dropout' must be a number from 0 to below 1",
         STATUS_INVALID},
        {"{\"model_type\":\"qwen3\",\"head_dim\":null}", "f: 'head_dim' must be an integer", STATUS_INVALID},
        {FOUR("mistral", ",\"sliding_window\":0"), "f: 'sliding_window' must be an integer from 1", STATUS_INVALID},
        {FOUR("mistral", ",\"layer_types\":[" FULL "," SLIDING "," FULL "," SLIDING "]"),
         "f: 'layer_types' must be a list of only sliding_attention", STATUS_INVALID},
        {FOUR("llama", ",\"layer_types\":[" FULL "," SLIDING "," FULL "," SLIDING "]"),
         "f: 'layer_types' must be a list of only full_attention", STATUS_INVALID},
        {FOUR("qwen3", ",\"layer_types\":[" FULL "," SLIDING "," FULL "," SLIDING "]"), /* no use_sliding_window */
         "f: 'layer_types' must be a list of only full_attention", STATUS_INVALID},
        {FOUR("qwen3", ",\"layer_types\":[" FULL "]"), "f: 'layer_types' must be a list of 4 kinds", STATUS_INVALID},
        {FOUR("qwen3", ",\"layer_types\":[" FULL "," FULL "," FULL ",\"chunked_attention\"]"),
         "f: 'layer_types' must be a list of full_attention and sliding_attention", STATUS_INVALID},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct model_config config;
        test_fails(read_text(bad[i].text, &config), bad[i].status, bad[i].error);
    }
    struct model_config config;
    test_ok(read_text(PHI3 ",\"auto_map\":{\"AutoConfig\":\"configuration_phi3.Phi3Config\","
                           "\"AutoModelForCausalLM\":\"modeling_phi3.Phi3ForCausalLM\"}}",
                      &config));
    test_ok(read_text(LLAMA ",\"hidden_act\":\"swish\",\"pretraining_tp\":1}", &config));
}

/* ---- writing ---- */

/* All texts that say something else; each key of theirs is read back from what is written. */
static void what_is_written_reads_back_from_either_form(void **state) {
    (void)state;
    static const char *const texts[] = {
        LLAMA "}",
        LLAMA ",\"attention_bias\":true,\"head_dim\":10,\"num_key_value_heads\":2,\"intermediate_size\":77}",
        LLAMA ",\"mlp_bias\":true,\"attention_bias\":true,\"tie_word_embeddings\":true,\"attention_dropout\":0.25}",
        LLAMA ",\"rope_theta\":12345.5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}",
        LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3 "}}",
        LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\"," YARN "}}",
        LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}}",
        FOUR("mistral", ",\"sliding_window\":5,\"rms_norm_eps\":1e-3,\"initializer_range\":0.5,\"vocab_size\":9"),
        FOUR("mistral", ",\"sliding_window\":null,\"max_position_embeddings\":77"),
        FOUR("qwen2", ",\"head_dim\":64"),
        FOUR("qwen2", ",\"use_sliding_window\":true,\"max_window_layers\":2"),
        FOUR("qwen3", ",\"use_sliding_window\":true,\"layer_types\":[" SLIDING "," FULL "," SLIDING "," FULL "]"),
        FOUR("qwen3", ",\"attention_bias\":true"),
        PHI3 ",\"partial_rotary_factor\":0.5,\"resid_pdrop\":0.25,\"embd_pdrop\":0.125,\"sliding_window\":5}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct model_config config, again;
        char *text, *other;
        test_ok(read_text(texts[i], &config));
        test_ok(model_write_config(&config, DTYPE_F32, &(const struct model_text_ends){0}, &text));
        test_ok(read_text(text, &again));
        if (!is_same(&config, &again))
            fail_msg("%s became %s", texts[i], text);
        json_t *root = json_loads(text, 0, NULL);
        assert_non_null(json_object_get(root, "rope_parameters"));
        static const char *const forms[] = {"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"};
        for (int old = 0; old < 2; old++) { /* without one form, and without the other */
            json_t *half = json_copy(root);
            for (int f = old ? 0 : 1; f < (old ? 1 : 4); f++)
                json_object_del(half, forms[f]);
            read_object(half, &again);
            if (!is_same(&config, &again))
                fail_msg("%s: the %s form is another", text, old ? "old" : "new");
            json_decref(half);
        }
        json_decref(root);
        test_ok(model_write_config(&again, DTYPE_F32, &(const struct model_text_ends){0}, &other));
        assert_string_equal(text, other);
        free(text);
        free(other);
    }
}

/* ---- choosing ---- */

static void a_family_follows_from_the_keys(void **state) {
    (void)state;
    static const struct {
        const char *text, *family;
    } cases[] = {
        {"{" TINY_GPT2_KEYS(2, 9) "}", "gpt2"},
        {LLAMA "}", "llama"},
        {LLAMA ",\"attention_bias\":true}", "llama"},
        {LLAMA ",\"mlp_bias\":true}", "llama"},
        {LLAMA ",\"attention_bias\":true,\"mlp_bias\":true}", "llama"},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3 "}}", "llama"},
        {FOUR("mistral", ",\"sliding_window\":null"), "llama"},
        {FOUR("mistral", ",\"sliding_window\":null,\"hidden_size\":50,\"head_dim\":8"), "mistral"}, /* 32 heads */
        {FOUR("mistral", ""), "mistral"},
        {FOUR("qwen2", ""), "qwen2"},
        {FOUR("qwen2", ",\"use_sliding_window\":true,\"max_window_layers\":2"), "qwen2"},
        {FOUR("qwen3", ""), "qwen3"},
        {FOUR("qwen3", ",\"attention_bias\":true,\"use_sliding_window\":true,\"max_window_layers\":2"), "qwen3"},
        {PHI3 "}", "llama"},
        {PHI3 ",\"sliding_window\":5}", "mistral"},
        {PHI3 ",\"partial_rotary_factor\":0.5}", "phi3"},
        {PHI3 ",\"resid_pdrop\":0.5}", "phi3"},
        {PHI3 ",\"embd_pdrop\":0.5}", "phi3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config config;
        test_ok(read_text(cases[i].text, &config));
        config.family = -1;
        test_ok(model_family_choose(&config));
        assert_string_equal(model_family(&config)->name, cases[i].family);
    }
}

static void keys_that_no_family_has_are_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *errors[4];
        struct model_config change;
    } cases[] = {
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3 "}}",
         {"gpt2 cannot have this model.position_embedding_type", "llama cannot have this model.hidden_dropout",
          "phi3 cannot have this model.use_rope_scaling"},
         {.hidden_dropout = 0.5}},
        {FOUR("qwen3", ""),
         {"qwen3 cannot have this model.hidden_dropout", "phi3 cannot have this model.qk_layernorm"},
         {.hidden_dropout = 0.5}},
        {PHI3 ",\"partial_rotary_factor\":0.5}",
         {"llama cannot have this model.add_qkv_bias", "phi3 cannot have this model.add_qkv_bias",
          "qwen2 cannot have this model.rotary_percent"},
         {.add_qkv_bias = true}},
        {FOUR("mistral", ""),
         {"llama cannot have this model.window_size", "mistral cannot have this model.add_qkv_bias"},
         {.add_mlp_bias = true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config config;
        test_ok(read_text(cases[i].text, &config));
        config.hidden_dropout = cases[i].change.hidden_dropout;
        config.add_qkv_bias |= cases[i].change.add_qkv_bias;
        config.add_mlp_bias |= cases[i].change.add_mlp_bias;
        for (int e = 0; cases[i].errors[e]; e++)
            test_fails(model_family_choose(&config), STATUS_USAGE, cases[i].errors[e]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_key_is_what_transformers_puts_there),
        cmocka_unit_test(yarn_has_the_defaults_of_its_paper),
        cmocka_unit_test(a_scaled_rotation_has_more_positions),
        cmocka_unit_test(both_forms_of_a_rotation_say_the_same),
        cmocka_unit_test(windows_are_where_the_keys_put_them),
        cmocka_unit_test(biases_and_norms_are_those_of_the_family),
        cmocka_unit_test(what_is_not_built_or_cannot_be_is_refused_by_name),
        cmocka_unit_test(what_is_written_reads_back_from_either_form),
        cmocka_unit_test(a_family_follows_from_the_keys),
        cmocka_unit_test(keys_that_no_family_has_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
