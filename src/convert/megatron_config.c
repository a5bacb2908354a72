/* The configuration of a Megatron run's model, from its arguments. Names are Megatron-LM's. */
#include "convert-internal.h"

#include "base/json_keys.h"

#include <stdlib.h>
#include <string.h>

/* Refuses what this program does not have, by the argument's name. */
static void refuse_others(struct json_keys *keys) {
    static const char *const off[] = {"squared_relu",           "quick_geglu",
                                      "multi_latent_attention", "rotary_interleaved",
                                      "apply_layernorm_1p",     "use_rotary_position_embeddings_2d",
                                      "is_hybrid_model",        "moe_layer_freq_pattern"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (json_is_true(json_keys_find(keys, off[i])))
            json_keys_refuse(keys, off[i], "false: this is not built");
    if (json_is_integer(json_keys_find(keys, "num_experts")))
        json_keys_refuse(keys, "num_experts", "absent: experts are not built");
}

static int read_word(struct json_keys *keys, const char *key, const char *const words[2], int fallback) {
    const char *word = json_keys_string(keys, key, words[fallback]);
    for (int i = 0; i < 2; i++)
        if (!strcmp(word, words[i]))
            return i;
    json_keys_refuse(keys, key, "'%s' or '%s'", words[0], words[1]);
    return fallback;
}

static int64_t need_integer(struct json_keys *keys, const char *key, int64_t high) {
    json_keys_need(keys, key);
    return json_keys_integer(keys, key, 1, 1, high);
}

static void read_sizes(struct json_keys *keys, struct model_config *c) {
    c->num_layers = need_integer(keys, "num_layers", MODEL_MAX_LAYERS);
    c->hidden_size = need_integer(keys, "hidden_size", MODEL_MAX_WIDTH);
    c->num_attention_heads = need_integer(keys, "num_attention_heads", MODEL_MAX_WIDTH);
    c->ffn_hidden_size = json_keys_integer(keys, "ffn_hidden_size", 0, 1, MODEL_MAX_FFN_WIDTH);
    c->kv_channels = json_keys_integer(keys, "kv_channels", 0, 1, MODEL_MAX_WIDTH);
    c->num_query_groups = c->num_attention_heads;
    if (json_keys_bool(keys, "group_query_attention", false))
        c->num_query_groups = need_integer(keys, "num_query_groups", MODEL_MAX_WIDTH);
    c->max_position_embeddings = need_integer(keys, "max_position_embeddings", MODEL_MAX_POSITIONS);
    c->vocab_size = json_keys_integer(keys, "vocab_size", 0, 1, MODEL_MAX_VOCABULARY);
    if (!c->vocab_size)
        c->vocab_size = need_integer(keys, "padded_vocab_size", MODEL_MAX_VOCABULARY);
}

static void read_parts(struct json_keys *keys, struct model_config *c) {
    static const char *const norms[2] = {"LayerNorm", "RMSNorm"}, *const positions[2] = {"learned_absolute", "rope"};
    c->normalization = read_word(keys, "normalization", norms, 0) ? NORMALIZATION_RMS : NORMALIZATION_LAYER;
    c->position_embedding = read_word(keys, "position_embedding_type", positions, 0) ? POSITION_ROPE : POSITION_LEARNED;
    c->layernorm_epsilon = json_keys_number(keys, "norm_epsilon", 1e-5, 0, 0.5);
    c->swiglu = json_keys_bool(keys, "swiglu", false);
    c->add_bias_linear = json_keys_bool(keys, "add_bias_linear", true);
    c->add_qkv_bias = json_keys_bool(keys, "add_qkv_bias", false) || c->add_bias_linear;
    c->add_projection_bias = c->add_mlp_bias = c->add_bias_linear;
    c->qk_layernorm = json_keys_bool(keys, "qk_layernorm", false);
    c->untie_embeddings_and_output_weights = json_keys_bool(keys, "untie_embeddings_and_output_weights", false);
    /* Megatron's fused GELU is that of tanh. */
    bool is_tanh = json_keys_bool(keys, "bias_gelu_fusion", true) || json_keys_bool(keys, "openai_gelu", false);
    c->activation = is_tanh || c->swiglu ? ACTIVATION_GELU_TANH : ACTIVATION_GELU_EXACT;
    c->init_method_std = 0.02;
    if (c->position_embedding == POSITION_ROPE) {
        c->rotary.base = json_keys_number(keys, "rotary_base", 10000, 1, 1e30);
        c->rotary.percent = json_keys_number(keys, "rotary_percent", 1, 0, 1);
        c->rotary.interpolation =
            json_keys_number(keys, "rotary_seq_len_interpolation_factor", 0, 1, MODEL_MAX_POSITIONS);
        if (json_keys_bool(keys, "use_rope_scaling", false)) {
            c->rotary.factor = json_keys_number(keys, "rope_scaling_factor", 8, 1, MODEL_MAX_POSITIONS);
            c->rotary.low = 1;
            c->rotary.high = 4;
            c->rotary.original_positions = 8192;
        }
    }
}

int megatron_read_config(const char *directory, struct model_config *config, bool *is_there) {
    char *text = NULL, where[PATH_MAX + 16];
    struct json_keys keys;
    *config = (struct model_config){0};
    int status = exchange_read_megatron_arguments(directory, &text);
    *is_there = text != NULL;
    if (status || !text)
        return status;
    snprintf(where, sizeof where, "%s/common.pt", directory);
    status = json_keys_open(&keys, text, where, JSON_MUST_BE);
    if (!status) {
        refuse_others(&keys);
        read_sizes(&keys, config);
        read_parts(&keys, config);
        status = keys.status;
    }
    json_keys_close(&keys);
    free(text);
    if (!status && model_config_resolve(config))
        status = status_wrap(STATUS_INVALID, "%s", where);
    if (!status && model_family_choose(config))
        status = status_wrap(STATUS_UNSUPPORTED, "%s", where);
    return status;
}
