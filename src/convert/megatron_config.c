/* The configuration of a Megatron run's model, from its arguments and as arguments. Names are Megatron-LM's. */
#include "convert-internal.h"

#include "base/json.h"
#include "base/json_keys.h"

#include <math.h>

/* Megatron fixes these numbers of Llama 3's scaling. */
enum { LLAMA3_POSITIONS = 8192 };
static const double llama3_low = 1, llama3_high = 4;

#define NOT_BUILT "false: this is not built"
#define NO_OTHER  "absent: this is not built"

/* Arguments that change the model, and what they must be. */
static const struct {
    const char *name, *expected;
} others[] = {
    {"squared_relu", NOT_BUILT},
    {"quick_geglu", NOT_BUILT},
    {"multi_latent_attention", NOT_BUILT},
    {"rotary_interleaved", NOT_BUILT},
    {"apply_layernorm_1p", NOT_BUILT},
    {"apply_residual_connection_post_layernorm", NOT_BUILT},
    {"use_rotary_position_embeddings_2d", NOT_BUILT},
    {"is_hybrid_model", NOT_BUILT},
    {"qk_l2_norm", NOT_BUILT},
    {"attention_output_gate", NOT_BUILT},
    {"head_wise_attn_gate", NOT_BUILT},
    {"use_mup", NOT_BUILT},
    {"num_experts", "absent: experts are not built"},
    {"no_rope_freq", NO_OTHER},
    {"rotary_base_per_layer", NO_OTHER},
    {"softmax_scale", NO_OTHER},
    {"experimental_attention_variant", NO_OTHER},
    {"linear_attention_type", NO_OTHER},
};

/* Refuses what this program does not have, by the argument's name. */
static void refuse_others(struct json_keys *keys) {
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const json_t *value = json_keys_find(keys, others[i].name);
        if (value && !json_is_false(value))
            json_keys_refuse(keys, others[i].name, "%s", others[i].expected);
    }
    if (strcmp(json_keys_string(keys, "softmax_type", "vanilla"), "vanilla") != 0)
        json_keys_refuse(keys, "softmax_type", "'vanilla': no other is built");
    if (json_number_value(json_keys_find(keys, "glu_linear_offset")) != 0)
        json_keys_refuse(keys, "glu_linear_offset", "0: no other is built");
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
            c->rotary.low = llama3_low;
            c->rotary.high = llama3_high;
            c->rotary.original_positions = LLAMA3_POSITIONS;
        }
    }
}

/* Reads (W, 0): a token sees itself and W before it; -1 is Megatron's word for all. Returns the tokens that it sees;
 * 0: there is no window. */
static int64_t read_window(struct json_keys *keys) {
    const json_t *size = json_keys_find(keys, "window_size");
    const json_t *before = json_array_get(size, 0), *after = json_array_get(size, 1);
    json_int_t count = json_integer_value(before);
    bool is_all = count == -1 && json_integer_value(after) == -1;
    if (!size)
        return 0;
    if (json_array_size(size) != 2 || !json_is_integer(before) || !json_is_integer(after) || count < -1 ||
        count >= MODEL_MAX_POSITIONS || (json_integer_value(after) != 0 && !is_all))
        json_keys_refuse(keys, "window_size", "(W, 0), where a token sees itself and W, at most %d, before it",
                         MODEL_MAX_POSITIONS - 1);
    return count + 1;
}

/* Reads which layers have the window. */
static void read_windows(struct json_keys *keys, struct model_config *c) {
    const json_t *skip = json_keys_find(keys, "window_attn_skip_freq");
    int64_t numbers[MODEL_MAX_LAYERS] = {json_integer_value(skip)};
    bool is_list = json_is_array(skip),
         is_right = is_list ? (int64_t)json_array_size(skip) == c->num_layers : numbers[0] > 0;
    c->window = read_window(keys);
    if (!c->window || !skip || keys->status)
        return;
    for (int64_t l = 0; l < c->num_layers && is_list && is_right; l++) {
        const json_t *number = json_array_get(skip, (size_t)l);
        numbers[l] = json_is_true(number) || json_integer_value(number) != 0;
        is_right = json_is_integer(number) || json_is_boolean(number);
    }
    if (!is_right)
        json_keys_refuse(keys, "window_attn_skip_freq", "a number of at least 1, or a list of %lld, one for each layer",
                         (long long)c->num_layers);
    else if (!model_skip_windows(c, numbers, is_list))
        c->window = 0;
}

/* Reads the arguments; messages call them `where`. */
static int parse(const char *text, const char *where, struct model_config *config) {
    struct json_keys keys;
    *config = (struct model_config){0};
    int status = json_keys_open(&keys, text, where, JSON_MUST_BE);
    if (!status) {
        refuse_others(&keys);
        read_sizes(&keys, config);
        read_parts(&keys, config);
        read_windows(&keys, config);
        status = keys.status;
    }
    json_keys_close(&keys);
    return status;
}

int megatron_read_config(const char *directory, struct model_config *config, bool *is_there) {
    char *text = NULL, where[PATH_MAX + 16];
    int status = exchange_read_megatron_arguments(directory, &text);
    *is_there = text != NULL;
    if (status || !text)
        return status;
    snprintf(where, sizeof where, "%s/common.pt", directory);
    status = parse(text, where, config);
    free(text);
    THEN_IF(status, model_config_resolve(config), status_wrap(STATUS_INVALID, "%s", where));
    THEN_IF(status, model_family_choose(config), status_wrap(STATUS_UNSUPPORTED, "%s", where));
    return status;
}

/* ---- writing ---- */

/* Returns a part of the model that the arguments, as they are written, do not say; NULL: there is none. */
static const char *find_unsaid(const struct model_config *c) {
    bool is_llama3 = c->rotary.low == llama3_low && c->rotary.high == llama3_high &&
                     c->rotary.original_positions == LLAMA3_POSITIONS;
    double positions = c->rotary.interpolation;
    if (c->position_embedding == POSITION_YARN)
        return "YaRN's scaling of positions";
    if (c->position_embedding == POSITION_ROPE && c->rotary.factor > 0 && !is_llama3)
        return "other frequencies and positions in Llama 3's scaling than 1, 4 and 8192";
    if (c->position_embedding == POSITION_ROPE && positions > 1 && positions != floor(positions))
        return "a scaling of positions that is no integer";
    if (!c->add_bias_linear && (c->add_projection_bias || c->add_mlp_bias))
        return "biases in this part of its linears";
    return NULL;
}

/* Adds an integer where the number is one, as Megatron's parser makes it. */
static void set_number(json_t *object, const char *name, double value) {
    bool is_integer = value == floor(value) && fabs(value) < 1e15;
    json_object_set_new(object, name, is_integer ? json_integer((json_int_t)value) : json_real(value));
}

static void set_rotation(json_t *object, const struct model_config *c) {
    set_number(object, "rotary_base", c->rotary.base);
    json_object_set_new(object, "rotary_percent", json_real(c->rotary.percent));
    if (c->rotary.interpolation > 1)
        set_number(object, "rotary_seq_len_interpolation_factor", c->rotary.interpolation);
    json_object_set_new(object, "use_rope_scaling", json_boolean(c->rotary.factor > 0));
    if (c->rotary.factor > 0)
        json_object_set_new(object, "rope_scaling_factor", json_real(c->rotary.factor));
}

static void set_windows(json_t *object, const struct model_config *c) {
    int64_t period = model_window_period(c);
    json_object_set_new(object, "window_size", json_pack("[I, i]", (json_int_t)c->window - 1, 0));
    json_t *layers = period ? json_integer(period) : json_array();
    for (int64_t l = 0; l < c->num_layers && !period; l++)
        json_array_append_new(layers, json_integer(!model_layer_is_full(c, l)));
    if (period <= c->num_layers) /* a larger one: every layer has the window */
        json_object_set(object, "window_attn_skip_freq", layers);
    json_decref(layers);
}

static void set_parts(json_t *object, const struct model_config *c) {
    bool is_rms = c->normalization == NORMALIZATION_RMS, is_learned = c->position_embedding == POSITION_LEARNED;
    bool is_tanh = c->activation == ACTIVATION_GELU_TANH && !c->swiglu;
    json_object_set_new(object, "normalization", json_string(is_rms ? "RMSNorm" : "LayerNorm"));
    json_object_set_new(object, "norm_epsilon", json_real(c->layernorm_epsilon));
    json_object_set_new(object, "swiglu", json_boolean(c->swiglu));
    json_object_set_new(object, "bias_gelu_fusion", json_boolean(is_tanh));
    json_object_set_new(object, "add_bias_linear", json_boolean(c->add_bias_linear));
    json_object_set_new(object, "add_qkv_bias", json_boolean(c->add_qkv_bias));
    json_object_set_new(object, "qk_layernorm", json_boolean(c->qk_layernorm));
    json_object_set_new(object, "untie_embeddings_and_output_weights",
                        json_boolean(c->untie_embeddings_and_output_weights));
    json_object_set_new(object, "position_embedding_type", json_string(is_learned ? "learned_absolute" : "rope"));
    if (!is_learned)
        set_rotation(object, c);
    if (c->window)
        set_windows(object, c);
}

int megatron_write_arguments(const char *where, const struct model_config *c, int64_t padded_vocabulary,
                             int tensor_ranks, char **text) {
    const char *unsaid = find_unsaid(c);
    *text = NULL;
    if (unsaid)
        return status_fail(STATUS_UNSUPPORTED, "%s: a checkpoint of Megatron core cannot have %s", where, unsaid);
    json_begin();
    json_t *object = json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:i, s:i}",    //
                               "num_layers", (json_int_t)c->num_layers,                                //
                               "hidden_size", (json_int_t)c->hidden_size,                              //
                               "ffn_hidden_size", (json_int_t)c->ffn_hidden_size,                      //
                               "num_attention_heads", (json_int_t)c->num_attention_heads,              //
                               "num_query_groups", (json_int_t)c->num_query_groups,                    //
                               "group_query_attention", c->num_query_groups != c->num_attention_heads, //
                               "kv_channels", (json_int_t)c->kv_channels,                              //
                               "max_position_embeddings", (json_int_t)c->max_position_embeddings,      //
                               "seq_length", (json_int_t)c->max_position_embeddings,                   //
                               "vocab_size", (json_int_t)c->vocab_size,                                //
                               "padded_vocab_size", (json_int_t)padded_vocabulary,                     //
                               "make_vocab_size_divisible_by", MEGATRON_VOCABULARY_GROUP,              //
                               "tensor_model_parallel_size", tensor_ranks);
    if (object)
        set_parts(object, c);
    return json_end(object, JSON_COMPACT, text);
}
