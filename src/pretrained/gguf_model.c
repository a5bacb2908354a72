/* A GGUF file as a model. Its tensors are opened as those of a model directory: under the names of its family, in plain
 * types. Values of a quantised type are computed while they are read. */
#include "gguf_model-internal.h"

#include "ckpt/exchange.h"

/* A tensor of the model directory: rows of a parameter, by its slices of this name. */
struct view {
    char name[2 * PARAM_NAME_BYTES];
    int param, slice; /* the first slice */
    int64_t columns;
    enum dtype dtype;
};

struct views {
    struct gguf *file;
    struct ckpt_quantization quantization;
    struct gguf_weights weights;
    struct param_table table;
    struct view *items;
    size_t count;
};

static void close_views(void *context) {
    struct views *views = context;
    gguf_weights_close(&views->weights);
    param_table_free(&views->table);
    gguf_close(views->file);
    free(views->items);
    free(views);
}

/* Finds the rows of a parameter that begin at a row of the view; returns how many of them follow each other in both. */
static int64_t find_rows(const struct views *views, const struct view *view, int64_t row, int64_t *param_row) {
    const struct param_slice *slice = &views->table.rows[view->param].slices[view->slice];
    while (row >= slice->file_start + slice->rows)
        slice++;
    *param_row = slice->row + row - slice->file_start;
    return slice->file_start + slice->rows - row;
}

/* `read` of struct tensor_source; whole elements are asked for. */
static int read_view(void *context, size_t index, int64_t first, size_t length, void *out) {
    const struct views *views = context;
    const struct view *view = &views->items[index];
    int64_t width = (int64_t)dtype_bytes(view->dtype), end = first / width + (int64_t)length / width;
    int status = STATUS_OK;
    for (int64_t at = first / width; at < end && !status;) {
        struct ckpt_block block = {.param = view->param, .column = at % view->columns, .rows = 1};
        int64_t rows = find_rows(views, view, at / view->columns, &block.row), left = end - at;
        block.columns = view->columns - block.column < left ? view->columns - block.column : left;
        if (block.columns == view->columns)
            block.rows = left / view->columns < rows ? left / view->columns : rows;
        status = gguf_weights_read(&views->weights, &block, (char *)out + (at * width - first));
        at += block.rows * block.columns;
    }
    return status;
}

/* Returns the rows of the parameter that a rectangle of a view has. */
static struct ckpt_block block_of(const struct views *views, size_t index, const struct param_rect *rect) {
    const struct view *view = &views->items[index];
    struct ckpt_block block = {
        .param = view->param, .rows = rect->rows, .column = rect->column, .columns = rect->columns};
    find_rows(views, view, rect->row, &block.row);
    return block;
}

static bool describe(void *context, size_t index, const struct param_rect *rect, struct encoding *encoding) {
    const struct views *views = context;
    const struct ckpt_block block = block_of(views, index, rect);
    bool is_matrix = views->table.rows[block.param].dims == 2;
    return is_matrix && gguf_weights_describe(&views->weights, &block, encoding);
}

static int read_encoded(void *context, size_t index, const struct param_rect *rect, const struct encoded_rows *to) {
    const struct views *views = context;
    const struct ckpt_block block = block_of(views, index, rect);
    return gguf_weights_read_encoded(&views->weights, &block, to);
}

/* Describes the file's quantisation by its largest tensor, if any of its tensors is quantised. */
static void find_quantization(struct views *views) {
    struct encoding encoding, first = {0};
    bool is_mixed = false, is_quantised = false;
    for (size_t i = 0; i < gguf_count(views->file); i++) {
        const struct gguf_tensor *tensor = gguf_at(views->file, i);
        if (tensor->dims != 2 || !gguf_describe(tensor, 0, tensor->shape[1], &encoding))
            continue;
        first = is_quantised ? first : encoding;
        is_mixed |= !encoding_equals(&first, &encoding);
        is_quantised = true;
    }
    if (!is_quantised)
        return;
    views->quantization = (struct ckpt_quantization){
        .method = "gguf", .bits = is_mixed ? 0 : first.bits, .group_size = is_mixed ? 0 : first.group};
    snprintf(views->quantization.text, sizeof views->quantization.text, "gguf, %s%s",
             gguf_type_name(gguf_main_type(views->file)), is_mixed ? " and others" : "");
}

/* Adds the tensor that slices of a parameter are part of. A linear is [out, in] here in every family. */
static void add_view(struct views *views, int index, int first, struct safetensor *tensor) {
    const struct param_files *files = views->table.files;
    const struct param *param = &views->table.rows[index];
    const struct param_slice *slice = &param->slices[first];
    struct view *view = &views->items[views->count++];
    *view = (struct view){.param = index,
                          .slice = first,
                          .columns = param->shape[1],
                          .dtype = gguf_weights_dtype(&views->weights, index)};
    snprintf(view->name, sizeof view->name, "%s%s", strcmp(slice->name, files->head) ? files->prefix : "", slice->name);
    *tensor = (struct safetensor){.name = view->name,
                                  .type = safetensors_type_name(view->dtype),
                                  .dtype = view->dtype,
                                  .dims = param->dims,
                                  .shape = {slice->file_rows, param->dims > 1 ? view->columns : 0},
                                  .elements = slice->file_rows * view->columns};
    tensor->bytes = tensor->elements * (int64_t)dtype_bytes(view->dtype);
}

static int list_views(struct views *views, struct safetensor **list) {
    size_t most = (size_t)views->table.count * PARAM_MAX_SLICES + 1;
    views->items = calloc(most, sizeof *views->items);
    *list = calloc(most, sizeof **list);
    TRY(status_allocated(views->items && *list));
    for (int i = 0; i < views->table.count; i++) {
        const struct param *param = &views->table.rows[i];
        for (int s = 0; s < param->slice_count; s++)
            if (!s || strcmp(param->slices[s].name, param->slices[s - 1].name) != 0)
                add_view(views, i, s, *list + views->count);
    }
    return STATUS_OK;
}

/* Opens the tensors, which own the file from here on. */
static int open_tensors(struct gguf *file, struct pretrained *model) {
    struct safetensor *list = NULL;
    struct views *views = calloc(1, sizeof *views);
    if (!views) {
        gguf_close(file);
        return status_no_memory();
    }
    views->file = file;
    int status = model_describe(&model->config, &views->table);
    THEN(status, gguf_weights_open(file, &model->config, &views->table, &views->weights));
    THEN(status, list_views(views, &list));
    find_quantization(views);
    const struct tensor_source source = {.read = read_view,
                                         .close = close_views,
                                         .context = views,
                                         .is_out_in = true,
                                         .describe = describe,
                                         .read_encoded = read_encoded,
                                         .quantization = views->quantization.method ? &views->quantization : NULL};
    THEN(status, ckpt_open_source(model->directory, list, views->count, &source, &model->tensors));
    free(list);
    if (status)
        close_views(views);
    return status;
}

/* Makes the text of config.json and reads it back, as if the file had been converted. */
static int read_config(const struct gguf *file, struct pretrained *model) {
    char *text = NULL;
    struct model_config config;
    struct model_text_ends ends;
    enum dtype dtype = gguf_type_dtype(gguf_main_type(file));
    model->weights = gguf_type_name(gguf_main_type(file));
    TRY(gguf_read_config(file, &config));
    TRY(gguf_read_ends(file, &config, &ends));
    int status = model_write_config(&config, dtype == DTYPE_COUNT ? DTYPE_F32 : dtype, &ends, &text);
    if (!status)
        strbuf_add_text(&model->config_text, text);
    free(text);
    THEN(status, strbuf_status(&model->config_text));
    THEN(status, model_read_config(strbuf_text(&model->config_text), model->directory, &model->config, &model->dtype,
                                   &model->ends));
    if (dtype == DTYPE_COUNT)
        model->dtype = DTYPE_BF16;
    return status;
}

int gguf_model_open(struct pretrained *model, bool has_tensors) {
    struct gguf *file;
    TRY(gguf_open(model->directory, &file));
    int status = read_config(file, model);
    if (!status && has_tensors)
        return open_tensors(file, model);
    gguf_close(file);
    return status;
}
