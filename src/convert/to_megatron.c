/* Writes a model as a checkpoint of Megatron core. Each tensor of it is a stack: the same parameter of all layers, one
 * after the other, or one parameter and the zero rows that pad the vocabulary. */
#include "convert-internal.h"

struct stack {
    char name[PARAM_NAME_BYTES];
    int dims; /* of the parameter */
    int64_t rows, columns;
    int64_t layers; /* 0: one parameter, which is no layer's */
    bool is_qkv;
    int *params; /* [layers, at least 1] rows of the table */
};

struct stacks {
    struct model_array array; /* how parameters are read */
    struct stack *items;
    size_t count;
};

/* ---- listing ---- */

static struct stack *find_stack(struct stacks *s, const char *name) {
    size_t i = 0;
    while (i < s->count && strcmp(s->items[i].name, name) != 0)
        i++;
    return &s->items[i];
}

static int add_param(struct stacks *s, int index, int64_t padded_vocabulary) {
    const struct model_config *config = &s->array.model->config;
    const struct param *param = &s->array.model->table.rows[index];
    struct megatron_place place;
    megatron_find_place(param, &place);
    struct stack *stack = find_stack(s, place.name);
    if (stack == s->items + s->count) {
        int64_t layers = place.layer >= 0 ? config->num_layers : 0;
        *stack = (struct stack){.dims = param->dims,
                                .rows = param->shape[0],
                                .columns = param->shape[1],
                                .layers = layers,
                                .is_qkv = place.is_qkv,
                                .params = calloc((size_t)layers + 1, sizeof *stack->params)};
        TRY(status_allocated(stack->params));
        snprintf(stack->name, sizeof stack->name, "%s", place.name);
        if (place.has_more_rows && param->shape[0] == config->vocab_size)
            stack->rows = padded_vocabulary;
        s->count++;
    }
    stack->params[place.layer > 0 ? place.layer : 0] = index;
    return STATUS_OK;
}

/* Lists the tensors of the model; parameters that only files have, as zeros, have none. */
static int list_stacks(struct stacks *s, int64_t padded_vocabulary) {
    const struct param_table *table = &s->array.model->table;
    int status = STATUS_OK;
    s->items = calloc((size_t)table->count + 1, sizeof *s->items);
    TRY(status_allocated(s->items));
    for (int i = 0; i < table->count && !status; i++)
        if (!table->rows[i].is_zero)
            status = add_param(s, i, padded_vocabulary);
    return status;
}

static void close_stacks(void *context) {
    struct stacks *s = context;
    for (size_t i = 0; i < s->count; i++)
        free(s->items[i].params);
    free(s->items);
    free(s);
}

/* ---- reading ---- */

/* A rectangle of a stack: rows of one layer, or columns of one row. */
struct piece {
    int64_t row, rows, column, columns;
};

/* Returns the largest piece that begins at an element and has at most `most` elements. */
static struct piece next_piece(const struct stack *stack, int64_t element, int64_t most) {
    struct piece piece = {.row = element / stack->columns, .rows = 1, .column = element % stack->columns};
    int64_t left = stack->rows - piece.row % stack->rows;
    if (most > CKPT_BLOCK_ELEMENTS)
        most = CKPT_BLOCK_ELEMENTS;
    piece.columns = stack->columns - piece.column < most ? stack->columns - piece.column : most;
    if (piece.columns == stack->columns)
        piece.rows = most / stack->columns < left ? most / stack->columns : left;
    return piece;
}

/* Reads the rows of a piece that follow each other in the model too, at least one; sets piece->rows to their number. */
static int read_piece(const struct stacks *s, const struct stack *stack, struct piece *piece, void *out) {
    int64_t row = piece->row % stack->rows, rows = piece->rows;
    int param = stack->params[piece->row / stack->rows];
    int64_t there = s->array.model->table.rows[param].shape[0];
    bool is_padding = row >= there;
    if (stack->is_qkv)
        row = megatron_our_row(&s->array.model->config, row, &rows);
    else if (!is_padding)
        rows = there - row;
    if (rows < piece->rows)
        piece->rows = rows;
    if (is_padding) {
        memset(out, 0, (size_t)(piece->rows * piece->columns) * dtype_bytes(s->array.array.dtype));
        return STATUS_OK;
    }
    const struct ckpt_block block = {
        .param = param, .row = row, .rows = piece->rows, .column = piece->column, .columns = piece->columns};
    return model_array_get((void *)&s->array, &block, out);
}

/* `read` of struct tensor_source; whole elements are asked for. */
static int read_stack(void *context, size_t index, int64_t first, size_t length, void *out) {
    const struct stacks *s = context;
    int64_t width = (int64_t)dtype_bytes(s->array.array.dtype);
    int64_t element = first / width, left = (int64_t)length / width;
    char *to = out;
    int status = STATUS_OK;
    while (left > 0 && !status) {
        struct piece piece = next_piece(&s->items[index], element, left);
        status = read_piece(s, &s->items[index], &piece, to);
        int64_t count = piece.rows * piece.columns;
        element += count;
        left -= count;
        to += count * width;
    }
    return status;
}

/* ---- writing ---- */

/* Opens the model's tensors as those of Megatron core, in the order of their names. */
static int open_stacks(const struct model_source *m, int64_t padded_vocabulary, struct ckpt_tensors **tensors) {
    struct stacks *s = calloc(1, sizeof *s);
    TRY(status_allocated(s));
    s->array = (struct model_array){.model = m, .array = {.prefix = "", .dtype = m->dtype, .must_be_finite = true}};
    int status = list_stacks(s, padded_vocabulary);
    struct safetensor *list = status ? NULL : calloc(s->count + 1, sizeof *list);
    THEN_IF(status, !list, status_no_memory());
    for (size_t i = 0; i < s->count && !status; i++) {
        const struct stack *stack = &s->items[i];
        struct safetensor tensor = {
            .name = stack->name, .type = safetensors_type_name(m->dtype), .dtype = m->dtype, .elements = 1};
        if (stack->layers)
            tensor.shape[tensor.dims++] = stack->layers;
        tensor.shape[tensor.dims++] = stack->rows;
        if (stack->dims > 1)
            tensor.shape[tensor.dims++] = stack->columns;
        for (int dim = 0; dim < tensor.dims; dim++)
            tensor.elements *= tensor.shape[dim];
        tensor.bytes = tensor.elements * (int64_t)dtype_bytes(m->dtype);
        list[i] = tensor;
    }
    const struct tensor_source source = {.read = read_stack, .close = close_stacks, .context = s};
    THEN(status, ckpt_open_source(m->source->directory, list, s->count, &source, tensors));
    free(list);
    if (status)
        close_stacks(s);
    return status;
}

enum { OBJECTS = 4, OBJECT_BYTES = 96 }; /* of each layer */

/* Makes the names of the states that core asks for. */
static int name_objects(int64_t layers, char **names, const char ***objects) {
    static const char *const linears[OBJECTS] = {"mlp.linear_fc1", "mlp.linear_fc2", "self_attention.linear_proj",
                                                 "self_attention.linear_qkv"};
    size_t count = (size_t)layers * OBJECTS;
    *names = calloc(count, OBJECT_BYTES);
    *objects = calloc(count, sizeof **objects);
    if (!*names || !*objects)
        return status_no_memory();
    for (size_t i = 0; i < count; i++) {
        (*objects)[i] = *names + i * OBJECT_BYTES;
        snprintf(*names + i * OBJECT_BYTES, OBJECT_BYTES, "decoder.layers.%s._extra_state/shard_%zu_%lld",
                 linears[i % OBJECTS], i / OBJECTS, (long long)layers);
    }
    return STATUS_OK;
}

static int write(const struct convert_request *request, const struct model_source *m, const char *arguments,
                 const struct ckpt_tensors *tensors) {
    static const struct ckpt_text versions = {
        "metadata.json",
        "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, \"common_backend\": \"torch\", "
        "\"common_backend_version\": 1}\n"};
    char *names = NULL;
    const char **objects = NULL;
    int status = name_objects(m->config.num_layers, &names, &objects);
    if (!status)
        status = exchange_write_dcp(&(struct exchange_dcp){.directory = request->output,
                                                           .tensors = tensors,
                                                           .files = request->files,
                                                           .stacked = "decoder.layers.",
                                                           .objects = objects,
                                                           .object_count = (size_t)m->config.num_layers * OBJECTS,
                                                           .arguments = arguments,
                                                           .config_text = strbuf_text(&m->config_text),
                                                           .texts = &versions,
                                                           .text_count = 1,
                                                           .tokenizer = &m->tokenizer});
    free(names);
    free(objects);
    return status;
}

int write_megatron(const struct convert_request *request, struct source *source) {
    struct model_source m;
    struct ckpt_tensors *tensors = NULL;
    char *arguments = NULL;
    int64_t group = (int64_t)MEGATRON_VOCABULARY_GROUP * request->tensor, padded = 0;
    int status = model_source_open(request, source, &m);
    if (!status) {
        const struct ckpt_array read = {.prefix = "", .dtype = m.dtype, .must_be_finite = true};
        padded = (m.config.vocab_size + group - 1) / group * group;
        status = model_source_check(&m, &read, 1);
    }
    THEN(status, megatron_write_arguments(source->directory, &m.config, padded, request->tensor, &arguments));
    THEN(status, open_stacks(&m, padded, &tensors));
    THEN(status, write(request, &m, arguments, tensors));
    ckpt_close(tensors);
    free(arguments);
    model_source_close(&m);
    return status;
}
