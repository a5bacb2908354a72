/* Models that people have: the config.json of some that the Hugging Face hub holds, and their numbers of parameters. */
#include "model/model.h"
#include "support/test.h"

static const struct {
    const char *name, *text;
    int64_t parameters;
} models[] = {
    {"SmolLM2-135M-Instruct",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_token_id\":1,"
     "\"eos_token_id\":2,\"hidden_act\":\"silu\",\"hidden_size\":576,\"initializer_range\":0.041666666666666664,"
     "\"intermediate_size\":1536,\"is_llama_config\":true,\"max_position_embeddings\":8192,\"mlp_bias\":false,"
     "\"model_type\":\"llama\",\"num_attention_heads\":9,\"num_hidden_layers\":30,\"num_key_value_heads\":3,"
     "\"pad_token_id\":2,\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_interleaved\":false,\"rope_scaling\":null,"
     "\"rope_theta\":100000,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"use_cache\":true,"
     "\"vocab_size\":49152}",
     134515008},
    {"Llama-3.2-1B-Instruct",
     "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_token_id\":"
     "128000,"
     "\"eos_token_id\":[128001,128008,128009],\"head_dim\":64,\"hidden_act\":\"silu\",\"hidden_size\":2048,"
     "\"initializer_range\":0.02,\"intermediate_size\":8192,\"max_position_embeddings\":131072,\"mlp_bias\":false,"
     "\"model_type\":\"llama\",\"num_attention_heads\":32,\"num_hidden_layers\":16,\"num_key_value_heads\":8,"
     "\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":{\"factor\":32.0,\"high_freq_factor\":4.0,"
     "\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"},"
     "\"rope_theta\":500000.0,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"vocab_size\":128256}",
     1235814400},
    {"Mistral-7B-v0.1",
     "{\"architectures\":[\"MistralForCausalLM\"],\"bos_token_id\":1,\"eos_token_id\":2,\"hidden_act\":\"silu\","
     "\"hidden_size\":4096,\"initializer_range\":0.02,\"intermediate_size\":14336,\"max_position_embeddings\":32768,"
     "\"model_type\":\"mistral\",\"num_attention_heads\":32,\"num_hidden_layers\":32,\"num_key_value_heads\":8,"
     "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"sliding_window\":4096,\"tie_word_embeddings\":false,"
     "\"torch_dtype\":\"bfloat16\",\"vocab_size\":32000}",
     7241732096},
    {"Qwen2.5-0.5B-Instruct",
     "{\"architectures\":[\"Qwen2ForCausalLM\"],\"attention_dropout\":0.0,\"bos_token_id\":151643,\"eos_token_id\":"
     "151645,"
     "\"hidden_act\":\"silu\",\"hidden_size\":896,\"initializer_range\":0.02,\"intermediate_size\":4864,"
     "\"max_position_embeddings\":32768,\"max_window_layers\":21,\"model_type\":\"qwen2\",\"num_attention_heads\":14,"
     "\"num_hidden_layers\":24,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,\"rope_theta\":1000000.0,"
     "\"sliding_window\":32768,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"use_sliding_window\":false,"
     "\"vocab_size\":151936}",
     494032768},
    {"Qwen3-0.6B",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,\"bos_token_id\":"
     "151643,"
     "\"eos_token_id\":151645,\"head_dim\":128,\"hidden_act\":\"silu\",\"hidden_size\":1024,\"initializer_range\":0.02,"
     "\"intermediate_size\":3072,\"max_position_embeddings\":40960,\"max_window_layers\":28,\"model_type\":\"qwen3\","
     "\"num_attention_heads\":16,\"num_hidden_layers\":28,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-06,"
     "\"rope_scaling\":null,\"rope_theta\":1000000,\"sliding_window\":null,\"tie_word_embeddings\":true,"
     "\"torch_dtype\":\"bfloat16\",\"use_sliding_window\":false,\"vocab_size\":151936}",
     596049920},
    {"Phi-3-mini-4k-instruct",
     "{\"architectures\":[\"Phi3ForCausalLM\"],\"attention_bias\":false,\"attention_dropout\":0.0,"
     "\"auto_map\":{\"AutoConfig\":\"configuration_phi3.Phi3Config\","
     "\"AutoModelForCausalLM\":\"modeling_phi3.Phi3ForCausalLM\"},\"bos_token_id\":1,\"embd_pdrop\":0.0,"
     "\"eos_token_id\":32000,\"hidden_act\":\"silu\",\"hidden_size\":3072,\"initializer_range\":0.02,"
     "\"intermediate_size\":8192,\"max_position_embeddings\":4096,\"model_type\":\"phi3\",\"num_attention_heads\":32,"
     "\"num_hidden_layers\":32,\"num_key_value_heads\":32,\"original_max_position_embeddings\":4096,"
     "\"pad_token_id\":32000,\"resid_pdrop\":0.0,\"rms_norm_eps\":1e-05,\"rope_scaling\":null,\"rope_theta\":10000.0,"
     "\"sliding_window\":2047,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\",\"vocab_size\":32064}",
     3821079552},
};

/* Reads one of `models` by its name. */
static struct model_config read_model(const char *name, struct model_text_ends *ends) {
    struct model_config config = {0};
    enum dtype dtype = DTYPE_COUNT;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (!strcmp(models[i].name, name))
            test_ok(model_read_config(models[i].text, name, &config, &dtype, ends));
    assert_int_equal(dtype, DTYPE_BF16);
    return config;
}

static void each_has_as_many_parameters_as_it_is_known_for(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct model_text_ends ends;
        struct model_config config = read_model(models[i].name, &ends);
        struct param_table table = {0};
        test_ok(model_describe(&config, &table));
        int64_t parameters = param_table_elements(&table, false);
        if (parameters != models[i].parameters)
            fail_msg("%s: %lld parameters, expected %lld", models[i].name, (long long)parameters,
                     (long long)models[i].parameters);
        param_table_free(&table);
    }
}

static void each_is_what_it_says(void **state) {
    (void)state;
    struct model_text_ends ends;
    struct model_config config = read_model("SmolLM2-135M-Instruct", &ends);
    assert_int_equal(model_widths(&config, 1).head, 64);
    assert_true(config.rotary.base == 100000 && config.rotary.factor == 0 && !config.window);
    config = read_model("Llama-3.2-1B-Instruct", &ends);
    assert_true(config.rotary.factor == 32 && config.rotary.low == 1 && config.rotary.high == 4);
    assert_int_equal(config.rotary.original_positions, 8192);
    assert_int_equal(ends.count, 3);
    assert_int_equal(ends.bos, 128000);
    config = read_model("Mistral-7B-v0.1", &ends);
    assert_int_equal(config.window, 4096);
    assert_false(model_layer_is_full(&config, 0));
    config = read_model("Qwen2.5-0.5B-Instruct", &ends);
    assert_int_equal(config.window, 0);
    assert_true(model_has_bias(&config, ATTACH_QKV) && !model_has_bias(&config, ATTACH_PROJECTION));
    config = read_model("Qwen3-0.6B", &ends);
    assert_true(config.qk_layernorm);
    assert_int_equal(model_widths(&config, 1).q, 2048); /* twice the width of the stream */
    config = read_model("Phi-3-mini-4k-instruct", &ends);
    assert_int_equal(config.window, 2047);
    assert_true(config.rotary.percent == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_has_as_many_parameters_as_it_is_known_for),
        cmocka_unit_test(each_is_what_it_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
