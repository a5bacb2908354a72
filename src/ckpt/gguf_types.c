/* The types of values in GGUF files, and reading them. A quantised type has blocks of values that share their scales.
 * Each function below gives a block's values by the definition of its type. */
#include "gguf-internal.h"

enum { SMALL = 32, LARGE = 256, LARGEST_BLOCK_BYTES = 256, READ_BLOCKS = 64 };

static float f16_at(const unsigned char *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return f16_to_float(bits);
}

/* ---- single values ---- */

static void f16_values(const unsigned char *block, float *out) {
    *out = f16_at(block);
}

static void bf16_values(const unsigned char *block, float *out) {
    uint16_t bits;
    memcpy(&bits, block, sizeof bits);
    *out = bf16_to_float(bits);
}

/* ---- blocks of 32 values ---- */

/* The scale, and 32 signed bytes. */
static void q8_0_values(const unsigned char *block, float *out) {
    float scale = f16_at(block);
    for (int i = 0; i < SMALL; i++)
        out[i] = scale * (float)(int8_t)block[2 + i];
}

/* Numbers of four bits: the low halves of the 16 bytes come first. Each has a fifth bit in `high`. */
static int small_number(const unsigned char *nibbles, uint32_t high, int i) {
    int low = i < SMALL / 2 ? nibbles[i] & 15 : nibbles[i - SMALL / 2] >> 4;
    return low + 16 * (int)(high >> i & 1);
}

static uint32_t u32_at(const unsigned char *at) {
    uint32_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

/* The scale; 8 is zero. */
static void q4_0_values(const unsigned char *block, float *out) {
    for (int i = 0; i < SMALL; i++)
        out[i] = f16_at(block) * (float)(small_number(block + 2, 0, i) - 8);
}

/* The scale, and the minimum value. */
static void q4_1_values(const unsigned char *block, float *out) {
    for (int i = 0; i < SMALL; i++)
        out[i] = f16_at(block) * (float)small_number(block + 4, 0, i) + f16_at(block + 2);
}

/* The scale, and the fifth bits; 16 is zero. */
static void q5_0_values(const unsigned char *block, float *out) {
    for (int i = 0; i < SMALL; i++)
        out[i] = f16_at(block) * (float)(small_number(block + 6, u32_at(block + 2), i) - 16);
}

/* The scale, the minimum value, and the fifth bits. */
static void q5_1_values(const unsigned char *block, float *out) {
    for (int i = 0; i < SMALL; i++)
        out[i] = f16_at(block) * (float)small_number(block + 8, u32_at(block + 4), i) + f16_at(block + 2);
}

static const int8_t uneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* 32 numbers of four bits, which stand for uneven steps. */
static void uneven_values(float scale, const unsigned char *nibbles, float *out) {
    for (int i = 0; i < SMALL; i++)
        out[i] = scale * (float)uneven[small_number(nibbles, 0, i)];
}

/* The scale. */
static void iq4_nl_values(const unsigned char *block, float *out) {
    uneven_values(f16_at(block), block + 2, out);
}

/* ---- blocks of 256 values ---- */

/* Returns number i of two bits. A byte has those of four groups of 32 values. */
static int pair_number(const unsigned char *pairs, int i) {
    return pairs[i / 128 * SMALL + i % SMALL] >> (i % 128 / SMALL * 2) & 3;
}

/* A scale and a minimum value of four bits for each 16 values [16], numbers of two bits [64], and the scales of both.
 */
static void q2_k_values(const unsigned char *block, float *out) {
    float d = f16_at(block + 80), least_d = f16_at(block + 82);
    for (int i = 0; i < LARGE; i++) {
        int both = block[i / 16];
        out[i] = d * (float)(both & 15) * (float)pair_number(block + 16, i) - least_d * (float)(both >> 4);
    }
}

/* Third bits [32], which subtract 4 where they are clear; numbers of two bits [64]; scales [12]; and the scale of
 * these. A scale has six bits, for 16 values, and 32 is zero. */
static void q3_k_values(const unsigned char *block, float *out) {
    const unsigned char *scales = block + 96;
    float d = f16_at(block + 108);
    for (int i = 0; i < LARGE; i++) {
        int j = i / 16, low = scales[j % 8] >> (j / 8 * 4) & 15, high = scales[8 + j % 4] >> (j / 4 * 2) & 3;
        int number = pair_number(block + 32, i) - (block[i % SMALL] >> (i / SMALL) & 1 ? 0 : 4);
        out[i] = d * (float)((low | high << 4) - 32) * (float)number;
    }
}

/* The scale; upper bits [2] and lower bits [4] of scales; and numbers of four bits [128]. A scale has six bits, for 32
 * values, and 32 is zero. */
static void iq4_xs_values(const unsigned char *block, float *out) {
    for (int i = 0; i < LARGE / SMALL; i++) {
        int low = block[4 + i / 2] >> (i % 2 * 4) & 15, high = block[2 + i / 4] >> (i % 4 * 2) & 3;
        uneven_values(f16_at(block) * (float)((low | high << 4) - 32), block + 8 + i * SMALL / 2, out + i * SMALL);
    }
}

/* Twelve bytes pack a scale and a minimum value, of six bits each, for each of eight groups of 32 values. The last four
 * groups have their upper two bits in the bytes of the first four. */
static void group_scales(const unsigned char *packed, int group, int *scale, int *least) {
    if (group < 4) {
        *scale = packed[group] & 63;
        *least = packed[group + 4] & 63;
    } else {
        *scale = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
        *least = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
    }
}

/* Two scales of scales, the packed scales, perhaps fifth bits [32], and numbers of four bits [128]. A byte of these has
 * a number of one group in its lower half, and one of the next group in its upper half. */
static void grouped_values(const unsigned char *block, const unsigned char *high, const unsigned char *nibbles,
                           float *out) {
    float d = f16_at(block), least_d = f16_at(block + 2);
    for (int group = 0; group < LARGE / SMALL; group++) {
        int scale, least;
        group_scales(block + 4, group, &scale, &least);
        float factor = d * (float)scale, shift = least_d * (float)least;
        for (int i = 0; i < SMALL; i++) {
            int byte = nibbles[group / 2 * SMALL + i];
            int number = group % 2 ? byte >> 4 : byte & 15;
            if (high)
                number += 16 * (high[i] >> group & 1);
            out[group * SMALL + i] = factor * (float)number - shift;
        }
    }
}

static void q4_k_values(const unsigned char *block, float *out) {
    grouped_values(block, NULL, block + 16, out);
}

static void q5_k_values(const unsigned char *block, float *out) {
    grouped_values(block, block + 16, block + 48, out);
}

/* Lower four bits [128], upper two bits [64], signed scales of 16 values each [16], and their scale; 32 is zero. */
static void q6_k_values(const unsigned char *block, float *out) {
    float d = f16_at(block + 208);
    for (int i = 0; i < LARGE; i++) {
        int half = i / 128, group = i % 128 / SMALL, place = i % SMALL;
        int low = block[half * 64 + group % 2 * SMALL + place] >> (group / 2 * 4) & 15;
        int high = block[128 + half * SMALL + place] >> (group * 2) & 3;
        int scale = (int8_t)block[192 + i / 16];
        out[i] = d * (float)scale * (float)((low | high << 4) - 32);
    }
}

/* ---- the table ---- */

static const struct gguf_type types[] = {
    {"F32", 0, 1, 4, DTYPE_F32, NULL},
    {"F16", 1, 1, 2, DTYPE_F16, f16_values},
    {"BF16", 30, 1, 2, DTYPE_BF16, bf16_values},
    {"Q8_0", 8, SMALL, 34, DTYPE_COUNT, q8_0_values},
    {"Q4_0", 2, SMALL, 18, DTYPE_COUNT, q4_0_values},
    {"Q4_1", 3, SMALL, 20, DTYPE_COUNT, q4_1_values},
    {"Q5_0", 6, SMALL, 22, DTYPE_COUNT, q5_0_values},
    {"Q5_1", 7, SMALL, 24, DTYPE_COUNT, q5_1_values},
    {"Q2_K", 10, LARGE, 84, DTYPE_COUNT, q2_k_values},
    {"Q3_K", 11, LARGE, 110, DTYPE_COUNT, q3_k_values},
    {"Q4_K", 12, LARGE, 144, DTYPE_COUNT, q4_k_values},
    {"Q5_K", 13, LARGE, 176, DTYPE_COUNT, q5_k_values},
    {"Q6_K", 14, LARGE, 210, DTYPE_COUNT, q6_k_values},
    {"IQ4_NL", 20, SMALL, 18, DTYPE_COUNT, iq4_nl_values},
    {"IQ4_XS", 23, LARGE, 136, DTYPE_COUNT, iq4_xs_values},
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
            type->values(blocks + i * type->bytes, values);
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
