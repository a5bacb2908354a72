/* adapter_config.json, with the keys and values that PEFT reads back and other readers ask for. */
#include "method-internal.h"

#include "base/json.h"
#include "pretrained/pretrained.h"

#include <stdlib.h>
#include <string.h>

static const char *const type_names[PEFT_TYPE_COUNT] = {
    [PEFT_LORA] = "LORA",
    [PEFT_IA3] = "IA3",
    [PEFT_PROMPT] = "PROMPT_TUNING",
    [PEFT_PTUNING] = "P_TUNING",
    [PEFT_PREFIX] = "PREFIX_TUNING",
};

static void set(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value);
}

static json_t *list_of(const struct config_list *list, const char *const *defaults) {
    json_t *array = json_array();
    for (size_t i = 0; i < list->count; i++)
        json_array_append_new(array, json_string(list->items[i]));
    for (size_t i = 0; list->count == 0 && defaults && defaults[i]; i++)
        json_array_append_new(array, json_string(defaults[i]));
    return array;
}

/* A list of suffixes; a single text where PEFT would read a list otherwise than we did. */
static json_t *targets_of(const struct config_list *list, const char *const *defaults) {
    bool is_text =
        list->count == 1 && (!strcmp(list->items[0], "all-linear") || strpbrk(list->items[0], "*+?[](|^$\\"));
    return is_text ? json_string(list->items[0]) : list_of(list, defaults);
}

/* {"KEY": number} of "KEY=number". */
static json_t *pattern_of(const struct config_list *list, bool is_integer) {
    json_t *object = json_object();
    for (size_t i = 0; i < list->count; i++) {
        const char *equals = strrchr(list->items[i], '=');
        if (!equals)
            continue;
        json_object_setn_new(object, list->items[i], (size_t)(equals - list->items[i]),
                             is_integer ? json_integer(strtoll(equals + 1, NULL, 10))
                                        : json_real(strtod(equals + 1, NULL)));
    }
    return object;
}

static json_t *layers_of(const struct config_list *list) {
    if (!list->count)
        return json_null();
    json_t *array = json_array();
    for (size_t i = 0; i < list->count; i++)
        json_array_append_new(array, json_integer(strtoll(list->items[i], NULL, 10)));
    return array;
}

static json_t *number_of(double value) {
    return value == (double)(json_int_t)value ? json_integer((json_int_t)value) : json_real(value);
}

static void add_lora(json_t *object, const struct peft_config *config) {
    static const char *const defaults[] = {"c_attn", NULL};
    set(object, "r", json_integer(config->r));
    set(object, "lora_alpha", number_of(config->lora_alpha));
    set(object, "lora_dropout", json_real(config->lora_dropout));
    set(object, "bias", json_string("none"));
    set(object, "fan_in_fan_out", json_true());
    set(object, "target_modules", targets_of(&config->target_modules, defaults));
    set(object, "exclude_modules",
        config->exclude_modules.count ? targets_of(&config->exclude_modules, NULL) : json_null());
    set(object, "init_lora_weights", json_true());
    set(object, "use_rslora", json_boolean(config->use_rslora));
    set(object, "use_dora", json_boolean(config->use_dora));
    set(object, "rank_pattern", pattern_of(&config->rank_pattern, true));
    set(object, "alpha_pattern", pattern_of(&config->alpha_pattern, false));
    set(object, "layers_to_transform", layers_of(&config->layers_to_transform));
    set(object, "layers_pattern", json_null());
    set(object, "modules_to_save", json_null());
}

/* Whether the targets have the feed-forward's second projection in some layer. */
static int targets_forward(const struct peft_config *config, bool *is_any) {
    enum { LAYERS = 1024 }; /* whose numbers expressions may name */
    struct peft_config anywhere = *config;
    struct peft_choice *choices = calloc(LAYERS * PEFT_PROJECTIONS, sizeof *choices);
    anywhere.layers_to_transform = (struct config_list){0};
    int status = choices ? peft_choose(&anywhere, LAYERS, choices) : status_fail(STATUS_MEMORY, "out of memory");
    *is_any = false;
    for (int64_t layer = 0; layer < LAYERS && !status; layer++)
        *is_any = *is_any || choices[layer * PEFT_PROJECTIONS + PEFT_PROJECTIONS - 1].is_target;
    free(choices);
    return status;
}

static int add_ia3(json_t *object, const struct peft_config *config) {
    static const char *const defaults[] = {"c_attn", "mlp.c_proj", NULL}, *const forwards[] = {"mlp.c_proj", NULL};
    const struct config_list *modules = &config->feedforward_modules;
    bool is_default = !config->target_modules.count, is_targeted = false;
    int status = modules->count || is_default ? STATUS_OK : targets_forward(config, &is_targeted);
    bool is_none =
        modules->count ? modules->count == 1 && !strcmp(modules->items[0], "none") : !is_default && !is_targeted;
    set(object, "target_modules", targets_of(&config->target_modules, defaults));
    set(object, "exclude_modules",
        config->exclude_modules.count ? targets_of(&config->exclude_modules, NULL) : json_null());
    /* PEFT takes a list only where each of its entries is one of the targets, letter by letter. */
    set(object, "feedforward_modules",
        is_none                        ? json_array()
        : modules->count || is_default ? targets_of(modules, forwards)
                                       : json_string(".*\\.mlp\\.c_proj"));
    set(object, "fan_in_fan_out", json_true());
    set(object, "init_ia3_weights", json_true());
    set(object, "modules_to_save", json_null());
    return status;
}

static void add_prompt(json_t *object, const struct peft_config *config) {
    static const char *const encoders[] = {"MLP", "LSTM"};
    set(object, "num_virtual_tokens", json_integer(config->num_virtual_tokens));
    set(object, "num_transformer_submodules", json_integer(1));
    if (config->type == PEFT_PROMPT)
        set(object, "prompt_tuning_init", json_string("RANDOM")); /* the file has the values */
    if (config->type == PEFT_PTUNING) {
        set(object, "encoder_reparameterization_type", json_string(encoders[config->encoder_reparameterization_type]));
        set(object, "encoder_num_layers", json_integer(config->encoder_num_layers));
        set(object, "encoder_dropout", json_real(config->encoder_dropout));
    }
    if (config->type != PEFT_PROMPT)
        set(object, "encoder_hidden_size",
            config->encoder_hidden_size ? json_integer(config->encoder_hidden_size) : json_null());
    if (config->type == PEFT_PREFIX)
        set(object, "prefix_projection", json_false()); /* folded in the file */
}

/* ---- AdapterHub ---- */

static int base_width(const char *directory, int64_t *width) {
    struct pretrained base;
    int status = pretrained_read_config(directory, &base);
    *width = base.config.hidden_size;
    pretrained_close(&base);
    return status;
}

/* The factor that its readers divide the width by, and round down. */
static json_t *reduction_of(int64_t width, int64_t bottleneck) {
    return width % bottleneck == 0 ? json_integer(width / bottleneck)
                                   : json_real((double)width / ((double)bottleneck + 0.5));
}

/* The inner object: what a bottleneck adapter is, and every feature that it has not. */
static json_t *hub_adapter(const struct peft_config *config, int64_t width) {
    static const char *const activations[] = {[PEFT_GELU] = "gelu", [PEFT_RELU] = "relu", [PEFT_SWISH] = "swish"};
    static const char *const off[] = {
        "adapter_residual_before_ln", "cross_adapter", "ln_after", "phm_layer", "shared_W_phm", "use_gating",
        "factorized_phm_rule"};
    static const char *const on[] = {"factorized_phm_W",   "learn_phm",       "original_ln_after", "output_adapter",
                                     "residual_before_ln", "shared_phm_rule", "phm_bias"};
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        set(object, off[i], json_false());
    for (size_t i = 0; i < sizeof on / sizeof *on; i++)
        set(object, on[i], json_true());
    set(object, "dropout", json_real(0));
    set(object, "stochastic_depth", json_real(0));
    set(object, "hypercomplex_nonlinearity", json_string("glorot-uniform"));
    set(object, "init_weights", json_string("bert"));
    set(object, "init_weights_seed", json_null());
    set(object, "inv_adapter", json_null());
    set(object, "inv_adapter_reduction_factor", json_null());
    set(object, "leave_out", json_array());
    set(object, "phm_c_init", json_string("normal"));
    set(object, "phm_dim", json_integer(4));
    set(object, "phm_init_range", json_real(0.0001));
    set(object, "phm_rank", json_integer(1));
    set(object, "is_parallel", json_boolean(config->adapter_style == PEFT_PARALLEL));
    set(object, "mh_adapter", json_boolean(config->adapter_style == PEFT_HOULSBY));
    set(object, "original_ln_before", json_boolean(config->adapter_style == PEFT_PFEIFFER));
    set(object, "ln_before", json_boolean(config->adapter_pre_norm));
    set(object, "non_linearity", json_string(activations[config->adapter_activation]));
    set(object, "reduction_factor", reduction_of(width, config->bottleneck));
    set(object, "scaling", json_real(config->adapter_scaling));
    return object;
}

static int hub_config(const struct peft_config *config, const char *base_directory, json_t *object) {
    int64_t width;
    int status = base_width(base_directory, &width);
    if (!status && config->bottleneck < 1)
        status = status_fail(STATUS_USAGE, "peft.bottleneck %lld: expected at least 1", (long long)config->bottleneck);
    if (!status && config->layers_to_transform.count)
        status =
            status_fail(STATUS_USAGE, "peft.layers_to_transform is not for --peft adapter: its files cannot say it");
    if (status)
        return status;
    set(object, "config", hub_adapter(config, width));
    set(object, "hidden_size", json_integer(width));
    set(object, "model_class", json_string("GPT2LMHeadModel"));
    set(object, "model_name", json_string(base_directory));
    set(object, "model_type", json_string("gpt2"));
    set(object, "name", json_string(config->adapter_name ? config->adapter_name : "default"));
    set(object, "version", json_string("adapters.1.3.0"));
    return STATUS_OK;
}

static int peft_object(const struct peft_config *config, const char *base_directory, json_t *object) {
    set(object, "peft_type", json_string(type_names[config->type]));
    set(object, "task_type", json_string("CAUSAL_LM"));
    set(object, "base_model_name_or_path", json_string(base_directory));
    set(object, "inference_mode", json_true());
    set(object, "revision", json_null());
    set(object, "auto_mapping", json_null());
    if (config->type == PEFT_LORA)
        add_lora(object, config);
    else if (config->type == PEFT_IA3)
        return add_ia3(object, config);
    else
        add_prompt(object, config);
    return STATUS_OK;
}

int peft_write_config(const struct peft_config *config, const char *base_directory, char **text) {
    json_begin();
    json_t *object = json_object();
    int status = STATUS_OK;
    *text = NULL;
    if (config->type == PEFT_ADAPTER)
        status = hub_config(config, base_directory, object);
    else
        status = peft_object(config, base_directory, object);
    if (!status)
        return json_end(object, JSON_INDENT(2) | JSON_SORT_KEYS, text);
    json_decref(object);
    return status;
}
