/* The configuration of a GGUF file's model. The keys say its sizes. Which tensors there are says which parts it has:
 * biases, a gate, norms of heads, its own head. */
#include "gguf_model-internal.h"

/* Keys that change the mathematics are read, or refused. Those of other models are not here. */
static const char *const known_keys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "tensor_data_layout",
    "expert_count",
    "expert_used_count",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
};

static void refuse_unknown_keys(struct gguf_keys *keys) {
    const char *key;
    for (size_t i = 0; (key = gguf_key_at(keys, i)) && !keys->status; i++) {
        size_t k = 0, count = sizeof known_keys / sizeof *known_keys;
        while (k < count && strcmp(key, known_keys[k]) != 0)
            k++;
        if (k == count)
            keys->status = status_fail(STATUS_UNSUPPORTED, "%s: the key '%s%s' is not supported", gguf_path(keys->file),
                                       keys->prefix, key);
    }
}

static void refuse_other_models(struct gguf_keys *keys) {
    if (gguf_integer(keys, "expert_count", 0, 0, INT32_MAX) > 0 && !keys->status)
        keys->status =
            status_fail(STATUS_UNSUPPORTED, "%s: a model of experts is not supported", gguf_path(keys->file));
    if (!gguf_bool(keys, "attention.causal", true) && !keys->status)
        keys->status = status_fail(STATUS_UNSUPPORTED, "%s: a model whose tokens see later ones is not supported",
                                   gguf_path(keys->file));
}

/* Finds the family by the architecture's name: both use the same ones. */
static int find_family(const struct gguf *file, struct gguf_keys *keys, struct model_config *config) {
    struct gguf_keys general = gguf_keys(file, "general.");
    gguf_need(&general, "architecture");
    const char *name = gguf_string(&general, "architecture", "");
    if (general.status)
        return general.status;
    int family = model_family_find(name);
    if (family < 0) {
        struct strbuf names = STRBUF_INIT;
        for (int i = 0; model_family_at(i); i++)
            strbuf_format(&names, "%s%s", i ? ", " : "", model_family_at(i)->name);
        int status = status_fail(STATUS_UNSUPPORTED, "%s: the architecture '%s' is not supported (supported: %s)",
                                 gguf_path(file), name, strbuf_text(&names));
        strbuf_free(&names);
        return status;
    }
    char prefix[sizeof keys->prefix];
    config->family = family;
    snprintf(prefix, sizeof prefix, "%.60s.", name);
    *keys = gguf_keys(file, prefix);
    return STATUS_OK;
}

static int64_t need_integer(struct gguf_keys *keys, const char *key, int64_t high) {
    gguf_need(keys, key);
    return gguf_integer(keys, key, 1, 1, high);
}

static void read_sizes(struct gguf_keys *keys, struct model_config *config) {
    config->num_layers = need_integer(keys, "block_count", MODEL_MAX_LAYERS);
    config->hidden_size = need_integer(keys, "embedding_length", MODEL_MAX_WIDTH);
    config->ffn_hidden_size = need_integer(keys, "feed_forward_length", MODEL_MAX_FFN_WIDTH);
    config->max_position_embeddings = need_integer(keys, "context_length", MODEL_MAX_POSITIONS);
    config->num_attention_heads = need_integer(keys, "attention.head_count", MODEL_MAX_WIDTH);
    config->num_query_groups =
        gguf_integer(keys, "attention.head_count_kv", config->num_attention_heads, 1, MODEL_MAX_WIDTH);
    config->kv_channels = gguf_integer(keys, "attention.key_length", 0, 1, MODEL_MAX_WIDTH);
    config->window = gguf_integer(keys, "attention.sliding_window", 0, 0, MODEL_MAX_POSITIONS);
    config->init_method_std = 0.02;
    int64_t values = gguf_integer(keys, "attention.value_length", config->kv_channels, 0, MODEL_MAX_WIDTH);
    if (values != config->kv_channels && !keys->status)
        keys->status = status_fail(STATUS_UNSUPPORTED, "%s: keys of %lld columns and values of %lld are not supported",
                                   gguf_path(keys->file), (long long)config->kv_channels, (long long)values);
}

/* The vocabulary has a row of the embedding for each token. */
static void read_vocabulary(const struct gguf *file, struct gguf_keys *keys, struct model_config *config) {
    const struct gguf_tensor *embedding = gguf_find(file, "token_embd.weight"),
                             *head = gguf_find(file, "output.weight");
    bool is_equal = false;
    if (keys->status)
        return;
    if (!embedding || embedding->dims != 2 || embedding->shape[0] > MODEL_MAX_VOCABULARY) {
        keys->status = status_fail(STATUS_INVALID, "%s: there is no table token_embd.weight of at most %d tokens",
                                   gguf_path(file), MODEL_MAX_VOCABULARY);
        return;
    }
    config->vocab_size = embedding->shape[0];
    int64_t named = gguf_integer(keys, "vocab_size", config->vocab_size, 1, INT64_MAX);
    if (named != config->vocab_size && !keys->status)
        keys->status =
            status_fail(STATUS_INVALID, "%s: the key '%svocab_size' is %lld, but token_embd.weight has %lld rows",
                        gguf_path(file), keys->prefix, (long long)named, (long long)config->vocab_size);
    if (keys->status)
        return;
    if (head)
        keys->status = gguf_is_equal(embedding, head, &is_equal);
    config->untie_embeddings_and_output_weights = head && !is_equal;
}

static void read_parts(const struct gguf *file, struct gguf_keys *keys, struct model_config *config) {
    const struct gguf_tensor *up = gguf_find(file, "blk.0.ffn_up.weight");
    bool has_norm_bias = gguf_find(file, "output_norm.bias");
    bool has_fused_gate = up && up->dims == 2 && up->shape[0] == 2 * config->ffn_hidden_size;
    const char *epsilon = has_norm_bias ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    config->normalization = has_norm_bias ? NORMALIZATION_LAYER : NORMALIZATION_RMS;
    gguf_need(keys, epsilon);
    config->layernorm_epsilon = gguf_number(keys, epsilon, 1e-5, 0, 0.5);
    config->swiglu = gguf_has_module(file, "ffn_gate", "weight") || has_fused_gate;
    config->qk_layernorm = gguf_has_module(file, "attn_q_norm", "weight");
    config->add_qkv_bias = gguf_has_module(file, "attn_q", "bias") || gguf_has_module(file, "attn_qkv", "bias");
    config->add_projection_bias = gguf_has_module(file, "attn_output", "bias");
    config->add_mlp_bias = gguf_has_module(file, "ffn_up", "bias");
    config->position_embedding = gguf_find(file, "position_embd.weight") ? POSITION_LEARNED : POSITION_ROPE;
}

int gguf_read_config(const struct gguf *file, struct model_config *config) {
    struct gguf_keys keys;
    *config = (struct model_config){0};
    TRY(find_family(file, &keys, config));
    refuse_unknown_keys(&keys);
    refuse_other_models(&keys);
    read_sizes(&keys, config);
    read_vocabulary(file, &keys, config);
    read_parts(file, &keys, config);
    int status = keys.status ? keys.status : gguf_read_rotation(file, &keys, config);
    THEN_IF(status, model_config_resolve(config), status_wrap(STATUS_INVALID, "%s", gguf_path(file)));
    TRY(status);
    const struct model_family *family = model_family(config);
    const char *reason = family->unfit(family, config);
    return reason ? status_fail(STATUS_UNSUPPORTED, "%s: a %s with this %s is not supported", gguf_path(file),
                                family->name, reason)
                  : STATUS_OK;
}
