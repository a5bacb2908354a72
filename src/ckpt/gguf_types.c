/* The types of values in GGUF files, and reading them. A quantised type has blocks of values that share their scales.
 * Each function below unpacks the codes and scales of a block by the definition of its type; kernels/encoding.h says
 * which values they have. */
#include "gguf-internal.h"

enum { SMALL = 32, LARGE = 256, READ_ELEMENTS = 1 << 13 };

static uint16_t u16_at(const unsigned char *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

/* ---- single values ---- */

static void f16_values(const unsigned char *block, float *out) {
    *out = f16_to_float(u16_at(block));
}

static void bf16_values(const unsigned char *block, float *out) {
    *out = bf16_to_float(u16_at(block));
}

/* ---- blocks of 32 values ---- */

/* Unpacks numbers of four bits: the lower halves of the 16 bytes come first. */
static void unpack_halves(const unsigned char *bytes, uint8_t *codes) {
    for (int i = 0; i < SMALL / 2; i++) {
        codes[i] = bytes[i] & 15;
        codes[i + SMALL / 2] = bytes[i] >> 4;
    }
}

/* Adds fifth bits. */
static void add_fifth_bits(const unsigned char *bits, uint8_t *codes) {
    for (int i = 0; i < SMALL; i++)
        codes[i] |= (uint8_t)((bits[i / 8] >> (i % 8) & 1) << 4);
}

/* The minimum value, in fp16, is added; an offset is subtracted. */
static void put_minimum(const unsigned char *minimum, void *offset) {
    uint16_t bits = u16_at(minimum) ^ 0x8000;
    memcpy(offset, &bits, sizeof bits);
}

/* The scale, and 32 signed bytes. */
static void q8_0_codes(const unsigned char *block, const struct gguf_codes *to) {
    memcpy(to->scales, block, 2);
    for (int i = 0; i < SMALL; i++)
        to->codes[i] = block[2 + i] ^ 0x80;
}

/* The scale, and numbers. */
static void q4_0_codes(const unsigned char *block, const struct gguf_codes *to) {
    memcpy(to->scales, block, 2);
    unpack_halves(block + 2, to->codes);
}

/* The scale, the minimum value, and numbers. */
static void q4_1_codes(const unsigned char *block, const struct gguf_codes *to) {
    memcpy(to->scales, block, 2);
    put_minimum(block + 2, to->shifts);
    unpack_halves(block + 4, to->codes);
}

/* The scale, fifth bits, and numbers. */
static void q5_0_codes(const unsigned char *block, const struct gguf_codes *to) {
    memcpy(to->scales, block, 2);
    unpack_halves(block + 6, to->codes);
    add_fifth_bits(block + 2, to->codes);
}

/* The scale, the minimum value, fifth bits, and numbers. */
static void q5_1_codes(const unsigned char *block, const struct gguf_codes *to) {
    memcpy(to->scales, block, 2);
    put_minimum(block + 2, to->shifts);
    unpack_halves(block + 8, to->codes);
    add_fifth_bits(block + 4, to->codes);
}

/* ---- blocks of 256 values ---- */

/* Unpacks numbers of two bits. A byte has those of four groups of 32 values. */
static void unpack_pairs(const unsigned char *bytes, uint8_t *codes) {
    for (int i = 0; i < LARGE; i++)
        codes[i] = bytes[i / 128 * SMALL + i % SMALL] >> (i % 128 / SMALL * 2) & 3;
}

/* A scale and a minimum value of four bits for each 16 values [16], numbers of two bits [64], and the scales of both.
 */
static void q2_k_codes(const unsigned char *block, const struct gguf_codes *to) {
    for (int i = 0; i < LARGE / 16; i++) {
        to->scales[i] = block[i] & 15;
        to->shifts[i] = block[i] >> 4;
    }
    unpack_pairs(block + 16, to->codes);
    *to->block_scale = u16_at(block + 80);
    *to->block_offset = u16_at(block + 82);
}

/* Third bits [32], which subtract 4 where they are clear; numbers of two bits [64]; scales [12]; and the scale of
 * these. A scale has six bits, for 16 values, and 32 is zero. */
static void q3_k_codes(const unsigned char *block, const struct gguf_codes *to) {
    const unsigned char *scales = block + 96;
    unpack_pairs(block + 32, to->codes);
    for (int i = 0; i < LARGE; i++)
        to->codes[i] |= (uint8_t)((block[i % SMALL] >> (i / SMALL) & 1) << 2);
    for (int j = 0; j < LARGE / 16; j++) {
        int low = scales[j % 8] >> (j / 8 * 4) & 15, high = scales[8 + j % 4] >> (j / 4 * 2) & 3;
        to->scales[j] = (uint8_t)((low | high << 4) - 32);
    }
    *to->block_scale = u16_at(block + 108);
}

/* The scale; upper bits [2] and lower bits [4] of scales; and numbers of four bits [128]. A scale has six bits, for 32
 * values, and 32 is zero. */
static void iq4_xs_codes(const unsigned char *block, const struct gguf_codes *to) {
    for (int i = 0; i < LARGE / SMALL; i++) {
        int low = block[4 + i / 2] >> (i % 2 * 4) & 15, high = block[2 + i / 4] >> (i % 4 * 2) & 3;
        to->scales[i] = (uint8_t)((low | high << 4) - 32);
        unpack_halves(block + 8 + i * SMALL / 2, to->codes + i * SMALL);
    }
    *to->block_scale = u16_at(block);
}

/* Two scales of scales, and twelve bytes that pack a scale and a minimum value, of six bits each, for each of eight
 * groups of 32 values. The last four groups have their upper two bits in the bytes of the first four. */
static void put_group_scales(const unsigned char *block, const struct gguf_codes *to) {
    const unsigned char *packed = block + 4;
    for (int group = 0; group < 4; group++) {
        to->scales[group] = packed[group] & 63;
        to->shifts[group] = packed[group + 4] & 63;
        to->scales[group + 4] = (uint8_t)((packed[group + 8] & 15) | packed[group] >> 6 << 4);
        to->shifts[group + 4] = (uint8_t)(packed[group + 8] >> 4 | packed[group + 4] >> 6 << 4);
    }
    *to->block_scale = u16_at(block);
    *to->block_offset = u16_at(block + 2);
}

/* Unpacks numbers of four bits [128]. A byte has a number of one group in its lower half, and one of the next group in
 * its upper half. */
static void unpack_groups(const unsigned char *bytes, uint8_t *codes) {
    for (int i = 0; i < LARGE / 2; i++) {
        uint8_t *group = codes + i / SMALL * 2 * SMALL + i % SMALL;
        group[0] = bytes[i] & 15;
        group[SMALL] = bytes[i] >> 4;
    }
}

/* The scales [16], and numbers. */
static void q4_k_codes(const unsigned char *block, const struct gguf_codes *to) {
    put_group_scales(block, to);
    unpack_groups(block + 16, to->codes);
}

/* The scales [16], fifth bits [32], of which each byte has one for every group, and numbers. */
static void q5_k_codes(const unsigned char *block, const struct gguf_codes *to) {
    put_group_scales(block, to);
    unpack_groups(block + 48, to->codes);
    for (int i = 0; i < LARGE; i++)
        to->codes[i] |= (uint8_t)((block[16 + i % SMALL] >> (i / SMALL) & 1) << 4);
}

/* Lower four bits [128], upper two bits [64], signed scales of 16 values each [16], and their scale; 32 is zero. */
static void q6_k_codes(const unsigned char *block, const struct gguf_codes *to) {
    for (int i = 0; i < LARGE; i++) {
        int half = i / 128, group = i % 128 / SMALL, place = i % SMALL;
        int low = block[half * 64 + group % 2 * SMALL + place] >> (group / 2 * 4) & 15;
        int high = block[128 + half * SMALL + place] >> (group * 2) & 3;
        to->codes[i] = (uint8_t)(low | high << 4);
    }
    memcpy(to->scales, block + 192, LARGE / 16);
    *to->block_scale = u16_at(block + 208);
}

/* ---- the table ---- */

#define SINGLE(name, number, bytes, type, values)                                                                      \
    {                                                                                                                  \
        name, number, 1, bytes, type, values, NULL, {                                                                  \
            0                                                                                                          \
        }                                                                                                              \
    }
#define BLOCKS(name, number, elements, bytes, unpack, ...)                                                             \
    {                                                                                                                  \
        name, number, elements, bytes, DTYPE_COUNT, NULL, unpack, {                                                    \
            .codes = __VA_ARGS__                                                                                       \
        }                                                                                                              \
    }
#define IN_HALVES .scale_type = DTYPE_F16, .group = SMALL
#define IN_BYTES(signedness, values)                                                                                   \
    .scale_type = DTYPE_##signedness##8, .group = (values), .groups_of_block = LARGE / (values)
static const struct gguf_type types[] = {
    SINGLE("F32", 0, 4, DTYPE_F32, NULL),
    SINGLE("F16", 1, 2, DTYPE_F16, f16_values),
    SINGLE("BF16", 30, 2, DTYPE_BF16, bf16_values),
    BLOCKS("Q8_0", 8, SMALL, 34, q8_0_codes, CODES_INTEGERS, .bits = 8, .bias = 128, IN_HALVES),
    BLOCKS("Q4_0", 2, SMALL, 18, q4_0_codes, CODES_INTEGERS, .bits = 4, .bias = 8, IN_HALVES),
    BLOCKS("Q4_1", 3, SMALL, 20, q4_1_codes, CODES_INTEGERS, .bits = 4, .shift = ENCODED_OFFSETS, IN_HALVES),
    BLOCKS("Q5_0", 6, SMALL, 22, q5_0_codes, CODES_INTEGERS, .bits = 5, .bias = 16, IN_HALVES),
    BLOCKS("Q5_1", 7, SMALL, 24, q5_1_codes, CODES_INTEGERS, .bits = 5, .shift = ENCODED_OFFSETS, IN_HALVES),
    BLOCKS("Q2_K", 10, LARGE, 84, q2_k_codes, CODES_INTEGERS, .bits = 2, .shift = ENCODED_OFFSETS, IN_BYTES(U, 16)),
    BLOCKS("Q3_K", 11, LARGE, 110, q3_k_codes, CODES_INTEGERS, .bits = 3, .bias = 4, IN_BYTES(I, 16)),
    BLOCKS("Q4_K", 12, LARGE, 144, q4_k_codes, CODES_INTEGERS, .bits = 4, .shift = ENCODED_OFFSETS, IN_BYTES(U, 32)),
    BLOCKS("Q5_K", 13, LARGE, 176, q5_k_codes, CODES_INTEGERS, .bits = 5, .shift = ENCODED_OFFSETS, IN_BYTES(U, 32)),
    BLOCKS("Q6_K", 14, LARGE, 210, q6_k_codes, CODES_INTEGERS, .bits = 6, .bias = 32, IN_BYTES(I, 16)),
    BLOCKS("IQ4_NL", 20, SMALL, 18, q4_0_codes, CODES_IQ4, .bits = 4, IN_HALVES),
    BLOCKS("IQ4_XS", 23, LARGE, 136, iq4_xs_codes, CODES_IQ4, .bits = 4, IN_BYTES(I, 32)),
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

const struct encoding *gguf_type_encoding(const struct gguf_type *type) {
    return type->codes ? &type->encoding : NULL;
}

int64_t gguf_type_elements(const struct gguf_type *type) {
    return type->elements;
}

int64_t gguf_type_bytes(const struct gguf_type *type) {
    return type->bytes;
}

int gguf_read_blocks(const struct gguf_tensor *tensor, int64_t block, int64_t count, void *out) {
    int64_t width = tensor->type->bytes;
    return file_pread_all(tensor->part->descriptor, out, (size_t)(count * width), tensor->start + block * width,
                          tensor->part->path);
}

void gguf_unpack(const struct gguf_type *type, const void *blocks, const struct encoded_rows *to, int64_t row) {
    const struct encoding *e = &to->encoding;
    int64_t groups = encoded_groups(e, to->positions), each = type->elements / e->group;
    int64_t width = (int64_t)dtype_bytes(e->scale_type), block = row * encoded_blocks(e, to->positions);
    for (int64_t i = 0; i < to->positions / type->elements; i++) {
        int64_t scale = (row * groups + i * each) * width;
        const struct gguf_codes at = {
            .codes = to->codes + row * to->positions + i * type->elements,
            .scales = (uint8_t *)to->scales + scale,
            .shifts = to->shifts ? (uint8_t *)to->shifts + scale : NULL,
            .block_scale = to->block_scales ? to->block_scales + block + i : NULL,
            .block_offset = to->block_offsets ? to->block_offsets + block + i : NULL,
        };
        type->codes((const unsigned char *)blocks + i * type->bytes, &at);
    }
}

static bool are_finite(const void *halves, int64_t count) {
    int bad = 0;
    for (int64_t i = 0; i < count && halves; i++)
        bad |= (((const uint16_t *)halves)[i] & 0x7c00) == 0x7c00;
    return !bad;
}

int gguf_check_scales(const struct gguf_tensor *tensor, const struct encoded_rows *rows) {
    const struct encoding *e = &rows->encoding;
    int64_t blocks = rows->rows * encoded_blocks(e, rows->positions);
    int64_t halves = e->scale_type == DTYPE_F16 ? rows->rows * encoded_groups(e, rows->positions) : 0;
    bool is_fine = are_finite(rows->scales, halves) && are_finite(rows->shifts, halves) &&
                   are_finite(rows->block_scales, blocks) && are_finite(rows->block_offsets, blocks);
    return is_fine ? STATUS_OK
                   : status_fail(STATUS_INVALID, "%s: tensor '%s': a scale is not finite", tensor->part->path,
                                 tensor->name);
}

/* Reads the blocks of the elements, and computes their values. */
static int read_blocks(const struct gguf_tensor *tensor, int64_t first, int64_t count, float *out) {
    const struct gguf_type *type = tensor->type;
    unsigned char blocks[READ_ELEMENTS * 2];
    _Alignas(8) unsigned char memory[READ_ELEMENTS * 3];
    float values[READ_ELEMENTS];
    int64_t at_once = READ_ELEMENTS / type->elements, end = first + count;
    for (int64_t block = first / type->elements; block * type->elements < end;) {
        int64_t left = (end - 1) / type->elements + 1 - block, n = left < at_once ? left : at_once;
        int64_t start = block * type->elements, from = start > first ? start : first;
        int64_t to = start + n * type->elements < end ? start + n * type->elements : end;
        TRY(gguf_read_blocks(tensor, block, n, blocks));
        if (type->codes) {
            const struct encoded_part part = {.rows = 1, .positions = n * type->elements, .encoding = type->encoding};
            struct encoded_rows rows = encoded_rows_place(&part, memory);
            gguf_unpack(type, blocks, &rows, 0);
            encoded_row_values(&rows, 0, values);
        }
        for (int64_t i = 0; i < n && !type->codes; i++)
            type->values(blocks + i * type->bytes, values + i);
        memcpy(out + (from - first), values + (from - start), (size_t)(to - from) * sizeof *out);
        block += n;
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
