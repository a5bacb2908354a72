/* Encoded weights: their packing, and their values. encoded.h has the form; encoded_gemm.c multiplies. This file is
 * compiled without contraction, because each step of a value is rounded. */
#include "cpu/level/encoded.h"
#include "cpu/level/rows.h"

/* ---- sizes and places ------------------------------------------------------------------------------------------ */

static size_t order_bytes(const struct encoded_part *part) {
    size_t bytes = part->has_order ? (size_t)part->positions * sizeof(int32_t) : 0;
    return (bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
}

/* Returns a part's bytes, or 0 if it is not taken. */
static size_t part_bytes(struct device *device, const struct matrix_view *view, const struct encoded_part *part) {
    if (part->encoding.codes == CODES_NONE) {
        struct matrix_view plain = matrix_plain(view->type, NULL, part->rows, view->columns);
        return LEVEL(plain_bytes)(device, &plain);
    }
    return encoded_part_is_regular(part, view->columns)
               ? order_bytes(part) + (size_t)(panels_of(part->rows) * panel_form_of(part).bytes)
               : 0;
}

size_t LEVEL(cpu_packed_bytes)(struct device *device, const struct matrix_view *view) {
    size_t total = 0;
    if (!view->encoded)
        return LEVEL(plain_bytes)(device, view);
    if (view->type != DTYPE_F32 && view->type != DTYPE_BF16)
        return 0;
    for (int i = 0; i < view->encoded->count; i++) {
        const struct encoded_part *part = &view->encoded->parts[i];
        size_t bytes = part_bytes(device, view, part);
        if (!bytes && part->rows)
            return 0;
        total += (bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
    }
    return total;
}

bool LEVEL(encoded_part_rows)(const struct matrix_view *view, int index, struct part_rows *rows) {
    struct encoded_layout before = *view->encoded;
    struct matrix_view earlier = *view;
    const struct encoded_part *part = &view->encoded->parts[index];
    int64_t start = 0, end;
    for (int i = 0; i < index; i++)
        start += view->encoded->parts[i].rows;
    end = start + part->rows < view->first_row + view->rows ? start + part->rows : view->first_row + view->rows;
    int64_t from = start > view->first_row ? start : view->first_row;
    before.count = index;
    earlier.encoded = &before;
    *rows = (struct part_rows){.part = part, .view = *view, .first = from - view->first_row};
    rows->view.encoded = NULL;
    rows->view.data = (const char *)view->data + LEVEL(cpu_packed_bytes)(NULL, &earlier);
    rows->view.first_row = from - start;
    rows->view.rows = end - from;
    if (part->encoding.codes != CODES_NONE) {
        rows->form = panel_form_of(part);
        rows->order = part->has_order ? rows->view.data : NULL;
        rows->panels = (const char *)rows->view.data + order_bytes(part);
    }
    return end > from;
}

/* ---- packing --------------------------------------------------------------------------------------------------- */

/* An array with a row for each output. */
struct outputs {
    const void *array;
    size_t element;
    int64_t rows, columns;
};

/* Copies elements of a column of `count` rows to neighbouring places. */
#define COPY_COLUMN(type)                                                                                              \
    for (int64_t o = 0; o < count; o++)                                                                                \
    ((type *)(void *)out)[o] = ((const type *)from.array)[(first + o) * from.columns + column]

/* Writes a column of a panel, whose first output is row `first`. Outputs after the last row have 0. */
TILE_INLINE char *pack_column(struct outputs from, int64_t first, int64_t column, char *out) {
    int64_t count = from.rows - first < PANEL ? from.rows - first : PANEL;
    if (count < PANEL)
        memset(out, 0, PANEL * from.element);
    if (from.element == sizeof(uint16_t))
        COPY_COLUMN(uint16_t);
    else if (from.element == sizeof(uint8_t))
        COPY_COLUMN(uint8_t);
    else
        COPY_COLUMN(uint32_t);
    return out + PANEL * from.element;
}

typedef uint8_t vbytes __attribute__((vector_size(sizeof(vfloat))));
typedef uint16_t vhalves __attribute__((vector_size(sizeof(vfloat))));
typedef uint64_t vlongs __attribute__((vector_size(sizeof(vfloat))));

/* Returns the codes of an output from a position on. Those after the last one are 0, as are those of other outputs. */
TILE_INLINE vbytes codes_from(const struct encoded_rows *rows, int64_t output, int64_t position) {
    const uint8_t *from = rows->codes + output * rows->positions + position;
    int64_t given = output < rows->rows ? rows->positions - position : 0;
    vbytes whole, part = {0};
    if (given >= (int64_t)sizeof whole) {
        memcpy(&whole, from, sizeof whole);
        return whole;
    }
    if (given > 0)
        memcpy(&part, from, (size_t)given);
    return part;
}

/* Returns codes of 4 bits as words of chunks, in the lower half of each 16 bytes. */
TILE_INLINE vlongs nibble_words(vbytes codes) {
    static const uint8_t places[] = {0, 4, 1, 5, 8, 12, 9, 13};
    vbytes order = {0};
    vlongs pairs = (vlongs)codes & 0x0f0f0f0f0f0f0f0fu;
#pragma GCC unroll 64
    for (int i = 0; i < (int)sizeof order; i++)
        order[i] = (uint8_t)(i / 16 * 16 + places[i % 8]);
    return (vlongs)__builtin_shuffle((vbytes)(pairs | pairs >> 12), order);
}

/* Returns SIMD_LANES words of an output, from a position on. A word has 8 codes of 4 bits, or 4 of 8. */
TILE_INLINE vfloat words_from(const struct panel_form *f, const struct encoded_rows *rows, int64_t output,
                              int64_t position, int bits) {
    vbytes codes = codes_from(rows, output, position);
    if (bits == 8)
        return (vfloat)(rows->encoding.codes == CODES_INTEGERS ? codes - (uint8_t)f->centre : codes);
    vlongs even = {0}, first = nibble_words(codes),
           second = nibble_words(codes_from(rows, output, position + (int64_t)sizeof codes));
#pragma GCC unroll 8
    for (int i = 0; i < SIMD_LANES / 2; i++)
        even[i] = (uint64_t)i * 2;
    return (vfloat)__builtin_shuffle(first, second, even);
}

/* Writes a word of each output of a panel: a chunk, or two pairs of positions, at their outputs' pair_place. */
TILE_INLINE void store_words(vfloat lower, vfloat upper, char *out, int bits) {
    vhalves first_pairs = {0};
#pragma GCC unroll 32
    for (int i = 0; i < SIMD_LANES * 2; i++)
        first_pairs[i] = (uint16_t)(i % 2 ? SIMD_LANES * 2 + i - 1 : i);
    if (bits == 8) {
        vhalves first = __builtin_shuffle((vhalves)lower, (vhalves)upper, first_pairs);
        upper = (vfloat)__builtin_shuffle((vhalves)lower, (vhalves)upper, first_pairs + 1);
        lower = (vfloat)first;
    }
    simd_store((float *)(void *)out, lower);
    simd_store((float *)(void *)out + SIMD_LANES, upper);
}

/* Writes the codes of a panel whose first output is row `first`. */
TILE_INLINE void pack_codes(const struct panel_form *f, const struct encoded_rows *rows, int64_t first, char *panel,
                            int bits) {
    char *at = NULL;
    for (int64_t p = 0, end = 0; p < f->positions;) {
        vfloat words[VECTORS][SIMD_LANES];
        for (int v = 0; v < VECTORS; v++) {
            for (int o = 0; o < SIMD_LANES; o++)
                words[v][o] = words_from(f, rows, first + v * SIMD_LANES + o, p, bits);
            transpose_words(words[v]);
        }
        for (int w = 0; w < SIMD_LANES && p < f->positions; w++, p += 32 / bits, at += PANEL * 4) {
            if (p == end) {
                at = (char *)(uintptr_t)codes_at(f, panel, p / f->group);
                end += f->group;
            }
            store_words(words[0][w], words[1][w], at, bits);
        }
    }
}

static void pack_panel(const struct panel_form *f, const struct encoded_rows *rows, int64_t first, char *panel) {
    const struct encoding *e = &rows->encoding;
    size_t scale = dtype_bytes(e->scale_type), shift = e->shift == ENCODED_ZEROS ? 1 : scale;
    int64_t blocks = encoded_blocks(e, rows->positions);
    char *at = panel;
    for (int64_t g = 0; g < f->groups; g++) {
        int64_t block = e->groups_of_block && g % e->groups_of_block == 0 ? g / e->groups_of_block : -1;
        int64_t rest = f->positions - g * f->group;
        if (block >= 0)
            at = pack_column((struct outputs){rows->block_scales, sizeof(uint16_t), rows->rows, blocks}, first, block,
                             at);
        if (block >= 0 && e->shift == ENCODED_OFFSETS)
            at = pack_column((struct outputs){rows->block_offsets, sizeof(uint16_t), rows->rows, blocks}, first, block,
                             at);
        at = pack_column((struct outputs){rows->scales, scale, rows->rows, f->groups}, first, g, at);
        if (e->shift != ENCODED_SYMMETRIC)
            at = pack_column((struct outputs){rows->shifts, shift, rows->rows, f->groups}, first, g, at);
        at += (rest < f->group ? rest : f->group) * PANEL * f->bits / 8;
    }
    memset(at, 0, (size_t)(panel + f->bytes - at));
    if (f->bits == 4)
        pack_codes(f, rows, first, panel, 4);
    else
        pack_codes(f, rows, first, panel, 8);
}

int LEVEL(cpu_pack)(const struct exec *exec, const struct pack_call *a) {
    if (!a->plain.encoded)
        return LEVEL(plain_pack)(exec, a);
    struct matrix_view whole = a->plain, part_view = a->plain;
    struct part_rows part;
    whole.data = a->out;
    whole.first_row = 0;
    whole.rows = INT64_MAX;
    if (a->part < 0 || a->part >= whole.encoded->count || !LEVEL(cpu_packed_bytes)(exec->stream->device, &a->plain))
        return status_fail(STATUS_INVALID, "pack: no part %d of an encoding that the cpu takes", a->part);
    if (!LEVEL(encoded_part_rows)(&whole, a->part, &part))
        return STATUS_OK;
    char *out = (char *)(uintptr_t)part.view.data;
    part_view.encoded = NULL;
    if (part.part->encoding.codes == CODES_NONE)
        return LEVEL(plain_pack)(exec, &(const struct pack_call){.plain = part_view, .out = out});
    const struct encoded_rows *rows = a->rows;
    int64_t after = part.part->rows - a->row - rows->rows; /* rows of other calls */
    if (!encoding_equals(&rows->encoding, &part.part->encoding) || a->row < 0 || after < 0 || a->row % PACK_ROWS ||
        (after && rows->rows % PACK_ROWS) || rows->positions != part.part->positions ||
        (rows->order != NULL) != part.part->has_order)
        return status_fail(STATUS_INVALID, "pack: rows that are not those of part %d", a->part);
    if (rows->order)
        memcpy(out, rows->order, (size_t)rows->positions * sizeof *rows->order);
    int64_t panels = panels_of(rows->rows);
    char *to = (char *)(uintptr_t)part.panels + a->row / PANEL * part.form.bytes;
#pragma omp parallel for num_threads(exec_threads(exec)) schedule(static)
    for (int64_t p = 0; p < panels; p++)
        pack_panel(&part.form, rows, p * PANEL, to + p * part.form.bytes);
    return STATUS_OK;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static int code_of(const struct panel_form *f, const char *codes, int64_t output, int64_t position) {
    if (f->bits == 8) {
        int byte = ((const uint8_t *)codes)[(position / 2 * PANEL + pair_place(output)) * 2 + position % 2];
        return f->encoding.codes == CODES_INTEGERS ? (byte + f->centre) & 255 : byte;
    }
    uint32_t word;
    memcpy(&word, codes + (position / CHUNK * PANEL + output) * 4, sizeof word);
    return word >> (position % CHUNK / 2 * 4 + position % 2 * 16) & 15;
}

/* Columns [col, col + cols) of some rows, and where the first of these is written. */
struct window {
    int64_t col, cols;
    char *out;
    size_t line; /* bytes from row to row */
};

/* Writes one row of a window, rounded to the view's type, as elements of `to`. */
TYPED_BODY void decode_row(const struct part_rows *part, int64_t row, const struct window *w, enum dtype type,
                           enum dtype to) {
    const int64_t col = w->col, cols = w->cols;
    const struct panel_form *f = &part->form;
    const struct encoding *e = &f->encoding;
    const char *panel = part->panels + row / PANEL * f->bytes;
    const float *table = encoded_table(e->codes);
    int64_t lane = row % PANEL, first = part->order ? 0 : col / f->group;
    int64_t last = part->order ? f->groups : (col + cols + f->group - 1) / f->group;
    for (int64_t g = first; g < last; g++) {
        const char *codes = codes_at(f, panel, g), *shifts = shifts_at(f, panel, g);
        float scale = encoded_element(e->scale_type, group_at(f, panel, g), lane), zero = 0, offset = 0;
        if (e->groups_of_block)
            scale *= f16_to_float(block_at(f, panel, g)[lane]);
        if (e->shift == ENCODED_ZEROS)
            zero = ((const uint8_t *)shifts)[lane];
        else if (e->shift == ENCODED_OFFSETS)
            offset = encoded_element(e->scale_type, shifts, lane);
        if (e->shift == ENCODED_OFFSETS && e->groups_of_block)
            offset *= f16_to_float(block_at(f, panel, g)[PANEL + lane]);
        int64_t from = g * f->group, end = from + f->group;
        if (part->order)
            end = end < part->part->positions ? end : part->part->positions;
        for (int64_t p = from > col || part->order ? from : col; p < end && (part->order || p < col + cols); p++) {
            int64_t at = (part->order ? part->order[p] : p) - col;
            if (at < 0 || at >= cols)
                continue;
            int code = code_of(f, codes, lane, p - from);
            float number = (table ? table[code] : (float)(code - e->bias)) - zero, value = scale * number - offset;
            store(w->out, at, to, type == to ? value : rounded(value, type));
        }
    }
}

/* The values of SIMD_LANES outputs of a panel, from output `lane` on. */
struct lanes {
    const struct panel_form *f;
    const char *panel;
    int lane;
    float table[16];    /* of codes of 4 bits */
    int64_t first, end; /* positions of the group of which these are: */
    const char *codes;  /* of the lanes */
    vfloat scale, zero, offset;
};

static void take_group(struct lanes *l, int64_t group) {
    const struct panel_form *f = l->f;
    const struct encoding *e = &f->encoding;
    const char *shifts = shifts_at(f, l->panel, group);
    l->first = group * f->group;
    l->end = l->first + f->group;
    l->codes = codes_at(f, l->panel, group) + (f->bits == 4 ? l->lane * 4 : 0);
    l->scale = elements_at(e->scale_type, group_at(f, l->panel, group), l->lane);
    l->zero = l->offset = simd_set(0);
    if (e->groups_of_block)
        l->scale *= simd_load_f16(block_at(f, l->panel, group) + l->lane);
    if (e->shift == ENCODED_ZEROS)
        l->zero = elements_at(DTYPE_U8, shifts, l->lane);
    else if (e->shift == ENCODED_OFFSETS)
        l->offset = elements_at(e->scale_type, shifts, l->lane);
    if (e->shift == ENCODED_OFFSETS && e->groups_of_block)
        l->offset *= simd_load_f16(block_at(f, l->panel, group) + PANEL + l->lane);
}

/* Returns the values of the lanes at a position. */
TILE_INLINE vfloat values_at(struct lanes *l, int64_t position) {
    const struct panel_form *f = l->f;
    if (position >= l->end)
        take_group(l, position / f->group);
    int at = (int)(position - l->first);
    int shift = f->bits == 4 ? at % CHUNK / 2 * 4 + at % 2 * 16 : l->lane / SIMD_LANES * 16 + at % 2 * 8;
    vlanes code;
    vfloat number;
    memcpy(&code, l->codes + (f->bits == 4 ? at / CHUNK * PANEL * 4 : at / 2 * PANEL * 2), sizeof code);
    code >>= shift;
    if (f->bits == 4) {
        number = entries_of(l->table, code);
    } else {
        number = f->encoding.codes == CODES_E4M3 ? e4m3_floats(code & 255)
                                                 : to_float((code << 24 >> 24) + (f->centre - f->encoding.bias));
    }
    return l->scale * (number - l->zero) - l->offset;
}

/* Decodes SIMD_LANES rows of a window, block by block. Returns the first column that is left. */
TYPED_BODY int64_t decode_lanes(const struct part_rows *part, int64_t row, const struct window *w, enum dtype type,
                                enum dtype to) {
    const int64_t each = to == DTYPE_BF16 ? 2 : 1, block = SIMD_LANES * each;
    const float *table = encoded_table(part->form.encoding.codes);
    struct lanes l = {
        .f = &part->form, .panel = part->panels + row / PANEL * part->form.bytes, .lane = (int)(row % PANEL)};
    int64_t p = w->col;
    for (int i = 0; i < 16 && part->form.bits == 4; i++)
        l.table[i] = table ? table[i] : (float)(i - part->form.encoding.bias);
    for (; p + block <= w->col + w->cols; p += block) {
        vfloat x[SIMD_LANES];
        for (int i = 0; i < SIMD_LANES; i++) {
            x[i] = values_at(&l, p + i * each);
            if (to == DTYPE_BF16)
                x[i] = (vfloat)(simd_round_bf16(x[i]) |
                                simd_upper_halves(simd_round_bf16(values_at(&l, p + i * each + 1))));
            else if (type == DTYPE_BF16)
                x[i] = (vfloat)simd_upper_halves(simd_round_bf16(x[i]));
        }
        transpose_words(x);
        for (int i = 0; i < SIMD_LANES; i++)
            simd_store((float *)(void *)(w->out + (size_t)i * w->line) + (p - w->col) / each, x[i]);
    }
    return p;
}

/* Decodes the rows of a view that are in vector `v` of a part's outputs. `w` is the window of all its rows. */
TYPED_BODY void decode_vector(const struct part_rows *part, int64_t v, const struct window *w, enum dtype type,
                              enum dtype to) {
    int64_t start = part->view.first_row, end = start + part->view.rows;
    int64_t row = v * SIMD_LANES > start ? v * SIMD_LANES : start;
    int64_t last = (v + 1) * SIMD_LANES < end ? (v + 1) * SIMD_LANES : end;
    struct window rows = {w->col, w->cols, w->out + (size_t)(row - start) * w->line, w->line};
    if (last - row == SIMD_LANES && !part->order) {
        int64_t next = decode_lanes(part, row, &rows, type, to);
        rows.out += (size_t)(next - rows.col) * dtype_bytes(to);
        rows.cols -= next - rows.col;
        rows.col = next;
    }
    for (; row < last && rows.cols > 0; row++, rows.out += rows.line)
        decode_row(part, row, &rows, type, to);
}

/* Returns the number of the vector after those that have rows of the view. */
static int64_t vectors_end(const struct part_rows *part) {
    return (part->view.first_row + part->view.rows + SIMD_LANES - 1) / SIMD_LANES;
}

void LEVEL(packed_read)(const struct matrix_view *view, const struct read_block *to) {
    struct part_rows part;
    if (!view->encoded) {
        LEVEL(plain_read)(view, to);
        return;
    }
    struct matrix_view wanted = matrix_rows(*view, to->row, to->rows);
    for (int i = 0; i < view->encoded->count; i++) {
        if (!LEVEL(encoded_part_rows)(&wanted, i, &part))
            continue;
        float *out = to->out + part.first * to->stride;
        if (part.part->encoding.codes == CODES_NONE) {
            LEVEL(plain_read)
            (&part.view, &(const struct read_block){0, part.view.rows, to->col, to->cols, out, to->stride});
            continue;
        }
        const struct window window = {to->col, to->cols, (char *)out, (size_t)to->stride * sizeof *out};
        for (int64_t v = part.view.first_row / SIMD_LANES; v < vectors_end(&part); v++)
            WITH_TYPE(T, view->type, decode_vector(&part, v, &window, T, DTYPE_F32));
    }
}

void LEVEL(gemm_unpack)(const struct exec *exec, const struct matrix_view *view, int64_t col, int64_t cols, void *out,
                        int64_t stride) {
    size_t line = (size_t)stride * dtype_bytes(view->type);
    struct part_rows part;
    if (!view->encoded) {
        LEVEL(plain_unpack)(exec, view, col, cols, out, stride);
        return;
    }
    for (int i = 0; i < view->encoded->count; i++) {
        if (!LEVEL(encoded_part_rows)(view, i, &part))
            continue;
        char *to = (char *)out + (size_t)part.first * line;
        if (part.part->encoding.codes == CODES_NONE) {
            LEVEL(plain_unpack)(exec, &part.view, col, cols, to, stride);
            continue;
        }
        const struct window window = {col, cols, to, line};
#pragma omp parallel for num_threads(exec_threads(exec)) schedule(static)
        for (int64_t v = part.view.first_row / SIMD_LANES; v < vectors_end(&part); v++) {
            WITH_TYPE(T, view->type, decode_vector(&part, v, &window, T, T));
        }
    }
}
