/* A bottleneck adapter's configuration, in a run and in AdapterHub's files. */
#include "bottleneck-internal.h"
#include "format-internal.h"

#include <math.h>

/* ---- the section `peft` ---- */

static const char *const styles[] = {
    [PEFT_HOULSBY] = "houlsby", [PEFT_PFEIFFER] = "pfeiffer", [PEFT_PARALLEL] = "parallel", NULL};
static const char *const activations[] = {[PEFT_GELU] = "gelu", [PEFT_RELU] = "relu", [PEFT_SWISH] = "swish", NULL};

static const struct config_row keys[] = {
    PEFT_INT(bottleneck, "48", 1, 65536, "adapter: inner width"),
    PEFT_CHOICE(adapter_style, "houlsby", styles, "adapter: its place in a layer"),
    PEFT_CHOICE(adapter_activation, "swish", activations, "adapter: activation between its two layers"),
    PEFT_BOOL(adapter_pre_norm, "false", "adapter: normalise its input"),
    PEFT_FLOAT(adapter_scaling, "1", 0, 1e6, "adapter: factor of its output"),
};
static const struct peft_shared_key shared[] = {{.path = "peft.layers_to_transform"}, {0}};

/* ---- adapter_config.json ---- */

static bool recognises(const json_t *root) {
    return json_object_get(root, "config") && !json_object_get(root, "peft_type");
}

/* Keys of its inner object that must have the values of the supported forms; its other keys do not matter. */
static void check_hub(struct peft_reader *r) {
    static const char *const off[] = {"phm_layer",    "use_gating", "cross_adapter",
                                      "inv_adapter",  "ln_after",   "adapter_residual_before_ln",
                                      "shared_W_phm", "dropout",    "stochastic_depth"};
    for (size_t i = 0; i < sizeof off / sizeof *off && !r->keys.status; i++) {
        const json_t *value = json_keys_find(&r->keys, off[i]);
        bool is_zero = json_is_number(value) && json_number_value(value) == 0;
        if (!is_zero)
            reader_refuse_set(r, off[i]);
    }
    if (!r->keys.status && !json_keys_bool(&r->keys, "output_adapter", true))
        json_keys_refuse(&r->keys, "output_adapter", "true");
}

static void read_bottleneck_width(struct peft_reader *r, int64_t hidden) {
    const json_t *factor = json_keys_find(&r->keys, "reduction_factor");
    double by = json_number_value(factor);
    if (!json_is_number(factor) || !(by > 0 && by <= 1e6))
        json_keys_refuse(&r->keys, "reduction_factor", "a number above 0");
    if (r->keys.status)
        return;
    double width = floor((double)hidden / by); /* Python's // */
    r->config->bottleneck = width < 1 ? 1 : (int64_t)width;
    if (width > 1 << 20)
        json_keys_refuse(&r->keys, "reduction_factor", "one that leaves at most 1048576 of the hidden size");
}

static void read_keys(struct peft_reader *r) {
    struct peft_config *config = r->config;
    config->adapter_name = reader_text(r, "name");
    if (config->adapter_name && (!*config->adapter_name || strlen(config->adapter_name) > 48))
        json_keys_refuse(&r->keys, "name", "a name of at most 48 characters");
    if (!json_keys_find(&r->keys, "hidden_size"))
        json_keys_refuse(&r->keys, "hidden_size", "the width of the base");
    int64_t hidden = json_keys_integer(&r->keys, "hidden_size", 1, 1, 1 << 20);
    config->base_name = reader_text(r, "model_name");
    r->keys.object = json_object_get(r->keys.object, "config");
    if (!r->keys.status && !json_is_object(r->keys.object))
        json_keys_refuse(&r->keys, "config", "an object");
    if (r->keys.status)
        return;
    check_hub(r);
    reader_refuse_set(r, "leave_out"); /* layers without an adapter; here layers with one are listed */
    read_bottleneck_width(r, hidden);
    bool has_attention = json_keys_bool(&r->keys, "mh_adapter", false),
         is_parallel = json_keys_bool(&r->keys, "is_parallel", false);
    bool reads_sum = json_keys_bool(&r->keys, "original_ln_before", false);
    if (!r->keys.status && has_attention && (is_parallel || reads_sum))
        json_keys_refuse(&r->keys, "mh_adapter", "false with is_parallel or original_ln_before");
    if (!r->keys.status && !has_attention && !is_parallel && !reads_sum)
        json_keys_refuse(&r->keys, "original_ln_before", "true only for an adapter after the MLP");
    config->adapter_style = is_parallel ? PEFT_PARALLEL : has_attention ? PEFT_HOULSBY : PEFT_PFEIFFER;
    if (!json_keys_find(&r->keys, "non_linearity"))
        json_keys_refuse(&r->keys, "non_linearity", "the name of an activation");
    config->adapter_activation = reader_choice(r, "non_linearity", activations, 3, PEFT_SWISH);
    config->adapter_pre_norm = json_keys_bool(&r->keys, "ln_before", false);
    config->adapter_scaling = json_keys_number(&r->keys, "scaling", 1, 0, 1e6);
}

/* Returns the factor by which readers divide the width, rounding down. */
static json_t *reduction_of(int64_t width, int64_t bottleneck) {
    return width % bottleneck == 0 ? json_integer(width / bottleneck)
                                   : json_real((double)width / ((double)bottleneck + 0.5));
}

/* Makes the inner object: the adapter's definition, and every feature that it does not have. */
static json_t *hub_adapter(const struct peft_config *config, int64_t width) {
    static const char *const off[] = {
        "adapter_residual_before_ln", "cross_adapter", "ln_after", "phm_layer", "shared_W_phm", "use_gating",
        "factorized_phm_rule"};
    static const char *const on[] = {"factorized_phm_W",   "learn_phm",       "original_ln_after", "output_adapter",
                                     "residual_before_ln", "shared_phm_rule", "phm_bias"};
    json_t *object = json_object();
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        writer_set(object, off[i], json_false());
    for (size_t i = 0; i < sizeof on / sizeof *on; i++)
        writer_set(object, on[i], json_true());
    writer_set(object, "dropout", json_real(0));
    writer_set(object, "stochastic_depth", json_real(0));
    writer_set(object, "hypercomplex_nonlinearity", json_string("glorot-uniform"));
    writer_set(object, "init_weights", json_string("bert"));
    writer_set(object, "init_weights_seed", json_null());
    writer_set(object, "inv_adapter", json_null());
    writer_set(object, "inv_adapter_reduction_factor", json_null());
    writer_set(object, "leave_out", json_array());
    writer_set(object, "phm_c_init", json_string("normal"));
    writer_set(object, "phm_dim", json_integer(4));
    writer_set(object, "phm_init_range", json_real(0.0001));
    writer_set(object, "phm_rank", json_integer(1));
    writer_set(object, "is_parallel", json_boolean(config->adapter_style == PEFT_PARALLEL));
    writer_set(object, "mh_adapter", json_boolean(config->adapter_style == PEFT_HOULSBY));
    writer_set(object, "original_ln_before", json_boolean(config->adapter_style == PEFT_PFEIFFER));
    writer_set(object, "ln_before", json_boolean(config->adapter_pre_norm));
    writer_set(object, "non_linearity", json_string(activations[config->adapter_activation]));
    writer_set(object, "reduction_factor", reduction_of(width, config->bottleneck));
    writer_set(object, "scaling", json_real(config->adapter_scaling));
    return object;
}

static int write_keys(const struct peft_config *config, const struct model_config *base, const char *base_directory,
                      json_t *object) {
    const struct model_family *family = model_family(base);
    if (config->bottleneck < 1)
        return status_fail(STATUS_USAGE, "peft.bottleneck %lld: expected at least 1", (long long)config->bottleneck);
    if (config->layers_to_transform.count)
        return status_fail(STATUS_USAGE, "peft.layers_to_transform is not for --peft adapter: its files cannot say it");
    writer_set(object, "config", hub_adapter(config, base->hidden_size));
    writer_set(object, "hidden_size", json_integer(base->hidden_size));
    writer_set(object, "model_class", json_string(family->class_name));
    writer_set(object, "model_name", json_string(base_directory));
    writer_set(object, "model_type", json_string(family->name));
    writer_set(object, "name", json_string(config->adapter_name ? config->adapter_name : "default"));
    writer_set(object, "version", json_string("adapters.1.3.0"));
    return STATUS_OK;
}

/* ---- adapter show ---- */

static void show(const struct peft_config *config, struct strbuf *text) {
    static const char *const places[] = {[PEFT_HOULSBY] = "houlsby, after attention and MLP",
                                         [PEFT_PFEIFFER] = "pfeiffer, after the MLP",
                                         [PEFT_PARALLEL] = "parallel to the MLP"};
    strbuf_format(text, "\nstyle: %s\nbottleneck: %lld\nactivation: %s\n", places[config->adapter_style],
                  (long long)config->bottleneck, activations[config->adapter_activation]);
    if (config->adapter_pre_norm)
        strbuf_add_text(text, "pre_norm: true\n");
    strbuf_format(text, "scaling: %g\n", config->adapter_scaling);
}

/* ---- shapes ---- */

static bool is_bottleneck(const struct peft_config *config, int64_t size) {
    return size == config->bottleneck;
}

static int check_shape(struct peft_shape *shape) {
    static const char key[] = "the bottleneck";
    const char *name = shape->tensor->name;
    bool is_down = strstr(name, ".adapter_down."), is_matrix = strstr(name, ".weight");
    bool is_norm =
        strstr(name, ".adapter_norm_before.") || (shape->config->adapter_pre_norm && strstr(name, ".adapter_down.0."));
    if (!is_norm && is_matrix)
        return shape_check_axis(shape, !is_down, is_bottleneck, key);
    int status = shape_check_dims(shape, 1);
    if (status || is_norm || !is_down || is_bottleneck(shape->config, shape->tensor->shape[0]))
        return status;
    return shape_fail(shape, "its size is not %s of adapter_config.json", key);
}

const struct peft_format bottleneck_format = {.keys = keys,
                                              .key_count = sizeof keys / sizeof *keys,
                                              .shared = shared,
                                              .recognises = recognises,
                                              .read = read_keys,
                                              .write = write_keys,
                                              .check_shape = check_shape,
                                              .show = show};
