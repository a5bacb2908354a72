/* Products of encoded weights. Every code means a number that is exact in the type that is multiplied: fp32, or bf16
 * where there are products of pairs. The sum of each group is multiplied once by the group's scale:
 *
 *     y += scale * sum of number * x - shift * sum of x
 *
 * Those of NF4 and FP4 are not bf16 numbers. A factor brings them near such, and the scales are divided by it.
 *
 * Codes of up to 6 bits become numbers in registers, block of rows by block, as others do for few rows: the units that
 * permute work beside those that multiply. Otherwise, a slice of a panel is expanded to numbers, which stay in the
 * first-level cache and meet all rows. One row reads the panel as one stream, the scales of each group with its codes.
 *
 * Each output is the same chain of sums for any number of rows, so that a row's bits do not depend on the others. Where
 * there are tiles, they multiply any number of rows in bf16; each group is then padded to whole tiles with zeros. */
#include "cpu/level/encoded_numbers.h"
#include "cpu/level/packed_tiles.h"

enum {
    SLICE = 256, /* positions that are expanded at a time: 16 KB of pairs */
    SLICE_GROUPS = SLICE / CHUNK,
    PREFETCH_BYTES = 8192,     /* ahead in the panel's stream, which is read slice by slice */
    MAX_ROWS = 16 * TILE_ROWS, /* of a pass */
};

static enum product product_of(const struct gemm *gemm) {
    return gemm->a.type == DTYPE_BF16 && SIMD_PAIRS ? PRODUCT_PAIRS : PRODUCT_FLOATS;
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

/* Returns the maximum number of rows that meet codes in registers, which is then faster than expanding these. */
TILE_INLINE int coded_rows(enum product product, enum form form) {
    if (is_tiled(product))
        return 2;
    return form == FORM_NIBBLES || form == FORM_SIXES ? INT_MAX : form == FORM_BYTES ? TILE_ROWS : 4;
}

/* Returns the floats of expanded positions. */
static int64_t floats_of(enum product product, int64_t positions) {
    return positions * PANEL / (product == PRODUCT_PAIRS ? 2 : 1);
}

/* Returns the maximum number of rows of a block. */
TILE_INLINE int block_rows(enum product product) {
    return is_tiled(product) ? TILES_ROWS : TILE_ROWS;
}

/* Returns the maximum number of rows that meet numbers of a form at once. */
TILE_INLINE int form_rows(enum product product, enum form form) {
    int block = block_rows(product), coded = form == FORM_NUMBERS ? block : coded_rows(product, form);
    return coded < block ? coded : block;
}

/* ---- expanding ------------------------------------------------------------------------------------------------- */

/* Prefetches what is PREFETCH_BYTES after `bytes` bytes of codes. */
TILE_INLINE void look_ahead(const char *codes, int bytes) {
    for (int i = 0; i < bytes; i += 64)
        __builtin_prefetch(codes + PREFETCH_BYTES + i, 0, 2);
}

/* Writes the numbers of `count` positions, whole chunks. */
TILE_INLINE void expand_codes(enum form form, enum product product, const struct numbers *n, const char *codes,
                              int64_t count, float *out) {
    for (int64_t p = 0; p < count; p += CHUNK, codes += chunk_bytes(form, product)) {
        look_ahead(codes, chunk_bytes(form, product));
#pragma GCC unroll 4
        for (int pair = 0; pair < CHUNK / 2; pair++, out += parts_of(product) * PANEL)
#pragma GCC unroll 2
            for (int v = 0; v < PANEL; v += SIMD_LANES) {
                vfloat w[2];
                take_numbers(form, product, n, codes, pair, v, w);
                simd_store(out + v, w[0]);
                if (product != PRODUCT_PAIRS)
                    simd_store(out + PANEL + v, w[1]);
            }
    }
}

#define EXPAND_CASE(form, product)                                                                                     \
    case form:                                                                                                         \
        expand_codes(form, product, n, codes, count, out);                                                             \
        break;

TILE_INLINE void expand_forms(enum product product, enum form form, const struct numbers *n, const char *codes,
                              int64_t count, float *out) {
    switch (form) {
    case FORM_NUMBERS:
    case FORMS:
        break;
        EXPAND_CASE(FORM_NIBBLES, product)
        EXPAND_CASE(FORM_BYTES, product)
        EXPAND_CASE(FORM_E4M3, product)
        EXPAND_CASE(FORM_SIXES, product)
    }
}

static void expand_floats(enum form form, const struct numbers *n, const char *codes, int64_t count, float *out) {
    expand_forms(PRODUCT_FLOATS, form, n, codes, count, out);
}
static void expand_pairs(enum form form, const struct numbers *n, const char *codes, int64_t count, float *out) {
    expand_forms(PRODUCT_PAIRS, form, n, codes, count, out);
}

/* The scales of a group of a panel, those of its block, or NULL, and its codes. */
struct group {
    const char *scales;
    const uint16_t *block;
    const char *codes;
};

static struct group group_of(const struct panel_form *f, const char *panel, int64_t group) {
    return (struct group){.scales = group_at(f, panel, group),
                          .block = f->encoding.groups_of_block ? block_at(f, panel, group) : NULL,
                          .codes = codes_at(f, panel, group)};
}

/* Writes the scales of a group, and the products of scales and zeros or the offsets: [2][PANEL]. A scale belongs to
 * numbers in units, which have neither zeros nor offsets where the unit is not 1. */
TILE_INLINE void expand_scales(const struct panel_form *f, float unit, const struct group *group, float out[2][PANEL]) {
    const struct encoding *e = &f->encoding;
    const char *shifts = group->scales + f->scale_bytes;
    const uint16_t *block = group->block;
#pragma GCC unroll 2
    for (int v = 0; v < PANEL; v += SIMD_LANES) {
        vfloat scale = elements_at(e->scale_type, group->scales, v), shift = simd_set(0);
        if (block)
            scale *= simd_load_f16(block + v);
        if (!f->has_sums) {
            simd_store(out[0] + v, scale * simd_set(unit));
            continue;
        }
        simd_store(out[0] + v, scale);
        if (e->shift == ENCODED_OFFSETS)
            shift = elements_at(e->scale_type, shifts, v);
        if (block && e->shift == ENCODED_OFFSETS)
            shift *= simd_load_f16(block + PANEL + v);
        vfloat zero = simd_set((float)(e->bias - f->centre));
        if (e->shift == ENCODED_ZEROS)
            zero += elements_at(DTYPE_U8, shifts, v);
        simd_store(out[1] + v, simd_fma(scale, zero, shift));
    }
}

/* ---- multiplying ----------------------------------------------------------------------------------------------- */

/* A slice of a panel: whole groups, or a piece of one. */
struct slice {
    int64_t first, groups;       /* the first of its groups, and their number */
    int64_t positions;           /* of all of them */
    int64_t each;                /* positions of a group here; the last one may have fewer */
    bool is_first, is_last;      /* of the pieces of its group */
    const float *numbers;        /* [positions] expanded, PANEL at a time; or else: */
    const struct numbers *table; /* of codes */
    const struct panel_form *form;
    struct group group[SLICE_GROUPS];
    const float (*scales)[2][PANEL]; /* [groups]; NULL: not expanded yet */
};

/* A block of rows that meets a slice. */
struct block {
    const float *x; /* units of the slice: [steps][rows], or for tiles [rows], `stride` floats apart */
    int64_t stride;
    const float *sums; /* [groups][rows] of x; NULL: there are no shifts */
    float *total;      /* [rows][PANEL] */
    float *part;       /* [rows][PANEL] the sum of a group between its pieces */
};

/* Multiplies rows with a slice: with its expanded numbers, or with codes. */
TILE_INLINE void multiply(enum form form, enum product product, int rows, const struct slice *slice,
                          const struct block *block) {
    const float *a = block->x;
    const char *b =
        form == FORM_NUMBERS ? (const char *)slice->numbers : slice->group[0].scales - slice->form->block_bytes;
    int64_t left = slice->positions;
    for (int64_t g = 0; g < slice->groups; g++, left -= slice->each) {
        vfloat sum[TILE_ROWS][VECTORS];
#pragma GCC unroll 32
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++)
                sum[r][v] = slice->is_first ? simd_set(0) : simd_load(block->part + r * PANEL + v * SIMD_LANES);
        _Alignas(64) float own[2][PANEL] = {0};
        const float(*scales)[PANEL] = slice->scales ? slice->scales[g] : own;
        if (form != FORM_NUMBERS) {
            const struct group *group = &slice->group[g];
            look_ahead(b, (int)(group->codes - b));
            b = group->codes;
            if (!slice->scales)
                expand_scales(slice->form, slice->table->unit, group, own);
        }
        int64_t positions = left < slice->each ? left : slice->each;
        for (int64_t p = 0; p < positions; p += CHUNK, b += chunk_bytes(form, product)) {
            if (form != FORM_NUMBERS)
                look_ahead(b, chunk_bytes(form, product));
#pragma GCC unroll 4
            for (int pair = 0; pair < CHUNK / 2; pair++, a += (product == PRODUCT_FLOATS ? 2 : 1) * rows) {
                vfloat w[VECTORS][2];
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; v++)
                    take_numbers(form, product, slice->table, b, pair, v * SIMD_LANES, w[v]);
#pragma GCC unroll 2
                for (int part = 0; part < parts_of(product); part++)
#pragma GCC unroll 32
                    for (int r = 0; r < rows; r++) {
                        vfloat x = simd_set(a[(product == PRODUCT_FLOATS ? part * rows : 0) + r]);
#pragma GCC unroll 2
                        for (int v = 0; v < VECTORS; v++)
                            sum[r][v] = simd_dot(product != PRODUCT_FLOATS, x, w[v][part], sum[r][v]);
                    }
            }
        }
        float *to = slice->is_last ? block->total : block->part;
#pragma GCC unroll 32
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++) {
                const int lane = v * SIMD_LANES;
                float *at = to + r * PANEL + lane;
                vfloat x = sum[r][v];
                if (slice->is_last)
                    x = simd_fma(x, simd_load(scales[0] + lane), simd_load(at));
                if (slice->is_last && block->sums)
                    x = simd_fma(simd_set(-block->sums[g * rows + r]), simd_load(scales[1] + lane), x);
                simd_store(at, x);
            }
    }
}

#define ROWS_CASE(number)                                                                                              \
    case number:                                                                                                       \
        if (number <= most)                                                                                            \
            multiply(form, product, number <= most ? number : 1, slice, block);                                        \
        break;

/* Multiplies up to form_rows rows. */
TILE_INLINE void multiply_rows(enum form form, enum product product, int rows, const struct slice *slice,
                               const struct block *block) {
    const int most = form_rows(product, form);
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
        tiles_add(&(const struct tile_sums){.rows = rows,
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

enum { TILED_FEW = 2 };

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
TILE_INLINE void add_codes(enum form form, int rows, const struct numbers *numbers, const struct group_codes *group) {
    const vlanes upper = (vlanes)simd_words(0xffff0000u);
    const char *codes = group->codes;
    for (int64_t p = 0; p < group->positions; p += 2 * TILES_STEPS) {
        int64_t end = p + 2 * TILES_STEPS < group->positions ? p + 2 * TILES_STEPS : group->positions;
        vfloat even[TILED_FEW][VECTORS], odd[TILED_FEW][VECTORS];
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++)
                even[r][v] = odd[r][v] = simd_set(0);
        for (int64_t q = p; q < end; q += CHUNK, codes += chunk_bytes(form, PRODUCT_PAIRS)) {
            look_ahead(codes, chunk_bytes(form, PRODUCT_PAIRS));
#pragma GCC unroll 4
            for (int pair = 0; pair < CHUNK / 2; pair++)
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; v++) {
                    vfloat numbers_of_pair[2];
                    take_numbers(form, PRODUCT_PAIRS, numbers, codes, pair, v * SIMD_LANES, numbers_of_pair);
                    vlanes w = (vlanes)numbers_of_pair[0];
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

TILE_INLINE void multiply_codes(enum form form, int rows, const struct slice *slice, const struct block *block) {
    enum { NO_SUBNORMALS = 0x8040 };
    struct group_codes group = {.x = block->x, .stride = block->stride};
    int64_t left = slice->positions;
    for (int64_t g = 0; g < slice->groups; g++, left -= slice->each) {
        _Alignas(64) float sums[TILED_FEW * PANEL];
        const unsigned control = _mm_getcsr();
        group.codes = slice->group[g].codes;
        group.positions = left < slice->each ? left : slice->each;
        group.sums = slice->is_first && slice->is_last ? sums : block->part;
        if (slice->is_first)
            memset(group.sums, 0, (size_t)(rows * PANEL) * sizeof *sums);
        _mm_setcsr(control | NO_SUBNORMALS);
        add_codes(form, rows, slice->table, &group);
        _mm_setcsr(control);
        if (slice->is_last)
            finish_group(rows, slice, block, g, group.sums);
        group.x += padded(PRODUCT_PAIRS, slice->each) / 2;
    }
}

/* ---- all of them ---- */

/* Multiplies few rows with codes of one form. */
TILE_INLINE void multiply_few(enum form form, enum product product, int rows, const struct slice *slice,
                              const struct block *block) {
    const bool is_tiled = HAS_TILES && product != PRODUCT_FLOATS;
    if (is_tiled && rows == 1)
        multiply_codes(form, 1, slice, block);
    else if (is_tiled)
        multiply_codes(form, 2, slice, block);
    else
        multiply_rows(form, product, rows, slice, block);
}

#define MULTIPLY(name, form, kind)                                                                                     \
    static void name(int rows, const struct slice *slice, const struct block *block) {                                 \
        const enum product p = SIMD_PAIRS ? kind : PRODUCT_FLOATS;                                                     \
        if (form != FORM_NUMBERS)                                                                                      \
            multiply_few(form, p, rows, slice, block);                                                                 \
        else if (HAS_TILES && p != PRODUCT_FLOATS)                                                                     \
            multiply_tiled(p, rows, slice, block);                                                                     \
        else                                                                                                           \
            multiply_rows(form, p, rows, slice, block);                                                                \
    }
MULTIPLY(multiply_floats, FORM_NUMBERS, PRODUCT_FLOATS)
MULTIPLY(multiply_nibble_floats, FORM_NIBBLES, PRODUCT_FLOATS)
MULTIPLY(multiply_byte_floats, FORM_BYTES, PRODUCT_FLOATS)
MULTIPLY(multiply_e4m3_floats, FORM_E4M3, PRODUCT_FLOATS)
MULTIPLY(multiply_pairs, FORM_NUMBERS, PRODUCT_PAIRS)
MULTIPLY(multiply_nibbles, FORM_NIBBLES, PRODUCT_PAIRS)
MULTIPLY(multiply_sixes, FORM_SIXES, PRODUCT_PAIRS)
MULTIPLY(multiply_bytes, FORM_BYTES, PRODUCT_PAIRS)
MULTIPLY(multiply_e4m3, FORM_E4M3, PRODUCT_PAIRS)

static const struct {
    void (*multiply[FORMS])(int rows, const struct slice *slice, const struct block *block);
    void (*expand)(enum form form, const struct numbers *n, const char *codes, int64_t count, float *out);
} products[] = {[PRODUCT_FLOATS] = {{[FORM_NUMBERS] = multiply_floats,
                                     [FORM_NIBBLES] = multiply_nibble_floats,
                                     [FORM_BYTES] = multiply_byte_floats,
                                     [FORM_E4M3] = multiply_e4m3_floats},
                                    expand_floats},
                [PRODUCT_PAIRS] = {{[FORM_NUMBERS] = multiply_pairs,
                                    [FORM_NIBBLES] = multiply_nibbles,
                                    [FORM_SIXES] = multiply_sixes,
                                    [FORM_BYTES] = multiply_bytes,
                                    [FORM_E4M3] = multiply_e4m3},
                                   expand_pairs}};

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

/* Returns true if the rows of a pass meet codes in registers. */
static bool has_codes(const struct pass *pass) {
    return pass->rows <= coded_rows(pass->product, form_of(pass->product, &pass->part->form));
}

/* Expands the slice that begins at `position`; for few rows, only its scales. These need no slices of groups. */
static struct slice expand(const struct pass *pass, const char *panel, int64_t position, float *numbers,
                           float scales[SLICE_GROUPS][2][PANEL]) {
    const struct panel_form *f = &pass->part->form;
    const bool is_piece = f->group > SLICE, is_coded = has_codes(pass), is_long = is_coded && pass->blocks == 1;
    struct slice slice = {.first = position / f->group,
                          .each = f->group,
                          .numbers = numbers,
                          .table = &pass->numbers,
                          .form = f,
                          .scales = is_long && !is_tiled(pass->product) ? NULL : scales};
    int64_t inside = position % f->group, end = is_piece ? (slice.first + 1) * f->group : f->positions;
    int64_t most = SLICE / padded(pass->product, f->group) * f->group;
    if (is_piece || is_long)
        most = !is_long ? SLICE : is_piece ? f->group : SLICE_GROUPS * f->group;
    end = end < f->positions ? end : f->positions;
    slice.positions = end - position < most ? end - position : most;
    slice.groups = is_piece ? 1 : (slice.positions + f->group - 1) / f->group;
    slice.is_first = inside == 0;
    slice.is_last = !is_piece || position + slice.positions == end;
    int64_t each = slice.groups == 1 ? slice.positions : f->group, left = slice.positions;
    float *to = numbers;
    for (int64_t g = 0; g < slice.groups; g++, left -= each) {
        int64_t count = left < each ? left : each, all = padded(pass->product, count);
        struct group *group = &slice.group[g];
        *group = group_of(f, panel, slice.first + g);
        group->codes += (g ? 0 : inside) * PANEL * f->bits / 8;
        if (slice.scales)
            expand_scales(f, pass->numbers.unit, group, scales[g]);
        if (is_coded)
            continue;
        products[pass->product].expand(form_of(pass->product, f), &pass->numbers, group->codes, count, to);
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
    const enum form form = has_codes(pass) ? form_of(pass->product, f) : FORM_NUMBERS;
    memset(total, 0, (size_t)(rows * PANEL) * sizeof *total);
    for (int64_t position = 0; position < f->positions;) {
        struct slice slice = expand(pass, panel, position, numbers, scales);
        for (int64_t b = first_block; b < end_block; b++) {
            int64_t start = block_start(pass, b), count = block_start(pass, b + 1) - start;
            const float *packed = pass->packed + start * (pass->units + pass->sums);
            struct block block = {.x = packed + unit_at(pass, position) * (is_tiled(pass->product) ? 1 : count),
                                  .stride = pass->units,
                                  .sums = pass->sums ? packed + (pass->units + slice.first) * count : NULL,
                                  .total = total + (start - base) * PANEL,
                                  .part = part + (start - base) * PANEL};
            if (is_tiled(pass->product) && !has_codes(pass) && count != pass->shaped_rows)
                tiles_shape(pass->shaped_rows = (int)count);
            products[pass->product].multiply[form]((int)count, &slice, &block);
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
    struct pass pass = {.gemm = gemm, .part = part, .product = product_of(gemm), .shares = 1};
    pass.units = units_of(pass.product, &part->form);
    pass.sums = sums_of(&part->form);
    pass.skipped = part->view.first_row % PANEL;
    pass.panels = panels_of(pass.skipped + gemm_n(gemm));
    pass.packed = exec->workspace;
    pass.numbers = numbers_of(&part->form, pass.product);
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
            enum product product = product_of(gemm);
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
