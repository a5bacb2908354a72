/* Encoded weights in memory: the parts of a layout one after the other, each aligned to 64 bytes.
 *
 * A part with plain values is packed as packed.c does. The others begin with their order, if they have one. Panels of
 * PANEL outputs follow. A panel is one stream, which a product reads in order. A block of groups begins with the fp16
 * scales and offsets of all outputs; a group has its scales, its shifts, and its codes. Rows are padded to whole chunks
 * of CHUNK positions with codes of 0, which meet rows of x that are padded with zeros.
 *
 * Codes of up to 4 bits are held in 4. A chunk is a word of 32 bits for each output: the lower half has its even
 * positions, the upper half the odd ones, each from the lowest bits up. Longer codes are held in bytes, and integers
 * among them as signed numbers. A pair of positions is 2 neighbouring bytes for each output. A word has the pairs of
 * outputs that are SIMD_LANES apart. So vectors of words become pairs of bf16 without crossing lanes. */
#pragma once

#include "cpu/level/panels.h"
#include "cpu/level/vector_math.h"

enum { CHUNK = 8, PART_ALIGN = 64 };

/* 32-bit integers, lane by lane of a vfloat. */
typedef int32_t vlanes __attribute__((vector_size(sizeof(vfloat))));

struct panel_form {
    struct encoding encoding;
    int64_t positions;     /* of a row, padded */
    int64_t group, groups; /* padded positions of a group; the last one may be shorter */
    int bits;              /* of a code in memory: 4 or 8 */
    int centre;            /* of integers: the code that is multiplied as 0, in the middle of all */
    bool has_sums;         /* products need the sums of groups of x */
    int64_t scale_bytes, shift_bytes, group_bytes, block_bytes; /* of a panel */
    int64_t bytes;                                              /* of a panel */
};

/* Returns the form of a part's panels. */
static inline struct panel_form panel_form_of(const struct encoded_part *part) {
    const struct encoding *e = &part->encoding;
    struct panel_form f = {.encoding = *e, .groups = encoded_groups(e, part->positions)};
    f.positions = (part->positions + CHUNK - 1) / CHUNK * CHUNK;
    f.group = f.groups == 1 ? f.positions : e->group;
    f.bits = e->bits <= 4 ? 4 : 8;
    f.centre = e->codes == CODES_INTEGERS ? 1 << (e->bits - 1) : e->bias;
    f.has_sums = e->shift != ENCODED_SYMMETRIC || f.centre != e->bias;
    f.scale_bytes = PANEL * (int64_t)dtype_bytes(e->scale_type);
    f.shift_bytes = e->shift == ENCODED_SYMMETRIC ? 0 : e->shift == ENCODED_ZEROS ? PANEL : f.scale_bytes;
    f.block_bytes = e->groups_of_block ? PANEL * (e->shift == ENCODED_OFFSETS ? 4 : 2) : 0;
    f.group_bytes = f.scale_bytes + f.shift_bytes + f.group * PANEL * f.bits / 8;
    f.bytes = f.groups * (f.scale_bytes + f.shift_bytes) + encoded_blocks(e, part->positions) * f.block_bytes +
              f.positions * PANEL * f.bits / 8;
    f.bytes = (f.bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    return f;
}

/* Return the first byte of a group, which are its scales; of its shifts, and of its codes. */
static inline const char *group_at(const struct panel_form *f, const char *panel, int64_t group) {
    int64_t each = f->encoding.groups_of_block, blocks = each ? (uint32_t)group / (uint32_t)each + 1 : 0;
    return panel + group * f->group_bytes + blocks * f->block_bytes;
}
static inline const char *shifts_at(const struct panel_form *f, const char *panel, int64_t group) {
    return group_at(f, panel, group) + f->scale_bytes;
}
static inline const char *codes_at(const struct panel_form *f, const char *panel, int64_t group) {
    return shifts_at(f, panel, group) + f->shift_bytes;
}
/* Returns the scales of a group's block; its offsets follow. */
static inline const uint16_t *block_at(const struct panel_form *f, const char *panel, int64_t group) {
    int64_t each = f->encoding.groups_of_block;
    int64_t first = (uint32_t)group / (uint32_t)each * each;
    return (const uint16_t *)(const void *)(group_at(f, panel, first) - f->block_bytes);
}

/* Returns the place, in pairs of bytes, of an output among those of a panel. */
static inline int64_t pair_place(int64_t output) {
    return output % SIMD_LANES * VECTORS + output / SIMD_LANES;
}

/* ---- lanes ---- */

static inline vfloat to_float(vlanes x) {
    return __builtin_convertvector(x, vfloat);
}

/* Returns entries of a table of 16 numbers: by the lowest 4 bits of each lane. */
TILE_INLINE vfloat entries_of(const float *table, vlanes codes) {
    if (SIMD_LANES == 16)
        return __builtin_shuffle(simd_load(table), codes);
    vfloat lower = __builtin_shuffle(simd_load(table), simd_load(table + SIMD_LANES % 16), codes);
    if (SIMD_LANES == 8)
        return lower;
    vfloat upper = __builtin_shuffle(simd_load(table + 8), simd_load(table + 12), codes);
    vlanes is_upper = (codes & 8) != 0;
    return (vfloat)(((vlanes)lower & ~is_upper) | ((vlanes)upper & is_upper));
}

/* Returns numbers of E4M3. A subnormal one is 2^-6 less than the number with its fraction and the exponent above. */
TILE_INLINE vfloat e4m3_floats(vlanes codes) {
    vlanes size = codes & 0x7f, is_subnormal = size < 8;
    vlanes bits = (size << 20) + (120 << 23) - (is_subnormal << 23);
    vfloat least = (vfloat)((vlanes)simd_set(0x1p-6f) & is_subnormal), x = (vfloat)bits - least;
    return (vfloat)((vlanes)x | (codes & 0x80) << 24);
}

/* Return elements of a column of a panel, from output `first` on. */
TILE_INLINE vfloat elements_at(enum dtype type, const char *from, int first) {
    const char *at = from + (size_t)first * dtype_bytes(type);
    switch (type) {
    case DTYPE_F32:
        return simd_load((const float *)(const void *)at);
    case DTYPE_F16:
        return simd_load_f16((const uint16_t *)(const void *)at);
    case DTYPE_BF16:
        return simd_load_bf16((const uint16_t *)(const void *)at);
    default: {
        vlanes bytes = (vlanes)simd_load_bytes((const uint8_t *)at);
        return to_float(type == DTYPE_I8 ? (bytes ^ 128) - 128 : bytes);
    }
    }
}

/* ---- parts ---- */

/* The rows of a view that lie in one part of its layout. */
struct part_rows {
    const struct encoded_part *part;
    struct matrix_view view; /* in the part; of a part without codes, a packed view */
    int64_t first;           /* row of the whole view */
    struct panel_form form;  /* of a part with codes, as the rest */
    const int32_t *order;    /* [positions], or NULL */
    const char *panels;
};

/* Returns false if the view has no rows in part `index`. */
bool LEVEL(encoded_part_rows)(const struct matrix_view *view, int index, struct part_rows *rows);
