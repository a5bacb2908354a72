/* The GPT-2 family. Its files store linears as Conv1D, [in, out]; ours are [out, in]. */
#include "family-internal.h"

/* ---- names ---- */

static const char *const buffers[] = {".attn.bias", ".attn.masked_bias", NULL}; /* causal masks, in old files */
static const char *const weights[] = {"c_attn", NULL};
static const char *const scales[] = {"c_attn", "mlp.c_proj", NULL};
static const char *const scaled_inputs[] = {"mlp.c_proj", NULL};

static void list_projections(const struct model_config *config, struct model_projection out[MODEL_MAX_PROJECTIONS]) {
    struct model_widths widths = model_widths(config, 1);
    int64_t C = config->hidden_size, F = config->ffn_hidden_size;
    out[0] = (struct model_projection){ATTACH_QKV, "attn.c_attn", .out = widths.qkv,
                                       .in = C,    .parts = 3,    .part = {widths.q, widths.kv, widths.kv}};
    out[1] = (struct model_projection){ATTACH_PROJECTION, "attn.c_proj", .out = C, .in = widths.q, .parts = 1};
    out[2] = (struct model_projection){ATTACH_FC1, "mlp.c_fc", .out = F, .in = C, .parts = 1};
    out[3] = (struct model_projection){ATTACH_FC2, "mlp.c_proj", .out = C, .in = F, .parts = 1};
}

/* ---- config.json ---- */

static const char *const activation_names[] = {[ACTIVATION_GELU_TANH] = "gelu_new", [ACTIVATION_GELU_EXACT] = "gelu"};

static json_t *write_config(const struct model_family *family, const struct model_config *config) {
    double embedding = config->embedding_dropout < 0 ? config->hidden_dropout : config->embedding_dropout;
    json_t *object =
        json_pack("{s:s, s:b, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:b, s:b, s:s}",
                  "activation_function", activation_names[config->activation], "add_cross_attention", 0, "attn_pdrop",
                  config->attention_dropout, "embd_pdrop", embedding, "initializer_range", config->init_method_std,
                  "layer_norm_epsilon", config->layernorm_epsilon, "n_embd", (json_int_t)config->hidden_size, "n_head",
                  (json_int_t)config->num_attention_heads, "n_inner", (json_int_t)config->ffn_hidden_size, "n_layer",
                  (json_int_t)config->num_layers, "n_positions", (json_int_t)config->max_position_embeddings,
                  "reorder_and_upcast_attn", 0, "resid_pdrop", config->hidden_dropout,
                  "scale_attn_by_inverse_layer_idx", 0, "scale_attn_weights", 1, "summary_type", "cls_index");
    if (object && !config->add_bias_linear)
        json_object_set_new(object, "add_bias_linear", json_false());
    return object;
}

/* Refuses keys that change the mathematics, unless they have the one value that is built. */
static void refuse_what_is_not_built(struct json_keys *keys) {
    static const struct {
        const char *key;
        bool built;
    } switches[] = {{"scale_attn_by_inverse_layer_idx", false},
                    {"reorder_and_upcast_attn", false},
                    {"add_cross_attention", false},
                    {"scale_attn_weights", true}};
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (json_keys_bool(keys, switches[i].key, switches[i].built) != switches[i].built && !keys->status)
            keys->status = status_fail(STATUS_UNSUPPORTED, "%s: '%s': %s is not supported", keys->where,
                                       switches[i].key, switches[i].built ? "false" : "true");
    if (!keys->status && json_object_size(json_keys_find(keys, "pruned_heads")) > 0)
        keys->status = status_fail(STATUS_UNSUPPORTED, "%s: 'pruned_heads' is not supported", keys->where);
}

static int read_activation(struct json_keys *keys) {
    static const char *const tanh_names[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};
    const char *text = json_keys_string(keys, "activation_function", "gelu_new");
    for (size_t i = 0; i < sizeof tanh_names / sizeof *tanh_names; i++)
        if (!strcmp(text, tanh_names[i]))
            return ACTIVATION_GELU_TANH;
    if (strcmp(text, "gelu") && !keys->status)
        keys->status =
            status_fail(STATUS_UNSUPPORTED,
                        "%s: 'activation_function' \"%s\" is not supported (supported: gelu_new, gelu_pytorch_tanh, "
                        "gelu_fast, gelu)",
                        keys->where, text);
    return ACTIVATION_GELU_EXACT;
}

/* Reads a size that has one of two names. */
static int64_t read_size(struct json_keys *keys, const char *key, const char *other, int64_t maximum) {
    const char *found = json_keys_find(keys, key) || !json_keys_find(keys, other) ? key : other;
    json_keys_need(keys, found);
    return json_keys_integer(keys, found, 0, 1, maximum);
}

static void read_config(const struct model_family *family, struct json_keys *keys, struct model_config *config) {
    refuse_what_is_not_built(keys);
    config->num_layers = read_size(keys, "n_layer", "num_hidden_layers", MODEL_MAX_LAYERS);
    config->hidden_size = read_size(keys, "n_embd", "hidden_size", MODEL_MAX_WIDTH);
    config->num_attention_heads = read_size(keys, "n_head", "num_attention_heads", MODEL_MAX_WIDTH);
    config->num_query_groups = config->num_attention_heads;
    config->ffn_hidden_size = json_keys_integer(keys, "n_inner", 4 * config->hidden_size, 1, MODEL_MAX_FFN_WIDTH);
    config->max_position_embeddings = read_size(keys, "n_positions", "max_position_embeddings", MODEL_MAX_POSITIONS);
    config->vocab_size = read_size(keys, "vocab_size", NULL, MODEL_MAX_VOCABULARY);
    config->hidden_dropout = json_keys_number_below(keys, "resid_pdrop", 0.1, 0, 1);
    config->attention_dropout = json_keys_number_below(keys, "attn_pdrop", 0.1, 0, 1);
    config->embedding_dropout = json_keys_number_below(keys, "embd_pdrop", 0.1, 0, 1);
    config->init_method_std = json_keys_number_below(keys, "initializer_range", 0.02, 0, 1e6);
    config->layernorm_epsilon = json_keys_number_below(keys, "layer_norm_epsilon", 1e-5, 0, 1);
    config->activation = read_activation(keys);
    config->untie_embeddings_and_output_weights = !json_keys_bool(keys, "tie_word_embeddings", true);
    config->add_bias_linear = json_keys_bool(keys, "add_bias_linear", true);
}

static const char *unfit(const struct model_family *family, const struct model_config *config) {
    int64_t heads = config->num_attention_heads;
    return config->position_embedding != POSITION_LEARNED                                ? "position_embedding_type"
           : config->normalization != NORMALIZATION_LAYER                                ? "normalization"
           : config->swiglu                                                              ? "swiglu"
           : config->num_query_groups != heads                                           ? "num_query_groups"
           : config->kv_channels * heads != config->hidden_size                          ? "kv_channels"
           : config->qk_layernorm                                                        ? "qk_layernorm"
           : config->window                                                              ? "window_size"
           : config->add_qkv_bias || config->add_projection_bias || config->add_mlp_bias ? "add_qkv_bias"
                                                                                         : NULL;
}

/* ---- the row ---- */

const struct model_family model_family_gpt2 = {
    .name = "gpt2",
    .class_name = "GPT2LMHeadModel",
    .files = {.prefix = "transformer.",
              .head = "lm_head.weight",
              .embedding = "wte.weight",
              .buffers = buffers,
              .claims = model_claims_name},
    .is_transposed = true,
    .keeps_biases = true,
    .layers = "h",
    .modules =
        {.token = "wte", .position = "wpe", .final_norm = "ln_f", .head = "lm_head", .norm1 = "ln_1", .norm2 = "ln_2"},
    .eos_id = -1,
    .projection_count = 4,
    .projections = list_projections,
    .targets.weights = weights,
    .targets.scales = scales,
    .targets.scaled_inputs = scaled_inputs,
    .read = read_config,
    .write = write_config,
    .unfit = unfit,
};
