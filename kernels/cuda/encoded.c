/* Encoded weights in a GPU's memory: sizes, places and packing, and operations other than products. encoded.h has the
 * form. */
#include "cuda/encoded.h"
#include "cuda/cuda-internal.h"

enum { ALIGN = 64, ONE_GROUP = 1 << 30 };

/* ---- sizes and places ---- */

static int64_t panels_of(int64_t rows) {
    return (rows + ENCODED_PANEL - 1) / ENCODED_PANEL;
}

static uintptr_t aligned(uintptr_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Takes `bytes` from *at, which stays aligned. */
static const void *take(uintptr_t *at, int64_t bytes) {
    uintptr_t place = *at;
    *at += aligned((uintptr_t)bytes);
    return bytes ? (const void *)place : NULL;
}

/* Returns the form of a part that begins at *at, and moves *at to its end. */
static struct encoded_form form_at(const struct encoded_part *part, const struct matrix_view *view, uintptr_t *at) {
    const struct encoding *e = &part->encoding;
    struct encoded_form f = {
        .encoding = *e, .rows = part->rows, .columns = view->columns, .positions = part->positions};
    if (e->codes == CODES_NONE) {
        f.codes = take(at, part->rows * view->columns * (int64_t)dtype_bytes(view->type));
        return f;
    }
    int64_t panels = panels_of(part->rows), scale_bytes = (int64_t)dtype_bytes(e->scale_type);
    const float *table = encoded_table(e->codes);
    f.bits = e->bits <= 4 ? 4 : 8;
    f.tile = 256 / f.bits;
    f.tiles = (part->positions + f.tile - 1) / f.tile;
    f.groups = encoded_groups(e, part->positions);
    f.blocks = encoded_blocks(e, part->positions);
    f.group = f.groups == 1 ? ONE_GROUP : e->group;
    f.base = e->codes == CODES_INTEGERS ? (float)((1 << (e->bits - 1)) - e->bias) : 0;
    if (table && e->codes != CODES_E4M3)
        memcpy(f.table, table, sizeof f.table);
    int64_t scales = panels * f.groups * ENCODED_PANEL, blocks = panels * f.blocks * ENCODED_PANEL;
    f.order = take(at, part->has_order ? part->positions * (int64_t)sizeof *f.order : 0);
    f.codes = take(at, panels * f.tiles * ENCODED_TILE_BYTES);
    f.scales = take(at, scales * scale_bytes);
    f.shifts = take(at, e->shift == ENCODED_SYMMETRIC ? 0 : e->shift == ENCODED_ZEROS ? scales : scales * scale_bytes);
    f.block_scales = take(at, blocks * (int64_t)sizeof(uint16_t));
    f.block_offsets = take(at, e->shift == ENCODED_OFFSETS ? blocks * (int64_t)sizeof(uint16_t) : 0);
    return f;
}

size_t cuda_packed_bytes(struct device *device, const struct matrix_view *view) {
    uintptr_t end = 0;
    if (!view->encoded || (view->type != DTYPE_F32 && view->type != DTYPE_BF16))
        return 0;
    for (int i = 0; i < view->encoded->count; i++) {
        const struct encoded_part *part = &view->encoded->parts[i];
        bool is_taken = part->encoding.codes == CODES_NONE || encoded_part_is_regular(part, view->columns);
        if (part->rows && !is_taken)
            return 0;
        if (part->rows)
            form_at(part, view, &end);
    }
    return (size_t)end;
}

bool cuda_encoded_range(const struct matrix_view *view, int index, struct encoded_range *range) {
    const struct encoded_part *parts = view->encoded->parts;
    uintptr_t at = (uintptr_t)view->data;
    int64_t start = 0, end = view->first_row + view->rows;
    for (int i = 0; i < index; start += parts[i++].rows)
        if (parts[i].rows)
            form_at(&parts[i], view, &at);
    *range = (struct encoded_range){.from = view->first_row > start ? view->first_row - start : 0};
    range->rows = (start + parts[index].rows < end ? start + parts[index].rows : end) - start - range->from;
    range->first = start + range->from - view->first_row;
    if (range->rows > 0)
        range->form = form_at(&parts[index], view, &at);
    return range->rows > 0;
}

/* ---- packing ---- */

/* Writes an array of rows [rows, count] as panels [panels, count, 16]. */
static void pack_array(const void *from, size_t element, int64_t rows, int64_t count, char *to) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < count; i++)
            memcpy(to + (size_t)((row / ENCODED_PANEL * count + i) * ENCODED_PANEL + row % ENCODED_PANEL) * element,
                   (const char *)from + (size_t)(row * count + i) * element, element);
}

/* Adds a code to its word. */
static void pack_code(const struct encoded_form *f, int64_t row, int64_t position, int code, uint32_t *words) {
    int64_t tile = row / ENCODED_PANEL * f->tiles + position / f->tile, lane = row % 8 * 4 + position % 16 / 4;
    int step = (int)(position % f->tile) / ENCODED_STEP, pair = (int)(position % 4) / 2,
        half = (int)(row % ENCODED_PANEL) / 8;
    int word = f->bits == 4 ? step : 2 * step + pair, shift = f->bits == 4 ? 4 * (half + 2 * pair) : 8 * half;
    if (f->encoding.codes == CODES_INTEGERS)
        code += (f->bits == 4 ? 8 : 0) - (1 << (f->encoding.bits - 1));
    uint32_t bits = (uint32_t)code & (f->bits == 4 ? 15u : 255u);
    words[(tile * ENCODED_LANES + lane) * 4 + word] |= bits << (shift + position % 2 * 16);
}

static void pack_codes(const struct exec *exec, const struct encoded_form *f, const struct encoded_rows *rows,
                       uint32_t *words) {
#pragma omp parallel for num_threads(exec->stream->device->threads) schedule(static)
    for (int64_t panel = 0; panel < panels_of(rows->rows); panel++)
        for (int64_t row = panel * ENCODED_PANEL; row < rows->rows && row < (panel + 1) * ENCODED_PANEL; row++)
            for (int64_t p = 0; p < f->positions; p++)
                pack_code(f, row, p, rows->codes[row * f->positions + p], words);
}

/* Packs whole panels, from row `first` of the part on, array by array through host memory. */
static int pack_rows(const struct exec *exec, const struct encoded_form *f, const struct encoded_rows *rows,
                     int64_t first) {
    size_t scale = dtype_bytes(f->encoding.scale_type), shift = f->encoding.shift == ENCODED_ZEROS ? 1 : scale;
    const struct {
        const void *to, *from; /* NULL: the part has no such array */
        size_t panel, element; /* bytes of a panel, and of an element; 0: codes */
        int64_t count;         /* elements of a row */
    } arrays[] = {
        {f->codes, rows->codes, (size_t)f->tiles * ENCODED_TILE_BYTES, 0, 0},
        {f->scales, rows->scales, (size_t)f->groups * ENCODED_PANEL * scale, scale, f->groups},
        {f->shifts, rows->shifts, (size_t)f->groups * ENCODED_PANEL * shift, shift, f->groups},
        {f->block_scales, rows->block_scales, (size_t)f->blocks * ENCODED_PANEL * 2, 2, f->blocks},
        {f->block_offsets, rows->block_offsets, (size_t)f->blocks * ENCODED_PANEL * 2, 2, f->blocks},
    };
    size_t panels = (size_t)panels_of(rows->rows), most = 0;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        most = arrays[i].panel > most ? arrays[i].panel : most;
    char *memory = malloc(panels * most);
    TRY(status_allocated(memory));
    int status = STATUS_OK;
    if (f->order && first == 0)
        status = stream_copy_to_device(exec->stream, (void *)(uintptr_t)f->order, rows->order,
                                       (size_t)f->positions * sizeof *rows->order);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && !status; i++) {
        size_t bytes = panels * arrays[i].panel;
        char *to = (char *)(uintptr_t)arrays[i].to + (size_t)(first / ENCODED_PANEL) * arrays[i].panel;
        if (!arrays[i].to)
            continue;
        memset(memory, 0, bytes);
        if (arrays[i].element)
            pack_array(arrays[i].from, arrays[i].element, rows->rows, arrays[i].count, memory);
        else
            pack_codes(exec, f, rows, (uint32_t *)(void *)memory);
        status = stream_copy_to_device(exec->stream, to, memory, bytes);
        THEN(status, stream_wait(exec->stream));
    }
    free(memory);
    return status;
}

/* The host waits for the copy of what it has packed. */
int cuda_pack(const struct exec *exec, const struct pack_call *a) {
    struct matrix_view whole = a->plain;
    struct encoded_range range;
    if (!a->plain.encoded)
        return status_fail(STATUS_UNSUPPORTED, "pack: no packed form of plain weights on cuda");
    whole.data = a->out;
    whole.first_row = 0;
    whole.rows = INT64_MAX;
    if (a->part < 0 || a->part >= whole.encoded->count || !cuda_packed_bytes(exec->stream->device, &a->plain))
        return status_fail(STATUS_INVALID, "pack: no part %d of an encoding that cuda takes", a->part);
    if (!cuda_encoded_range(&whole, a->part, &range))
        return STATUS_OK;
    const struct encoded_form *f = &range.form;
    const struct encoded_part *part = &whole.encoded->parts[a->part];
    size_t line = (size_t)f->columns * dtype_bytes(a->plain.type);
    if (f->encoding.codes == CODES_NONE)
        return stream_copy_rows(exec->stream, &(const struct copy_call){.kind = COPY_ON_DEVICE,
                                                                        .to = (void *)(uintptr_t)f->codes,
                                                                        .from = a->plain.data,
                                                                        .rows = (size_t)f->rows,
                                                                        .bytes = line,
                                                                        .to_stride = line,
                                                                        .from_stride = (size_t)a->plain.stride *
                                                                                       dtype_bytes(a->plain.type)});
    int64_t left = part->rows - a->row;
    bool is_whole = a->row % PACK_ROWS == 0 && (a->rows->rows == left || a->rows->rows % PACK_ROWS == 0);
    if (!encoding_equals(&a->rows->encoding, &part->encoding) || a->row < 0 || a->rows->rows > left || !is_whole ||
        a->rows->positions != part->positions || (a->rows->order != NULL) != part->has_order)
        return status_fail(STATUS_INVALID, "pack: rows that are not those of part %d", a->part);
    return pack_rows(exec, f, a->rows, a->row);
}

/* ---- operations ---- */

int cuda_encoded_gather(const struct exec *exec, const struct embedding *a) {
    struct encoded_range range;
    int status = STATUS_OK;
    for (int i = 0; i < a->token_table.encoded->count && !status; i++)
        if (cuda_encoded_range(&a->token_table, i, &range)) {
            const struct encoded_gather call = {
                .call = *a, .w = range.form, .first = range.first - range.from, .has_others = range.first == 0};
            status = cuda_launch_rows(exec, CUDA_encoded_gather, a->type, a->rows, a->cols, &call);
        }
    return status;
}

int cuda_encoded_squares(const struct exec *exec, const struct row_squares *a) {
    struct matrix_view view = matrix_rows(a->weight, a->first_row, a->rows);
    struct encoded_range range;
    int status = STATUS_OK;
    for (int i = 0; i < view.encoded->count && !status; i++)
        if (cuda_encoded_range(&view, i, &range)) {
            struct encoded_squares call = {.call = *a, .w = range.form, .first_row = range.from};
            call.call.rows = range.rows;
            call.call.squares += range.first;
            if (a->up)
                call.call.up = (const char *)a->up + (size_t)(range.first * a->rank) * dtype_bytes(view.type);
            status = cuda_launch_rows(exec, CUDA_encoded_squares, view.type, range.rows, view.columns, &call);
        }
    return status;
}
