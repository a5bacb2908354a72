/* The meaning of encodings, in plain loops: sizes, places, and the values of a row. */
#include "kernels/encoding.h"

bool encoding_equals(const struct encoding *a, const struct encoding *b) {
    return a->codes == b->codes && a->bits == b->bits && a->bias == b->bias && a->shift == b->shift &&
           a->scale_type == b->scale_type && a->group == b->group && a->groups_of_block == b->groups_of_block;
}

bool encoded_part_is_regular(const struct encoded_part *part, int64_t columns) {
    static const uint8_t bits[] = {[CODES_E4M3] = 8, [CODES_NF4] = 4, [CODES_FP4] = 4, [CODES_IQ4] = 4};
    const struct encoding *e = &part->encoding;
    bool is_small = e->scale_type == DTYPE_U8 || e->scale_type == DTYPE_I8;
    bool is_float = e->scale_type == DTYPE_F32 || e->scale_type == DTYPE_F16 || e->scale_type == DTYPE_BF16;
    return part->positions > 0 && (part->has_order || part->positions == columns) && e->group > 0 &&
           (e->group >= part->positions || e->group % 8 == 0) &&
           (e->groups_of_block > 0 ? is_small : e->groups_of_block == 0 && is_float) && e->codes < sizeof bits &&
           e->codes != CODES_NONE && e->shift <= ENCODED_OFFSETS &&
           (bits[e->codes] ? e->bits == bits[e->codes] : e->bits >= 2 && e->bits <= 8);
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void encoding_cut(struct encoding *e, int64_t column, int64_t columns) {
    int64_t group = e->group, block = group * e->groups_of_block;
    bool is_in_one = !block && columns > 0 && column % group + columns <= group;
    e->group = (int32_t)(is_in_one ? columns : common_divisor(group, column % group));
    if (block)
        e->groups_of_block = (int32_t)(common_divisor(block, column % block) / e->group);
}

/* Takes the next `bytes`, rounded up to 8, from *at. */
static void *take(char **at, size_t bytes) {
    void *place = bytes ? *at : NULL;
    *at += (bytes + 7) & ~(size_t)7;
    return place;
}

/* Places the arrays from `memory` on; *end is what follows them. */
static struct encoded_rows place_rows(const struct encoded_part *part, char *memory, char **end) {
    const struct encoding *e = &part->encoding;
    size_t rows = (size_t)part->rows, groups = rows * (size_t)encoded_groups(e, part->positions);
    size_t blocks = rows * (size_t)encoded_blocks(e, part->positions) * sizeof(uint16_t);
    size_t shift_bytes = e->shift == ENCODED_ZEROS ? 1 : dtype_bytes(e->scale_type);
    char *at = memory;
    struct encoded_rows r = {.encoding = *e, .rows = part->rows, .positions = part->positions};
    r.codes = take(&at, rows * (size_t)part->positions);
    r.scales = take(&at, groups * dtype_bytes(e->scale_type));
    r.shifts = take(&at, e->shift == ENCODED_SYMMETRIC ? 0 : groups * shift_bytes);
    r.block_scales = take(&at, blocks);
    r.block_offsets = take(&at, e->shift == ENCODED_OFFSETS ? blocks : 0);
    r.order = take(&at, part->has_order ? (size_t)part->positions * sizeof *r.order : 0);
    *end = at;
    return r;
}

size_t encoded_rows_bytes(const struct encoded_part *part) {
    char *end;
    place_rows(part, NULL, &end);
    return (size_t)(uintptr_t)end;
}

struct encoded_rows encoded_rows_place(const struct encoded_part *part, void *memory) {
    char *end;
    return place_rows(part, memory, &end);
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static const float nf4[16] = {-1,
                              -0.6961928009986877F,
                              -0.5250730514526367F,
                              -0.39491748809814453F,
                              -0.28444138169288635F,
                              -0.18477343022823334F,
                              -0.09105003625154495F,
                              0,
                              0.07958029955625534F,
                              0.16093020141124725F,
                              0.24611230194568634F,
                              0.33791524171829224F,
                              0.44070982933044434F,
                              0.5626170039176941F,
                              0.7229568362236023F,
                              1};
static const float fp4[16] = {0, 0.0052083335F,  0.6666667F,  1,  0.33333334F,  0.5F,  0.16666667F,  0.25F,
                              0, -0.0052083335F, -0.6666667F, -1, -0.33333334F, -0.5F, -0.16666667F, -0.25F};
static const float iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* The numbers of E4M3 by their bits, without sign: 8 of each exponent. The first row is subnormal. */
#define E4M3_ROW(unit) (unit) * 8, (unit)*9, (unit)*10, (unit)*11, (unit)*12, (unit)*13, (unit)*14, (unit)*15
#define E4M3_HALF(sign)                                                                                                \
    (sign) * 0.0F, (sign)*0x1p-9F, (sign)*0x2p-9F, (sign)*0x3p-9F, (sign)*0x4p-9F, (sign)*0x5p-9F, (sign)*0x6p-9F,     \
        (sign)*0x7p-9F, E4M3_ROW((sign)*0x1p-9F), E4M3_ROW((sign)*0x1p-8F), E4M3_ROW((sign)*0x1p-7F),                  \
        E4M3_ROW((sign)*0x1p-6F), E4M3_ROW((sign)*0x1p-5F), E4M3_ROW((sign)*0x1p-4F), E4M3_ROW((sign)*0x1p-3F),        \
        E4M3_ROW((sign)*0x1p-2F), E4M3_ROW((sign)*0x1p-1F), E4M3_ROW((sign)*1.0F), E4M3_ROW((sign)*2.0F),              \
        E4M3_ROW((sign)*4.0F), E4M3_ROW((sign)*8.0F), E4M3_ROW((sign)*16.0F), E4M3_ROW((sign)*32.0F)
/* 0x7F and 0xFF are NaN; readers refuse them, and the table has +-480 there. */
static const float e4m3[256] = {E4M3_HALF(1), E4M3_HALF(-1)};

const float *encoded_table(enum encoded_codes codes) {
    static const float *const tables[] = {[CODES_E4M3] = e4m3, [CODES_NF4] = nf4, [CODES_FP4] = fp4, [CODES_IQ4] = iq4};
    return tables[codes];
}

float encoded_element(enum dtype type, const void *array, int64_t i) {
    switch (type) {
    case DTYPE_F32:
        return ((const float *)array)[i];
    case DTYPE_F16:
        return f16_to_float(((const uint16_t *)array)[i]);
    case DTYPE_BF16:
        return bf16_to_float(((const uint16_t *)array)[i]);
    case DTYPE_I8:
        return ((const int8_t *)array)[i];
    default:
        return ((const uint8_t *)array)[i];
    }
}

/* A scale and what is subtracted, of one group. */
struct group_terms {
    float scale, zero, offset;
};

static struct group_terms terms_of(const struct encoded_rows *r, int64_t row, int64_t group) {
    const struct encoding *e = &r->encoding;
    int64_t at = row * encoded_groups(e, r->positions) + group;
    int64_t block = e->groups_of_block ? row * encoded_blocks(e, r->positions) + group / e->groups_of_block : 0;
    struct group_terms terms = {.scale = encoded_element(e->scale_type, r->scales, at)};
    if (r->block_scales)
        terms.scale *= f16_to_float(r->block_scales[block]);
    if (e->shift == ENCODED_ZEROS)
        terms.zero = (float)((const uint8_t *)r->shifts)[at];
    if (e->shift == ENCODED_OFFSETS)
        terms.offset = encoded_element(e->scale_type, r->shifts, at);
    if (e->shift == ENCODED_OFFSETS && r->block_offsets)
        terms.offset *= f16_to_float(r->block_offsets[block]);
    return terms;
}

void encoded_row_values(const struct encoded_rows *r, int64_t row, float *out) {
    const struct encoding *e = &r->encoding;
    const float *table = encoded_table(e->codes);
    const uint8_t *codes = r->codes + row * r->positions;
    for (int64_t first = 0, group = 0; first < r->positions; first += e->group, group++) {
        struct group_terms terms = terms_of(r, row, group);
        int64_t end = first + e->group < r->positions ? first + e->group : r->positions;
        for (int64_t p = first; p < end; p++) {
            float number = table ? table[codes[p]] : (float)(codes[p] - e->bias);
            int64_t to = r->order ? r->order[p] : p;
            if (to >= 0)
                out[to] = terms.scale * (number - terms.zero) - terms.offset;
        }
    }
}
