/* The weights of a GGUF file as the parameters of a model. The format names tensors alike in all families, and each
 * linear is [out, in], as ours are. */
#include "gguf_model-internal.h"

#include "ckpt/pieces.h"

enum { AT_ONCE = 64 /* rows */ };

/* Our modules, and theirs. */
static const struct module_names {
    const char *ours, *whole, *parts[GGUF_MAX_SOURCES];
} modules[] = {
    {"embedding.token", "token_embd", {0}},
    {"embedding.position", "position_embd", {0}},
    {"norm1", "attn_norm", {0}},
    {"attention.qkv", "attn_qkv", {"attn_q", "attn_k", "attn_v"}},
    {"attention.q_norm", "attn_q_norm", {0}},
    {"attention.k_norm", "attn_k_norm", {0}},
    {"attention.projection", "attn_output", {0}},
    {"norm2", "ffn_norm", {0}},
    {"mlp.fc1", "ffn_up", {"ffn_gate", "ffn_up"}},
    {"mlp.fc2", "ffn_down", {0}},
    {"final_norm", "output_norm", {0}},
    {"head", "output", {0}},
};

/* Tensors that hold no parameter: what they say is read elsewhere, or is the embedding once more. */
static const char *const others[] = {"rope_freqs.weight", "output.weight"};

struct finder {
    const struct gguf *file;
    const struct model_config *config;
    bool *is_used; /* [tensors of the file] */
};

/* Writes the file's name of a module in a layer; layer below 0: in none. */
static const char *tensor_name(int64_t layer, const char *module, const char *kind, char out[PARAM_NAME_BYTES]) {
    if (layer >= 0)
        snprintf(out, PARAM_NAME_BYTES, "blk.%lld.%s.%s", (long long)layer, module, kind);
    else
        snprintf(out, PARAM_NAME_BYTES, "%s.%s", module, kind);
    return out;
}

const char *gguf_tensor_name(const struct gguf_module *module, const char *part, char out[PARAM_NAME_BYTES]) {
    return tensor_name(module->layer, part, module->kind, out);
}

bool gguf_has_module(const struct gguf *file, const char *module, const char *kind) {
    char name[PARAM_NAME_BYTES];
    return gguf_find(file, tensor_name(0, module, kind, name));
}

void gguf_find_module(const struct param *param, struct gguf_module *module) {
    struct param_words words = param_split(param->name);
    size_t i = 0;
    while (!param_is_of(&words, modules[i].ours))
        i++;
    *module = (struct gguf_module){.whole = modules[i].whole, .layer = words.layer, .kind = words.kind};
    memcpy(module->parts, modules[i].parts, sizeof module->parts);
}

static int refuse_shape(const struct finder *f, const struct gguf_tensor *tensor, const struct param *param,
                        int64_t rows) {
    struct strbuf shape = STRBUF_INIT;
    for (int i = 0; i < tensor->dims; i++)
        strbuf_format(&shape, "%s%lld", i ? ", " : "", (long long)tensor->shape[i]);
    int status = status_fail(STATUS_INVALID, "%s: tensor '%s' has the shape [%s], but the keys make it [%lld%s%.0lld]",
                             gguf_path(f->file), tensor->name, strbuf_text(&shape), (long long)rows,
                             param->dims > 1 ? ", " : "", (long long)(param->dims > 1 ? param->shape[1] : 0));
    strbuf_free(&shape);
    return status;
}

/* Adds a tensor of `rows` rows. */
static int add_source(struct finder *f, const struct param *param, const char *name, int64_t rows, int64_t pairs,
                      struct gguf_sources *sources) {
    const struct gguf_tensor *tensor = gguf_find(f->file, name);
    if (!tensor)
        return status_fail(STATUS_INVALID, "%s: there is no tensor '%s'", gguf_path(f->file), name);
    bool has_columns = param->dims == 2;
    if (tensor->dims != param->dims || tensor->shape[0] != rows || (has_columns && tensor->shape[1] != param->shape[1]))
        return refuse_shape(f, tensor, param, rows);
    sources->items[sources->count++] =
        (struct gguf_source){.tensor = tensor, .rows = rows, .columns = param->shape[1], .pairs = pairs};
    f->is_used[gguf_index(f->file, tensor)] = true;
    return STATUS_OK;
}

static int find_sources(struct finder *f, const struct param *param, struct gguf_sources *sources) {
    struct gguf_module module;
    char name[PARAM_NAME_BYTES];
    gguf_find_module(param, &module);
    struct model_widths w = model_widths(f->config, 1);
    bool is_qkv = module.parts[2], is_whole = !module.parts[0] || (!is_qkv && !f->config->swiglu);
    const struct gguf_tensor *whole = gguf_find(f->file, gguf_tensor_name(&module, module.whole, name));
    if (is_whole || (whole && whole->shape[0] == param->shape[0]))
        return param->is_zero && !whole ? STATUS_OK : add_source(f, param, name, param->shape[0], 0, sources);
    int status = STATUS_OK;
    for (int i = 0; i < GGUF_MAX_SOURCES && module.parts[i] && !status; i++) {
        bool is_paired = model_family(f->config)->has_paired_gguf_heads && is_qkv && i < 2;
        int64_t rows = !is_qkv ? w.ffn : i == 0 ? w.q : w.kv;
        status = add_source(f, param, gguf_tensor_name(&module, module.parts[i], name), rows, is_paired ? w.head : 0,
                            sources);
    }
    return status;
}

static int refuse_unused(const struct finder *f) {
    for (size_t i = 0; i < gguf_count(f->file); i++) {
        bool is_known = f->is_used[i];
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            is_known |= !strcmp(gguf_at(f->file, i)->name, others[k]);
        if (!is_known)
            return status_fail(STATUS_UNSUPPORTED, "%s: tensor '%s' belongs to no parameter of a %s with these keys",
                               gguf_path(f->file), gguf_at(f->file, i)->name, model_family(f->config)->name);
    }
    return STATUS_OK;
}

int gguf_weights_open(const struct gguf *file, const struct model_config *config, const struct param_table *table,
                      struct gguf_weights *weights) {
    struct finder f = {.file = file, .config = config, .is_used = calloc(gguf_count(file) + 1, sizeof(bool))};
    *weights = (struct gguf_weights){0};
    weights->sources = calloc((size_t)table->count + 1, sizeof *weights->sources);
    int status = status_allocated(f.is_used && weights->sources);
    for (int i = 0; i < table->count && !status; i++)
        status = find_sources(&f, &table->rows[i], &weights->sources[i]);
    THEN(status, refuse_unused(&f));
    free(f.is_used);
    return status;
}

void gguf_weights_close(struct gguf_weights *weights) {
    free(weights->sources);
}

/* ---- reading ---- */

/* Returns the row of the file that holds a row of a source. In a head of pairs, rows 2i and 2i + 1 of the file are row
 * i of either half. */
static int64_t file_row(const struct gguf_source *source, int64_t row) {
    int64_t half = source->pairs / 2, place = source->pairs ? row % source->pairs : 0;
    return source->pairs ? row - place + place % half * 2 + place / half : row;
}

enum dtype gguf_weights_dtype(const struct gguf_weights *weights, int param) {
    const struct gguf_sources *sources = &weights->sources[param];
    enum dtype dtype = sources->count ? gguf_type_dtype(sources->items[0].tensor->type) : DTYPE_F32;
    for (int i = 1; i < sources->count; i++)
        if (gguf_type_dtype(sources->items[i].tensor->type) != dtype)
            return DTYPE_F32;
    return dtype == DTYPE_COUNT ? DTYPE_F32 : dtype;
}

/* Reads rows [row, row + rows) of a source; rows that lie together are read at once. */
static int read_rows(const struct gguf_source *source, int64_t row, int64_t rows, const struct ckpt_block *block,
                     enum dtype dtype, char *out) {
    bool is_dense = block->columns == source->columns && !source->pairs;
    int64_t at_once = is_dense ? rows : 1;
    int status = STATUS_OK;
    for (int64_t i = 0; i < rows && !status; i += at_once)
        status = gguf_read(source->tensor, file_row(source, row + i) * source->columns + block->column,
                           at_once * block->columns, dtype, out + i * block->columns * (int64_t)dtype_bytes(dtype));
    return status;
}

int gguf_weights_read(const struct gguf_weights *weights, const struct ckpt_block *block, void *values) {
    const struct gguf_sources *sources = &weights->sources[block->param];
    enum dtype dtype = gguf_weights_dtype(weights, block->param);
    int64_t first = 0; /* row of the parameter where a source begins */
    int64_t stride = block->columns * (int64_t)dtype_bytes(dtype);
    int status = STATUS_OK;
    if (!sources->count)
        memset(values, 0, (size_t)(block->rows * stride));
    for (int i = 0; i < sources->count && !status; i++) {
        const struct gguf_source *source = &sources->items[i];
        int64_t from = block->row > first ? block->row : first, end = first + source->rows;
        int64_t to = block->row + block->rows < end ? block->row + block->rows : end;
        if (from < to)
            status =
                read_rows(source, from - first, to - from, block, dtype, (char *)values + (from - block->row) * stride);
        first = end;
    }
    return status;
}

/* Returns the source that has all rows of a block, and its first row; NULL: several have them. */
static const struct gguf_source *source_of(const struct gguf_weights *weights, const struct ckpt_block *block,
                                           int64_t *first) {
    const struct gguf_sources *sources = &weights->sources[block->param];
    *first = 0;
    for (int i = 0; i < sources->count; i++) {
        if (block->row >= *first && block->row + block->rows <= *first + sources->items[i].rows)
            return &sources->items[i];
        *first += sources->items[i].rows;
    }
    return NULL;
}

bool gguf_weights_describe(const struct gguf_weights *weights, const struct ckpt_block *block,
                           struct encoding *encoding) {
    int64_t first;
    const struct gguf_source *source = source_of(weights, block, &first);
    return source && gguf_describe(source->tensor, block->column, block->columns, encoding);
}

/* Rows of a source, and where they go. */
struct reading {
    const struct gguf_source *source;
    int64_t row, column;
    const struct encoded_rows *to;
};

/* Reads rows [first, first + count), at most AT_ONCE. */
static int read_piece(const void *context, int64_t first, int64_t count) {
    const struct reading *reading = context;
    int64_t rows[AT_ONCE];
    for (int64_t i = 0; i < count; i++)
        rows[i] = file_row(reading->source, reading->row + first + i);
    const struct gguf_rows from = {rows, count, reading->column, first};
    return gguf_read_encoded(reading->source->tensor, &from, reading->to);
}

int gguf_weights_read_encoded(const struct gguf_weights *weights, const struct ckpt_block *block,
                              const struct encoded_rows *to) {
    int64_t first;
    struct reading reading = {.source = source_of(weights, block, &first), .column = block->column, .to = to};
    reading.row = block->row - first;
    return ckpt_read_pieces(block->rows, AT_ONCE, read_piece, &reading);
}

int gguf_is_equal(const struct gguf_tensor *a, const struct gguf_tensor *b, bool *is_equal) {
    float values[2][4096];
    int64_t at_once = sizeof values[0] / sizeof *values[0];
    int status = STATUS_OK;
    *is_equal = a->dims == b->dims && !memcmp(a->shape, b->shape, (size_t)a->dims * sizeof *a->shape);
    for (int64_t at = 0; at < a->elements && *is_equal && !status; at += at_once) {
        int64_t n = a->elements - at < at_once ? a->elements - at : at_once;
        status = gguf_read(a, at, n, DTYPE_F32, values[0]);
        THEN(status, gguf_read(b, at, n, DTYPE_F32, values[1]));
        if (!status)
            *is_equal = !memcmp(values[0], values[1], (size_t)n * sizeof(float));
    }
    return status;
}
