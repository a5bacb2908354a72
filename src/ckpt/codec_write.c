/* The formats that `cambium quantize` writes: the tensors of a linear, and the configuration. Codes are packed as the
 * codecs of the same formats read them. */
#include "codec_write-internal.h"

#include "base/json.h"

/* Codes `step` bytes apart, packed into words `word_step` apart. The first code of a word has its lowest bits; then the
 * word is lowered by `less`. */
struct packing {
    int bits;
    int64_t step, word_step;
    uint32_t less;
};

static void pack(const struct packing *packing, const uint8_t *codes, int64_t count, uint32_t *to) {
    int each = 32 / packing->bits;
    for (int64_t first = 0; first < count; first += each, to += packing->word_step) {
        uint32_t word = 0;
        for (int64_t i = first; i < count && i < first + each; i++)
            word |= (uint32_t)codes[i * packing->step] << (i - first) * packing->bits;
        *to = word - packing->less;
    }
}

static int64_t words(const struct written_linear *l, int64_t codes) {
    int each = 32 / l->rows.encoding.bits;
    return (codes + each - 1) / each;
}

static int set_shape(int64_t shape[2], int64_t first, int64_t second) {
    shape[0] = first;
    shape[1] = second;
    return second ? 2 : 1;
}

static int64_t groups(const struct written_linear *l) {
    return encoded_groups(&l->rows.encoding, l->rows.positions);
}

static int64_t elements(const struct written_linear *l) {
    return l->rows.rows * l->rows.positions;
}

/* Copies [rows, groups] of 16 bits to [groups, rows]. */
static void turn(const struct written_linear *l, const uint16_t *from, uint16_t *to) {
    for (int64_t r = 0; r < l->rows.rows; r++)
        for (int64_t g = 0; g < groups(l); g++)
            to[g * l->rows.rows + r] = from[r * groups(l) + g];
}

/* ---- compressed-tensors ---- */

static int packed_shape(const struct written_linear *l, int64_t shape[2]) {
    return set_shape(shape, l->rows.rows, words(l, l->rows.positions));
}
static void packed(const struct written_linear *l, void *out) {
    int64_t columns = l->rows.positions, wide = words(l, columns);
    const struct packing packing = {.bits = l->rows.encoding.bits, .step = 1, .word_step = 1};
    for (int64_t r = 0; r < l->rows.rows; r++)
        pack(&packing, l->rows.codes + r * columns, columns, (uint32_t *)out + r * wide);
}

static int scale_shape(const struct written_linear *l, int64_t shape[2]) {
    return set_shape(shape, l->rows.rows, groups(l));
}
static void scale(const struct written_linear *l, void *out) {
    memcpy(out, l->rows.scales, (size_t)(l->rows.rows * groups(l)) * dtype_bytes(l->rows.encoding.scale_type));
}

static int zero_point_shape(const struct written_linear *l, int64_t shape[2]) {
    return l->rows.encoding.shift == ENCODED_ZEROS ? set_shape(shape, words(l, l->rows.rows), groups(l)) : 0;
}
static void zero_point(const struct written_linear *l, void *out) {
    const struct packing packing = {.bits = l->rows.encoding.bits, .step = groups(l), .word_step = groups(l)};
    for (int64_t g = 0; g < groups(l); g++)
        pack(&packing, (uint8_t *)l->rows.shifts + g, l->rows.rows, (uint32_t *)out + g);
}

static int two_shape(const struct written_linear *l, int64_t shape[2]) {
    (void)l;
    return set_shape(shape, 2, 0);
}
static void shape_numbers(const struct written_linear *l, void *out) {
    memcpy(out, (const int64_t[]){l->rows.rows, l->rows.positions}, 2 * sizeof(int64_t));
}

static json_t *packed_config(const struct rounding *rounding, const char *head, json_t *ignored) {
    bool is_group = rounding->encoding.group > 0;
    json_array_append_new(ignored, json_string(head));
    return json_pack(
        "{s:s, s:s, s:s, s:n, s:o, s:{s:{s:[s], s:n, s:n, s:{s:i, s:s, s:b, s:s, s:o, s:n, s:b, s:n}}}}",
        "quant_method", "compressed-tensors", "format", "pack-quantized", "quantization_status", "compressed",
        "kv_cache_scheme", "ignore", ignored, "config_groups", "group_0", "targets", "Linear", "input_activations",
        "output_activations", "weights", "num_bits", rounding->encoding.bits, "type", "int", "symmetric",
        rounding->encoding.shift != ENCODED_ZEROS, "strategy", is_group ? "group" : "channel", "group_size",
        is_group ? json_integer(rounding->encoding.group) : json_null(), "block_structure", "dynamic", 0, "actorder");
}

/* ---- FP8 in blocks ---- */

static int weight_shape(const struct written_linear *l, int64_t shape[2]) {
    return set_shape(shape, l->rows.rows, l->rows.positions);
}
static void weight(const struct written_linear *l, void *out) {
    memcpy(out, l->rows.codes, (size_t)elements(l));
}

static int block_shape(const struct written_linear *l, int64_t shape[2]) {
    return set_shape(shape, (l->rows.rows + 127) / 128, groups(l));
}
static void block_scale(const struct written_linear *l, void *out) {
    for (int64_t r = 0; r < l->rows.rows; r += 128)
        memcpy((float *)out + r / 128 * groups(l), (const float *)l->rows.scales + r * groups(l),
               (size_t)groups(l) * sizeof(float));
}

static json_t *fp8_config(const struct rounding *rounding, const char *head, json_t *ignored) {
    json_array_append_new(ignored, json_string(head));
    return json_pack("{s:s, s:s, s:s, s:[i, i], s:o}", "quant_method", "fp8", "fmt", "e4m3", "activation_scheme",
                     "dynamic", "weight_block_size", rounding->tall, rounding->encoding.group, "modules_to_not_convert",
                     ignored);
}

/* ---- bitsandbytes ---- */

static int64_t blocks(const struct written_linear *l, int64_t block) {
    return (elements(l) + 63) / 64 / block + ((elements(l) + 63) / 64 % block != 0);
}

static int nibbles_shape(const struct written_linear *l, int64_t shape[2]) {
    return set_shape(shape, (elements(l) + 1) / 2, 1);
}
static void nibbles(const struct written_linear *l, void *out) {
    for (int64_t i = 0; i < elements(l); i += 2) /* the code of 0 follows an odd number */
        ((uint8_t *)out)[i / 2] = (uint8_t)(l->rows.codes[i] << 4 | (i + 1 < elements(l) ? l->rows.codes[i + 1] : 7));
}

static int absmax_shape(const struct written_linear *l, int64_t shape[2]) {
    return set_shape(shape, blocks(l, 1), 0);
}
static void absmax(const struct written_linear *l, void *out) {
    memcpy(out, l->scales.codes, (size_t)blocks(l, 1));
}

static int nested_absmax_shape(const struct written_linear *l, int64_t shape[2]) {
    return set_shape(shape, blocks(l, ROUNDING_SCALES_BLOCK), 0);
}
static void nested_absmax(const struct written_linear *l, void *out) {
    memcpy(out, l->scales.absmax, (size_t)blocks(l, ROUNDING_SCALES_BLOCK) * sizeof(float));
}

static int map_shape(const struct written_linear *l, int64_t shape[2]) {
    (void)l;
    return set_shape(shape, 256, 0);
}
static void nested_map(const struct written_linear *l, void *out) {
    (void)l;
    rounding_map(out);
}

static int table_shape(const struct written_linear *l, int64_t shape[2]) {
    (void)l;
    return set_shape(shape, 16, 0);
}
static void table(const struct written_linear *l, void *out) {
    memcpy(out, encoded_table(l->rows.encoding.codes), 16 * sizeof(float));
}

/* A text of one length for all offsets, so that the tensor's size is known before its values. */
enum { STATE_BYTES = 256 };
static int state_shape(const struct written_linear *l, int64_t shape[2]) {
    (void)l;
    return set_shape(shape, STATE_BYTES, 0);
}
static void state(const struct written_linear *l, void *out) {
    char text[STATE_BYTES + 1];
    int length = snprintf(text, sizeof text,
                          "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"%s\", \"shape\": [%lld, %lld], "
                          "\"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": %.17g}",
                          l->torch_type, (long long)l->rows.rows, (long long)l->rows.positions, ROUNDING_SCALES_BLOCK,
                          (double)l->scales.offset);
    memset(out, ' ', STATE_BYTES);
    memcpy(out, text, (size_t)length);
}

static json_t *nf4_config(const struct rounding *rounding, const char *head, json_t *ignored) {
    (void)rounding;
    json_array_append_new(ignored, json_string(head));
    return json_pack("{s:s, s:b, s:b, s:s, s:b, s:s, s:s, s:o}", "quant_method", "bitsandbytes", "load_in_4bit", 1,
                     "load_in_8bit", 0, "bnb_4bit_quant_type", "nf4", "bnb_4bit_use_double_quant", 1,
                     "bnb_4bit_compute_dtype", "bfloat16", "bnb_4bit_quant_storage", "uint8", "llm_int8_skip_modules",
                     ignored);
}

/* ---- GPTQ, version 1 ---- */

static int qweight_shape(const struct written_linear *l, int64_t shape[2]) {
    return set_shape(shape, words(l, l->rows.positions), l->rows.rows);
}
static void qweight(const struct written_linear *l, void *out) {
    int64_t columns = l->rows.positions;
    const struct packing packing = {.bits = l->rows.encoding.bits, .step = 1, .word_step = l->rows.rows};
    for (int64_t r = 0; r < l->rows.rows; r++)
        pack(&packing, l->rows.codes + r * columns, columns, (uint32_t *)out + r);
}

static int qzeros_shape(const struct written_linear *l, int64_t shape[2]) {
    return set_shape(shape, groups(l), words(l, l->rows.rows));
}
/* The first version stores zeros minus one. No zero is 0, so none borrows from its neighbour. */
static void qzeros(const struct written_linear *l, void *out) {
    bool has_zeros = l->rows.encoding.shift == ENCODED_ZEROS;
    const uint8_t *zeros = has_zeros ? l->rows.shifts : &l->rows.encoding.bias;
    const struct packing packing = {
        .bits = l->rows.encoding.bits, .step = has_zeros ? groups(l) : 0, .word_step = 1, .less = 0x11111111};
    for (int64_t g = 0; g < groups(l); g++)
        pack(&packing, has_zeros ? zeros + g : zeros, l->rows.rows, (uint32_t *)out + g * words(l, l->rows.rows));
}

static int turned_shape(const struct written_linear *l, int64_t shape[2]) {
    return set_shape(shape, groups(l), l->rows.rows);
}
static void turned_scale(const struct written_linear *l, void *out) {
    turn(l, l->rows.scales, out);
}

static int g_idx_shape(const struct written_linear *l, int64_t shape[2]) {
    return set_shape(shape, l->rows.positions, 0);
}
static void g_idx(const struct written_linear *l, void *out) {
    for (int64_t i = 0; i < l->rows.positions; i++)
        ((int32_t *)out)[i] = (int32_t)(i / l->rows.encoding.group);
}

static json_t *gptq_config(const struct rounding *rounding, const char *head, json_t *ignored) {
    json_t *dynamic = json_object(), *name; /* no other linears than those of layers are quantised */
    size_t i;
    char pattern[sizeof((struct quantized_linear *)0)->name + 8];
    json_array_foreach(ignored, i, name) {
        snprintf(pattern, sizeof pattern, "-:%s$", json_string_value(name));
        json_object_set_new(dynamic, pattern, json_object());
    }
    json_decref(ignored);
    return json_pack("{s:s, s:i, s:i, s:b, s:b, s:s, s:o}", "quant_method", "gptq", "bits", rounding->encoding.bits,
                     "group_size", rounding->encoding.group > 0 ? rounding->encoding.group : -1, "desc_act", 0, "sym",
                     rounding->encoding.shift != ENCODED_ZEROS, "checkpoint_format", "gptq", "dynamic", dynamic);
}

/* ---- the table ---- */

static const struct codec_format formats[] = {
    {"int4",
     "int4",
     {.has_groups = true, .has_zeros = true, .methods = CODEC_TAKES_AWQ | CODEC_TAKES_GPTQ},
     packed_config,
     {{".weight_packed", "I32", packed_shape, packed},
      {".weight_scale", "BF16", scale_shape, scale},
      {".weight_shape", "I64", two_shape, shape_numbers},
      {".weight_zero_point", "I32", zero_point_shape, zero_point}}},
    {"int8",
     "int8",
     {.has_groups = true, .has_zeros = true},
     packed_config,
     {{".weight_packed", "I32", packed_shape, packed},
      {".weight_scale", "BF16", scale_shape, scale},
      {".weight_shape", "I64", two_shape, shape_numbers},
      {".weight_zero_point", "I32", zero_point_shape, zero_point}}},
    {"fp8",
     "fp8",
     {0},
     fp8_config,
     {{".weight", "F8_E4M3", weight_shape, weight}, {".weight_scale_inv", "F32", block_shape, block_scale}}},
    {"nf4",
     "nf4",
     {0},
     nf4_config,
     {{".weight", "U8", nibbles_shape, nibbles},
      {".weight.absmax", "U8", absmax_shape, absmax},
      {".weight.nested_absmax", "F32", nested_absmax_shape, nested_absmax},
      {".weight.nested_quant_map", "F32", map_shape, nested_map},
      {".weight.quant_map", "F32", table_shape, table},
      {".weight.quant_state.bitsandbytes__nf4", "U8", state_shape, state}}},
    {"gptq",
     "int4",
     {.has_groups = true,
      .has_zeros = true,
      .packs_both = true,
      .has_half_scales = true,
      .methods = CODEC_TAKES_GPTQ | CODEC_IS_GPTQS},
     gptq_config,
     {{".qweight", "I32", qweight_shape, qweight},
      {".qzeros", "I32", qzeros_shape, qzeros},
      {".scales", "F16", turned_shape, turned_scale},
      {".g_idx", "I32", g_idx_shape, g_idx}}},
};

const char *const codec_format_names[] = {"int4", "int8", "fp8", "nf4", "gptq", NULL};

const struct codec_format *codec_format_at(int number) {
    return &formats[number];
}

bool codec_format_has_groups(const struct codec_format *format) {
    return format->facts.has_groups;
}

bool codec_format_has_zeros(const struct codec_format *format) {
    return format->facts.has_zeros;
}

unsigned codec_format_methods(const struct codec_format *format) {
    return format->facts.methods;
}
