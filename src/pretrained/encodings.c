/* Encodings of a model's files, and of plain weights that are rounded while they are loaded. */
#include "encodings.h"

#include "base/stop.h"

enum { RANDOM_SEED = 1 }; /* of a model without files */

const char *const load_in_names[] = {"none", "int8", "int4", "nf4", "fp8", NULL};

/* ---- rounding -------------------------------------------------------------------------------------------------- */

/* Returns the slice that has a rectangle; NULL if it is in several. */
static const struct param_slice *slice_of(const struct param *param, const struct param_rect *rect) {
    for (int i = 0; i < param->slice_count; i++) {
        const struct param_slice *slice = &param->slices[i];
        if (rect->row >= slice->row && rect->row + rect->rows <= slice->row + slice->rows)
            return slice;
    }
    return NULL;
}

static bool continues(const struct param_slice *slice, const struct param_slice *next) {
    return !strcmp(slice->name, next->name) && next->file_start == slice->file_start + slice->rows;
}

/* Finds the rows of a parameter that are one tensor of the files: those of a slice, and its neighbours' in the same
 * tensor. */
static void find_tensor(const struct param *param, const struct param_slice *slice, int64_t *row, int64_t *end) {
    const struct param_slice *first = slice, *last = slice;
    while (first > param->slices && continues(first - 1, first))
        first--;
    while (last + 1 < param->slices + param->slice_count && continues(last, last + 1))
        last++;
    *row = first->row;
    *end = last->row + last->rows;
}

static bool describe_rounding(const struct pretrained_encodings *e, const struct param *param,
                              const struct param_rect *rects, int count, struct encoded_layout *layout) {
    if (param->dims != 2 || !param->place)
        return false;
    struct encoding encoding = rounding_encoding(e->rounding, param->shape[1]);
    layout->count = count;
    for (int i = 0; i < count; i++) {
        if (!slice_of(param, &rects[i]))
            return false;
        layout->parts[i] =
            (struct encoded_part){.rows = rects[i].rows, .positions = rects[i].columns, .encoding = encoding};
        encoding_cut(&layout->parts[i].encoding, rects[i].column, rects[i].columns);
    }
    return true;
}

/* Rows of a tensor: their values and what these were rounded to. */
struct piece {
    int id;            /* of the parameter */
    int64_t row, rows; /* of the parameter; 0 rows: there is no piece */
    float *values;
    void *memory;
    struct encoded_rows rounded;
};

static int read_rows(const struct pretrained_encodings *e, const struct piece *piece) {
    const struct ckpt_array array = {.prefix = "", .dtype = DTYPE_F32, .must_be_finite = true};
    const struct param *param = &e->table.rows[piece->id];
    int64_t columns = param->shape[1], limit = CKPT_BLOCK_ELEMENTS / columns, step = limit > 1 ? limit : 1;
    int status = STATUS_OK;
    if (!e->model->tensors) {
        param_initial_values(param, RANDOM_SEED, piece->row * columns, piece->rows * columns, piece->values);
        return STATUS_OK;
    }
    for (int64_t done = 0; done < piece->rows && !status; done += step) {
        int64_t rows = piece->rows - done < step ? piece->rows - done : step;
        struct ckpt_block block = {.param = piece->id, .row = piece->row + done, .rows = rows, .columns = columns};
        status = ckpt_read_block(e->model->tensors, &e->table, &array, &block, piece->values + done * columns);
    }
    return status;
}

/* Copies the rows and columns of the rectangle that a piece has. A group of the rounded rows may be several of `to`. */
static void copy_cut(const struct piece *piece, const struct param_rect *rect, const struct encoded_rows *to) {
    const struct encoded_rows *from = &piece->rounded;
    int64_t first = piece->row > rect->row ? piece->row : rect->row, end = rect->row + rect->rows;
    int64_t groups = encoded_groups(&to->encoding, to->positions),
            width = (int64_t)dtype_bytes(to->encoding.scale_type);
    int64_t from_groups = encoded_groups(&from->encoding, from->positions);
    end = piece->row + piece->rows < end ? piece->row + piece->rows : end;
    for (int64_t row = first; row < end; row++) {
        int64_t source = row - piece->row, target = row - rect->row;
        memcpy(to->codes + target * to->positions, from->codes + source * from->positions + rect->column,
               (size_t)to->positions);
        for (int64_t g = 0; g < groups; g++) {
            int64_t group = (rect->column + g * to->encoding.group) / from->encoding.group;
            memcpy((char *)to->scales + (target * groups + g) * width,
                   (const char *)from->scales + (source * from_groups + group) * width, (size_t)width);
        }
    }
}

/* Reads and rounds the piece's rows. The caller frees its memory. */
static int round_piece(const struct pretrained_encodings *e, int threads, struct piece *piece) {
    int64_t columns = e->table.rows[piece->id].shape[1];
    struct encoded_part part = {
        .rows = piece->rows, .positions = columns, .encoding = rounding_encoding(e->rounding, columns)};
    piece->values = malloc((size_t)(part.rows * columns) * sizeof(float));
    piece->memory = malloc(encoded_rows_bytes(&part));
    int status = status_allocated(piece->values && piece->memory);
    THEN(status, read_rows(e, piece));
    if (!status) {
        piece->rounded = encoded_rows_place(&part, piece->memory);
        rounding_rows(&(const struct rounding_call){.rounding = e->rounding,
                                                    .values = piece->values,
                                                    .rows = piece->rows,
                                                    .columns = columns,
                                                    .threads = threads,
                                                    .to = &piece->rounded});
    }
    free(piece->values);
    return status;
}

/* Rounds rows until the rectangle is covered. Flat groups are scaled over the whole tensor, which is one piece. The
 * last piece is kept for the next rectangle. */
static int round_rect(const struct pretrained_encodings *e, int threads, int id, const struct param_rect *rect,
                      const struct encoded_rows *to, struct piece *kept) {
    const struct param *param = &e->table.rows[id];
    const struct rounding *rounding = e->rounding;
    int64_t row, end, step = CKPT_BLOCK_ELEMENTS / param->shape[1] / rounding->tall;
    int status = STATUS_OK;
    find_tensor(param, slice_of(param, rect), &row, &end);
    step = (step > 1 ? step : 1) * rounding->tall;
    if (rounding->is_flat)
        step = end - row;
    else
        row += (rect->row - row) / rounding->tall * rounding->tall;
    for (; row < rect->row + rect->rows && !status; row += step) {
        if (kept->id != id || kept->row != row || !kept->rows) {
            free(kept->memory);
            *kept = (struct piece){.id = id, .row = row, .rows = step < end - row ? step : end - row};
            status = round_piece(e, threads, kept);
        }
        if (!status)
            copy_cut(kept, rect, to);
    }
    return status;
}

/* ---- encodings ------------------------------------------------------------------------------------------------- */

static bool describe(const void *context, const struct param *param, const struct param_rect *rects, int count,
                     struct encoded_layout *layout) {
    const struct pretrained_encodings *e = context;
    return e->rounding ? describe_rounding(e, param, rects, count, layout)
                       : ckpt_describe_encoding(&e->files, param, rects, count, layout);
}

int pretrained_quantization(const struct pretrained *model, int load_in, struct ckpt_quantization *out) {
    const struct rounding *rounding = load_in ? rounding_find(load_in_names[load_in]) : NULL;
    *out = model->tensors ? *ckpt_quantization(model->tensors) : (struct ckpt_quantization){0};
    if (!rounding)
        return STATUS_OK;
    if (out->method)
        return status_fail(STATUS_USAGE, "--load-in %s: %s is quantised already (%s)", rounding->name, model->directory,
                           out->text);
    int group = rounding->encoding.group;
    *out = (struct ckpt_quantization){
        .method = rounding->name, .bits = rounding->encoding.bits, .group_size = group ? group : 128};
    snprintf(out->text, sizeof out->text, "%s by --load-in", rounding->name);
    return STATUS_OK;
}

int pretrained_encodings_open(const struct pretrained *model, int load_in, struct pretrained_encodings *e) {
    *e = (struct pretrained_encodings){.model = model};
    TRY(pretrained_quantization(model, load_in, &e->quantization));
    if (!e->quantization.method)
        return STATUS_OK;
    e->rounding = load_in ? rounding_find(load_in_names[load_in]) : NULL;
    e->encodings = (struct param_encodings){.describe = describe, .context = e};
    e->files = (struct ckpt_encodings){.tensors = model->tensors, .table = &e->table};
    return model_describe(&model->config, &e->table);
}

void pretrained_encodings_close(struct pretrained_encodings *e) {
    param_table_free(&e->table);
    *e = (struct pretrained_encodings){0};
}

const struct param_encodings *pretrained_describes(const struct pretrained_encodings *e) {
    return e->encodings.describe ? &e->encodings : NULL;
}

enum dtype pretrained_auto_dtype(const struct pretrained_encodings *e) {
    bool is_quantised = e->quantization.method && !e->rounding;
    return is_quantised || (e->model && e->model->dtype == DTYPE_BF16) ? DTYPE_BF16 : DTYPE_F32;
}

/* Matrices of the files, and what a device makes of them. */
struct counts {
    int all, encoded, decoded; /* decoded: they have codes, and it holds them in the run's type */
    int64_t elements;          /* of those */
};

static void count_param(const struct pretrained_encodings *e, const struct param *param, int id, struct device *device,
                        enum dtype type, struct counts *counts) {
    const struct param_part whole = {.tensors = 1};
    struct param_rect rects[PARAM_MAX_SLICES];
    struct encoded_layout layout;
    int count = param_part_rects(&whole, &e->table, id, rects);
    bool is_described = describe(e, param, rects, count, &layout);
    struct matrix_view view = matrix_packed(matrix_plain(type, NULL, param->shape[0], param->shape[1]), NULL);
    view.encoded = &layout;
    bool is_taken = is_described && ops_for(device)->packed_bytes(device, &view) > 0;
    for (int s = 0; s < param->slice_count; s++) {
        const struct param_slice *slice = &param->slices[s];
        const struct param_rect own = {.row = slice->row, .rows = slice->rows, .columns = param->shape[1]};
        bool has_codes = describe(e, param, &own, 1, &layout) && layout.parts[0].encoding.codes != CODES_NONE;
        bool is_next = s && continues(slice - 1, slice); /* in the same tensor */
        counts->all += !is_next;
        counts->encoded += has_codes && is_taken && !is_next;
        counts->decoded += has_codes && !is_taken && !is_next;
        counts->elements += has_codes && !is_taken ? slice->rows * param->shape[1] : 0;
    }
}

void pretrained_encodings_text(const struct pretrained_encodings *e, struct device *device, enum dtype type,
                               char text[ENCODINGS_TEXT_BYTES]) {
    struct counts counts = {0};
    char decoded[80] = "";
    for (int i = 0; i < e->table.count; i++) {
        const struct param *param = &e->table.rows[i];
        if (param->dims == 2 && (param->place || param->is_linear || param->is_embedding))
            count_param(e, param, i, device, type, &counts);
    }
    if (counts.decoded)
        snprintf(decoded, sizeof decoded, ", %d held in %s: %.1f MiB", counts.decoded, dtype_name(type),
                 (double)counts.elements * (double)dtype_bytes(type) / 1048576);
    text[0] = 0;
    if (pretrained_describes(e))
        snprintf(text, ENCODINGS_TEXT_BYTES, "%s: %d of %d matrices%s", e->quantization.text, counts.encoded,
                 counts.all, decoded);
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

struct loading {
    const struct pretrained_encodings *encodings;
    struct param_store *store;
    struct stream *stream;
    bool must_be_finite;
    struct piece *kept; /* the last one that was rounded */
};

static int fill(void *context, int id) {
    const struct loading *loading = context;
    struct param_store *store = loading->store;
    const struct param_place *place = &store->map.places[id];
    TRY(stop_check("while the model was loaded"));
    if (!loading->encodings->model->tensors)
        return param_initialise(store, loading->stream, RANDOM_SEED, id);
    struct param_range range = {.first = place->offset,
                                .count = param_local_elements(store, id),
                                .data = param_borrow_to_write(store, id),
                                .type = place->type};
    struct ckpt_flat flat = {
        .map = &store->map, .stream = loading->stream, .ranges = &range, .count = 1, .dtype = place->type};
    struct ckpt_array array = ckpt_flat_array(&flat, "", false);
    array.must_be_finite = loading->must_be_finite;
    int status = ckpt_read_param(loading->encodings->model->tensors, store->map.table, &array, id);
    param_return(store, id);
    return status;
}

static int fill_encoded(void *context, int id, int part, const struct param_rect *rect, const struct encoded_rows *to) {
    const struct loading *loading = context;
    TRY(stop_check("while the model was loaded"));
    return loading->encodings->rounding
               ? round_rect(loading->encodings, device_threads(loading->store->device), id, rect, to, loading->kept)
               : ckpt_read_encoded(&loading->encodings->files, id, rect, to);
}

int pretrained_load(const struct pretrained_encodings *e, struct base *base, struct stream *stream,
                    bool must_be_finite) {
    struct param_store *store = base_store(base);
    struct piece kept = {0};
    struct loading loading = {e, store, stream, must_be_finite, &kept};
    const struct ckpt_array all = {.prefix = "", .dtype = store->map.type};
    TRY(e->model->tensors ? ckpt_check(e->model->tensors, store->map.table, &all, 1) : STATUS_OK);
    int status = base_fill(base, (struct param_fill){.fill = fill, .fill_encoded = fill_encoded, .context = &loading});
    free(kept.memory);
    return status;
}
