/* Rules between the keys of a model, from `model:` or from a config.json. Afterwards equal models have equal
 * members. */
#include "run.h"

#include "base/base.h"

static int check_dropout(const char *name, double value) {
    if (value >= 0 && value < 1)
        return STATUS_OK;
    return status_fail(STATUS_USAGE, "%s %g: expected at least 0 and below 1", name, value);
}

static int check_needed(const struct model_config *model) {
    const struct {
        const char *name;
        int64_t value;
    } needed[] = {
        {"num_layers", model->num_layers},
        {"hidden_size", model->hidden_size},
        {"num_attention_heads", model->num_attention_heads},
        {"max_position_embeddings", model->max_position_embeddings},
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (needed[i].value <= 0)
            return status_fail(STATUS_USAGE, "model.%s is not given", needed[i].name);
    if (model->vocab_size <= 0)
        return status_fail(STATUS_USAGE, "no vocabulary: give tokenizer (a directory) or model.vocab_size");
    return STATUS_OK;
}

static int resolve_heads(struct model_config *model) {
    int64_t heads = model->num_attention_heads;
    if (!model->kv_channels && model->hidden_size % heads)
        return status_fail(STATUS_USAGE,
                           "model.hidden_size %lld is not divisible by model.num_attention_heads %lld, and "
                           "model.kv_channels is not given",
                           (long long)model->hidden_size, (long long)heads);
    if (!model->kv_channels)
        model->kv_channels = model->hidden_size / heads;
    if (heads * model->kv_channels > MODEL_MAX_FFN_WIDTH)
        return status_fail(STATUS_USAGE,
                           "model.num_attention_heads %lld by model.kv_channels %lld: expected at most "
                           "%d columns",
                           (long long)heads, (long long)model->kv_channels, MODEL_MAX_FFN_WIDTH);
    if (!model->num_query_groups)
        model->num_query_groups = heads;
    if (heads % model->num_query_groups)
        return status_fail(STATUS_USAGE,
                           "model.num_attention_heads %lld is not divisible by model.num_query_groups %lld",
                           (long long)heads, (long long)model->num_query_groups);
    return STATUS_OK;
}

static int resolve_mlp(struct model_config *model) {
    if (model->swiglu && model->activation != ACTIVATION_GELU_TANH)
        return status_fail(STATUS_USAGE, "model.activation gelu with model.swiglu: a gate has SiLU, leave it out");
    if (!model->ffn_hidden_size)
        model->ffn_hidden_size = model->swiglu ? model->hidden_size / 24 * 64 : 4 * model->hidden_size;
    if (!model->ffn_hidden_size)
        return status_fail(STATUS_USAGE,
                           "model.ffn_hidden_size is not given, and 2/3 of 4 * model.hidden_size %lld is "
                           "less than 64",
                           (long long)model->hidden_size);
    return STATUS_OK;
}

/* Sets only add_bias_linear when all linears have biases. */
static void resolve_biases(struct model_config *model) {
    if (model->add_qkv_bias && model->add_projection_bias && model->add_mlp_bias)
        model->add_bias_linear = true;
    if (model->add_bias_linear)
        model->add_qkv_bias = model->add_projection_bias = model->add_mlp_bias = false;
}

/* ---- the rotation ---- */

static int refuse_rotation(const char *key, double value, const char *what) {
    return status_fail(STATUS_USAGE, "model.%s %g%s", key, value, what);
}

/* Refuses keys of a rotation, or of one of its scalings, when the model has none. */
static int check_absent(const struct model_config *model, bool has_rope, bool has_llama3, bool has_yarn) {
    const struct {
        const char *key;
        double value;
        bool may_be;
        const char *without;
    } keys[] = {
        {"rotary_base", model->rotary.base, has_rope, " with model.position_embedding_type learned_absolute"},
        {"rotary_percent", model->rotary.percent, has_rope, " with model.position_embedding_type learned_absolute"},
        {"rotary_seq_len_interpolation_factor", model->rotary.interpolation, has_rope,
         " with model.position_embedding_type learned_absolute"},
        {"rope_scaling_factor", model->rotary.factor, has_rope, " with model.position_embedding_type learned_absolute"},
        {"rope_low_freq_factor", model->rotary.low, has_llama3, " without model.use_rope_scaling"},
        {"rope_high_freq_factor", model->rotary.high, has_llama3, " without model.use_rope_scaling"},
        {"yarn_rotary_scaling_factor", model->rotary.yarn_factor, has_yarn,
         " without model.position_embedding_type yarn"},
        {"yarn_beta_fast", model->rotary.beta_fast, has_yarn, " without model.position_embedding_type yarn"},
        {"yarn_beta_slow", model->rotary.beta_slow, has_yarn, " without model.position_embedding_type yarn"},
        {"yarn_attention_factor", model->rotary.attention_factor, has_yarn,
         " without model.position_embedding_type yarn"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].value != 0 && !keys[i].may_be)
            return refuse_rotation(keys[i].key, keys[i].value, keys[i].without);
    return STATUS_OK;
}

static void fill(double *value, double fallback) {
    if (*value == 0)
        *value = fallback;
}

/* Llama 3's scaling. Megatron-LM fixes all of it except the factor. */
static int resolve_llama3(struct model_config *model) {
    fill(&model->rotary.low, 1);
    fill(&model->rotary.high, 4);
    if (!model->rotary.original_positions)
        model->rotary.original_positions = 8192;
    if (model->rotary.high <= model->rotary.low)
        return status_fail(STATUS_USAGE,
                           "model.rope_high_freq_factor %g: expected more than "
                           "model.rope_low_freq_factor %g",
                           model->rotary.high, model->rotary.low);
    return STATUS_OK;
}

static int resolve_yarn(struct model_config *model) {
    fill(&model->rotary.beta_fast, 32);
    fill(&model->rotary.beta_slow, 1);
    if (model->rotary.yarn_factor == 0)
        return status_fail(STATUS_USAGE, "model.yarn_rotary_scaling_factor is not given");
    if (!model->rotary.original_positions)
        return status_fail(STATUS_USAGE, "model.yarn_original_max_position_embeddings is not given");
    if (model->rotary.beta_fast <= model->rotary.beta_slow)
        return status_fail(STATUS_USAGE, "model.yarn_beta_fast %g: expected more than model.yarn_beta_slow %g",
                           model->rotary.beta_fast, model->rotary.beta_slow);
    if (model->rotary.interpolation > 1)
        return refuse_rotation("rotary_seq_len_interpolation_factor", model->rotary.interpolation,
                               " with model.position_embedding_type yarn: expected one scaling");
    return STATUS_OK;
}

int64_t model_positions(const struct model_config *model) {
    int64_t positions = model->max_position_embeddings;
    double scaled = model->position_embedding == POSITION_YARN
                        ? model->rotary.yarn_factor * (double)model->rotary.original_positions
                        : model->rotary.interpolation * (double)positions;
    return scaled <= (double)positions    ? positions
           : scaled < MODEL_MAX_POSITIONS ? (int64_t)scaled
                                          : MODEL_MAX_POSITIONS;
}

static int resolve_rotation(struct model_config *model) {
    bool has_rope = model->position_embedding != POSITION_LEARNED;
    bool has_yarn = model->position_embedding == POSITION_YARN, has_llama3 = model->rotary.factor != 0;
    int status = check_absent(model, has_rope, has_llama3, has_yarn);
    if (status || !has_rope)
        return status;
    fill(&model->rotary.base, 10000);
    fill(&model->rotary.percent, 1);
    fill(&model->rotary.interpolation, 1);
    if (model->rotary.base <= 1)
        return refuse_rotation("rotary_base", model->rotary.base, ": expected more than 1");
    int64_t columns = (int64_t)((double)model->kv_channels * model->rotary.percent);
    if (columns < 2 || columns % 2)
        return status_fail(STATUS_USAGE,
                           "model.rotary_percent %g of model.kv_channels %lld makes %lld columns: expected an even "
                           "number above 0",
                           model->rotary.percent, (long long)model->kv_channels, (long long)columns);
    if (has_llama3 && (has_yarn || model->rotary.interpolation > 1))
        return refuse_rotation("rope_scaling_factor", model->rotary.factor,
                               has_yarn ? " with model.position_embedding_type yarn: expected one scaling"
                                        : " with model.rotary_seq_len_interpolation_factor: expected one scaling");
    return has_llama3 ? resolve_llama3(model) : has_yarn ? resolve_yarn(model) : STATUS_OK;
}

int model_config_resolve(struct model_config *model) {
    int status = check_needed(model);
    THEN(status, resolve_heads(model));
    THEN(status, resolve_mlp(model));
    THEN(status, resolve_rotation(model));
    resolve_biases(model);
    if (model->embedding_dropout == -1)
        model->embedding_dropout = model->hidden_dropout;
    THEN(status, check_dropout("model.hidden_dropout", model->hidden_dropout));
    THEN(status, check_dropout("model.attention_dropout", model->attention_dropout));
    return status ? status : check_dropout("model.embedding_dropout", model->embedding_dropout);
}
