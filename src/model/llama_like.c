/* config.json, names and projections of Llama and its relatives. */
#include "llama_like.h"

/* ---- names ---- */

const char *const llama_like_buffers[] = {".rotary_emb.inv_freq", NULL}; /* in old files */
const char *const llama_like_weights[] = {"q_proj", "v_proj", NULL};
const char *const llama_like_scales_of_keys[] = {"k_proj", "v_proj", "down_proj", NULL};
const char *const llama_like_scales_of_queries[] = {"q_proj", "v_proj", "down_proj", NULL};
const char *const llama_like_scaled_inputs[] = {"down_proj", NULL};

void llama_like_projections(const struct model_config *config, struct model_projection out[MODEL_MAX_PROJECTIONS]) {
    struct model_widths w = model_widths(config, 1);
    int64_t C = config->hidden_size, F = w.ffn;
    const struct model_projection all[LLAMA_PROJECTIONS] = {
        {ATTACH_QKV, "self_attn.q_proj", .out = w.q, .in = C, .parts = 1},
        {ATTACH_QKV, "self_attn.k_proj", .first = w.q, .out = w.kv, .in = C, .parts = 1},
        {ATTACH_QKV, "self_attn.v_proj", .first = w.q + w.kv, .out = w.kv, .in = C, .parts = 1},
        {ATTACH_PROJECTION, "self_attn.o_proj", .out = C, .in = w.q, .parts = 1},
        {ATTACH_FC1, "mlp.gate_proj", .out = F, .in = C, .parts = 1},
        {ATTACH_FC1, "mlp.up_proj", .first = F, .out = F, .in = C, .parts = 1},
        {ATTACH_FC2, "mlp.down_proj", .out = C, .in = F, .parts = 1},
    };
    memcpy(out, all, sizeof all);
}

/* ---- reading ---- */

static bool is_null(const struct json_keys *keys, const char *key) {
    return json_is_null(json_object_get(keys->object, key));
}

static void refuse(struct json_keys *keys, const char *key, const char *value) {
    if (!keys->status)
        keys->status = status_fail(STATUS_UNSUPPORTED, "%s: '%s'%s%s is not supported", keys->where, key,
                                   *value ? ": " : "", value);
}

/* Refuses models with experts or with layers that are not rotated. They have another model_type, or bring code. */
static void refuse_other_models(struct json_keys *keys, const char *class_name) {
    static const char *const others[] = {"num_experts", "num_local_experts", "n_routed_experts", "no_rope_layers"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (json_keys_find(keys, others[i]))
            refuse(keys, others[i], "");
    if (json_keys_integer(keys, "pretraining_tp", 1, 1, 1 << 20) > 1)
        refuse(keys, "pretraining_tp", "more than 1");
    const char *path = json_string_value(json_object_get(json_keys_find(keys, "auto_map"), "AutoModelForCausalLM"));
    const char *class = path ? strrchr(path, '.') : NULL;
    if (path && strcmp(class ? class + 1 : path, class_name))
        refuse(keys, "auto_map", "code of the model's own");
}

static void read_activation(struct json_keys *keys) {
    const char *text = json_keys_string(keys, "hidden_act", "silu");
    if (strcmp(text, "silu") && strcmp(text, "swish") && !keys->status)
        keys->status = status_fail(STATUS_UNSUPPORTED, "%s: 'hidden_act' \"%s\" is not supported (supported: silu)",
                                   keys->where, text);
}

static void read_biases(enum llama_biases biases, struct json_keys *keys, struct model_config *config) {
    bool attention = biases >= LLAMA_BIASES_ATTENTION && json_keys_bool(keys, "attention_bias", false);
    config->add_qkv_bias = attention || biases == LLAMA_BIASES_QKV;
    config->add_projection_bias = attention;
    config->add_mlp_bias = biases == LLAMA_BIASES_BOTH && json_keys_bool(keys, "mlp_bias", false);
}

/* Reads the kind of each layer from the file's list; returns false when it has none. */
static bool read_layer_types(struct json_keys *keys, struct model_config *config, int64_t *windows) {
    const json_t *types = json_keys_find(keys, "layer_types");
    if (!types)
        return false;
    if (!json_is_array(types) || (int64_t)json_array_size(types) != config->num_layers)
        json_keys_refuse(keys, "layer_types", "a list of %lld kinds, one a layer", (long long)config->num_layers);
    for (int64_t l = 0; l < config->num_layers && !keys->status; l++) {
        const char *kind = json_string_value(json_array_get(types, (size_t)l));
        bool is_full = kind && !strcmp(kind, "full_attention");
        if (is_full)
            model_set_full(config, l);
        else if (kind && !strcmp(kind, "sliding_attention"))
            ++*windows;
        else
            json_keys_refuse(keys, "layer_types", "a list of full_attention and sliding_attention");
    }
    return true;
}

/* Reads a window for all layers, or for some. */
static void read_window(const struct llama_variant *variant, struct json_keys *keys, struct model_config *config) {
    int64_t window = 0, windows = 0;
    bool is_by_layer = variant->windows == LLAMA_WINDOWS_SOME;
    if (variant->windows != LLAMA_WINDOWS_NONE && !is_null(keys, "sliding_window"))
        window = json_keys_integer(keys, "sliding_window", variant->sliding_window, 1, MODEL_MAX_POSITIONS);
    if (is_by_layer && !json_keys_bool(keys, "use_sliding_window", false))
        window = 0;
    int64_t first = is_by_layer ? json_keys_integer(keys, "max_window_layers", 28, 0, INT32_MAX) : 0;
    bool is_listed = read_layer_types(keys, config, &windows);
    if (!is_listed) {
        for (int64_t l = 0; l < config->num_layers && l < first; l++)
            model_set_full(config, l);
        windows = window && first < config->num_layers ? config->num_layers - first : 0;
    } else if ((windows && !window) || (window && !is_by_layer && windows < config->num_layers)) {
        json_keys_refuse(keys, "layer_types",
                         window ? "a list of only sliding_attention: every layer has the window"
                                : "a list of only full_attention: there is no window");
    }
    config->window = windows ? window : 0;
    if (!config->window)
        memset(config->full_layers, 0, sizeof config->full_layers);
}

void llama_like_read(const struct model_family *family, struct json_keys *keys, struct model_config *config) {
    const struct llama_variant *variant = family->variant;
    refuse_other_models(keys, family->class_name);
    read_activation(keys);
    config->num_layers = json_keys_integer(keys, "num_hidden_layers", 32, 1, MODEL_MAX_LAYERS);
    config->hidden_size = json_keys_integer(keys, "hidden_size", variant->hidden_size, 1, MODEL_MAX_WIDTH);
    config->num_attention_heads = json_keys_integer(keys, "num_attention_heads", 32, 1, MODEL_MAX_WIDTH);
    if (variant->has_equal_heads && config->hidden_size % config->num_attention_heads)
        json_keys_refuse(keys, "hidden_size", "a multiple of 'num_attention_heads' %lld",
                         (long long)config->num_attention_heads);
    int64_t groups = is_null(keys, "num_key_value_heads") ? 0 : variant->num_key_value_heads;
    config->num_query_groups = json_keys_integer(keys, "num_key_value_heads",
                                                 groups ? groups : config->num_attention_heads, 1, MODEL_MAX_WIDTH);
    if (variant->head_dim && is_null(keys, "head_dim"))
        json_keys_refuse(keys, "head_dim", "an integer");
    config->kv_channels = json_keys_integer(keys, "head_dim", variant->head_dim, 1, MODEL_MAX_WIDTH);
    config->ffn_hidden_size =
        json_keys_integer(keys, "intermediate_size", variant->intermediate_size, 1, MODEL_MAX_FFN_WIDTH);
    config->max_position_embeddings =
        json_keys_integer(keys, "max_position_embeddings", variant->max_position_embeddings, 1, MODEL_MAX_POSITIONS);
    config->vocab_size = json_keys_integer(keys, "vocab_size", variant->vocab_size, 1, MODEL_MAX_VOCABULARY);
    config->attention_dropout = json_keys_number_below(keys, "attention_dropout", 0, 0, 1);
    if (variant->has_residual_dropouts) {
        config->hidden_dropout = json_keys_number_below(keys, "resid_pdrop", 0, 0, 1);
        config->embedding_dropout = json_keys_number_below(keys, "embd_pdrop", 0, 0, 1);
    }
    config->init_method_std = json_keys_number_below(keys, "initializer_range", 0.02, 0, 1e6);
    config->layernorm_epsilon = json_keys_number_below(keys, "rms_norm_eps", variant->rms_norm_eps, 0, 1);
    config->normalization = NORMALIZATION_RMS;
    config->swiglu = true;
    config->qk_layernorm = variant->has_qk_norms;
    config->untie_embeddings_and_output_weights = !json_keys_bool(keys, "tie_word_embeddings", false);
    read_biases(variant->biases, keys, config);
    rope_read(keys, variant->has_partial_rotation, config);
    if (!keys->status)
        read_window(variant, keys, config);
}

/* ---- writing ---- */

static void set(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value);
}

/* Before version 4.53, `transformers` reads max_window_layers; later versions read the list. */
static void write_window(const struct llama_variant *variant, const struct model_config *config, json_t *object) {
    if (variant->windows == LLAMA_WINDOWS_NONE)
        return;
    set(object, "sliding_window", config->window ? json_integer(config->window) : json_null());
    if (variant->windows == LLAMA_WINDOWS_ALL)
        return;
    json_t *types = json_array();
    int64_t first = config->num_layers;
    for (int64_t l = config->num_layers; l-- > 0;)
        if (!model_layer_is_full(config, l))
            first = l;
    for (int64_t l = 0; l < config->num_layers; l++)
        json_array_append_new(types,
                              json_string(model_layer_is_full(config, l) ? "full_attention" : "sliding_attention"));
    set(object, "layer_types", types);
    set(object, "max_window_layers", json_integer(first));
    set(object, "use_sliding_window", json_boolean(config->window));
}

json_t *llama_like_write(const struct model_family *family, const struct model_config *config) {
    const struct llama_variant *variant = family->variant;
    json_t *object = json_pack(
        "{s:f, s:I, s:s, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:f}", "attention_dropout", config->attention_dropout,
        "head_dim", (json_int_t)model_widths(config, 1).head, "hidden_act", "silu", "hidden_size",
        (json_int_t)config->hidden_size, "initializer_range", config->init_method_std, "intermediate_size",
        (json_int_t)config->ffn_hidden_size, "max_position_embeddings", (json_int_t)config->max_position_embeddings,
        "num_attention_heads", (json_int_t)config->num_attention_heads, "num_hidden_layers",
        (json_int_t)config->num_layers, "num_key_value_heads", (json_int_t)config->num_query_groups, "rms_norm_eps",
        config->layernorm_epsilon);
    if (variant->biases >= LLAMA_BIASES_ATTENTION)
        set(object, "attention_bias", json_boolean(model_has_bias(config, ATTACH_PROJECTION)));
    if (variant->biases == LLAMA_BIASES_BOTH)
        set(object, "mlp_bias", json_boolean(model_has_bias(config, ATTACH_FC1)));
    if (variant->has_residual_dropouts) {
        double embedding = config->embedding_dropout < 0 ? config->hidden_dropout : config->embedding_dropout;
        set(object, "resid_pdrop", json_real(config->hidden_dropout));
        set(object, "embd_pdrop", json_real(embedding));
    }
    set(object, "pad_token_id", json_null()); /* without it, a class's default may lie beyond the vocabulary */
    write_window(variant, config, object);
    rope_write(config, variant->has_partial_rotation, object);
    return object;
}

/* ---- what fits ---- */

static bool fits_biases(enum llama_biases biases, const struct model_config *config) {
    bool qkv = model_has_bias(config, ATTACH_QKV), output = model_has_bias(config, ATTACH_PROJECTION);
    bool mlp = model_has_bias(config, ATTACH_FC1);
    return biases == LLAMA_BIASES_QKV         ? qkv && !output && !mlp
           : biases == LLAMA_BIASES_ATTENTION ? qkv == output && !mlp
           : biases == LLAMA_BIASES_BOTH      ? qkv == output
                                              : !qkv && !output && !mlp;
}

static bool fits_windows(enum llama_windows windows, const struct model_config *config) {
    bool has_full = false;
    for (int64_t l = 0; l < config->num_layers; l++)
        has_full |= model_layer_is_full(config, l);
    return !config->window || windows == LLAMA_WINDOWS_SOME || (windows == LLAMA_WINDOWS_ALL && !has_full);
}

const char *llama_like_unfit(const struct model_family *family, const struct model_config *config) {
    const struct llama_variant *variant = family->variant;
    const struct {
        const char *key;
        bool fits;
    } rules[] = {
        {"position_embedding_type", config->position_embedding != POSITION_LEARNED},
        {"normalization", config->normalization == NORMALIZATION_RMS},
        {"swiglu", config->swiglu},
        {"hidden_size", !variant->has_equal_heads || config->hidden_size % config->num_attention_heads == 0},
        {"qk_layernorm", config->qk_layernorm == variant->has_qk_norms},
        {config->add_bias_linear ? "add_bias_linear" : "add_qkv_bias", fits_biases(variant->biases, config)},
        {variant->windows == LLAMA_WINDOWS_ALL ? "window_attn_skip_freq" : "window_size",
         fits_windows(variant->windows, config)},
        {"hidden_dropout", variant->has_residual_dropouts || config->hidden_dropout == 0},
        {"embedding_dropout", variant->has_residual_dropouts || config->embedding_dropout <= 0},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!rules[i].fits)
            return rules[i].key;
    return rope_unfit(config, variant->has_partial_rotation);
}
