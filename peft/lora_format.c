/* LoRA's configuration, in a run and in PEFT's files. */
#include "format-internal.h"
#include "lora-internal.h"

/* ---- the section `peft` ---- */

static const struct config_row keys[] = {
    PEFT_INT(r, "8", 1, 65536, "lora: rank"),
    PEFT_FLOAT(lora_alpha, "8", 0, 1e6, "lora: the update is scaled by lora_alpha / r"),
    PEFT_FLOAT(lora_dropout, "0", 0, 1, "lora: dropout of its input, below 1"),
    PEFT_FLOAT(loraplus_lr_ratio, "1", 1e-6, 1e6, "lora: ratio of B's learning rate to A's (LoRA+)"),
    PEFT_BOOL(use_rslora, "false", "lora: the update is scaled by lora_alpha / sqrt(r)"),
    PEFT_BOOL(use_dora, "false", "lora: also train magnitudes (DoRA)"),
    PEFT_LIST(rank_pattern, "KEY=R...", "lora: ranks of matching modules"),
    PEFT_LIST(alpha_pattern, "KEY=A...", "lora: alphas of matching modules"),
};
static const struct peft_shared_key shared[] = {PEFT_SHARED("lora", target_modules),
                                                PEFT_SHARED("lora", exclude_modules),
                                                PEFT_SHARED("lora", layers_to_transform),
                                                {0}};

static const char *const run_keys[] = {"peft.loraplus_lr_ratio", NULL};

/* Each pattern is an expression, and all of them are tried on every projection. */
enum { PATTERNS = 256 };
static size_t count_patterns(const struct peft_config *config) {
    return config->rank_pattern.count + config->alpha_pattern.count;
}

static int check_run(const struct peft_config *config) {
    return count_patterns(config) <= PATTERNS
               ? STATUS_OK
               : status_fail(STATUS_USAGE, "peft.rank_pattern and peft.alpha_pattern: %zu patterns, at most %d can be",
                             count_patterns(config), PATTERNS);
}

/* ---- adapter_config.json ---- */

static const char *const known[] = {"r",
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
                                    NULL};
static const char *const refused[] = {"bias",
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
                                      NULL};

/* These differ from plain LoRA only at the start. The others change the base too, so their adapters do not fit the
 * original base. */
static void check_initialisation(struct peft_reader *r) {
    static const char *const plain[] = {"gaussian", "eva", "orthogonal", "mica"};
    const json_t *value = json_keys_find(&r->keys, "init_lora_weights");
    char word[SHOWN_BYTES];
    bool is_plain = false;
    if (!value || json_is_boolean(value))
        return;
    if (!json_is_string(value))
        json_keys_refuse(&r->keys, "init_lora_weights", "true, false or a name");
    else {
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
            is_plain = is_plain || !strcmp(json_string_value(value), plain[i]);
        if (!is_plain)
            r->keys.status =
                status_fail(STATUS_UNSUPPORTED,
                            "%s: \"init_lora_weights\" \"%s\" is not supported: such an adapter is for a changed base "
                            "(convert it to plain LoRA first)",
                            r->keys.where, json_shown(json_string_value(value), sizeof word, word));
    }
}

/* True when an earlier family has the same name for its layers. */
static bool is_named_before(int number) {
    for (int i = 0; i < number; i++)
        if (!strcmp(model_family_at(i)->layers, model_family_at(number)->layers))
            return true;
    return false;
}

/* Checks PEFT's name of the layers' list, which depends on the family. The file does not say which family the base
 * belongs to. */
static void check_layers_pattern(struct peft_reader *r) {
    const json_t *value = json_keys_find(&r->keys, "layers_pattern");
    struct strbuf expected = STRBUF_INIT;
    const struct model_family *family;
    if (json_is_array(value) && json_array_size(value) == 1)
        value = json_array_get(value, 0);
    if (reader_is_neutral(value))
        return;
    for (int i = 0; (family = model_family_at(i)); i++)
        if (json_is_string(value) && !strcmp(json_string_value(value), family->layers))
            return;
    strbuf_add_text(&expected, "null");
    for (int i = 0; (family = model_family_at(i)); i++)
        if (!is_named_before(i))
            strbuf_format(&expected, " or \"%s\"", family->layers);
    if (!r->keys.status)
        r->keys.status = strbuf_status(&expected);
    json_keys_refuse(&r->keys, "layers_pattern", "%s", strbuf_text(&expected));
    strbuf_free(&expected);
}

static void read_keys(struct peft_reader *r) {
    struct peft_config *config = r->config;
    config->loraplus_lr_ratio = 1; /* a run may set another value */
    check_initialisation(r);
    check_layers_pattern(r);
    config->r = json_keys_integer(&r->keys, "r", 8, 1, 65536);
    config->lora_alpha = json_keys_number(&r->keys, "lora_alpha", 8, 0, 1e6);
    config->lora_dropout = json_keys_number(&r->keys, "lora_dropout", 0, 0, 1);
    if (config->lora_dropout >= 1)
        json_keys_refuse(&r->keys, "lora_dropout", "0 or more, below 1");
    config->use_rslora = json_keys_bool(&r->keys, "use_rslora", false);
    config->use_dora = json_keys_bool(&r->keys, "use_dora", false);
    reader_targets(r);
    reader_names(r, "exclude_modules", &config->exclude_modules);
    reader_layers(r, "layers_to_transform", &config->layers_to_transform);
    reader_patterns(r, "rank_pattern", true, &config->rank_pattern);
    reader_patterns(r, "alpha_pattern", false, &config->alpha_pattern);
    if (count_patterns(config) > PATTERNS)
        json_keys_refuse(&r->keys, "alpha_pattern", "at most %d patterns with those of rank_pattern, found %zu",
                         PATTERNS, count_patterns(config));
}

static int write_keys(const struct peft_config *config, const struct model_config *base, const char *base_directory,
                      json_t *object) {
    const struct model_family *family = model_family(base);
    writer_set(object, "r", json_integer(config->r));
    writer_set(object, "lora_alpha", writer_number(config->lora_alpha));
    writer_set(object, "lora_dropout", json_real(config->lora_dropout));
    writer_set(object, "bias", json_string("none"));
    writer_set(object, "fan_in_fan_out", json_boolean(family->is_transposed));
    writer_targets(object, config, family);
    writer_set(object, "init_lora_weights", json_true());
    writer_set(object, "use_rslora", json_boolean(config->use_rslora));
    writer_set(object, "use_dora", json_boolean(config->use_dora));
    writer_set(object, "rank_pattern", writer_patterns(&config->rank_pattern, true));
    writer_set(object, "alpha_pattern", writer_patterns(&config->alpha_pattern, false));
    writer_set(object, "layers_to_transform", writer_layers(&config->layers_to_transform));
    writer_set(object, "layers_pattern", json_null());
    writer_set(object, "modules_to_save", json_null());
    return STATUS_OK;
}

/* ---- adapter show ---- */

static void show(const struct peft_config *config, struct strbuf *text) {
    strbuf_format(text, "%s%s\n", config->use_dora ? ", DoRA" : "", config->use_rslora ? ", rsLoRA" : "");
    show_list(text, "target_modules", &config->target_modules, show_default);
    show_list(text, "exclude_modules", &config->exclude_modules, NULL);
    show_list(text, "layers_to_transform", &config->layers_to_transform, NULL);
    strbuf_format(text, "r: %lld\nlora_alpha: %g\n", (long long)config->r, config->lora_alpha);
    show_list(text, "rank_pattern", &config->rank_pattern, NULL);
    show_list(text, "alpha_pattern", &config->alpha_pattern, NULL);
}

/* ---- shapes ---- */

/* Patterns may give several ranks. */
static bool is_rank(const struct peft_config *config, int64_t size) {
    const struct config_list *patterns = &config->rank_pattern;
    bool is_so = size == config->r;
    for (size_t i = 0; i < patterns->count && !is_so; i++) {
        const char *equals = strrchr(patterns->items[i], '=');
        is_so = equals && strtod(equals + 1, NULL) == (double)size;
    }
    return is_so;
}

/* Returns B of a pair if it has the right rank by itself, else NULL. `end` is the part of its name after lora_B. */
static const struct safetensor *find_b(const struct peft_shape *shape, const char *module_end, const char *end) {
    char name[PARAM_NAME_BYTES];
    int n =
        snprintf(name, sizeof name, "%.*s.lora_B%s", (int)(module_end - shape->tensor->name), shape->tensor->name, end);
    const struct safetensor *b = (size_t)n < sizeof name ? ckpt_find_tensor(shape->tensors, name) : NULL;
    return b && b->dims == 2 && is_rank(shape->config, b->shape[1]) ? b : NULL;
}

static int check_shape(struct peft_shape *shape) {
    static const char a_part[] = ".lora_A";
    const char *name = shape->tensor->name, *a = strstr(name, a_part), *magnitude = strstr(name, ".lora_magnitude");
    int status = STATUS_OK;
    if (a || strstr(name, ".lora_B")) {
        shape->free_axis = !a;
        status = shape_check_axis(shape, !a, is_rank, "r");
    } else if (magnitude) {
        status = shape_check_dims(shape, 1);
    }
    const struct safetensor *b = status      ? NULL
                                 : a         ? find_b(shape, a, a + sizeof a_part - 1)
                                 : magnitude ? find_b(shape, magnitude, ".weight")
                                             : NULL;
    if (!b || shape->tensor->shape[0] == b->shape[a != NULL])
        return status;
    return shape_fail(shape, "its size 0 is not the size %d of %.200s, which is %lld", a != NULL, b->name,
                      (long long)b->shape[a != NULL]);
}

const struct peft_format lora_format = {.keys = keys,
                                        .key_count = sizeof keys / sizeof *keys,
                                        .shared = shared,
                                        .run_keys = run_keys,
                                        .check_run = check_run,
                                        .type = "LORA",
                                        .known = known,
                                        .refused = refused,
                                        .read = read_keys,
                                        .write = write_keys,
                                        .check_shape = check_shape,
                                        .show = show};
