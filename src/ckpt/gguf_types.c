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

/* ---- blocks of 256 values ---- */

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
    {"Q4_K", 12, LARGE, 144, DTYPE_COUNT, q4_k_values},
    {"Q5_K", 13, LARGE, 176, DTYPE_COUNT, q5_k_values},
    {"Q6_K", 14, LARGE, 210, DTYPE_COUNT, q6_k_values},
};
enum { TYPE_COUNT = sizeof types / sizeof *types };

const struct gguf_type *gguf_type(uint32_t number) {
    for (int i = 0; i < TYPE_COUNT; i++)
        if (types[i].number == number)
            return &types[i];
    return NULL;
}

const char *gguf_type_name(const struct gguf_type *type) {
    return type->name;
}

enum dtype gguf_type_dtype(const struct gguf_type *type) {
    return type->dtype;
}

void gguf_list_types(struct strbuf *out) {
    for (int i = 0; i < TYPE_COUNT; i++)
        strbuf_format(out, "%s%s", i ? ", " : "", types[i].name);
}

/* ---- reading ---- */

static int check_finite(const struct gguf *file, const struct gguf_tensor *tensor, int64_t first, int64_t count,
                        enum dtype dtype, const void *values) {
    int64_t bad = dtype_find_not_finite(dtype, values, count);
    if (bad < 0)
        return STATUS_OK;
    float value = dtype == DTYPE_F32   ? ((const float *)values)[bad]
                  : dtype == DTYPE_F16 ? f16_to_float(((const uint16_t *)values)[bad])
                                       : bf16_to_float(((const uint16_t *)values)[bad]);
    return status_fail(STATUS_INVALID, "%s: tensor '%s': element %lld is %s", file->path, tensor->name,
                       (long long)(first + bad), dtype_not_finite_name((double)value));
}

/* Reads the blocks of the elements, and computes their values. */
static int read_blocks(const struct gguf *file, const struct gguf_tensor *tensor, int64_t first, int64_t count,
                       float *out) {
    const struct gguf_type *type = tensor->type;
    unsigned char blocks[READ_BLOCKS * LARGEST_BLOCK_BYTES];
    float values[LARGE];
    int64_t at_once = (int64_t)sizeof blocks / type->bytes, end = first + count;
    for (int64_t block = first / type->elements; block * type->elements < end;) {
        int64_t left = (end - 1) / type->elements + 1 - block, n = left < at_once ? left : at_once;
        TRY(file_pread_all(file->descriptor, blocks, (size_t)(n * type->bytes), tensor->start + block * type->bytes,
                           file->path));
        for (int64_t i = 0; i < n; i++, block++) {
            int64_t start = block * type->elements, from = start > first ? start : first;
            int64_t to = start + type->elements < end ? start + type->elements : end;
            type->values(blocks + i * type->bytes, values);
            memcpy(out + (from - first), values + (from - start), (size_t)(to - from) * sizeof *out);
        }
    }
    return STATUS_OK;
}

int gguf_read(const struct gguf *file, const struct gguf_tensor *tensor, int64_t first, int64_t count, enum dtype dtype,
              void *out) {
    if (first < 0 || count < 0 || first > tensor->elements || count > tensor->elements - first)
        return status_fail(STATUS_INVALID, "%s: tensor '%s': elements [%lld, +%lld) asked for, it has %lld", file->path,
                           tensor->name, (long long)first, (long long)count, (long long)tensor->elements);
    int64_t width = tensor->type->bytes;
    int status = dtype == tensor->type->dtype ? file_pread_all(file->descriptor, out, (size_t)(count * width),
                                                               tensor->start + first * width, file->path)
                                              : read_blocks(file, tensor, first, count, out);
    return status ? status : check_finite(file, tensor, first, count, dtype, out);
}
