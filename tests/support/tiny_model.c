#include "support/tiny_model.h"

#include "support/test.h"

struct model_config tiny_model(const struct tiny_model *sizes) {
    return (struct model_config){.num_layers = sizes->layers,
                                 .hidden_size = sizes->hidden,
                                 .num_attention_heads = sizes->heads,
                                 .num_query_groups = sizes->heads,
                                 .ffn_hidden_size = sizes->ffn,
                                 .max_position_embeddings = sizes->positions,
                                 .vocab_size = sizes->vocab,
                                 .init_method_std = sizes->init_std,
                                 .layernorm_epsilon = 1e-5,
                                 .add_bias_linear = true};
}

void tiny_model_become(struct model_config *config, const char *family, int64_t groups, int64_t channels) {
    bool is_llama = !strcmp(family, "llama");
    config->family = model_family_find(family);
    assert_true(config->family >= 0);
    config->num_query_groups = groups;
    config->kv_channels = channels;
    config->normalization = NORMALIZATION_RMS;
    config->position_embedding = POSITION_ROPE;
    config->rotary.base = 10000;
    config->rotary.percent = 1;
    config->swiglu = true;
    config->qk_layernorm = !strcmp(family, "qwen3");
    config->window = !strcmp(family, "mistral") ? 5 : 0;
    config->add_bias_linear = false;
    config->add_qkv_bias = config->add_projection_bias = config->add_mlp_bias = is_llama;
}
