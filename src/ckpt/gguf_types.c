/* The types of values in GGUF files, and reading them. A quantised type has blocks of values that share their scales.
 * Each function below takes a block apart by the definition of its type. */
#include "gguf-internal.h"

enum { SMALL = 32, LARGE = 256, LARGEST_BLOCK_BYTES = 256, READ_BLOCKS = 64 };

static uint16_t u16_at(const unsigned char *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

static uint32_t u32_at(const unsigned char *at) {
    uint32_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

/* ---- blocks of 32 values ---- */

/* Takes codes of four bits: the low halves of the 16 bytes come first. Each has a fifth bit in `high`. */
static void take_small(const unsigned char *nibbles, uint32_t high, uint8_t *codes) {
    for (int i = 0; i < SMALL; i++) {
        int low = i < SMALL / 2 ? nibbles[i] & 15 : nibbles[i - SMALL / 2] >> 4;
        codes[i] = (uint8_t)(low | (high >> i & 1) << 4);
    }
}

/* The scale, and 32 signed bytes. */
static void take_q8_0(const unsigned char *block, struct gguf_block *out) {
    out->scale = u16_at(block);
    for (int i = 0; i < SMALL; i++)
        out->codes[i] = block[2 + i] ^ 0x80;
}

/* The scale; IQ4_NL is the same with uneven steps. */
static void take_q4_0(const unsigned char *block, struct gguf_block *out) {
    out->scale = u16_at(block);
    take_small(block + 2, 0, out->codes);
}

/* The scale, and the minimum value: an offset of the other sign. */
static void take_q4_1(const unsigned char *block, struct gguf_block *out) {
    out->scale = u16_at(block);
    out->shift = u16_at(block + 2) ^ 0x8000;
    take_small(block + 4, 0, out->codes);
}

/* The scale, and the fifth bits. */
static void take_q5_0(const unsigned char *block, struct gguf_block *out) {
    out->scale = u16_at(block);
    take_small(block + 6, u32_at(block + 2), out->codes);
}

/* The scale, the minimum value, and the fifth bits. */
static void take_q5_1(const unsigned char *block, struct gguf_block *out) {
    out->scale = u16_at(block);
    out->shift = u16_at(block + 2) ^ 0x8000;
    take_small(block + 8, u32_at(block + 4), out->codes);
}

/* ---- blocks of 256 values ---- */

/* Returns number i of two bits. A byte has those of four groups of 32 values. */
static int pair_number(const unsigned char *pairs, int i) {
    return pairs[i / 128 * SMALL + i % SMALL] >> (i % 128 / SMALL * 2) & 3;
}

/* A scale and a minimum value of four bits for each 16 values [16], numbers of two bits [64], and the scales of both.
 */
static void take_q2_k(const unsigned char *block, struct gguf_block *out) {
    out->scale = u16_at(block + 80);
    out->shift = u16_at(block + 82);
    for (int j = 0; j < LARGE / 16; j++) {
        out->scales[j] = block[j] & 15;
        out->shifts[j] = block[j] >> 4;
    }
    for (int i = 0; i < LARGE; i++)
        out->codes[i] = (uint8_t)pair_number(block + 16, i);
}

/* Third bits [32]; numbers of two bits [64]; scales [12]; and the scale of these. A scale has six bits, for 16 values,
 * and 32 is zero. */
static void take_q3_k(const unsigned char *block, struct gguf_block *out) {
    const unsigned char *scales = block + 96;
    out->scale = u16_at(block + 108);
    for (int j = 0; j < LARGE / 16; j++) {
        int low = scales[j % 8] >> (j / 8 * 4) & 15, high = scales[8 + j % 4] >> (j / 4 * 2) & 3;
        out->scales[j] = (uint8_t)((low | high << 4) - 32);
    }
    for (int i = 0; i < LARGE; i++)
        out->codes[i] = (uint8_t)(pair_number(block + 32, i) | (block[i % SMALL] >> (i / SMALL) & 1) << 2);
}

/* Twelve bytes pack a scale and a minimum value, of six bits each, for each of eight groups of 32 values. The last four
 * groups have their upper two bits in the bytes of the first four. */
static void take_group_scales(const unsigned char *packed, struct gguf_block *out) {
    for (int j = 0; j < 4; j++) {
        out->scales[j] = packed[j] & 63;
        out->shifts[j] = packed[j + 4] & 63;
        out->scales[j + 4] = (uint8_t)((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        out->shifts[j + 4] = (uint8_t)(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
    }
}

/* Two scales of scales, the packed scales, perhaps fifth bits [32], and numbers of four bits [128]. A byte of these has
 * a number of one group in its lower half, and one of the next group in its upper half. */
static void take_grouped(const unsigned char *block, const unsigned char *high, const unsigned char *nibbles,
                         struct gguf_block *out) {
    out->scale = u16_at(block);
    out->shift = u16_at(block + 2);
    take_group_scales(block + 4, out);
    for (int i = 0; i < LARGE; i++) {
        int group = i / SMALL, number = nibbles[group / 2 * SMALL + i % SMALL] >> (group % 2 * 4) & 15;
        out->codes[i] = (uint8_t)(number | (high ? high[i % SMALL] >> group & 1 : 0) << 4);
    }
}

static void take_q4_k(const unsigned char *block, struct gguf_block *out) {
    take_grouped(block, NULL, block + 16, out);
}

static void take_q5_k(const unsigned char *block, struct gguf_block *out) {
    take_grouped(block, block + 16, block + 48, out);
}

/* Lower four bits [128], upper two bits [64], signed scales of 16 values each [16], and their scale. */
static void take_q6_k(const unsigned char *block, struct gguf_block *out) {
    out->scale = u16_at(block + 208);
    memcpy(out->scales, block + 192, LARGE / 16);
    for (int i = 0; i < LARGE; i++) {
        int half = i / 128, group = i % 128 / SMALL, place = i % SMALL;
        int low = block[half * 64 + group % 2 * SMALL + place] >> (group / 2 * 4) & 15;
        int high = block[128 + half * SMALL + place] >> (group * 2) & 3;
        out->codes[i] = (uint8_t)(low | high << 4);
    }
}

/* The scale; upper bits [2] and lower bits [4] of scales; and numbers of four bits [128]. A scale has six bits, for 32
 * values, and 32 is zero. */
static void take_iq4_xs(const unsigned char *block, struct gguf_block *out) {
    out->scale = u16_at(block);
    for (int j = 0; j < LARGE / SMALL; j++) {
        int low = block[4 + j / 2] >> (j % 2 * 4) & 15, high = block[2 + j / 4] >> (j % 4 * 2) & 3;
        out->scales[j] = (uint8_t)((low | high << 4) - 32);
        take_small(block + 8 + j * SMALL / 2, 0, out->codes + j * SMALL);
    }
}

/* ---- the table ---- */

#define FLAT(codes_, bits_, bias_, shift_) .encoding = {codes_, bits_, bias_, shift_, DTYPE_F16, SMALL, 0}
#define DEEP(codes_, bits_, bias_, shift_, scale, group)                                                               \
    .encoding = {codes_, bits_, bias_, shift_, scale, group, LARGE / (group)}
static const struct gguf_type types[] = {
    {"F32", 0, 1, 4, DTYPE_F32, .take = NULL},
    {"F16", 1, 1, 2, DTYPE_F16, .take = NULL},
    {"BF16", 30, 1, 2, DTYPE_BF16, .take = NULL},
    {"Q8_0", 8, SMALL, 34, DTYPE_COUNT, take_q8_0, FLAT(CODES_INTEGERS, 8, 128, ENCODED_SYMMETRIC)},
    {"Q4_0", 2, SMALL, 18, DTYPE_COUNT, take_q4_0, FLAT(CODES_INTEGERS, 4, 8, ENCODED_SYMMETRIC)},
    {"Q4_1", 3, SMALL, 20, DTYPE_COUNT, take_q4_1, FLAT(CODES_INTEGERS, 4, 0, ENCODED_OFFSETS)},
    {"Q5_0", 6, SMALL, 22, DTYPE_COUNT, take_q5_0, FLAT(CODES_INTEGERS, 5, 16, ENCODED_SYMMETRIC)},
    {"Q5_1", 7, SMALL, 24, DTYPE_COUNT, take_q5_1, FLAT(CODES_INTEGERS, 5, 0, ENCODED_OFFSETS)},
    {"Q2_K", 10, LARGE, 84, DTYPE_COUNT, take_q2_k, DEEP(CODES_INTEGERS, 2, 0, ENCODED_OFFSETS, DTYPE_U8, 16)},
    {"Q3_K", 11, LARGE, 110, DTYPE_COUNT, take_q3_k, DEEP(CODES_INTEGERS, 3, 4, ENCODED_SYMMETRIC, DTYPE_I8, 16)},
    {"Q4_K", 12, LARGE, 144, DTYPE_COUNT, take_q4_k, DEEP(CODES_INTEGERS, 4, 0, ENCODED_OFFSETS, DTYPE_U8, SMALL)},
    {"Q5_K", 13, LARGE, 176, DTYPE_COUNT, take_q5_k, DEEP(CODES_INTEGERS, 5, 0, ENCODED_OFFSETS, DTYPE_U8, SMALL)},
    {"Q6_K", 14, LARGE, 210, DTYPE_COUNT, take_q6_k, DEEP(CODES_INTEGERS, 6, 32, ENCODED_SYMMETRIC, DTYPE_I8, 16)},
    {"IQ4_NL", 20, SMALL, 18, DTYPE_COUNT, take_q4_0, FLAT(CODES_IQ4, 4, 0, ENCODED_SYMMETRIC)},
    {"IQ4_XS", 23, LARGE, 136, DTYPE_COUNT, take_iq4_xs, DEEP(CODES_IQ4, 4, 0, ENCODED_SYMMETRIC, DTYPE_I8, SMALL)},
};
enum { TYPE_COUNT = sizeof types / sizeof *types };

/* Types that are only known by name. */
static const struct {
    uint32_t number;
    const char *name;
} others[] = {{9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
              {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
              {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {39, "MXFP4"},   {40, "NVFP4"}};

const struct gguf_type *gguf_type(uint32_t number) {
    for (int i = 0; i < TYPE_COUNT; i++)
        if (types[i].number == number)
            return &types[i];
    return NULL;
}

int gguf_refuse_type(const char *path, const char *tensor, uint32_t number) {
    char word[16];
    struct strbuf types_text = STRBUF_INIT;
    snprintf(word, sizeof word, "%u", number);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].number == number)
            snprintf(word, sizeof word, "%s", others[i].name);
    for (int i = 0; i < TYPE_COUNT; i++)
        strbuf_format(&types_text, "%s%s", i ? ", " : "", types[i].name);
    int status = status_fail(STATUS_UNSUPPORTED, "%s: tensor '%s' has the type %s, which is not read (read are: %s)",
                             path, tensor, word, strbuf_text(&types_text));
    strbuf_free(&types_text);
    return status;
}

const char *gguf_type_name(const struct gguf_type *type) {
    return type->name;
}

enum dtype gguf_type_dtype(const struct gguf_type *type) {
    return type->dtype;
}

/* ---- reading ---- */

static int check_finite(const struct gguf_tensor *tensor, int64_t first, int64_t count, enum dtype dtype,
                        const void *values) {
    int64_t bad = dtype_find_not_finite(dtype, values, count);
    if (bad < 0)
        return STATUS_OK;
    float value = dtype == DTYPE_F32   ? ((const float *)values)[bad]
                  : dtype == DTYPE_F16 ? f16_to_float(((const uint16_t *)values)[bad])
                                       : bf16_to_float(((const uint16_t *)values)[bad]);
    return status_fail(STATUS_INVALID, "%s: tensor '%s': element %lld is %s", tensor->part->path, tensor->name,
                       (long long)(first + bad), dtype_not_finite_name((double)value));
}

/* Computes the values of a block. */
static void find_values(const struct gguf_type *type, const unsigned char *bytes, float *out) {
    struct gguf_block block;
    bool is_deep = type->encoding.groups_of_block, has_shift = type->encoding.shift;
    if (type->dtype != DTYPE_COUNT) {
        *out = type->dtype == DTYPE_F16 ? f16_to_float(u16_at(bytes)) : bf16_to_float(u16_at(bytes));
        return;
    }
    type->take(bytes, &block);
    const struct encoded_rows row = {.encoding = type->encoding,
                                     .rows = 1,
                                     .positions = type->elements,
                                     .codes = block.codes,
                                     .scales = is_deep ? (void *)block.scales : &block.scale,
                                     .shifts = !has_shift ? NULL
                                               : is_deep  ? (void *)block.shifts
                                                          : &block.shift,
                                     .block_scales = is_deep ? &block.scale : NULL,
                                     .block_offsets = is_deep && has_shift ? &block.shift : NULL};
    encoded_row_values(&row, 0, out);
}

/* Reads the blocks of the elements, and computes their values. */
static int read_blocks(const struct gguf_tensor *tensor, int64_t first, int64_t count, float *out) {
    const struct gguf_type *type = tensor->type;
    unsigned char blocks[READ_BLOCKS * LARGEST_BLOCK_BYTES];
    float values[LARGE];
    int64_t at_once = (int64_t)sizeof blocks / type->bytes, end = first + count;
    for (int64_t block = first / type->elements; block * type->elements < end;) {
        int64_t left = (end - 1) / type->elements + 1 - block, n = left < at_once ? left : at_once;
        TRY(file_pread_all(tensor->part->descriptor, blocks, (size_t)(n * type->bytes),
                           tensor->start + block * type->bytes, tensor->part->path));
        for (int64_t i = 0; i < n; i++, block++) {
            int64_t start = block * type->elements, from = start > first ? start : first;
            int64_t to = start + type->elements < end ? start + type->elements : end;
            find_values(type, blocks + i * type->bytes, values);
            memcpy(out + (from - first), values + (from - start), (size_t)(to - from) * sizeof *out);
        }
    }
    return STATUS_OK;
}

int gguf_read(const struct gguf_tensor *tensor, int64_t first, int64_t count, enum dtype dtype, void *out) {
    if (first < 0 || count < 0 || first > tensor->elements || count > tensor->elements - first)
        return status_fail(STATUS_INVALID, "%s: tensor '%s': elements [%lld, +%lld) asked for, it has %lld",
                           tensor->part->path, tensor->name, (long long)first, (long long)count,
                           (long long)tensor->elements);
    int64_t width = tensor->type->bytes;
    int status = dtype == tensor->type->dtype ? file_pread_all(tensor->part->descriptor, out, (size_t)(count * width),
                                                               tensor->start + first * width, tensor->part->path)
                                              : read_blocks(tensor, first, count, out);
    return status ? status : check_finite(tensor, first, count, dtype, out);
}
