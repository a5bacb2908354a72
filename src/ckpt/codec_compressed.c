/* compressed-tensors: packed integers by group or output, and plain int8 or FP8 weights. Several groups of the
 * configuration have their own parameters; a name comes before an expression, and an expression before a class. */
#include "codec-internal.h"

#define PACKED "pack-quantized"

enum { WEIGHT, SCALE, ZERO_POINT, SHAPE, G_IDX };

/* The parameters of a group of linears: its "weights". */
struct scheme {
    int64_t bits, block[2]; /* rows and columns that share a scale; 0: all */
    bool is_float, is_symmetric;
};

static void read_block(struct json_keys *keys, struct scheme *scheme) {
    const json_t *block = json_keys_find(keys, "block_structure");
    for (size_t i = 0; i < 2; i++) {
        scheme->block[i] = json_integer_value(json_array_get(block, i));
        if (json_array_size(block) != 2 || scheme->block[i] < 1 || scheme->block[i] > INT32_MAX)
            json_keys_refuse(keys, "block_structure", "two sizes");
    }
}

/* Reads the "weights" of a group; keys->object is the group, and changes. */
static void read_scheme(struct codec_config *config, struct scheme *scheme) {
    struct json_keys *keys = &config->keys;
    const json_t *weights = json_keys_find(keys, "weights");
    *scheme = (struct scheme){0};
    if (!json_is_object(weights))
        json_keys_refuse(keys, "weights", "an object");
    if (keys->status)
        return;
    keys->object = weights;
    json_keys_need(keys, "num_bits");
    scheme->bits = json_keys_integer(keys, "num_bits", 8, 1, 32);
    scheme->is_symmetric = json_keys_bool(keys, "symmetric", true);
    int64_t group = json_keys_integer(keys, "group_size", 0, -1, INT32_MAX);
    const char *type = json_keys_string(keys, "type", "int");
    const char *strategy = json_keys_string(keys, "strategy", group > 0 ? "group" : group < 0 ? "channel" : "tensor");
    if (keys->status)
        return;
    scheme->is_float = !strcmp(type, "float");
    if (strcmp(type, "int") && !scheme->is_float)
        codec_refuse(config, "type", type);
    scheme->block[0] = strcmp(strategy, "tensor") != 0;
    if (!strcmp(strategy, "block"))
        read_block(keys, scheme);
    else if (!strcmp(strategy, "group") && group > 0)
        scheme->block[1] = group;
    else if (!strcmp(strategy, "group"))
        json_keys_refuse(keys, "group_size", "a size, because 'strategy' is \"group\"");
    else if (strcmp(strategy, "channel") && strcmp(strategy, "tensor"))
        codec_refuse(config, "strategy", strategy);
    if (!keys->status && group > 0 && strcmp(strategy, "group"))
        json_keys_refuse(keys, "group_size", "absent, because 'strategy' is \"%s\"", strategy);
}

static void check_format(struct codec_config *config, bool is_whole) {
    static const char *const formats[] = {PACKED, "int-quantized", "float-quantized", "naive-quantized"};
    const char *format = json_keys_string(&config->keys, "format", PACKED);
    bool is_known = config->keys.status || (is_whole && !strcmp(format, "mixed-precision"));
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        is_known = is_known || !strcmp(format, formats[i]);
    if (!is_known)
        codec_refuse(config, "format", format);
}

/* Adds an entry of a list: a name, or "re:" and an expression. */
static int add_name(struct codec_config *config, struct codec_names *names, const char *key, const json_t *entry,
                    const json_t *value) {
    const char *text = json_string_value(entry);
    if (!text)
        return status_fail(STATUS_INVALID, "%s: '%s' must be a list of names", config->where, key);
    bool is_expression = !strncmp(text, "re:", 3);
    TRY(codec_names_add(config, names, key, text + (is_expression ? 3 : 0), is_expression, value));
    names->items[names->count - 1].is_class = !strcmp(text, "Linear") || !strcmp(text, "Conv1D");
    return STATUS_OK;
}

static void read_names(struct codec_config *config, struct codec_names *names, const char *key, const json_t *value) {
    const json_t *list = json_keys_find(&config->keys, key);
    if (list && !json_is_array(list))
        json_keys_refuse(&config->keys, key, "a list of names");
    for (size_t i = 0; i < json_array_size(list) && !config->keys.status; i++)
        config->keys.status = add_name(config, names, key, json_array_get(list, i), value);
}

/* Names come first, then expressions, each in the order of their texts, then classes. */
static int compare_names(const void *a, const void *b) {
    const struct codec_name *x = a, *y = b;
    int kind = (x->is_class ? 2 : x->expression != NULL) - (y->is_class ? 2 : y->expression != NULL);
    return kind ? kind : strcmp(x->text, y->text);
}

static void read_group(struct codec_config *config, const json_t *group) {
    struct json_keys *keys = &config->keys;
    struct scheme scheme;
    if (!json_is_object(group))
        json_keys_refuse(keys, "config_groups", "groups that are objects");
    if (keys->status)
        return;
    keys->object = group;
    config->asks_for_activations |=
        json_keys_find(keys, "input_activations") || json_keys_find(keys, "output_activations");
    check_format(config, false);
    json_keys_need(keys, "targets");
    read_names(config, &config->names, "targets", group);
    if (json_keys_find(keys, "weights"))
        read_scheme(config, &scheme);
}

static void configure(struct codec_config *config) {
    struct json_keys *keys = &config->keys;
    const json_t *top = keys->object, *sparsity = json_keys_find(keys, "sparsity_config");
    const json_t *groups = json_keys_find(keys, "config_groups"), *group;
    const char *name, *sparse = json_string_value(json_object_get(sparsity, "format"));
    codec_refuse_key(config, "transform_config");
    if (sparse && strcmp(sparse, "dense"))
        codec_refuse(config, "sparsity_config", sparse);
    check_format(config, true);
    config->asks_for_activations = json_keys_find(keys, "kv_cache_scheme") != NULL;
    read_names(config, &config->ignored, "ignore", NULL);
    json_keys_need(keys, "config_groups");
    if (!keys->status && !json_object_size(groups))
        json_keys_refuse(keys, "config_groups", "an object of groups");
    json_object_foreach((json_t *)groups, name, group) read_group(config, group);
    keys->object = top;
    if (config->names.count)
        qsort(config->names.items, config->names.count, sizeof *config->names.items, compare_names);
}

/* Finds the parameters of a linear. */
static int find_scheme(const struct codec_config *general, const struct codec_linear *linear, struct scheme *scheme) {
    struct codec_config config = *general;
    const struct codec_name *ignored, *found;
    TRY(codec_names_find(&config, &config.ignored, linear, &ignored));
    TRY(codec_names_find(&config, &config.names, linear, &found));
    if (ignored)
        return codec_fail(linear, WEIGHT, "is quantised, but %s ignores it: '%s' in 'ignore'", config.where,
                          ignored->text);
    if (!found)
        return codec_fail(linear, WEIGHT, "is quantised, but is no target of 'config_groups' in %s", config.where);
    config.keys.object = found->value;
    const char *format = json_keys_string(&config.keys, "format", "");
    bool is_packed = linear->codec == &codec_compressed_packed;
    if (*format && is_packed != !strcmp(format, PACKED))
        return codec_fail(linear, WEIGHT, "contradicts 'format' \"%.40s\" of its group in %s", format, config.where);
    read_scheme(&config, scheme);
    return config.keys.status;
}

static int set_zeros(struct codec_linear *linear, const struct scheme *scheme, struct codec_codes layout) {
    if (!linear->parts[ZERO_POINT].tensor)
        return scheme->is_symmetric
                   ? STATUS_OK
                   : status_fail(STATUS_INVALID, "%s: missing tensor %s_zero_point: 'symmetric' is false",
                                 linear->parts[WEIGHT].file->path, linear->name);
    if (linear->scale_rows != 1)
        return codec_fail(linear, ZERO_POINT, "is for blocks, but zeros have %s", "one output");
    linear->encoding.shift = ENCODED_ZEROS;
    linear->encoding.bias = 0;
    return codec_set_codes(linear, ZERO_POINT, layout, &linear->zeros);
}

/* ---- pack-quantized ---- */

static int read_shape(struct codec_linear *linear) {
    const struct tensor_entry *from = &linear->parts[SHAPE];
    int64_t shape[2] = {0};
    int32_t narrow[2] = {0};
    bool is_narrow = from->tensor->dtype == DTYPE_I32;
    TRY(codec_expect(linear, SHAPE, 1, 2, 0));
    TRY(safetensors_read(from->file, from->tensor, 0, 2, from->tensor->dtype, is_narrow ? (void *)narrow : shape));
    linear->rows = is_narrow ? narrow[0] : shape[0];
    linear->columns = is_narrow ? narrow[1] : shape[1];
    return linear->rows > 0 && linear->columns > 0 && linear->columns <= INT32_MAX
               ? STATUS_OK
               : codec_fail(linear, SHAPE, "is [%lld, %lld]", (long long)linear->rows, (long long)linear->columns);
}

static int open_packed(const struct codec_config *config, struct codec_linear *linear) {
    struct scheme scheme;
    TRY(find_scheme(config, linear, &scheme));
    int bits = (int)scheme.bits;
    if (scheme.is_float || (bits != 4 && bits != 8))
        return status_fail(STATUS_UNSUPPORTED, "%s: " PACKED " weights of %d bits, type %s, are not supported",
                           config->where, bits, scheme.is_float ? "float" : "int");
    if (scheme.block[0] > 1)
        return status_fail(STATUS_UNSUPPORTED, "%s: 'strategy' \"block\" of " PACKED " weights is not supported",
                           config->where);
    TRY(read_shape(linear));
    linear->encoding =
        (struct encoding){.codes = CODES_INTEGERS, .bits = (uint8_t)bits, .bias = (uint8_t)(1 << (bits - 1))};
    TRY(codec_set_codes(
        linear, WEIGHT,
        (struct codec_codes){.shape = {linear->rows, linear->columns}, .bits = bits, .unit_bytes = 4, .axis = 1},
        &linear->codes));
    TRY(codec_set_scales(linear, SCALE, scheme.block[0], scheme.block[1]));
    TRY(set_zeros(
        linear, &scheme,
        (struct codec_codes){.shape = {linear->rows, linear->groups}, .bits = bits, .unit_bytes = 4, .axis = 0}));
    return linear->parts[G_IDX].tensor ? codec_set_order(linear, G_IDX, linear->groups) : STATUS_OK;
}

const struct codec codec_compressed_packed = {
    .method = "compressed-tensors",
    .parts = {[WEIGHT] = {".weight_packed", " I32 ", PART_NEEDED},
              [SCALE] = {".weight_scale", " BF16 F16 F32 ", PART_NEEDED},
              [ZERO_POINT] = {".weight_zero_point", " I32 ", PART_OPTIONAL},
              [SHAPE] = {".weight_shape", " I64 I32 ", PART_NEEDED},
              [G_IDX] = {".weight_g_idx", " I32 ", PART_OPTIONAL}},
    .configure = configure,
    .open = open_packed,
};

/* ---- int8 and FP8 ---- */

static int open_plain(const struct codec_config *config, struct codec_linear *linear) {
    const struct safetensor *weight = linear->parts[WEIGHT].tensor;
    bool is_float = strcmp(weight->type, "I8") != 0;
    struct scheme scheme;
    TRY(find_scheme(config, linear, &scheme));
    if (scheme.is_float != is_float || scheme.bits > 8 || (is_float && scheme.bits != 8))
        return codec_fail(linear, WEIGHT, "has dtype %s, but %s says %lld bits of type %s", weight->type, config->where,
                          (long long)scheme.bits, scheme.is_float ? "float" : "int");
    if (!is_float && scheme.bits != 4 && scheme.bits != 8)
        return status_fail(STATUS_UNSUPPORTED, "%s: int-quantized weights of %lld bits are not supported: only 4 and 8",
                           config->where, (long long)scheme.bits);
    if (weight->dims != 2 || weight->shape[0] <= 0 || weight->shape[1] <= 0 || weight->shape[1] > INT32_MAX)
        return codec_fail(linear, WEIGHT, "is no %s", "matrix");
    linear->rows = weight->shape[0];
    linear->columns = weight->shape[1];
    linear->encoding = is_float ? (struct encoding){.codes = CODES_E4M3, .bits = 8}
                                : (struct encoding){.codes = CODES_INTEGERS, .bits = 8, .bias = 128};
    struct codec_codes codes = {.shape = {linear->rows, linear->columns},
                                .bits = 8,
                                .unit_bytes = 1,
                                .axis = 1,
                                .flipped = is_float ? 0 : 0x80};
    TRY(codec_set_codes(linear, WEIGHT, codes, &linear->codes));
    TRY(codec_set_scales(linear, SCALE, scheme.block[0], scheme.block[1]));
    codes.shape[1] = linear->groups;
    return set_zeros(linear, &scheme, codes);
}

const struct codec codec_compressed_plain = {
    .method = "compressed-tensors",
    .parts = {[WEIGHT] = {".weight", " I8 F8_E4M3 ", PART_NEEDED},
              [SCALE] = {".weight_scale", " BF16 F16 F32 ", PART_NEEDED},
              [ZERO_POINT] = {".weight_zero_point", " I8 ", PART_OPTIONAL},
              {".input_scale", "", PART_SKIPPED},
              {".input_zero_point", "", PART_SKIPPED},
              {".output_scale", "", PART_SKIPPED},
              {".k_scale", "", PART_SKIPPED},
              {".v_scale", "", PART_SKIPPED}},
    .configure = configure,
    .open = open_plain,
};
