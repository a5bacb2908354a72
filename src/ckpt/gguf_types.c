/* The types of values in GGUF files, and reading them. A quantised type has blocks of values that share their scales.
 * Each function below takes a block apart by the definition of its type. */
#include "gguf-internal.h"

enum { SMALL = 32, LARGE = 256, LARGEST_BLOCK_BYTES = 256, READ_BLOCKS = 64 };

static uint16_t u16_at(const unsigned char *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

/* The arrays of encoded rows from block `i` on, which has `elements` codes and `groups` scales. */
struct place {
    uint8_t *codes, *scales, *shifts; /* small integers of groups */
};

static struct place place_of(const struct encoded_rows *out, int64_t i, int groups) {
    uint8_t *scales = out->scales, *shifts = out->shifts;
    return (struct place){out->codes + i * LARGE, scales + i * groups, shifts ? shifts + i * groups : NULL};
}

/* ---- blocks of 32 values ---- */

/* Returns the bits of a byte as 16 or 0 in 8 bytes. */
static inline uint64_t fifth_bits(unsigned char bits) {
    uint64_t each = bits * 0x0101010101010101u & 0x8040201008040201u;
    return ((each + 0x7f7f7f7f7f7f7f7fu) & 0x8080808080808080u) >> 3;
}

/* Takes codes of four bits: the low halves of the 16 bytes come first. */
static inline void take_nibbles(const unsigned char *from, uint8_t *codes) {
    unsigned char nibbles[SMALL / 2];
    memcpy(nibbles, from, sizeof nibbles);
    for (int i = 0; i < SMALL / 2; i++)
        codes[i] = nibbles[i] & 15;
    for (int i = 0; i < SMALL / 2; i++)
        codes[SMALL / 2 + i] = nibbles[i] >> 4;
}

/* Takes blocks of a scale, perhaps the minimum value, which is an offset of the other sign, perhaps fifth bits, and
 * codes of four bits. */
static inline void take_small(const unsigned char *blocks, int64_t count, const struct encoded_rows *out,
                              bool has_shift, bool has_fifth) {
    uint16_t *scales = out->scales, *shifts = out->shifts;
    int high = has_shift ? 4 : 2, nibbles = has_fifth ? high + 4 : high;
    for (int64_t b = 0; b < count; b++, blocks += nibbles + SMALL / 2) {
        uint8_t *codes = out->codes + b * SMALL;
        scales[b] = u16_at(blocks);
        if (has_shift)
            shifts[b] = u16_at(blocks + 2) ^ 0x8000;
        take_nibbles(blocks + nibbles, codes);
        for (int i = 0; i < SMALL / 8 && has_fifth; i++) {
            uint64_t eight;
            memcpy(&eight, codes + 8 * i, sizeof eight);
            eight |= fifth_bits(blocks[high + i]);
            memcpy(codes + 8 * i, &eight, sizeof eight);
        }
    }
}

/* IQ4_NL is the same with uneven steps. */
static void take_q4_0(const unsigned char *blocks, int64_t count, const struct encoded_rows *out) {
    take_small(blocks, count, out, false, false);
}

static void take_q4_1(const unsigned char *blocks, int64_t count, const struct encoded_rows *out) {
    take_small(blocks, count, out, true, false);
}

static void take_q5_0(const unsigned char *blocks, int64_t count, const struct encoded_rows *out) {
    take_small(blocks, count, out, false, true);
}

static void take_q5_1(const unsigned char *blocks, int64_t count, const struct encoded_rows *out) {
    take_small(blocks, count, out, true, true);
}

/* The scale, and 32 signed bytes. */
static void take_q8_0(const unsigned char *blocks, int64_t count, const struct encoded_rows *out) {
    uint16_t *scales = out->scales;
    uint8_t *codes = out->codes;
    for (int64_t b = 0; b < count; b++, blocks += 2 + SMALL, codes += SMALL) {
        unsigned char bytes[SMALL];
        memcpy(bytes, blocks + 2, sizeof bytes);
        scales[b] = u16_at(blocks);
        for (int i = 0; i < SMALL; i++)
            bytes[i] ^= 0x80;
        memcpy(codes, bytes, sizeof bytes);
    }
}

/* ---- blocks of 256 values ---- */

/* Writes numbers of two bits. A byte has those of four groups of 32 values. */
static inline void take_pairs(const unsigned char *pairs, uint8_t *codes) {
    for (int group = 0; group < LARGE / SMALL; group++)
        for (int i = 0; i < SMALL; i++)
            codes[group * SMALL + i] = pairs[group / 4 * SMALL + i] >> (group % 4 * 2) & 3;
}

/* A scale and a minimum value of four bits for each 16 values [16], numbers of two bits [64], and the scales of both.
 */
static void take_q2_k(const unsigned char *block, int64_t count, const struct encoded_rows *out) {
    for (int64_t b = 0; b < count; b++, block += 84) {
        struct place to = place_of(out, b, LARGE / 16);
        out->block_scales[b] = u16_at(block + 80);
        out->block_offsets[b] = u16_at(block + 82);
        for (int j = 0; j < LARGE / 16; j++) {
            to.scales[j] = block[j] & 15;
            to.shifts[j] = block[j] >> 4;
        }
        take_pairs(block + 16, to.codes);
    }
}

/* Third bits [32]; numbers of two bits [64]; scales [12]; and the scale of these. A scale has six bits, for 16 values,
 * and 32 is zero. */
static void take_q3_k(const unsigned char *block, int64_t count, const struct encoded_rows *out) {
    for (int64_t b = 0; b < count; b++, block += 110) {
        const unsigned char *scales = block + 96;
        struct place to = place_of(out, b, LARGE / 16);
        out->block_scales[b] = u16_at(block + 108);
        for (int j = 0; j < LARGE / 16; j++) {
            int low = scales[j % 8] >> (j / 8 * 4) & 15, high = scales[8 + j % 4] >> (j / 4 * 2) & 3;
            to.scales[j] = (uint8_t)((low | high << 4) - 32);
        }
        take_pairs(block + 32, to.codes);
        for (int group = 0; group < LARGE / SMALL; group++)
            for (int i = 0; i < SMALL; i++)
                to.codes[group * SMALL + i] |= (uint8_t)((block[i] >> group & 1) << 2);
    }
}

/* Twelve bytes pack a scale and a minimum value, of six bits each, for each of eight groups of 32 values. The last four
 * groups have their upper two bits in the bytes of the first four. */
static void take_group_scales(const unsigned char *packed, const struct place *to) {
    for (int j = 0; j < 4; j++) {
        to->scales[j] = packed[j] & 63;
        to->shifts[j] = packed[j + 4] & 63;
        to->scales[j + 4] = (uint8_t)((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        to->shifts[j + 4] = (uint8_t)(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
    }
}

/* Blocks of two scales of scales, the packed scales, perhaps fifth bits [32], and numbers of four bits [128]. A byte of
 * these has a number of one group in its lower half, and one of the next group in its upper half. */
static inline void take_grouped(const unsigned char *block, int64_t count, const struct encoded_rows *out,
                                bool has_fifth) {
    int nibbles = has_fifth ? 48 : 16;
    for (int64_t b = 0; b < count; b++, block += nibbles + LARGE / 2) {
        struct place to = place_of(out, b, LARGE / SMALL);
        out->block_scales[b] = u16_at(block);
        out->block_offsets[b] = u16_at(block + 2);
        take_group_scales(block + 4, &to);
        for (int group = 0; group < LARGE / SMALL; group++)
            for (int i = 0; i < SMALL; i++) {
                int number = block[nibbles + group / 2 * SMALL + i] >> (group % 2 * 4) & 15;
                to.codes[group * SMALL + i] = (uint8_t)(number | (has_fifth ? block[16 + i] >> group & 1 : 0) << 4);
            }
    }
}

static void take_q4_k(const unsigned char *blocks, int64_t count, const struct encoded_rows *out) {
    take_grouped(blocks, count, out, false);
}

static void take_q5_k(const unsigned char *blocks, int64_t count, const struct encoded_rows *out) {
    take_grouped(blocks, count, out, true);
}

/* Lower four bits [128], upper two bits [64], signed scales of 16 values each [16], and their scale. */
static void take_q6_k(const unsigned char *block, int64_t count, const struct encoded_rows *out) {
    for (int64_t b = 0; b < count; b++, block += 210) {
        struct place to = place_of(out, b, LARGE / 16);
        out->block_scales[b] = u16_at(block + 208);
        memcpy(to.scales, block + 192, LARGE / 16);
        for (int group = 0; group < LARGE / SMALL; group++)
            for (int i = 0; i < SMALL; i++) {
                int low = block[group / 4 * 64 + group % 2 * SMALL + i] >> (group % 4 / 2 * 4) & 15;
                int high = block[128 + group / 4 * SMALL + i] >> (group % 4 * 2) & 3;
                to.codes[group * SMALL + i] = (uint8_t)(low | high << 4);
            }
    }
}

/* The scale; upper bits [2] and lower bits [4] of scales; and numbers of four bits [128]. A scale has six bits, for 32
 * values, and 32 is zero. */
static void take_iq4_xs(const unsigned char *block, int64_t count, const struct encoded_rows *out) {
    for (int64_t b = 0; b < count; b++, block += 136) {
        struct place to = place_of(out, b, LARGE / SMALL);
        out->block_scales[b] = u16_at(block);
        for (int j = 0; j < LARGE / SMALL; j++) {
            int low = block[4 + j / 2] >> (j % 2 * 4) & 15, high = block[2 + j / 4] >> (j % 4 * 2) & 3;
            to.scales[j] = (uint8_t)((low | high << 4) - 32);
            take_nibbles(block + 8 + j * SMALL / 2, to.codes + j * SMALL);
        }
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

void gguf_values(const struct gguf_type *type, const unsigned char *bytes, float *out) {
    const struct encoded_part one = {.rows = 1, .positions = type->elements, .encoding = type->encoding};
    uint64_t memory[(LARGE + 4 * LARGE / 16) / sizeof(uint64_t)];
    if (type->dtype != DTYPE_COUNT) {
        *out = type->dtype == DTYPE_F16 ? f16_to_float(u16_at(bytes)) : bf16_to_float(u16_at(bytes));
        return;
    }
    struct encoded_rows row = encoded_rows_place(&one, memory);
    type->take(bytes, 1, &row);
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
            gguf_values(type, blocks + i * type->bytes, values);
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
