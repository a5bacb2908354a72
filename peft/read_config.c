/* adapter_config.json of Hugging Face's PEFT, or of AdapterHub, to what an adapter is here. Nothing of the file is
 * trusted; what the mathematics here do not have is refused by its key, never passed over. */
#include "base/base.h"
#include "base/json.h"
#include "peft/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

struct peft_memory {
    struct peft_memory *next;
    max_align_t bytes[];
};

static void *keep(struct peft_config *config, size_t bytes) {
    struct peft_memory *block = calloc(1, sizeof *block + bytes);
    if (!block)
        return NULL;
    block->next = config->memory;
    config->memory = block;
    return block->bytes;
}

void peft_config_free(struct peft_config *config) {
    while (config->memory) {
        struct peft_memory *next = config->memory->next;
        free(config->memory);
        config->memory = next;
    }
    *config = (struct peft_config){0};
}

/* ---- single values ---- */

struct reader {
    const json_t *root;
    const char *where;
    struct peft_config *config;
    int status;
};

enum { SHOWN_BYTES = 64, LIST_ITEMS = 1 << 16 };

/* A text of the file as part of one line. */
static const char *shown(const char *text, char out[SHOWN_BYTES]) {
    size_t length = strnlen(text, SHOWN_BYTES - 1);
    memcpy(out, text, length);
    out[length] = 0;
    for (char *at = out; *at; at++)
        if ((unsigned char)*at < 32 || *at == 127)
            *at = '?';
    return out;
}

static void refuse(struct reader *r, const char *key, const char *expected) {
    if (!r->status)
        r->status = status_fail(STATUS_INVALID, "%s: \"%s\": expected %s", r->where, key, expected);
}

static const json_t *find(const struct reader *r, const char *key) {
    const json_t *value = json_object_get(r->root, key);
    return value && !json_is_null(value) ? value : NULL;
}

static int64_t read_integer(struct reader *r, const char *key, int64_t fallback, int64_t low, int64_t high) {
    const json_t *value = find(r, key);
    char expected[80];
    if (!value)
        return fallback;
    if (json_is_integer(value) && json_integer_value(value) >= low && json_integer_value(value) <= high)
        return json_integer_value(value);
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)low, (long long)high);
    refuse(r, key, expected);
    return fallback;
}

static double read_number(struct reader *r, const char *key, double fallback, double low, double high) {
    const json_t *value = find(r, key);
    char expected[80];
    if (!value)
        return fallback;
    double number = json_number_value(value);
    if (json_is_number(value) && number >= low && number <= high)
        return number;
    snprintf(expected, sizeof expected, "a number from %g to %g", low, high);
    refuse(r, key, expected);
    return fallback;
}

static bool read_bool(struct reader *r, const char *key, bool fallback) {
    const json_t *value = find(r, key);
    if (value && !json_is_boolean(value))
        refuse(r, key, "true or false");
    return value ? json_is_true(value) : fallback;
}

static const char *keep_text(struct reader *r, const char *text, size_t length) {
    char *copy = keep(r->config, length + 1);
    if (!copy)
        r->status = status_fail(STATUS_MEMORY, "out of memory");
    else
        memcpy(copy, text, length);
    return copy;
}

static const char *read_text(struct reader *r, const char *key) {
    const json_t *value = find(r, key);
    if (!value)
        return NULL;
    if (!json_is_string(value)) {
        refuse(r, key, "a text");
        return NULL;
    }
    return keep_text(r, json_string_value(value), json_string_length(value));
}

static int read_choice(struct reader *r, const char *key, const char *const *names, int count, int fallback) {
    const json_t *value = find(r, key);
    char expected[160] = "one of", word[SHOWN_BYTES];
    size_t used = strlen(expected);
    if (!value)
        return fallback;
    for (int i = 0; i < count; i++) {
        if (json_is_string(value) && names[i] && !strcmp(json_string_value(value), names[i]))
            return i;
        if (names[i])
            used += (size_t)snprintf(expected + used, sizeof expected - used, " %s", names[i]);
    }
    if (json_is_string(value))
        snprintf(expected + used, sizeof expected - used, ", found \"%s\"", shown(json_string_value(value), word));
    refuse(r, key, expected);
    return fallback;
}

/* ---- lists ---- */

static void add_item(struct reader *r, struct config_list *list, const char *text) {
    const char *copy = keep_text(r, text, strlen(text));
    if (copy)
        list->items[list->count++] = copy;
}

static bool start_list(struct reader *r, const char *key, size_t count, struct config_list *list) {
    *list = (struct config_list){0};
    if (count > LIST_ITEMS) {
        refuse(r, key, "fewer entries");
        return false;
    }
    list->items = keep(r->config, (count + 1) * sizeof *list->items);
    if (!list->items)
        r->status = status_fail(STATUS_MEMORY, "out of memory");
    return list->items != NULL;
}

/* Names, or one text: a regular expression, "all-linear". */
static void read_names(struct reader *r, const char *key, struct config_list *list) {
    const json_t *value = find(r, key);
    if (!value || r->status)
        return;
    if (json_is_string(value)) {
        if (!json_string_length(value))
            refuse(r, key, "names");
        else if (start_list(r, key, 1, list))
            add_item(r, list, json_string_value(value));
        return;
    }
    if (!json_is_array(value)) {
        refuse(r, key, "a list of names, or one regular expression");
        return;
    }
    if (!start_list(r, key, json_array_size(value), list))
        return;
    for (size_t i = 0; i < json_array_size(value) && !r->status; i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_string(item) || !json_string_length(item))
            refuse(r, key, "names alone in the list");
        else
            add_item(r, list, json_string_value(item));
    }
}

/* A layer, or several. */
static void read_layers(struct reader *r, const char *key, struct config_list *list) {
    const json_t *value = find(r, key);
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (!value || r->status || !start_list(r, key, count, list))
        return;
    for (size_t i = 0; i < count && !r->status; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        char text[32];
        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > 1000000) {
            refuse(r, key, "layers, from 0");
            return;
        }
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(item));
        add_item(r, list, text);
    }
    if (!r->status && !count) /* an empty list here would mean all, there it means none */
        refuse(r, key, "at least one layer, or null for all");
}

/* {"KEY": number}, in the file's order, which PEFT goes by. */
static void read_patterns(struct reader *r, const char *key, bool is_rank, struct config_list *list) {
    const json_t *value = find(r, key);
    if (!value || r->status)
        return;
    if (!json_is_object(value)) {
        refuse(r, key, "an object of module names and numbers");
        return;
    }
    if (!start_list(r, key, json_object_size(value), list))
        return;
    void *at = json_object_iter((json_t *)value);
    for (; at && !r->status; at = json_object_iter_next((json_t *)value, at)) {
        const json_t *item = json_object_iter_value(at);
        const char *name = json_object_iter_key(at);
        double number = json_number_value(item);
        bool is_right = json_is_number(item) && number >= 0 && number <= 1e6 &&
                        (!is_rank || (json_is_integer(item) && number >= 1 && number <= 65536));
        size_t bytes = strlen(name) + 40;
        char *text = is_right && *name ? malloc(bytes) : NULL;
        if (!is_right || !*name)
            refuse(r, key,
                   is_rank ? "module names with ranks, integers from 1 to 65536"
                           : "module names with numbers from 0 to 1e+06");
        else if (!text)
            r->status = status_fail(STATUS_MEMORY, "out of memory");
        else {
            snprintf(text, bytes, "%s=%.17g", name, number);
            add_item(r, list, text);
        }
        free(text);
    }
}

/* ---- what is refused, and what is passed over ---- */

static bool is_neutral(const json_t *value) {
    return !value || json_is_null(value) || json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value)) ||
           (json_is_string(value) && (!json_string_length(value) || !strcmp(json_string_value(value), "none")));
}

/* Each would compute something else. */
static const char *const unsupported[] = {
    "bias",
    "enable_lora",
    "modules_to_save",
    "use_qalora",
    "layer_replication",
    "megatron_config",
    "lora_bias",
    "use_bdlora",
    "arrow_config",
    "trainable_token_indices",
    "target_parameters",
    "kasa_config",
    "alora_invocation_tokens",
    "velora_config",
    "monteclora_config",
};

/* Every key that has been read, or that says nothing of what is computed. */
static const char *const known[] = {
    "peft_type",
    "task_type",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "auto_mapping",
    "peft_version",
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "exclude_modules",
    "fan_in_fan_out",
    "use_rslora",
    "use_dora",
    "init_lora_weights",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "megatron_core",
    "qalora_group_size",
    "ensure_weight_tying",
    "runtime_config",
    "feedforward_modules",
    "init_ia3_weights",
    "num_virtual_tokens",
    "token_dim",
    "num_transformer_submodules",
    "num_attention_heads",
    "num_layers",
    "prompt_tuning_init",
    "prompt_tuning_init_text",
    "tokenizer_name_or_path",
    "tokenizer_kwargs",
    "encoder_reparameterization_type",
    "encoder_hidden_size",
    "encoder_num_layers",
    "encoder_dropout",
    "prefix_projection",
    "init_weights",
};

static bool is_among(const char *key, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(key, names[i]))
            return true;
    return false;
}

static void check_keys(struct reader *r) {
    enum { NAMED = 8 };
    struct strbuf unknown = STRBUF_INIT;
    int count = 0;
    const size_t refused = sizeof unsupported / sizeof *unsupported;
    void *at = json_object_iter((json_t *)r->root);
    for (; at && !r->status; at = json_object_iter_next((json_t *)r->root, at)) {
        const char *key = json_object_iter_key(at);
        char word[SHOWN_BYTES];
        if (is_among(key, unsupported, refused)) {
            if (!is_neutral(json_object_iter_value(at)))
                r->status = status_fail(STATUS_UNSUPPORTED, "%s: \"%s\" is set, and not supported", r->where, key);
        } else if (!is_among(key, known, sizeof known / sizeof *known) && !is_neutral(json_object_iter_value(at)) &&
                   count++ < NAMED)
            strbuf_format(&unknown, "%s%s", count > 1 ? ", " : "", shown(key, word));
    }
    if (!r->status && count)
        log_warning("%s: %d unknown key%s ignored: %s%s", r->where, count, count > 1 ? "s" : "", strbuf_text(&unknown),
                    count > NAMED ? ", ..." : "");
    strbuf_free(&unknown);
}

/* These differ from plain LoRA at the start alone. The others change the base, too, and their adapters are not for the
 * base as it was. */
static void check_initialisation(struct reader *r) {
    static const char *const plain[] = {"gaussian", "eva", "orthogonal", "mica"};
    const json_t *value = find(r, "init_lora_weights");
    char word[SHOWN_BYTES];
    if (!value || json_is_boolean(value))
        return;
    if (!json_is_string(value))
        refuse(r, "init_lora_weights", "true, false or a name");
    else if (!is_among(json_string_value(value), plain, sizeof plain / sizeof *plain))
        r->status =
            status_fail(STATUS_UNSUPPORTED,
                        "%s: \"init_lora_weights\" \"%s\" is not supported: such an adapter is for a changed base "
                        "(convert it to plain LoRA first)",
                        r->where, shown(json_string_value(value), word));
}

static void check_task(struct reader *r, bool is_needed) {
    const json_t *value = find(r, "task_type");
    bool is_right = value ? json_is_string(value) && !strcmp(json_string_value(value), "CAUSAL_LM") : !is_needed;
    if (!is_right)
        refuse(r, "task_type", "CAUSAL_LM");
}

/* PEFT's name of the layers' list: GPT-2 has one. */
static void check_layers_pattern(struct reader *r) {
    const json_t *value = find(r, "layers_pattern");
    if (json_is_array(value) && json_array_size(value) == 1)
        value = json_array_get(value, 0);
    if (!is_neutral(value) && (!json_is_string(value) || strcmp(json_string_value(value), "h") != 0))
        refuse(r, "layers_pattern", "null or \"h\"");
}

/* ---- methods ---- */

/* An empty list is no module at all, and not the method's own. */
static void read_targets(struct reader *r) {
    read_names(r, "target_modules", &r->config->target_modules);
    if (!r->status && find(r, "target_modules") && !r->config->target_modules.count)
        refuse(r, "target_modules", "at least one name, or null for the method's own");
}

static void read_lora(struct reader *r) {
    struct peft_config *config = r->config;
    check_initialisation(r);
    check_layers_pattern(r);
    config->r = read_integer(r, "r", 8, 1, 65536);
    config->lora_alpha = read_number(r, "lora_alpha", 8, 0, 1e6);
    config->lora_dropout = read_number(r, "lora_dropout", 0, 0, 1);
    if (config->lora_dropout >= 1)
        refuse(r, "lora_dropout", "0 or more, below 1");
    config->use_rslora = read_bool(r, "use_rslora", false);
    config->use_dora = read_bool(r, "use_dora", false);
    read_targets(r);
    read_names(r, "exclude_modules", &config->exclude_modules);
    read_layers(r, "layers_to_transform", &config->layers_to_transform);
    read_patterns(r, "rank_pattern", true, &config->rank_pattern);
    read_patterns(r, "alpha_pattern", false, &config->alpha_pattern);
}

static void read_ia3(struct reader *r) {
    struct peft_config *config = r->config;
    read_targets(r);
    read_names(r, "exclude_modules", &config->exclude_modules);
    read_names(r, "feedforward_modules", &config->feedforward_modules);
    if (!r->status && find(r, "feedforward_modules") && !config->feedforward_modules.count)
        add_item(r, &config->feedforward_modules, "none");
}

static void read_prompt(struct reader *r) {
    static const char *const encoders[] = {[PEFT_MLP] = "MLP", [PEFT_LSTM] = "LSTM"};
    struct peft_config *config = r->config;
    if (!find(r, "num_virtual_tokens"))
        refuse(r, "num_virtual_tokens", "a number of virtual tokens");
    config->num_virtual_tokens = read_integer(r, "num_virtual_tokens", 1, 1, 65536);
    read_integer(r, "num_transformer_submodules", 1, 1, 1);
    config->prompt_tuning_init = PEFT_INIT_RANDOM; /* the file has the values */
    config->encoder_reparameterization_type =
        read_choice(r, "encoder_reparameterization_type", encoders, sizeof encoders / sizeof *encoders, PEFT_MLP);
    config->encoder_hidden_size = read_integer(r, "encoder_hidden_size", 0, 1, 1 << 20);
    config->encoder_num_layers = read_integer(r, "encoder_num_layers", 2, 1, 64);
    config->encoder_dropout = read_number(r, "encoder_dropout", 0, 0, 1);
    config->prefix_projection = read_bool(r, "prefix_projection", false);
}

static void read_peft(struct reader *r) {
    static const char *const types[PEFT_TYPE_COUNT] = {[PEFT_LORA] = "LORA",
                                                       [PEFT_IA3] = "IA3",
                                                       [PEFT_PROMPT] = "PROMPT_TUNING",
                                                       [PEFT_PTUNING] = "P_TUNING",
                                                       [PEFT_PREFIX] = "PREFIX_TUNING"};
    if (!find(r, "peft_type"))
        refuse(r, "peft_type", "the name of a method");
    r->config->type = read_choice(r, "peft_type", types, PEFT_TYPE_COUNT, PEFT_LORA);
    check_keys(r);
    if (r->status)
        return;
    bool is_lora = r->config->type == PEFT_LORA, is_ia3 = r->config->type == PEFT_IA3;
    check_task(r, !is_lora && !is_ia3);
    if (is_lora)
        read_lora(r);
    else if (is_ia3)
        read_ia3(r);
    else
        read_prompt(r);
}

/* ---- AdapterHub ---- */

/* Keys of its inner object that must be as in the forms that are built here; its other keys say nothing of them. */
static void check_hub(struct reader *r) {
    static const char *const off[] = {"phm_layer",    "use_gating", "cross_adapter",
                                      "inv_adapter",  "ln_after",   "adapter_residual_before_ln",
                                      "shared_W_phm", "dropout",    "stochastic_depth"};
    for (size_t i = 0; i < sizeof off / sizeof *off && !r->status; i++) {
        const json_t *value = find(r, off[i]);
        bool is_zero = json_is_number(value) && json_number_value(value) == 0;
        if (!is_neutral(value) && !is_zero)
            r->status = status_fail(STATUS_UNSUPPORTED, "%s: \"%s\" is set, and not supported", r->where, off[i]);
    }
    if (!r->status && !read_bool(r, "output_adapter", true))
        refuse(r, "output_adapter", "true");
}

static void read_bottleneck_width(struct reader *r, int64_t hidden) {
    const json_t *factor = find(r, "reduction_factor");
    double by = json_number_value(factor);
    if (!json_is_number(factor) || !(by > 0 && by <= 1e6))
        refuse(r, "reduction_factor", "a number above 0");
    if (r->status)
        return;
    double width = floor((double)hidden / by); /* Python's // */
    r->config->bottleneck = width < 1 ? 1 : (int64_t)width;
    if (width > 1 << 20)
        refuse(r, "reduction_factor", "one that leaves at most 1048576 of the hidden size");
}

/* leave_out: layers without an adapter; here those with one are listed. */
static void read_left_out(struct reader *r) {
    const json_t *value = find(r, "leave_out");
    if (!is_neutral(value) && !r->status)
        r->status = status_fail(STATUS_UNSUPPORTED, "%s: \"leave_out\" is set, and not supported", r->where);
}

static void read_hub(struct reader *r) {
    static const char *const activations[] = {[PEFT_GELU] = "gelu", [PEFT_RELU] = "relu", [PEFT_SWISH] = "swish"};
    struct peft_config *config = r->config;
    config->type = PEFT_ADAPTER;
    config->adapter_name = read_text(r, "name");
    if (config->adapter_name && (!*config->adapter_name || strlen(config->adapter_name) > 48))
        refuse(r, "name", "a name of at most 48 characters");
    if (!find(r, "hidden_size"))
        refuse(r, "hidden_size", "the width of the base");
    int64_t hidden = read_integer(r, "hidden_size", 1, 1, 1 << 20);
    config->base_name = read_text(r, "model_name");
    r->root = json_object_get(r->root, "config");
    if (!r->status && !json_is_object(r->root))
        refuse(r, "config", "an object");
    if (r->status)
        return;
    check_hub(r);
    read_left_out(r);
    read_bottleneck_width(r, hidden);
    bool has_attention = read_bool(r, "mh_adapter", false), is_parallel = read_bool(r, "is_parallel", false);
    bool reads_sum = read_bool(r, "original_ln_before", false);
    if (!r->status && has_attention && (is_parallel || reads_sum))
        refuse(r, "mh_adapter", "false with is_parallel or original_ln_before");
    if (!r->status && !has_attention && !is_parallel && !reads_sum)
        refuse(r, "original_ln_before", "true for an adapter behind the MLP alone");
    config->adapter_style = is_parallel ? PEFT_PARALLEL : has_attention ? PEFT_HOULSBY : PEFT_PFEIFFER;
    if (!find(r, "non_linearity"))
        refuse(r, "non_linearity", "the name of an activation");
    config->adapter_activation = read_choice(r, "non_linearity", activations, 3, PEFT_SWISH);
    config->adapter_pre_norm = read_bool(r, "ln_before", false);
    config->adapter_scaling = read_number(r, "scaling", 1, 0, 1e6);
}

/* ---- the file ---- */

int peft_read_config(const char *text, const char *where, struct peft_config *config) {
    json_error_t error;
    char word[SHOWN_BYTES];
    *config = (struct peft_config){.loraplus_lr_ratio = 1, .encoder_num_layers = 2, .adapter_scaling = 1};
    json_t *root;
    int status = json_read(text, strlen(text), JSON_REJECT_DUPLICATES, &root, &error);
    if (status == STATUS_INVALID)
        status_fail(status, "%s:%d:%d: %s", where, error.line, error.column, shown(error.text, word));
    if (status)
        return status;
    struct reader r = {.root = root, .where = where, .config = config};
    config->where = keep_text(&r, where, strlen(where));
    if (!r.status && !json_is_object(root))
        r.status = status_fail(STATUS_INVALID, "%s: expected a JSON object", where);
    else if (!r.status && json_object_get(root, "config") && !json_object_get(root, "peft_type"))
        read_hub(&r);
    else if (!r.status) {
        config->base_name = read_text(&r, "base_model_name_or_path");
        read_peft(&r);
    }
    json_decref(root);
    if (r.status)
        peft_config_free(config);
    return r.status;
}
