/* bitsandbytes: 4 bits by a table of 16 numbers, in blocks that run through the flat weight, and 8 bits by output. The
 * scales of blocks may be codes themselves. A tensor of JSON, the quant_state, describes each weight of 4 bits. */
#include "codec-internal.h"

enum { WEIGHT, ABSMAX, QUANT_MAP, STATE_NF4, STATE_FP4, NESTED_ABSMAX, NESTED_MAP };
enum { WEIGHT_8, SCB, WEIGHT_FORMAT };
enum { STATE_BYTES = 1 << 16, MAP_4 = 16, MAP_8 = 256, MOST_BLOCK = 1 << 16, NESTED_BLOCK = 256 };

static void configure(struct codec_config *config) {
    struct json_keys *keys = &config->keys;
    bool has_8 = json_keys_bool(keys, "load_in_8bit", false), has_4 = json_keys_bool(keys, "load_in_4bit", false);
    const char *storage = json_keys_string(keys, "bnb_4bit_quant_storage", "uint8");
    const char *type = json_keys_string(keys, "bnb_4bit_quant_type", "nf4");
    config->bits = has_8 ? 8 : has_4 ? 4 : 0;
    if (!keys->status && has_8 && has_4)
        json_keys_refuse(keys, "load_in_8bit", "false where load_in_4bit is true");
    if (!keys->status && strcmp(storage, "uint8"))
        codec_refuse(config, "bnb_4bit_quant_storage", storage);
    if (!keys->status && strcmp(type, "nf4") && strcmp(type, "fp4"))
        codec_refuse(config, "bnb_4bit_quant_type", type);
}

/* Refuses a weight of other bits than the configuration's. */
static int expect_bits(const struct codec_config *config, const struct codec_linear *linear, int bits) {
    return config->bits && config->bits != bits
               ? codec_fail(linear, 0, "has %d bits, but %s says %lld", bits, config->where, (long long)config->bits)
               : STATUS_OK;
}

/* ---- 4 bits ---- */

/* Reads the JSON of a state; the caller closes the keys. */
static int open_state(const struct codec_linear *linear, int part, struct json_keys *keys, char where[PATH_MAX]) {
    const struct tensor_entry *from = &linear->parts[part];
    if (from->tensor->dims != 1 || from->tensor->bytes > STATE_BYTES)
        return codec_fail(linear, part, "has %lld bytes in %d dimensions: a text of at most %d in one was expected",
                          (long long)from->tensor->bytes, from->tensor->dims, STATE_BYTES);
    char *text = calloc(1, (size_t)from->tensor->bytes + 1);
    int status = status_allocated(text);
    snprintf(where, PATH_MAX, "%s: tensor '%.200s'", from->file->path, from->tensor->name);
    THEN(status, safetensors_read_bytes(from->file, from->tensor, 0, from->tensor->bytes, text));
    if (!status && strlen(text) != (size_t)from->tensor->bytes)
        status = codec_fail(linear, part, "holds a zero byte: %s was expected", "JSON");
    THEN(status, json_keys_open(keys, text, where, JSON_MUST_BE));
    free(text);
    return status;
}

/* Reads the table of a linear, which must be that of its codes. */
static int check_map(const struct codec_linear *linear) {
    const struct tensor_entry *from = &linear->parts[QUANT_MAP];
    const float *table = encoded_table(linear->encoding.codes);
    float map[MAP_4];
    TRY(codec_expect(linear, QUANT_MAP, 1, MAP_4, 0));
    TRY(safetensors_read_finite(from->file, from->tensor, 0, MAP_4, DTYPE_F32, map));
    for (int i = 0; i < MAP_4; i++)
        if (!(map[i] - table[i] < 1e-6F && table[i] - map[i] < 1e-6F))
            return codec_fail(linear, QUANT_MAP, "is another table: element %d is %g (expected %g)", i, (double)map[i],
                              (double)table[i]);
    return STATUS_OK;
}

/* Reads the keys of a state about types, and how scales are stored. */
static void read_nested(struct json_keys *keys, struct codec_linear *linear) {
    bool is_nested = linear->parts[NESTED_ABSMAX].tensor || linear->parts[NESTED_MAP].tensor;
    const char *type = json_keys_string(keys, "nested_dtype", "float32");
    const char *values = json_keys_string(keys, "dtype", "float32");
    if (is_nested) {
        json_keys_need(keys, "nested_blocksize");
        json_keys_need(keys, "nested_offset");
    }
    linear->nested_block = json_keys_integer(keys, "nested_blocksize", 0, 1, MOST_BLOCK);
    linear->offset = (float)json_keys_number(keys, "nested_offset", 0, -1e30, 1e30);
    if (!keys->status && strcmp(type, "float32"))
        json_keys_refuse(keys, "nested_dtype", "\"float32\"");
    if (!keys->status && strcmp(values, "float32") && strcmp(values, "float16") && strcmp(values, "bfloat16"))
        json_keys_refuse(keys, "dtype", "\"float32\", \"float16\" or \"bfloat16\"");
    if (!keys->status && is_nested && linear->nested_block != NESTED_BLOCK)
        json_keys_refuse(keys, "nested_blocksize", "%d", NESTED_BLOCK);
    if (!keys->status && linear->nested_block && !is_nested)
        json_keys_refuse(keys, "nested_blocksize", "absent: there are no nested scales");
}

static void read_state(const struct codec_config *config, struct json_keys *keys, const char *type,
                       struct codec_linear *linear) {
    const json_t *shape = json_keys_find(keys, "shape");
    const char *asked = json_keys_string((struct json_keys *)&config->keys, "bnb_4bit_quant_type", type);
    const char *found = json_keys_string(keys, "quant_type", "");
    json_keys_need(keys, "blocksize");
    int64_t block = json_keys_integer(keys, "blocksize", 64, 1, MOST_BLOCK);
    linear->encoding.group = (int32_t)block;
    linear->rows = json_integer_value(json_array_get(shape, 0));
    linear->columns = json_integer_value(json_array_get(shape, 1));
    if (!keys->status && (json_array_size(shape) != 2 || linear->rows < 1 || linear->columns < 1 ||
                          linear->columns > INT32_MAX || linear->rows > INT64_MAX / 16 / linear->columns))
        json_keys_refuse(keys, "shape", "the numbers of outputs and inputs");
    if (!keys->status && strcmp(found, type))
        json_keys_refuse(keys, "quant_type", "\"%s\", as in its name", type);
    if (!keys->status && strcmp(asked, type))
        json_keys_refuse(keys, "quant_type", "\"%.20s\", as in config.json", asked);
    if (!keys->status && (block & (block - 1) || block < 16))
        json_keys_refuse(keys, "blocksize", "a power of 2, at least 16");
    read_nested(keys, linear);
}

/* Checks the sizes of the parts against the state. */
static int check_parts(struct codec_linear *linear) {
    int64_t elements = linear->rows * linear->columns, blocks = (elements - 1) / linear->encoding.group + 1;
    const char *scales = linear->parts[ABSMAX].tensor->type;
    if (strcmp(scales, linear->nested_block ? "U8" : "F32"))
        return codec_fail(linear, ABSMAX, "has dtype %s (expected %s)", scales, linear->nested_block ? "U8" : "F32");
    TRY(codec_expect(linear, WEIGHT, 2, (elements + 1) / 2, 1));
    TRY(codec_expect(linear, ABSMAX, 1, blocks, 0));
    for (int p = NESTED_ABSMAX; p <= NESTED_MAP && linear->nested_block; p++) {
        if (!linear->parts[p].tensor)
            return status_fail(STATUS_INVALID, "%s: missing tensor %s%s", linear->parts[0].file->path,
                               linear->parts[0].tensor->name, linear->codec->parts[p].ending + strlen(".weight"));
        TRY(codec_expect(linear, p, 1, p == NESTED_MAP ? MAP_8 : (blocks - 1) / linear->nested_block + 1, 0));
    }
    return check_map(linear);
}

static int open_4(const struct codec_config *config, struct codec_linear *linear) {
    static const uint8_t high_first[] = {1, 0};
    int part = linear->parts[STATE_FP4].tensor ? STATE_FP4 : STATE_NF4;
    const char *type = part == STATE_FP4 ? "fp4" : "nf4";
    struct json_keys keys = {0};
    char where[PATH_MAX];
    TRY(expect_bits(config, linear, 4));
    if (!linear->parts[part].tensor || (part == STATE_FP4 && linear->parts[STATE_NF4].tensor))
        return codec_fail(linear, WEIGHT, "has %s quant_state", linear->parts[part].tensor ? "more than one" : "no");
    linear->encoding =
        (struct encoding){.codes = part == STATE_FP4 ? CODES_FP4 : CODES_NF4, .bits = 4, .scale_type = DTYPE_F32};
    linear->is_flat = true;
    linear->scales = ABSMAX;
    int status = open_state(linear, part, &keys, where);
    if (!status)
        read_state(config, &keys, type, linear);
    status = status ? status : keys.status;
    json_keys_close(&keys);
    THEN(status, check_parts(linear));
    linear->codes = (struct codec_codes){.tensor = linear->parts[WEIGHT],
                                         .shape = {1, linear->rows * linear->columns},
                                         .bits = 4,
                                         .unit_bytes = 1,
                                         .axis = 1,
                                         .places = high_first};
    return status;
}

/* Scales that are codes: an entry of a table, times the scale of their block, plus an offset. */
static int read_scales_4(const struct codec_linear *linear, int64_t first, int64_t count, void *out) {
    const struct tensor_entry *codes = &linear->parts[ABSMAX], *outer = &linear->parts[NESTED_ABSMAX];
    const struct tensor_entry *table = &linear->parts[NESTED_MAP];
    int64_t block = linear->nested_block, start = block ? first / block : 0;
    float map[MAP_8], *to = out;
    if (!block)
        return safetensors_read(codes->file, codes->tensor, first, count, DTYPE_F32, out);
    int64_t blocks = (first + count - 1) / block - start + 1;
    float *scales = malloc((size_t)blocks * sizeof *scales);
    uint8_t *inner = malloc((size_t)count);
    int status = status_allocated(scales && inner);
    THEN(status, safetensors_read_finite(table->file, table->tensor, 0, MAP_8, DTYPE_F32, map));
    THEN(status, safetensors_read_finite(outer->file, outer->tensor, start, blocks, DTYPE_F32, scales));
    THEN(status, safetensors_read(codes->file, codes->tensor, first, count, DTYPE_U8, inner));
    for (int64_t i = 0; i < count && !status; i++) {
        float product = map[inner[i]] * scales[(first + i) / block - start];
        to[i] = product + linear->offset;
    }
    free(scales);
    free(inner);
    return status;
}

const struct codec codec_bitsandbytes_4 = {
    .method = "bitsandbytes",
    .parts = {[WEIGHT] = {".weight", " U8 ", PART_NEEDED},
              [ABSMAX] = {".weight.absmax", " F32 U8 ", PART_NEEDED},
              [QUANT_MAP] = {".weight.quant_map", " F32 ", PART_NEEDED},
              [STATE_NF4] = {".weight.quant_state.bitsandbytes__nf4", " U8 ", PART_OPTIONAL},
              [STATE_FP4] = {".weight.quant_state.bitsandbytes__fp4", " U8 ", PART_OPTIONAL},
              [NESTED_ABSMAX] = {".weight.nested_absmax", " F32 ", PART_OPTIONAL},
              [NESTED_MAP] = {".weight.nested_quant_map", " F32 ", PART_OPTIONAL}},
    .configure = configure,
    .open = open_4,
    .read_scales = read_scales_4,
};

/* ---- 8 bits ---- */

static int open_8(const struct codec_config *config, struct codec_linear *linear) {
    const struct safetensor *weight = linear->parts[WEIGHT_8].tensor;
    const struct tensor_entry *format = &linear->parts[WEIGHT_FORMAT];
    uint8_t order = 0;
    TRY(expect_bits(config, linear, 8));
    if (weight->dims != 2 || weight->shape[0] <= 0 || weight->shape[1] <= 0 || weight->shape[1] > INT32_MAX)
        return codec_fail(linear, WEIGHT_8, "of 8 bits is no %s", "matrix");
    if (format->tensor && format->tensor->elements != 1)
        return codec_fail(linear, WEIGHT_FORMAT, "has %lld elements (expected 1)", (long long)format->tensor->elements);
    if (format->tensor)
        TRY(safetensors_read(format->file, format->tensor, 0, 1, DTYPE_U8, &order));
    if (order)
        return codec_fail(linear, WEIGHT_FORMAT, "is %d: only 0, rows one after the other, is supported", order);
    linear->rows = weight->shape[0];
    linear->columns = weight->shape[1];
    linear->encoding = (struct encoding){.codes = CODES_INTEGERS, .bits = 8, .bias = 128};
    struct codec_codes codes = {
        .shape = {linear->rows, linear->columns}, .bits = 8, .unit_bytes = 1, .axis = 1, .flipped = 0x80};
    TRY(codec_set_codes(linear, WEIGHT_8, codes, &linear->codes));
    return codec_set_scales(linear, SCB, 1, 0);
}

static int read_scales_8(const struct codec_linear *linear, int64_t first, int64_t count, void *out) {
    const struct tensor_entry *from = &linear->parts[SCB];
    float *to = out;
    TRY(safetensors_read(from->file, from->tensor, first, count, DTYPE_F32, out));
    for (int64_t i = 0; i < count; i++)
        to[i] /= 127;
    return STATUS_OK;
}

const struct codec codec_bitsandbytes_8 = {
    .method = "bitsandbytes",
    .parts = {[WEIGHT_8] = {".weight", " I8 ", PART_NEEDED},
              [SCB] = {".SCB", " F32 ", PART_NEEDED},
              [WEIGHT_FORMAT] = {".weight_format", " U8 ", PART_OPTIONAL}},
    .configure = configure,
    .open = open_8,
    .read_scales = read_scales_8,
};
