/* GPTQ: words of inputs, zeros packed along the outputs. The first version stores each zero minus one, so one is added
 * to every code of a word; as in GPTQModel, the sum carries from code to code. Names of versions are not reliable:
 * where all zeros of a symmetric model are those of one version, they decide. */
#include "codec-internal.h"

enum { QWEIGHT, QZEROS, SCALES, G_IDX };

static void read_rules(struct codec_config *config) {
    const json_t *dynamic = json_keys_find(&config->keys, "dynamic"), *value;
    const char *pattern;
    if (dynamic && !json_is_object(dynamic))
        json_keys_refuse(&config->keys, "dynamic", "an object");
    json_object_foreach((json_t *)dynamic, pattern, value) {
        bool is_left_out = !strncmp(pattern, "-:", 2);
        const char *text = is_left_out || !strncmp(pattern, "+:", 2) ? pattern + 2 : pattern;
        if (!is_left_out && !json_is_object(value))
            json_keys_refuse(&config->keys, "dynamic", "rules that are objects");
        THEN(config->keys.status,
             codec_names_add(config, &config->names, "dynamic", text, true, is_left_out ? NULL : value));
    }
}

/* Reads "bits" and "group_size" of the configuration, or of a rule for some modules. */
static void read_sizes(struct codec_config *config) {
    struct json_keys *keys = &config->keys;
    config->bits = json_keys_integer(keys, "bits", config->bits, 1, 32);
    config->group = json_keys_integer(keys, "group_size", config->group ? config->group : -1, -1, INT32_MAX);
    config->group = config->group < 0 ? 0 : config->group;
    if (!keys->status && config->bits != 4 && config->bits != 8)
        json_keys_refuse(keys, "bits", "4 or 8 (%lld bits are not supported)", (long long)config->bits);
}

static void configure(struct codec_config *config) {
    struct json_keys *keys = &config->keys;
    json_keys_need(keys, "bits");
    read_sizes(config);
    config->is_symmetric = json_keys_bool(keys, "sym", true);
    config->needs_order = json_keys_bool(keys, "desc_act", false);
    const char *key = json_keys_find(keys, "checkpoint_format") ? "checkpoint_format" : "format";
    const char *version = json_keys_string(keys, key, "gptq"), *words = json_keys_string(keys, "pack_dtype", "int32");
    config->has_plain_zeros = !keys->status && !strcmp(version, "gptq_v2");
    if (!keys->status && strcmp(version, "gptq") && !config->has_plain_zeros)
        codec_refuse(config, key, version);
    if (!keys->status && strcmp(words, "int32"))
        codec_refuse(config, "pack_dtype", words);
    codec_refuse_key(config, "is_marlin_format");
    read_rules(config);
}

/* Applies the first rule that fits the linear. */
static int apply_rule(struct codec_config *config, const struct codec_linear *linear) {
    const struct codec_name *rule;
    TRY(codec_names_find(config, &config->names, linear, &rule));
    if (rule && !rule->value)
        return codec_fail(linear, QWEIGHT, "is quantised, but %s leaves it out: '%s' in 'dynamic'", config->where,
                          rule->text);
    if (rule) {
        config->keys.object = rule->value;
        read_sizes(config);
    }
    return config->keys.status;
}

static int open_linear(const struct codec_config *general, struct codec_linear *linear) {
    struct codec_config config = *general;
    const struct safetensor *weight = linear->parts[QWEIGHT].tensor;
    TRY(apply_rule(&config, linear));
    int bits = (int)config.bits;
    if (weight->dims != 2 || weight->shape[0] > INT32_MAX)
        return codec_fail(linear, QWEIGHT, "is no matrix of at most %d rows", INT32_MAX);
    linear->is_turned = true;
    linear->rows = weight->shape[1];
    linear->columns =
        linear->parts[G_IDX].tensor ? linear->parts[G_IDX].tensor->elements : weight->shape[0] * 32 / bits;
    linear->units = linear->parts[G_IDX].tensor ? NULL : "without g_idx, inputs fill whole words of 32 bits";
    if (linear->rows <= 0 || linear->columns <= 0 || linear->columns > INT32_MAX)
        return codec_fail(linear, QWEIGHT, "is %s", "empty");
    linear->encoding = (struct encoding){.codes = CODES_INTEGERS, .bits = (uint8_t)bits, .shift = ENCODED_ZEROS};
    TRY(codec_set_codes(
        linear, QWEIGHT,
        (struct codec_codes){.shape = {linear->columns, linear->rows}, .bits = bits, .unit_bytes = 4, .axis = 0},
        &linear->codes));
    TRY(codec_set_scales(linear, SCALES, 1, config.group));
    if (config.needs_order && linear->groups > 1 && !linear->parts[G_IDX].tensor)
        return status_fail(STATUS_INVALID, "%s: missing tensor %.*s.g_idx: 'desc_act' is true in %s",
                           linear->parts[QWEIGHT].file->path, (int)(strrchr(weight->name, '.') - weight->name),
                           weight->name, config.where);
    TRY(codec_set_codes(
        linear, QZEROS,
        (struct codec_codes){.shape = {linear->groups, linear->rows}, .bits = bits, .unit_bytes = 4, .axis = 1},
        &linear->zeros));
    if (!config.has_plain_zeros)
        linear->zeros.added = bits == 4 ? 0x11111111 : 0x01010101;
    return linear->parts[G_IDX].tensor ? codec_set_order(linear, G_IDX, linear->groups) : STATUS_OK;
}

/* Finds in which versions all zeros of a linear, as they are stored, are those of a symmetric model. */
static int find_versions(const struct codec_linear *linear, bool *can_be_first, bool *can_be_second) {
    struct codec_codes stored = linear->zeros;
    int64_t groups = linear->groups, rows = linear->rows;
    int middle = 1 << (linear->encoding.bits - 1);
    uint8_t *zeros = malloc((size_t)rows);
    int status = status_allocated(zeros);
    stored.added = 0;
    for (int64_t g = 0; g < groups && !status && (*can_be_first || *can_be_second); g++) {
        status = codec_read_codes(&stored, &(struct codec_rect){g, 1, 0, rows}, 0, 1, zeros);
        for (int64_t i = 0; i < rows && !status; i++) {
            *can_be_first &= zeros[i] == middle - 1;
            *can_be_second &= zeros[i] == middle;
        }
    }
    free(zeros);
    return status;
}

static int settle(const struct codec_config *config, struct codec_linear *linears, size_t count) {
    bool can_be_first = config->is_symmetric, can_be_second = config->is_symmetric;
    for (size_t i = 0; i < count; i++)
        TRY(find_versions(&linears[i], &can_be_first, &can_be_second));
    for (size_t i = 0; i < count && (can_be_first || can_be_second); i++) {
        linears[i].encoding.shift = ENCODED_SYMMETRIC;
        linears[i].encoding.bias = (uint8_t)(1 << (linears[i].encoding.bits - 1));
    }
    return STATUS_OK;
}

const struct codec codec_gptq = {
    .method = "gptq",
    .parts = {[QWEIGHT] = {".qweight", " I32 ", PART_NEEDED},
              [QZEROS] = {".qzeros", " I32 ", PART_NEEDED},
              [SCALES] = {".scales", " F16 BF16 F32 ", PART_NEEDED},
              [G_IDX] = {".g_idx", " I32 ", PART_OPTIONAL}},
    .configure = configure,
    .open = open_linear,
    .settle = settle,
};
