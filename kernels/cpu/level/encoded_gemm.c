/* Products of encoded weights. Every code means a number that is exact in the type that is multiplied: fp32, or bf16
 * where there are products of pairs. The sum of each group is multiplied once by the group's scale:
 *
 *     y += scale * sum of number * x - shift * sum of x
 *
 * NF4 and FP4 have numbers that two bf16 hold, which are multiplied one after the other.
 *
 * A slice of a panel is expanded to numbers, which stay in the first-level cache and meet all rows. Each output is the
 * same chain of sums for any number of rows, so that a row's bits do not depend on the others. Where there are tiles,
 * they multiply any number of rows in bf16; each group is then padded to whole tiles with zeros. */
#include "cpu/level/encoded.h"
#include "cpu/level/packed_tiles.h"

enum {
    SLICE = 256, /* positions that are expanded at a time: 16 KB of pairs */
    SLICE_GROUPS = SLICE / CHUNK,
    PREFETCH_BYTES = 8192,     /* ahead in the panel's stream, which is read slice by slice */
    MAX_ROWS = 16 * TILE_ROWS, /* of a pass */
};

/* How numbers are multiplied. */
enum product { PRODUCT_FLOATS, PRODUCT_PAIRS, PRODUCT_TWO_PAIRS };

static enum product product_of(const struct gemm *gemm, const struct panel_form *f) {
    bool is_split = f->encoding.codes == CODES_NF4 || f->encoding.codes == CODES_FP4;
    return gemm->a.type != DTYPE_BF16 || !SIMD_PAIRS ? PRODUCT_FLOATS : is_split ? PRODUCT_TWO_PAIRS : PRODUCT_PAIRS;
}

/* Returns true if tiles multiply. */
static bool is_tiled(enum product product) {
    return HAS_TILES && product != PRODUCT_FLOATS;
}

/* Returns positions of a group with their padding. */
static int64_t padded(enum product product, int64_t positions) {
    enum { TILE = 2 * TILES_STEPS };
    return is_tiled(product) ? (positions + TILE - 1) / TILE * TILE : positions;
}

/* Returns the floats of expanded positions. */
static int64_t floats_of(enum product product, int64_t positions) {
    return positions * PANEL / (product == PRODUCT_PAIRS ? 2 : 1);
}

/* Returns the maximum number of rows of a block. */
static int block_rows(enum product product) {
    return is_tiled(product) ? TILES_ROWS : TILE_ROWS;
}

/* ---- expanding ------------------------------------------------------------------------------------------------- */

/* Numbers of codes of 4 bits: as floats, and as bf16 numbers, which come twice because 5 bits choose among them. Two
 * bf16 are the upper and the lower part. */
struct numbers {
    float table[16];
    uint16_t halves[2][32];
};

static struct numbers numbers_of(const struct panel_form *f) {
    const float *given = encoded_table(f->encoding.codes);
    struct numbers n;
    for (int i = 0; i < 16; i++) {
        float number = given ? given[i] : (float)(i - f->centre), upper = rounded(number, DTYPE_BF16);
        n.table[i] = number;
        n.halves[0][i] = n.halves[0][16 + i] = vbf16_from_float(number);
        n.halves[1][i] = n.halves[1][16 + i] = vbf16_from_float(number - upper);
    }
    return n;
}

/* 16-bit numbers, two in each lane of a vfloat. */
typedef uint16_t vhalves __attribute__((vector_size(sizeof(vfloat))));

static inline vhalves load_halves(const void *from) {
    vhalves x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* Returns the same numbers as bf16, from codes in 16 bits. */
TILE_INLINE vhalves e4m3_halves(vhalves codes) {
    static const uint16_t subnormal[32] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
    vhalves size = codes & 0x7f, is_subnormal = (vhalves)(size < 8);
    vhalves few = __builtin_shuffle(load_halves(subnormal), size), bits = (size << 4) + (120 << 7);
    return (few & is_subnormal) | (bits & ~is_subnormal) | (codes & 0x80) << 8;
}

/* Prefetches what is PREFETCH_BYTES after `bytes` bytes of codes. */
TILE_INLINE void look_ahead(const char *codes, int bytes) {
    for (int i = 0; i < bytes; i += 64)
        __builtin_prefetch(codes + PREFETCH_BYTES + i, 0, 2);
}

/* Each function writes the numbers of `count` positions, whole chunks, from codes of one kind. */

static void expand_floats(const struct panel_form *f, const struct numbers *n, const char *codes, int64_t count,
                          float *out) {
    bool is_integer = f->encoding.codes == CODES_INTEGERS;
    for (int64_t p = 0; p < count; p += CHUNK, codes += CHUNK * PANEL * f->bits / 8, out += CHUNK * PANEL)
        for (int v = 0; v < PANEL; v += SIMD_LANES)
            for (int i = 0; i < CHUNK && f->bits == 4; i++) {
                vlanes word;
                memcpy(&word, codes + v * 4, sizeof word);
                simd_store(out + i * PANEL + v, entries_of(n->table, word >> (i / 2 * 4 + i % 2 * 16)));
            }
    if (f->bits == 4)
        return;
    codes -= count * PANEL;
    out -= count * PANEL;
    for (int64_t p = 0; p < count; p += 2, codes += 2 * PANEL, out += 2 * PANEL)
        for (int v = 0; v < PANEL; v += SIMD_LANES) {
            vlanes bytes = (vlanes)simd_load_halves((const uint16_t *)(const void *)(codes + 2 * v));
            vfloat even = is_integer ? to_float(bytes << 24 >> 24) : e4m3_floats(bytes & 255);
            vfloat odd = is_integer ? to_float(bytes << 16 >> 24) : e4m3_floats(bytes >> 8);
            simd_store(out + v, even);
            simd_store(out + PANEL + v, odd);
        }
}

TILE_INLINE void expand_nibbles(bool is_split, const struct numbers *n, const char *codes, int64_t count, float *out) {
    vhalves upper = load_halves(n->halves[0]), lower = load_halves(n->halves[1]);
    for (int64_t p = 0; p < count; p += CHUNK, codes += CHUNK * PANEL / 2) {
        look_ahead(codes, CHUNK * PANEL / 2);
#pragma GCC unroll 4
        for (int pair = 0; pair < CHUNK / 2; pair++, out += is_split ? 2 * PANEL : PANEL)
#pragma GCC unroll 2
            for (int v = 0; v < PANEL; v += SIMD_LANES) {
                vhalves code = load_halves(codes + v * 4) >> 4 * pair;
                simd_store(out + v, (vfloat)__builtin_shuffle(upper, code));
                if (is_split)
                    simd_store(out + PANEL + v, (vfloat)__builtin_shuffle(lower, code));
            }
    }
}

static void expand_pairs(const struct panel_form *f, const struct numbers *n, const char *codes, int64_t count,
                         float *out) {
    if (f->bits == 4) {
        expand_nibbles(false, n, codes, count, out);
        return;
    }
    for (int64_t p = 0; p < count; p += 2, codes += 2 * PANEL, out += PANEL) {
        look_ahead(codes, 2 * PANEL);
        for (int v = 0; v < PANEL; v += SIMD_LANES) {
            const uint8_t *bytes = (const uint8_t *)codes + 2 * v;
            simd_store(out + v, f->encoding.codes == CODES_INTEGERS
                                    ? simd_byte_pairs(bytes)
                                    : (vfloat)e4m3_halves((vhalves)simd_widened_bytes(bytes)));
        }
    }
}

static void expand_two_pairs(const struct panel_form *f, const struct numbers *n, const char *codes, int64_t count,
                             float *out) {
    expand_nibbles(true, n, codes, count, out);
}

/* Writes the scales of a group, and the products of scales and zeros or the offsets: [2][PANEL]. */
static void expand_scales(const struct panel_form *f, const char *panel, int64_t group, float *out) {
    const struct encoding *e = &f->encoding;
    const char *scales = group_at(f, panel, group), *shifts = scales + f->scale_bytes;
    const uint16_t *block = e->groups_of_block ? block_at(f, panel, group) : NULL;
    for (int v = 0; v < PANEL; v += SIMD_LANES) {
        vfloat scale = elements_at(e->scale_type, scales, v), shift = simd_set(0);
        if (block)
            scale *= simd_load_f16(block + v);
        simd_store(out + v, scale);
        if (!f->has_sums)
            continue;
        if (e->shift == ENCODED_OFFSETS)
            shift = elements_at(e->scale_type, shifts, v);
        if (block && e->shift == ENCODED_OFFSETS)
            shift *= simd_load_f16(block + PANEL + v);
        vfloat zero = simd_set((float)(e->bias - f->centre));
        if (e->shift == ENCODED_ZEROS)
            zero += elements_at(DTYPE_U8, shifts, v);
        simd_store(out + PANEL + v, simd_fma(scale, zero, shift));
    }
}

/* ---- multiplying ----------------------------------------------------------------------------------------------- */

/* A slice of a panel: whole groups, or a piece of one. */
struct slice {
    int64_t group, groups;           /* the first of its groups, and their number */
    int64_t positions;               /* of all of them */
    int64_t each;                    /* positions of a group here; the last one may have fewer */
    bool is_first, is_last;          /* of the pieces of its group */
    const float *numbers;            /* [positions] expanded, PANEL at a time */
    const float (*scales)[2][PANEL]; /* [groups] */
};

/* A block of rows that meets a slice. */
struct block {
    const float *x; /* units of the slice: [steps][rows], or for tiles [rows], `stride` floats apart */
    int64_t stride;
    const float *sums; /* [groups][rows] of x; NULL: there are no shifts */
    float *total;      /* [rows][PANEL] */
    float *part;       /* [rows][PANEL] the sum of a group between its pieces */
};

TILE_INLINE void multiply(enum product product, int rows, const struct slice *slice, const struct block *block) {
    const float *a = block->x, *b = slice->numbers;
    int64_t left = slice->positions;
    for (int64_t g = 0; g < slice->groups; g++, left -= slice->each) {
        vfloat sum[TILE_ROWS][VECTORS];
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++)
                sum[r][v] = slice->is_first ? simd_set(0) : simd_load(block->part + r * PANEL + v * SIMD_LANES);
        int64_t pairs = (left < slice->each ? left : slice->each) / 2;
        for (int64_t p = 0; p < pairs; p++) {
            for (int half = 0; half < (product == PRODUCT_PAIRS ? 1 : 2); half++) {
                const float *units = a + (product == PRODUCT_FLOATS ? half * rows : 0);
                vfloat w[VECTORS];
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; v++)
                    w[v] = simd_load(b + v * SIMD_LANES);
#pragma GCC unroll 16
                for (int r = 0; r < rows; r++) {
                    vfloat x = simd_set(units[r]);
#pragma GCC unroll 2
                    for (int v = 0; v < VECTORS; v++)
                        sum[r][v] = simd_dot(product != PRODUCT_FLOATS, x, w[v], sum[r][v]);
                }
                b += PANEL;
            }
            a += (product == PRODUCT_FLOATS ? 2 : 1) * rows;
        }
        float *to = slice->is_last ? block->total : block->part;
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++) {
                float *at = to + r * PANEL + v * SIMD_LANES;
                vfloat x = sum[r][v];
                if (slice->is_last)
                    x = simd_fma(x, simd_load(slice->scales[g][0] + v * SIMD_LANES), simd_load(at));
                if (slice->is_last && block->sums)
                    x = simd_fma(simd_set(-block->sums[g * rows + r]), simd_load(slice->scales[g][1] + v * SIMD_LANES),
                                 x);
                simd_store(at, x);
            }
    }
}

#define ROWS_CASE(number)                                                                                              \
    case number:                                                                                                       \
        if (number <= TILE_ROWS)                                                                                       \
            multiply(product, number <= TILE_ROWS ? number : 1, slice, block);                                         \
        break;

TILE_INLINE void multiply_rows(enum product product, int rows, const struct slice *slice, const struct block *block) {
    switch (rows) {
        ROWS_CASE(1)
        ROWS_CASE(2)
        ROWS_CASE(3)
        ROWS_CASE(4)
        ROWS_CASE(5)
        ROWS_CASE(6)
        ROWS_CASE(7)
        ROWS_CASE(8)
        ROWS_CASE(9)
        ROWS_CASE(10)
        ROWS_CASE(11)
        ROWS_CASE(12)
        ROWS_CASE(13)
        ROWS_CASE(14)
    }
}

/* Adds the sums [rows][PANEL] of group `g` of a slice to the totals, with its scales and shifts. */
TILE_INLINE void finish_group(int rows, const struct slice *slice, const struct block *block, int64_t g,
                              const float *sums) {
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < PANEL; v += SIMD_LANES) {
            float *total = block->total + r * PANEL + v;
            vfloat x = simd_fma(simd_load(sums + r * PANEL + v), simd_load(slice->scales[g][0] + v), simd_load(total));
            if (block->sums)
                x = simd_fma(simd_set(-block->sums[g * rows + r]), simd_load(slice->scales[g][1] + v), x);
            simd_store(total, x);
        }
}

/* The same by tiles. */
TILE_INLINE void multiply_tiled(enum product product, int rows, const struct slice *slice, const struct block *block) {
    const float *a = block->x, *b = slice->numbers;
    int64_t left = slice->positions;
    for (int64_t g = 0; g < slice->groups; g++, left -= slice->each, a += padded(product, slice->each) / 2) {
        _Alignas(64) float sums[TILES_ROWS * PANEL];
        int64_t count = padded(product, left < slice->each ? left : slice->each);
        bool is_piece = !slice->is_first || !slice->is_last;
        float *to = is_piece ? block->part : sums;
        tiles_add(&(const struct tile_sums){.parts = product == PRODUCT_PAIRS ? 1 : 2,
                                            .rows = rows,
                                            .is_first = slice->is_first,
                                            .steps = count / 2,
                                            .a = a,
                                            .row_floats = block->stride,
                                            .b = b,
                                            .sums = to});
        b += floats_of(product, count);
        if (slice->is_last)
            finish_group(rows, slice, block, g, to);
    }
}

/* ---- few rows, where tiles multiply many ---- */

enum { FEW = 2 }; /* rows that meet codes in registers, which is faster than expanding these */

/* Forms of codes in memory. */
enum code_form { FORM_NIBBLES, FORM_BYTES, FORM_E4M3 };

/* Returns the numbers of a pair of positions for a vector of outputs, as bf16. */
TILE_INLINE vfloat pair_at(enum code_form form, vhalves table, const char *codes, int pair) {
    const uint8_t *bytes = (const uint8_t *)codes + 2 * PANEL * pair;
    if (form == FORM_NIBBLES)
        return (vfloat)__builtin_shuffle(table, load_halves(codes) >> 4 * pair);
    return form == FORM_BYTES ? simd_byte_pairs(bytes) : (vfloat)e4m3_halves((vhalves)simd_widened_bytes(bytes));
}

/* Codes of a group, the rows' units there, and their sums. */
struct group_codes {
    const char *codes;
    int64_t positions;
    const float *x;
    int64_t stride; /* units from row to row */
    float *sums;    /* [rows][PANEL] */
};

/* Adds the products of a group's codes. A tile adds up even and odd positions of 32, each in its own chain from 0 on,
 * and then adds both to the sum, all without subnormal numbers. This has the same bits. */
TILE_INLINE void add_codes(enum code_form form, int rows, vhalves table, const struct group_codes *group) {
    const int bits = form == FORM_NIBBLES ? 4 : 8;
    const vlanes upper = (vlanes)simd_words(0xffff0000u);
    const char *codes = group->codes;
    for (int64_t p = 0; p < group->positions; p += 2 * TILES_STEPS) {
        int64_t end = p + 2 * TILES_STEPS < group->positions ? p + 2 * TILES_STEPS : group->positions;
        vfloat even[FEW][VECTORS], odd[FEW][VECTORS];
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++)
                even[r][v] = odd[r][v] = simd_set(0);
        for (int64_t q = p; q < end; q += CHUNK, codes += CHUNK * PANEL * bits / 8) {
            look_ahead(codes, CHUNK * PANEL * bits / 8);
#pragma GCC unroll 4
            for (int pair = 0; pair < CHUNK / 2; pair++)
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; v++) {
                    vlanes w = (vlanes)pair_at(form, table, codes + v * SIMD_LANES * (bits == 4 ? 4 : 2), pair);
#pragma GCC unroll 2
                    for (int r = 0; r < rows; r++) {
                        vlanes both = (vlanes)simd_set(group->x[r * group->stride + q / 2 + pair]);
                        even[r][v] = simd_fma((vfloat)(both << 16), (vfloat)(w << 16), even[r][v]);
                        odd[r][v] = simd_fma((vfloat)(both & upper), (vfloat)(w & upper), odd[r][v]);
                    }
                }
        }
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++) {
                float *sum = group->sums + r * PANEL + v * SIMD_LANES;
                simd_store(sum, simd_load(sum) + (even[r][v] + odd[r][v]));
            }
    }
}

/* The codes of a slice of a panel; those of its first group begin at position `inside`. */
struct slice_codes {
    const struct panel_form *form;
    const struct numbers *numbers;
    const char *panel;
    int64_t inside;
};

TILE_INLINE void multiply_codes(enum code_form form, int rows, const struct slice_codes *coded,
                                const struct slice *slice, const struct block *block) {
    enum { NO_SUBNORMALS = 0x8040 };
    const vhalves table = load_halves(coded->numbers->halves[0]);
    const struct panel_form *f = coded->form;
    struct group_codes group = {.x = block->x, .stride = block->stride};
    int64_t left = slice->positions;
    for (int64_t g = 0; g < slice->groups; g++, left -= slice->each) {
        _Alignas(64) float sums[FEW * PANEL];
        const unsigned control = _mm_getcsr();
        group.codes = codes_at(f, coded->panel, slice->group + g) + (g ? 0 : coded->inside) * PANEL * f->bits / 8;
        group.positions = left < slice->each ? left : slice->each;
        group.sums = slice->is_first && slice->is_last ? sums : block->part;
        if (slice->is_first)
            memset(group.sums, 0, (size_t)(rows * PANEL) * sizeof *sums);
        _mm_setcsr(control | NO_SUBNORMALS);
        add_codes(form, rows, table, &group);
        _mm_setcsr(control);
        if (slice->is_last)
            finish_group(rows, slice, block, g, group.sums);
        group.x += padded(PRODUCT_PAIRS, slice->each) / 2;
    }
}

TILE_INLINE void multiply_few(enum code_form form, int rows, const struct slice_codes *coded, const struct slice *slice,
                              const struct block *block) {
    if (rows == 1)
        multiply_codes(form, 1, coded, slice, block);
    else
        multiply_codes(form, 2, coded, slice, block);
}

static void multiply_floats(int rows, const struct slice *slice, const struct block *block) {
    multiply_rows(PRODUCT_FLOATS, rows, slice, block);
}
static void multiply_pairs(int rows, const struct slice *slice, const struct block *block) {
    if (HAS_TILES)
        multiply_tiled(PRODUCT_PAIRS, rows, slice, block);
    else
        multiply_rows(SIMD_PAIRS ? PRODUCT_PAIRS : PRODUCT_FLOATS, rows, slice, block);
}
static void multiply_two_pairs(int rows, const struct slice *slice, const struct block *block) {
    if (HAS_TILES)
        multiply_tiled(PRODUCT_TWO_PAIRS, rows, slice, block);
    else
        multiply_rows(SIMD_PAIRS ? PRODUCT_TWO_PAIRS : PRODUCT_FLOATS, rows, slice, block);
}

static const struct {
    void (*multiply)(int rows, const struct slice *slice, const struct block *block);
    void (*expand)(const struct panel_form *f, const struct numbers *n, const char *codes, int64_t count, float *out);
} products[] = {[PRODUCT_FLOATS] = {multiply_floats, expand_floats},
                [PRODUCT_PAIRS] = {multiply_pairs, expand_pairs},
                [PRODUCT_TWO_PAIRS] = {multiply_two_pairs, expand_two_pairs}};

/* ---- rows ------------------------------------------------------------------------------------------------------ */

/* One pass over the panels, for rows first .. first + rows - 1 of A. */
struct pass {
    const struct gemm *gemm;
    const struct part_rows *part;
    enum product product;
    struct numbers numbers; /* of codes of 4 bits */
    int64_t first, rows, blocks;
    int64_t panels, skipped; /* panels of the weight, and columns of the first one before the view */
    int64_t shares;          /* parts of the blocks, if there are too few panels for the threads */
    int64_t units, sums;     /* of a packed row: its units, and its sums of groups */
    float *packed;           /* block by block: [units][rows], or for tiles [rows][units]; then [sums][rows] */
    int shaped_rows;         /* for which this thread's tiles have the shape; 0: none */
};

static int64_t block_start(const struct pass *pass, int64_t block) {
    return pass->rows * block / pass->blocks;
}

/* Returns the floats of a packed row, and its sums. */
static int64_t units_of(enum product product, const struct panel_form *f) {
    return product == PRODUCT_FLOATS ? f->positions
           : is_tiled(product)       ? f->groups * padded(product, f->group) / 2
                                     : f->positions / 2;
}
static int64_t sums_of(const struct panel_form *f) {
    return f->has_sums ? f->groups : 0;
}

/* Returns the unit of a position in a packed row. */
static int64_t unit_at(const struct pass *pass, int64_t position) {
    const struct panel_form *f = &pass->part->form;
    int64_t added = position / f->group * (padded(pass->product, f->group) - f->group);
    return pass->product == PRODUCT_FLOATS ? position : (position + added) / 2;
}

/* Packs one row as lane `lane` of `rows`. */
TILE_INLINE void pack_row(const struct pass *pass, int64_t row, int lane, int rows, float *out, enum dtype type) {
    const struct panel_form *f = &pass->part->form;
    const int32_t *order = pass->part->order;
    const void *x = (const char *)pass->gemm->a.data + (size_t)(row * pass->gemm->a.stride) * dtype_bytes(type);
    int64_t step = is_tiled(pass->product) ? 1 : rows;
    float *sums = out + pass->units * rows + lane;
    out += is_tiled(pass->product) ? lane * pass->units : lane;
    if (pass->units * 2 > f->positions && pass->product != PRODUCT_FLOATS)
        memset(out, 0, (size_t)pass->units * sizeof *out);
    int64_t given = pass->part->part->positions;
    for (int64_t g = 0; g < f->groups; g++) {
        int64_t first = g * f->group, end = first + f->group < f->positions ? first + f->group : f->positions;
        float *to = out + g * padded(pass->product, f->group) / (pass->product == PRODUCT_FLOATS ? 1 : 2) * step;
        float value[CHUNK], sum[CHUNK] = {0};
        for (int64_t p = first; p < end; p += CHUNK) {
            if (order || p + CHUNK > given)
                for (int i = 0; i < CHUNK; i++) {
                    int64_t from = p + i < given ? order ? order[p + i] : p + i : -1;
                    value[i] = from < 0 ? 0 : load(x, from, type);
                }
            else
                for (int i = 0; i < CHUNK; i++)
                    value[i] = load(x, p + i, type);
            for (int i = 0; i < CHUNK; i++)
                sum[i] += value[i];
            if (pass->product == PRODUCT_FLOATS)
                for (int i = 0; i < CHUNK; i++, to += step)
                    *to = value[i];
            else
                for (int i = 0; i < CHUNK; i += 2, to += step)
                    *to = vbits_to_float(vfloat_to_bits(value[i]) >> 16 | (vfloat_to_bits(value[i + 1]) & 0xffff0000u));
        }
        if (pass->sums)
            sums[g * rows] = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
    }
}

static void pack_block(const struct pass *pass, int64_t block) {
    int64_t start = block_start(pass, block);
    int rows = (int)(block_start(pass, block + 1) - start);
    float *out = pass->packed + start * (pass->units + pass->sums);
    for (int lane = 0; lane < rows; lane++) {
        int64_t row = pass->first + start + lane;
        if (pass->gemm->a.type == DTYPE_F32)
            pack_row(pass, row, lane, rows, out, DTYPE_F32);
        else
            pack_row(pass, row, lane, rows, out, DTYPE_BF16);
    }
}

/* ---- panels ---------------------------------------------------------------------------------------------------- */

/* Returns true if the rows of a pass meet codes without tiles. */
static bool is_few(const struct pass *pass) {
    return is_tiled(pass->product) && pass->product == PRODUCT_PAIRS && pass->rows <= FEW;
}

/* Multiplies the rows with the codes of a slice that begins at `position`. */
static void run_few(const struct pass *pass, const char *panel, int64_t position, const struct slice *slice,
                    const struct block *block) {
    const struct panel_form *f = &pass->part->form;
    const struct slice_codes coded = {f, &pass->numbers, panel, position % f->group};
    const int rows = (int)pass->rows;
    if (f->bits == 4)
        multiply_few(FORM_NIBBLES, rows, &coded, slice, block);
    else if (f->encoding.codes == CODES_INTEGERS)
        multiply_few(FORM_BYTES, rows, &coded, slice, block);
    else
        multiply_few(FORM_E4M3, rows, &coded, slice, block);
}

/* Expands the slice that begins at `position`; for few rows, only its scales. */
static struct slice expand(const struct pass *pass, const char *panel, int64_t position, float *numbers,
                           float scales[SLICE_GROUPS][2][PANEL]) {
    const struct panel_form *f = &pass->part->form;
    struct slice slice = {.group = position / f->group, .each = f->group, .numbers = numbers, .scales = scales};
    int64_t inside = position % f->group, end = f->group > SLICE ? (slice.group + 1) * f->group : f->positions;
    int64_t most = f->group > SLICE ? SLICE : SLICE / padded(pass->product, f->group) * f->group;
    end = end < f->positions ? end : f->positions;
    slice.positions = end - position < most ? end - position : most;
    slice.groups = f->group > SLICE ? 1 : (slice.positions + f->group - 1) / f->group;
    slice.is_first = inside == 0;
    slice.is_last = f->group <= SLICE || position + slice.positions == end;
    int64_t each = slice.groups == 1 ? slice.positions : f->group, left = slice.positions;
    float *to = numbers;
    for (int64_t g = 0; g < slice.groups; g++, left -= each) {
        int64_t count = left < each ? left : each, all = padded(pass->product, count);
        const char *codes = codes_at(f, panel, slice.group + g) + (g ? 0 : inside) * PANEL * f->bits / 8;
        expand_scales(f, panel, slice.group + g, scales[g][0]);
        if (is_few(pass))
            continue;
        products[pass->product].expand(f, &pass->numbers, codes, count, to);
        to += floats_of(pass->product, count);
        memset(to, 0, (size_t)floats_of(pass->product, all - count) * sizeof *to);
        to += floats_of(pass->product, all - count);
    }
    return slice;
}

/* Multiplies blocks [first_block, end_block) with a panel. */
static void run_panel(struct pass *pass, int64_t index, int64_t first_block, int64_t end_block) {
    const struct gemm *gemm = pass->gemm;
    const struct panel_form *f = &pass->part->form;
    const char *panel = pass->part->panels + (pass->part->view.first_row / PANEL + index) * f->bytes;
    _Alignas(64) float numbers[SLICE * PANEL], scales[SLICE_GROUPS][2][PANEL];
    _Alignas(64) float total[MAX_ROWS * PANEL], part[MAX_ROWS * PANEL];
    int64_t base = block_start(pass, first_block), rows = block_start(pass, end_block) - base;
    memset(total, 0, (size_t)(rows * PANEL) * sizeof *total);
    for (int64_t position = 0; position < f->positions;) {
        struct slice slice = expand(pass, panel, position, numbers, scales);
        for (int64_t b = first_block; b < end_block; b++) {
            int64_t start = block_start(pass, b), count = block_start(pass, b + 1) - start;
            const float *packed = pass->packed + start * (pass->units + pass->sums);
            struct block block = {.x = packed + unit_at(pass, position) * (is_tiled(pass->product) ? 1 : count),
                                  .stride = pass->units,
                                  .sums = pass->sums ? packed + (pass->units + slice.group) * count : NULL,
                                  .total = total + (start - base) * PANEL,
                                  .part = part + (start - base) * PANEL};
            if (is_few(pass)) {
                run_few(pass, panel, position, &slice, &block);
                continue;
            }
            if (is_tiled(pass->product) && count != pass->shaped_rows)
                tiles_shape(pass->shaped_rows = (int)count);
            products[pass->product].multiply((int)count, &slice, &block);
        }
        position += slice.positions;
    }
    finish_panel(gemm, &(const struct panel_sums){.sums = total,
                                                  .stride = PANEL,
                                                  .row = pass->first + base,
                                                  .rows = rows,
                                                  .col = index * PANEL - pass->skipped});
}

/* Runs a pass. Every thread packs few rows for itself, which is faster than waiting for others. */
static void run_pass(const struct pass *shared, int threads) {
    int64_t slots = 0;
#pragma omp parallel num_threads(threads)
    {
        struct pass pass = *shared;
        if (pass.blocks <= FEW_BLOCKS) {
            int64_t slot;
#pragma omp atomic capture
            slot = slots++;
            pass.packed += slot * pass.rows * (pass.units + pass.sums);
            for (int64_t b = 0; b < pass.blocks; b++)
                pack_block(&pass, b);
        } else {
#pragma omp for schedule(static)
            for (int64_t b = 0; b < pass.blocks; b++)
                pack_block(&pass, b);
        }
#pragma omp for schedule(static) nowait
        for (int64_t item = 0; item < pass.panels * pass.shares; item++) {
            int64_t share = item % pass.shares;
            run_panel(&pass, item / pass.shares, pass.blocks * share / pass.shares,
                      pass.blocks * (share + 1) / pass.shares);
        }
        if (pass.shaped_rows)
            tiles_release();
    }
}

/* Returns the rows of a pass: as many as fit into A_BYTES, but at least a few blocks. */
static int64_t pass_rows(enum product product, int64_t row_floats) {
    int64_t block = block_rows(product), rows = A_BYTES / (row_floats * (int64_t)sizeof(float)) / block * block;
    return rows > MAX_ROWS ? MAX_ROWS : rows > 4 * block ? rows : 4 * block;
}

static void multiply_part(const struct exec *exec, const struct gemm *gemm, const struct part_rows *part) {
    int threads = exec_threads(exec);
    struct pass pass = {.gemm = gemm, .part = part, .product = product_of(gemm, &part->form), .shares = 1};
    pass.units = units_of(pass.product, &part->form);
    pass.sums = sums_of(&part->form);
    pass.skipped = part->view.first_row % PANEL;
    pass.panels = panels_of(pass.skipped + gemm_n(gemm));
    pass.packed = exec->workspace;
    pass.numbers = numbers_of(&part->form);
    int64_t most = pass_rows(pass.product, pass.units + pass.sums), passes = (gemm_m(gemm) + most - 1) / most;
    for (int64_t i = 0; i < passes; i++) {
        pass.first = gemm_m(gemm) * i / passes;
        pass.rows = gemm_m(gemm) * (i + 1) / passes - pass.first;
        pass.blocks = (pass.rows + block_rows(pass.product) - 1) / block_rows(pass.product);
        for (pass.shares = 1; pass.panels * pass.shares < 4 * threads && 2 * pass.shares <= pass.blocks;)
            pass.shares *= 2;
        run_pass(&pass, threads);
    }
}

size_t LEVEL(gemm_packed_workspace)(struct device *device, const struct gemm *gemm) {
    if (!gemm->b.encoded)
        return LEVEL(plain_workspace)(device, gemm);
    size_t largest = 0;
    struct part_rows part;
    for (int i = 0; i < gemm->b.encoded->count; i++) {
        if (!LEVEL(encoded_part_rows)(&gemm->b, i, &part))
            continue;
        size_t bytes;
        if (part.part->encoding.codes == CODES_NONE) {
            struct gemm plain = outputs_of(gemm, part.first, part.view.rows);
            plain.b = part.view;
            bytes = LEVEL(plain_workspace)(device, &plain);
        } else {
            enum product product = product_of(gemm, &part.form);
            int64_t floats = units_of(product, &part.form) + sums_of(&part.form), most = pass_rows(product, floats);
            int64_t rows = gemm_m(gemm) < most ? gemm_m(gemm) : most, few = FEW_BLOCKS * block_rows(product);
            int64_t copies = (rows < few ? rows : few) * device->threads;
            bytes = (size_t)((rows > copies ? rows : copies) * floats) * sizeof(float);
        }
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

void LEVEL(gemm_packed)(const struct exec *exec, const struct gemm *gemm) {
    if (!gemm->b.encoded) {
        LEVEL(plain_gemm)(exec, gemm);
        return;
    }
    struct part_rows part;
    for (int i = 0; i < gemm->b.encoded->count; i++) {
        if (!LEVEL(encoded_part_rows)(&gemm->b, i, &part))
            continue;
        struct gemm product = outputs_of(gemm, part.first, part.view.rows);
        product.b = part.view;
        if (part.part->encoding.codes == CODES_NONE)
            LEVEL(plain_gemm)(exec, &product);
        else
            multiply_part(exec, &product, &part);
    }
}
