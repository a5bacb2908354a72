/* The rotation in config.json. Files up to version 4 of `transformers` have rope_theta and rope_scaling, whose kind is
 * "rope_type" or "type". Files of version 5 have rope_parameters, with rope_theta in it. We write both for the sake of
 * either reader. If a file has both, they must agree. */
#include "llama_like.h"

#include "base/base.h"

static const double MIN_FACTOR = 1e-6, MAX_FACTOR = MODEL_MAX_POSITIONS;
enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_KINDS };
static const char *const kind_names[ROPE_KINDS] = {"default", "linear", "llama3", "yarn"};

static enum rope_kind read_kind(struct json_keys *keys, const char *form, bool is_default_only) {
    const char *key = json_keys_find(keys, "rope_type") ? "rope_type" : "type";
    const char *name = json_keys_string(keys, key, kind_names[ROPE_DEFAULT]);
    for (int kind = 0; kind < (is_default_only ? 1 : ROPE_KINDS); kind++)
        if (!strcmp(name, kind_names[kind]))
            return (enum rope_kind)kind;
    if (!keys->status)
        keys->status = status_fail(STATUS_UNSUPPORTED, "%s: '%s': \"%s\" is not supported (supported: default%s)",
                                   keys->where, form, name, is_default_only ? "" : ", linear, llama3, yarn");
    return ROPE_DEFAULT;
}

static double read_factor(struct json_keys *keys) {
    json_keys_need(keys, "factor");
    return json_keys_number(keys, "factor", 1, 1, MAX_FACTOR);
}

static void read_llama3(struct json_keys *keys, struct model_config *config) {
    json_keys_need(keys, "low_freq_factor");
    json_keys_need(keys, "high_freq_factor");
    config->rotary.factor = read_factor(keys);
    config->rotary.low = json_keys_number(keys, "low_freq_factor", 1, MIN_FACTOR, MAX_FACTOR);
    config->rotary.high = json_keys_number(keys, "high_freq_factor", 4, MIN_FACTOR, MAX_FACTOR);
}

static void read_yarn(struct json_keys *keys, struct model_config *config) {
    static const char *const others[] = {"mscale", "mscale_all_dim"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (json_keys_find(keys, others[i]) && !keys->status)
            keys->status = status_fail(STATUS_UNSUPPORTED, "%s: '%s' is not supported", keys->where, others[i]);
    if (!json_keys_bool(keys, "truncate", true) && !keys->status)
        keys->status = status_fail(STATUS_UNSUPPORTED, "%s: 'truncate': false is not supported", keys->where);
    config->position_embedding = POSITION_YARN;
    config->rotary.yarn_factor = read_factor(keys);
    config->rotary.beta_fast = json_keys_number(keys, "beta_fast", 0, 0, MAX_FACTOR);
    config->rotary.beta_slow = json_keys_number(keys, "beta_slow", 0, 0, MAX_FACTOR);
    config->rotary.attention_factor = json_keys_number(keys, "attention_factor", 0, MIN_FACTOR, MAX_FACTOR);
}

static void refuse_layers(struct json_keys *keys, const char *form) {
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)json_keys_find(keys, form), key, member) {
        if (json_is_object(member) && !keys->status)
            keys->status = status_fail(STATUS_UNSUPPORTED,
                                       "%s: '%s': '%s': a rotation by the kind of layer is not "
                                       "supported",
                                       keys->where, form, key);
    }
}

/* Reads a number that may be inside the object or next to it. */
static double read_inner(struct json_keys *keys, const struct json_keys *outer, const char *key, double fallback,
                         double low, double high) {
    struct json_keys around = *outer;
    double outside = json_keys_number(&around, key, fallback, low, high);
    keys->status = keys->status ? keys->status : around.status;
    double inside = json_keys_number(keys, key, outside, low, high);
    if (json_keys_find(outer, key) && inside != outside && !keys->status)
        keys->status = status_fail(STATUS_INVALID, "%s: '%s' is %g, but %g in the object that says how to rotate",
                                   keys->where, key, outside, inside);
    return inside;
}

/* Reads one form: the object `form`, and the keys next to it. */
static void read_form(struct json_keys *keys, const char *form, bool has_partial_rotation,
                      struct model_config *config) {
    const struct json_keys outer = *keys;
    if (json_keys_find(keys, form) && !json_is_object(json_keys_find(keys, form)))
        json_keys_refuse(keys, form, "an object");
    refuse_layers(keys, form);
    keys->object = json_keys_find(keys, form);
    config->position_embedding = POSITION_ROPE;
    config->rotary.base = read_inner(keys, &outer, "rope_theta", 10000, 1, 1e30);
    config->rotary.percent = read_inner(keys, &outer, "partial_rotary_factor", 1, MIN_FACTOR, 1);
    enum rope_kind kind = read_kind(keys, form, has_partial_rotation);
    if (kind == ROPE_LINEAR)
        config->rotary.interpolation = read_factor(keys);
    if (kind == ROPE_LLAMA3)
        read_llama3(keys, config);
    if (kind == ROPE_YARN)
        read_yarn(keys, config);
    if (kind == ROPE_LLAMA3 || kind == ROPE_YARN)
        config->rotary.original_positions = json_keys_integer(keys, "original_max_position_embeddings",
                                                              config->max_position_embeddings, 1, MODEL_MAX_POSITIONS);
    keys->object = outer.object;
    if (!keys->status && !has_partial_rotation && config->rotary.percent != 1)
        keys->status = status_fail(STATUS_UNSUPPORTED, "%s: 'partial_rotary_factor' %g: a %s turns whole heads",
                                   keys->where, config->rotary.percent, model_family(config)->name);
}

void rope_read(struct json_keys *keys, bool has_partial_rotation, struct model_config *config) {
    struct model_config other = *config;
    bool is_new = json_keys_find(keys, "rope_parameters"),
         is_old = json_object_size(json_keys_find(keys, "rope_scaling"));
    read_form(keys, is_new ? "rope_parameters" : "rope_scaling", has_partial_rotation, config);
    if (!is_new || !is_old || keys->status)
        return;
    read_form(keys, "rope_scaling", has_partial_rotation, &other);
    if (!keys->status && (other.position_embedding != config->position_embedding ||
                          memcmp(&other.rotary, &config->rotary, sizeof other.rotary)))
        keys->status =
            status_fail(STATUS_INVALID, "%s: 'rope_scaling' and 'rope_parameters' contradict each other", keys->where);
}

/* ---- writing ---- */

static void set(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value);
}

static enum rope_kind kind_of(const struct model_config *config) {
    return config->position_embedding == POSITION_YARN ? ROPE_YARN
           : config->rotary.factor != 0                ? ROPE_LLAMA3
           : config->rotary.interpolation > 1          ? ROPE_LINEAR
                                                       : ROPE_DEFAULT;
}

/* Writes the keys that both forms have. */
static json_t *write_scaling(const struct model_config *config) {
    enum rope_kind kind = kind_of(config);
    json_t *object = json_pack("{s:s}", "rope_type", kind_names[kind]);
    if (kind == ROPE_LINEAR)
        set(object, "factor", json_real(config->rotary.interpolation));
    if (kind == ROPE_LLAMA3) {
        set(object, "factor", json_real(config->rotary.factor));
        set(object, "low_freq_factor", json_real(config->rotary.low));
        set(object, "high_freq_factor", json_real(config->rotary.high));
    }
    if (kind == ROPE_YARN) {
        set(object, "factor", json_real(config->rotary.yarn_factor));
        set(object, "beta_fast", json_real(config->rotary.beta_fast));
        set(object, "beta_slow", json_real(config->rotary.beta_slow));
        if (config->rotary.attention_factor > 0)
            set(object, "attention_factor", json_real(config->rotary.attention_factor));
    }
    if (kind == ROPE_LLAMA3 || kind == ROPE_YARN)
        set(object, "original_max_position_embeddings", json_integer(config->rotary.original_positions));
    return object;
}

void rope_write(const struct model_config *config, bool has_partial_rotation, json_t *object) {
    json_t *parameters = write_scaling(config), *scaling = json_null();
    double base = config->rotary.base, percent = config->rotary.percent;
    if (kind_of(config) != ROPE_DEFAULT) {
        scaling = write_scaling(config);
        set(scaling, "type", json_string(kind_names[kind_of(config)]));
    }
    set(parameters, "rope_theta", json_real(base));
    if (has_partial_rotation) {
        set(parameters, "partial_rotary_factor", json_real(percent));
        set(object, "partial_rotary_factor", json_real(percent));
    }
    set(object, "rope_parameters", parameters);
    set(object, "rope_scaling", scaling);
    set(object, "rope_theta", json_real(base));
}

const char *rope_unfit(const struct model_config *config, bool has_partial_rotation) {
    enum rope_kind kind = kind_of(config);
    if (!has_partial_rotation)
        return config->rotary.percent != 1 ? "rotary_percent" : NULL;
    return kind == ROPE_YARN     ? "position_embedding_type"
           : kind == ROPE_LLAMA3 ? "use_rope_scaling"
           : kind == ROPE_LINEAR ? "rotary_seq_len_interpolation_factor"
                                 : NULL;
}
