/* Folds a base and adapters that are linear in its projections into one model directory, tensor by tensor. */
#include "merge-internal.h"

#include "ckpt/codec.h"
#include "pretrained/pretrained.h"

#include <math.h>
#include <sys/stat.h>

/* A change of a parameter of the base. */
enum change_kind { CHANGE_ADD, CHANGE_ROWS, CHANGE_COLUMNS };
struct change {
    enum change_kind kind;
    int param;
    int64_t row, rows; /* of the parameter: the projection's rows */
    float *a, *b;      /* b [rows, r] times a [r, in]; or factors */
    int64_t r;
    float scale;
};

struct merge {
    const struct peft_merge *request;
    struct pretrained model;
    struct ckpt_array base;    /* reads in fp32 */
    struct param_table source; /* of the base */
    struct model_config config;
    struct param_table table; /* of the merged model: the base's rows, and after them the head that was tied */
    struct device *device;
    struct rank rank;
    bool has_rank;
    struct peft *peft;
    struct change *changes;
    int count;
    float *block; /* [CKPT_BLOCK_ELEMENTS] */
};

/* ---- opening ---- */

/* A merged weight that is rounded again loses what an adapter adds. */
static int check_quantization(const struct merge *m) {
    const struct ckpt_quantization *quantization = ckpt_quantization(m->model.tensors);
    if (quantization->method && !m->request->dequantizes)
        return status_fail(STATUS_USAGE,
                           "%s is quantised (%s), and rounding the merged weights again would lose the adapter: "
                           "--dequantize writes a plain model",
                           m->model.directory, quantization->text);
    if (!quantization->method && m->request->dequantizes)
        return status_fail(STATUS_USAGE, "%s is plain: --dequantize does nothing", m->model.directory);
    return STATUS_OK;
}

static int read_base(struct merge *m) {
    int status = pretrained_open(m->request->model, NULL, &m->model);
    THEN(status, check_quantization(m));
    THEN(status, model_describe(&m->model.config, &m->source));
    m->base = (struct ckpt_array){.prefix = "", .dtype = DTYPE_F32, .must_be_finite = true};
    return status ? status : ckpt_check(m->model.tensors, &m->source, &m->base, 1);
}

/* Describes the merged model. An adapter of the head leaves the embedding as it is, so both can no longer be tied. */
static int describe(struct merge *m) {
    const struct param_table *changing = &m->peft->table;
    m->config = m->model.config;
    for (int i = 0; i < changing->count; i++)
        m->config.untie_embeddings_and_output_weights |= changing->rows[i].layer == m->config.num_layers;
    return model_describe(&m->config, &m->table);
}

static bool is_untied(const struct merge *m) {
    return m->table.count > m->source.count;
}

static int read_adapters(struct merge *m) {
    struct model_options model = {.base = {.config = m->model.config, .dtype = DTYPE_F32}, .max_rows = 1};
    struct peft_options options = {.adapters = peft_files_configs(m->request->files),
                                   .count = peft_files_count(m->request->files),
                                   .model = &model,
                                   .directory = m->model.directory};
    int status = device_open(m->request->device, DEVICE_FIRST, 1, &m->device);
    THEN(status, rank_open_single(&m->rank, m->device, 0));
    m->has_rank = !status;
    THEN(status, peft_explain_base(peft_open(&options, &m->rank, &m->peft), m->request->files, options.directory));
    THEN(status, peft_allocate(m->peft));
    return status ? status : peft_load(m->peft, m->request->files);
}

static int check_methods(const struct merge *m) {
    const struct peft_config *configs = peft_files_configs(m->request->files);
    int count = peft_files_count(m->request->files);
    for (int i = 0; i < count; i++) {
        const char *directory = peft_files_directory(m->request->files, i), *measuring = peft_measures(&configs[i]);
        const struct peft_method *method = peft_method(configs[i].type);
        if (!method->merge)
            return status_fail(STATUS_USAGE, "%s: %s cannot be merged: it is not a change of weights", directory,
                               method->noun ? method->noun : method->title);
        if (measuring && count > 1)
            return status_fail(STATUS_USAGE, "%s: %s can only be merged on its own", directory, measuring);
    }
    return STATUS_OK;
}

static bool is_same_directory(const char *a, const char *b) {
    struct stat one, other;
    return !stat(a, &one) && !stat(b, &other) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/* ---- what changes ---- */

/* Copies a parameter of the stack to host memory. */
static int read_values(const struct merge *m, int id, float **out) {
    const struct param_store *store = &m->peft->store;
    size_t bytes = (size_t)param_elements(&m->peft->table.rows[id]) * sizeof **out;
    *out = malloc(bytes);
    TRY(status_allocated(*out));
    int status = stream_copy_to_host(m->rank.exec.stream, *out, param_borrow(store, id).data, bytes);
    THEN(status, stream_wait(m->rank.exec.stream));
    param_return(store, id);
    return status;
}

/* Takes over the change's memory, even on failure. */
static int add_change(struct merge *m, struct change change) {
    struct change *more = realloc(m->changes, ((size_t)m->count + 1) * sizeof *more);
    if (!more) {
        free(change.a);
        free(change.b);
        return status_no_memory();
    }
    m->changes = more;
    m->changes[m->count++] = change;
    return STATUS_OK;
}

static void apply(const struct merge *m, const struct change *change, const struct ckpt_block *block, float *values) {
    int64_t in = m->table.rows[change->param].shape[1];
    for (int64_t i = 0; i < block->rows; i++) {
        int64_t row_of_change = block->row + i - change->row; /* counted from the change's first row */
        float *row = values + i * block->columns;
        if (row_of_change < 0 || row_of_change >= change->rows)
            continue;
        for (int64_t k = 0; change->kind == CHANGE_ADD && k < change->r; k++) {
            float factor = change->scale * change->b[row_of_change * change->r + k];
            const float *a = change->a + k * in + block->column;
            for (int64_t j = 0; j < block->columns; j++)
                row[j] += factor * a[j];
        }
        for (int64_t j = 0; change->kind != CHANGE_ADD && j < block->columns; j++)
            row[j] *= change->a[change->kind == CHANGE_ROWS ? row_of_change : block->column + j];
    }
}

/* Reads a block of the base and applies the changes so far. */
static int read_changed(const struct merge *m, const struct ckpt_block *block, float *values) {
    struct ckpt_block from = *block;
    if (block->param == m->source.count)
        from.param = model_find_linear(&m->source, -1, ATTACH_HEAD, false);
    int status = ckpt_read_block(m->model.tensors, &m->source, &m->base, &from, values);
    for (int columns = 0; columns < 2 && !status; columns++)
        for (int i = 0; i < m->count; i++)
            if (m->changes[i].param == block->param && (m->changes[i].kind == CHANGE_COLUMNS) == columns)
                apply(m, &m->changes[i], block, values);
    return status;
}

/* Divides the norms that a change gives its rows by their present norms; the rows are then scaled by the result. A
 * block does not reach past a slice. */
static int divide_by_norms(const struct merge *m, const struct change *change) {
    const struct param *row = &m->table.rows[change->param];
    int64_t in = row->shape[1], most = CKPT_BLOCK_ELEMENTS / in, end = change->row + change->rows;
    int status = most < 1 ? status_fail(STATUS_UNSUPPORTED, "%s has too many columns", row->name) : STATUS_OK;
    for (int s = 0; s < row->slice_count; s++) {
        const struct param_slice *slice = &row->slices[s];
        int64_t slice_end = slice->row + slice->rows < end ? slice->row + slice->rows : end;
        int64_t at = slice->row > change->row ? slice->row : change->row;
        for (; at < slice_end && !status; at += most) {
            int64_t left = slice_end - at;
            struct ckpt_block block = {
                .param = change->param, .row = at, .rows = left < most ? left : most, .columns = in};
            status = read_changed(m, &block, m->block);
            for (int64_t i = 0; i < block.rows && !status; i++) {
                double sum = 0;
                for (int64_t j = 0; j < in; j++)
                    sum += (double)m->block[i * in + j] * m->block[i * in + j];
                change->a[at - change->row + i] /= (float)sqrt(sum);
            }
        }
    }
    return status;
}

/* Makes a change of the projection's rows; its parameter may be PARAM_NONE. */
static struct change change_of(const struct merge *m, enum change_kind kind, int64_t layer,
                               const struct model_projection *p, bool is_bias) {
    return (struct change){
        .kind = kind, .param = model_find_linear(&m->table, layer, p->place, is_bias), .row = p->first, .rows = p->out};
}

int merge_add_product(struct merge *m, int64_t layer, const struct model_projection *projection, int a, int b,
                      float scale) {
    struct change change = change_of(m, CHANGE_ADD, layer, projection, false);
    change.r = m->peft->table.rows[a].shape[0];
    change.scale = scale;
    int status = read_values(m, a, &change.a);
    THEN(status, read_values(m, b, &change.b));
    int added = add_change(m, change);
    return status ? status : added;
}

static int scale_by(struct merge *m, struct change change, int id, bool are_norms) {
    int status = read_values(m, id, &change.a);
    THEN_IF(status, are_norms, divide_by_norms(m, &change));
    int added = add_change(m, change);
    return status ? status : added;
}

int merge_scale_rows(struct merge *m, int64_t layer, const struct model_projection *projection, bool is_bias, int id) {
    struct change change = change_of(m, CHANGE_ROWS, layer, projection, is_bias);
    return change.param == PARAM_NONE ? STATUS_OK : scale_by(m, change, id, false);
}

int merge_scale_columns(struct merge *m, int64_t layer, const struct model_projection *projection, int id) {
    return scale_by(m, change_of(m, CHANGE_COLUMNS, layer, projection, false), id, false);
}

int merge_set_norms(struct merge *m, int64_t layer, const struct model_projection *projection, int id) {
    return scale_by(m, change_of(m, CHANGE_ROWS, layer, projection, false), id, true);
}

static int find_changes(struct merge *m) {
    m->block = malloc(CKPT_BLOCK_ELEMENTS * sizeof *m->block);
    int status = status_allocated(m->block);
    for (int i = 0; i < m->peft->count && !status; i++)
        status = m->peft->adapters[i].method->merge(&m->peft->adapters[i], m);
    return status;
}

/* ---- writing ---- */

struct writing {
    const struct merge *merge;
    enum dtype dtype;
};

static int get(void *context, const struct ckpt_block *block, void *values) {
    const struct writing *writing = context;
    const struct merge *m = writing->merge;
    int64_t count = block->rows * block->columns;
    enum dtype dtype = writing->dtype;
    float *fp32 = dtype == DTYPE_F32 ? values : m->block;
    uint16_t *halves = values;
    bool is_finite = true;
    int status = read_changed(m, block, fp32);
    for (int64_t i = 0; i < count && dtype == DTYPE_BF16 && !status; i++)
        halves[i] = bf16_from_float(fp32[i]);
    for (int64_t i = 0; i < count && dtype == DTYPE_F16 && !status; i++) {
        halves[i] = f16_from_float(fp32[i]);
        is_finite = is_finite && isfinite(f16_to_float(halves[i]));
    }
    if (!status && (!is_finite || (dtype != DTYPE_F16 && dtype_find_not_finite(dtype, values, count) >= 0)))
        status =
            status_fail(STATUS_INVALID, "%s: the adapters make numbers of %s that are not finite in %s",
                        m->model.directory, m->table.rows[block->param].slices[0].name, dtype_name(writing->dtype));
    return status;
}

static int write_model(const struct merge *m) {
    enum dtype found = ckpt_dtype(m->model.tensors);
    bool is_plain = !m->request->dequantizes;
    struct writing writing = {.merge = m,
                              .dtype = !is_plain             ? m->request->dtype
                                       : found == DTYPE_BF16 ? DTYPE_BF16
                                                             : DTYPE_F32};
    struct ckpt_array weights = {.prefix = "", .dtype = writing.dtype, .get = get, .context = &writing};
    struct tokenizer_files tokenizer;
    char *fresh = NULL;
    int status = pretrained_read_tokenizer(m->model.directory, &tokenizer);
    TRY(status);
    if (is_untied(m))
        log_info("%s ties its head to the embedding; the merged model has a separate head, as an adapter changes it",
                 m->model.directory);
    if (writing.dtype != found || !is_plain) {
        const char *was = is_plain ? dtype_name(found) : ckpt_quantization(m->model.tensors)->text;
        log_info("%s is %s; the merged model is %s", m->model.directory, was, dtype_name(writing.dtype));
    }
    if (writing.dtype != found || !is_plain || is_untied(m))
        status = model_write_config(&m->config, writing.dtype, &m->model.ends, &fresh);
    struct ckpt_model model = {.table = &m->table,
                               .weights = &weights,
                               .config_text = fresh ? fresh : strbuf_text(&m->model.config_text),
                               .tokenizer = &tokenizer};
    THEN(status, ckpt_write_model(m->request->output, &model));
    free(fresh);
    tokenizer_files_free(&tokenizer);
    return status;
}

int peft_merge(const struct peft_merge *request) {
    struct merge m = {.request = request};
    int status = check_methods(&m);
    THEN(status, read_base(&m));
    if (!status && is_same_directory(m.model.directory, request->output))
        status = status_fail(STATUS_USAGE, "%s is the base itself: the merged model needs a separate directory",
                             request->output);
    THEN(status, peft_files_check_base(request->files, m.model.directory, 0));
    THEN(status, read_adapters(&m));
    THEN_IF(status, request->prove, request->prove(request, request->context));
    THEN(status, describe(&m));
    THEN(status, find_changes(&m));
    THEN(status, write_model(&m));
    for (int i = 0; i < m.count; i++) {
        free(m.changes[i].a);
        free(m.changes[i].b);
    }
    free(m.changes);
    free(m.block);
    peft_close(m.peft);
    if (m.has_rank)
        rank_close(&m.rank);
    device_close(m.device);
    pretrained_close(&m.model);
    param_table_free(&m.source);
    param_table_free(&m.table);
    return status;
}
