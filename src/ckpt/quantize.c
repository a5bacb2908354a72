/* Writes a model in few bits. The written tensors come from a source (exchange.h). It reads plain tensors from the
 * model's files, and those of a linear from memory, where it rounds one linear at a time. */
#include "codec_write-internal.h"

#include "base/json.h"
#include "codec.h"
#include "exchange.h"
#include "text/expression.h"

/* A tensor of the model. */
struct item {
    char name[TENSOR_NAME_BYTES];
    const struct tensor_entry *entry;
    bool is_transposed;
    bool is_linear, is_plain;      /* a linear of a layer; what stays as it is */
    struct quantized_linear facts; /* of a linear */
};

/* A tensor to be written: an item as it is, or a part of a linear. */
struct written_tensor {
    int64_t item;
    int part;
};

struct quantizer {
    const struct quantize_request *request;
    struct rounding rounding;
    struct item *items; /* [item_count] */
    int64_t item_count;
    bool *is_kept;           /* [table->count] as in struct quantized_vector */
    struct safetensor *list; /* [count], which owns its names */
    struct written_tensor *tensors;
    size_t count, room;
    int64_t current; /* the item in memory, a linear or a changed vector; below 0: none */
    void *memory;    /* its codes and scales */
    struct written_linear rounded;
    void *parts[WRITTEN_PARTS]; /* its tensors */
};

/* ---- which tensors there are ---- */

static int add_tensor(struct quantizer *q, const char *name, const struct safetensor *facts,
                      struct written_tensor written) {
    if (q->count == q->room) {
        size_t room = q->room ? 2 * q->room : 256;
        struct safetensor *list = realloc(q->list, room * sizeof *list);
        q->list = list ? list : q->list;
        struct written_tensor *tensors = realloc(q->tensors, room * sizeof *tensors);
        q->tensors = tensors ? tensors : q->tensors;
        TRY(status_allocated(list && tensors));
        q->room = room;
    }
    char *own = strdup(name);
    TRY(status_allocated(own));
    q->list[q->count] = *facts;
    q->list[q->count].name = own;
    q->tensors[q->count++] = written;
    return STATUS_OK;
}

static bool is_listed(const struct quantizer *q, const char *name) {
    for (int64_t i = q->item_count; i-- > 0;)
        if (!strcmp(q->items[i].name, name))
            return true;
    return false;
}

/* Sets *is_ignored when a pattern fits the module's name; marks all that do. */
static int find_ignored(const struct quantizer *q, const char *module, bool *used, bool *is_ignored) {
    for (int64_t i = 0; i < q->request->ignore_count; i++) {
        const char *word = q->request->ignore[i];
        struct text_expression *expression = NULL;
        struct strbuf beginning = STRBUF_INIT;
        bool fits = !strcmp(word, module);
        int status = STATUS_OK;
        if (!strncmp(word, "re:", 3)) {
            strbuf_format(&beginning, "(?:%s).*", word + 3);
            status = strbuf_status(&beginning);
            THEN(status, text_expression_open("ignore", strbuf_text(&beginning), false, &expression));
            THEN(status, text_expression_match(expression, module, &fits));
            text_expression_close(expression);
            strbuf_free(&beginning);
        }
        TRY(status);
        used[i] |= fits;
        *is_ignored |= fits;
    }
    return STATUS_OK;
}

/* Adds the tensor that a slice is part of. */
static int add_slice(struct quantizer *q, int param, const struct param_slice *slice, bool *used) {
    const struct param_table *table = q->request->table;
    const struct param *row = &table->rows[param];
    struct item item = {.is_plain = true};
    item.entry = tensors_find(q->request->tensors, table->files, "", slice->name, table_is_tied(table));
    tensor_file_name(table->files, "", slice->name, item.name);
    if (!item.entry || is_listed(q, item.name)) /* zeros that the files lack */
        return STATUS_OK;
    const struct tensor_source *source = item.entry->file->source;
    item.is_transposed = slice->is_transposed && !(source && source->is_out_in);
    const char *ending = strrchr(item.name, '.');
    item.facts = (struct quantized_linear){.param = param, .rows = slice->file_rows, .columns = row->shape[1]};
    snprintf(item.facts.name, sizeof item.facts.name, "%.*s", (int)(ending - item.name), item.name);
    if (row->is_linear && row->place && !strcmp(ending, ".weight")) {
        item.is_linear = true;
        item.is_plain = false;
        TRY(find_ignored(q, item.facts.name, used, &item.is_plain));
        q->is_kept[param] |= item.is_plain;
    }
    q->items[q->item_count++] = item;
    return STATUS_OK;
}

/* Chooses one group for all linears. */
static int choose_group(struct quantizer *q) {
    const struct codec_format *format = q->request->format;
    int64_t group = q->request->group;
    if (!format->facts.has_groups)
        return STATUS_OK;
    if (!group) {
        group = q->rounding.encoding.group ? q->rounding.encoding.group : 128;
        for (int64_t i = 0; i < q->item_count; i++)
            while (!q->items[i].is_plain && group > 0 && q->items[i].facts.columns % group)
                group = group == 32 ? -1 : group / 2;
    }
    for (int64_t i = 0; i < q->item_count; i++) {
        const struct quantized_linear *linear = &q->items[i].facts;
        int64_t each = 32 / q->rounding.encoding.bits;
        if (q->items[i].is_plain)
            continue;
        if (group > 0 && linear->columns % group)
            return status_fail(STATUS_USAGE, "--group %lld does not divide the %lld inputs of %s", (long long)group,
                               (long long)linear->columns, linear->name);
        if (format->facts.packs_both && (linear->columns % each || linear->rows % each))
            return status_fail(STATUS_USAGE, "--format %s: %s is %lld x %lld, and its sides must be multiples of %lld",
                               format->name, linear->name, (long long)linear->rows, (long long)linear->columns,
                               (long long)each);
    }
    q->rounding.encoding.group = (int32_t)group;
    return STATUS_OK;
}

static struct written_linear sizes_of(const struct quantizer *q, const struct item *linear) {
    static const char *const torch[] = {[DTYPE_F32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_F16] = "float16"};
    enum dtype type = linear->entry->tensor->dtype;
    struct encoded_part part = {linear->facts.rows, linear->facts.columns, false,
                                rounding_encoding(&q->rounding, linear->facts.columns)};
    struct written_linear sizes = {.rows = encoded_rows_place(&part, NULL),
                                   .torch_type = type <= DTYPE_F16 ? torch[type] : torch[DTYPE_F32]};
    return sizes;
}

/* Adds the tensors of the linears in order, each in place of its weight. */
static int add_parts(struct quantizer *q, int64_t number) {
    const struct item *linear = &q->items[number];
    struct written_linear sizes = sizes_of(q, linear);
    char name[sizeof linear->facts.name + 64];
    for (int p = 0; p < WRITTEN_PARTS && q->request->format->parts[p].ending; p++) {
        const struct written_part *part = &q->request->format->parts[p];
        struct safetensor facts = {.type = part->type, .dtype = safetensors_type_dtype(part->type)};
        facts.dims = part->shape(&sizes, facts.shape);
        facts.elements = facts.shape[0] * (facts.dims > 1 ? facts.shape[1] : 1);
        facts.bytes = facts.elements * safetensors_type_bytes(part->type);
        snprintf(name, sizeof name, "%s%s", linear->facts.name, part->ending);
        if (facts.dims)
            TRY(add_tensor(q, name, &facts, (struct written_tensor){.item = number, .part = p}));
    }
    return STATUS_OK;
}

static int list_tensors(struct quantizer *q) {
    const struct param_table *table = q->request->table;
    bool *used = calloc((size_t)q->request->ignore_count + 1, sizeof *used);
    q->items = calloc((size_t)table->count * PARAM_MAX_SLICES, sizeof *q->items);
    q->is_kept = calloc((size_t)table->count + 1, sizeof *q->is_kept);
    int status = status_allocated(used && q->items && q->is_kept);
    int64_t count = 0;
    for (int i = 0; i < table->count && !status; i++)
        for (int s = 0; s < table->rows[i].slice_count && !status; s++)
            status = add_slice(q, i, &table->rows[i].slices[s], used);
    for (int64_t i = 0; i < q->request->ignore_count && !status; i++)
        if (!used[i])
            status = status_fail(STATUS_USAGE, "--ignore %s: no linear has this name", q->request->ignore[i]);
    THEN(status, choose_group(q));
    for (int64_t i = 0; i < q->item_count; i++)
        if (!q->items[i].is_plain)
            q->items[i].facts.number = count++;
    for (int64_t i = 0; i < q->item_count && !status; i++) {
        struct item *item = &q->items[i];
        item->facts.count = count;
        status = item->is_plain
                     ? add_tensor(q, item->name, item->entry->tensor, (struct written_tensor){.item = i, .part = -1})
                     : add_parts(q, i);
    }
    free(used);
    return status;
}

/* ---- a linear in memory ---- */

static void drop_linear(struct quantizer *q) {
    for (int p = 0; p < WRITTEN_PARTS; p++) {
        free(q->parts[p]);
        q->parts[p] = NULL;
    }
    free(q->memory);
    free(q->rounded.scales.codes);
    free(q->rounded.scales.absmax);
    q->memory = NULL;
    q->rounded = (struct written_linear){0};
    q->current = -1;
}

/* Reads the values [out, in] of a linear. */
static int read_values(const struct item *linear, float **values) {
    int64_t rows = linear->facts.rows, columns = linear->facts.columns, count = rows * columns;
    float *read = malloc((size_t)count * sizeof *read), *turned = NULL;
    int status = status_allocated(read);
    THEN(status, safetensors_read_finite(linear->entry->file, linear->entry->tensor, 0, count, DTYPE_F32, read));
    if (!status && linear->is_transposed) {
        turned = malloc((size_t)count * sizeof *turned);
        status = status_allocated(turned);
        if (!status)
            transpose(read, columns, rows, sizeof *read, turned, columns);
        free(read);
        read = turned;
    }
    if (status)
        free(read);
    *values = status ? NULL : read;
    return status;
}

/* Fails for a scale that its type cannot hold. */
static int check_scales(const struct quantizer *q, const struct item *linear) {
    int64_t count = linear->facts.rows * encoded_groups(&q->rounded.rows.encoding, linear->facts.columns);
    bool is_f16 = q->rounded.rows.encoding.scale_type == DTYPE_F16;
    return is_f16 && dtype_find_not_finite(DTYPE_F16, q->rounded.rows.scales, count) >= 0
               ? status_fail(STATUS_INVALID, "%s has numbers whose scale is beyond fp16", linear->facts.name)
               : STATUS_OK;
}

static int round_linear(struct quantizer *q, int64_t number) {
    const struct item *linear = &q->items[number];
    const struct codec_format *format = q->request->format;
    struct encoded_part part = {linear->facts.rows, linear->facts.columns, false,
                                rounding_encoding(&q->rounding, linear->facts.columns)};
    size_t blocks = (size_t)((part.rows * part.positions + 63) / 64);
    float *values = NULL;
    drop_linear(q);
    TRY(read_values(linear, &values));
    q->memory = malloc(encoded_rows_bytes(&part));
    q->rounded = sizes_of(q, linear);
    q->rounded.scales.codes = malloc(blocks);
    q->rounded.scales.absmax = malloc((blocks / ROUNDING_SCALES_BLOCK + 1) * sizeof(float));
    int status = status_allocated(q->memory && q->rounded.scales.codes && q->rounded.scales.absmax);
    if (!status) {
        q->rounded.rows = encoded_rows_place(&part, q->memory);
        struct rounding_call call = {.rounding = &q->rounding,
                                     .values = values,
                                     .rows = part.rows,
                                     .columns = part.positions,
                                     .threads = q->request->threads,
                                     .to = &q->rounded.rows,
                                     .scales = &q->rounded.scales};
        if (q->request->round)
            status = q->request->round(q->request->context, &linear->facts, &call, values);
        else
            rounding_rows(&call);
    }
    free(values);
    THEN(status, check_scales(q, linear));
    for (int p = 0; p < WRITTEN_PARTS && format->parts[p].ending && !status; p++) {
        int64_t shape[2] = {0};
        int dims = format->parts[p].shape(&q->rounded, shape);
        size_t bytes = (size_t)(shape[0] * (dims > 1 ? shape[1] : 1) * safetensors_type_bytes(format->parts[p].type));
        if (!dims)
            continue;
        q->parts[p] = malloc(bytes);
        status = status_allocated(q->parts[p]);
        if (!status)
            format->parts[p].fill(&q->rounded, q->parts[p]);
    }
    q->current = status ? -1 : number;
    return status;
}

/* Lets the caller change a vector. It is in memory then, as the file will have it. */
static int change_vector(struct quantizer *q, int64_t number) {
    const struct item *item = &q->items[number];
    const struct safetensor *tensor = item->entry->tensor;
    float *values = malloc((size_t)tensor->elements * sizeof *values + 1);
    struct quantized_vector vector = {.param = item->facts.param,
                                      .is_kept = q->is_kept,
                                      .dtype = tensor->dtype,
                                      .rounding = &q->rounding,
                                      .values = values,
                                      .count = tensor->elements};
    snprintf(vector.name, sizeof vector.name, "%s", item->facts.name);
    drop_linear(q);
    int status = status_allocated(values);
    THEN(status, safetensors_read_finite(item->entry->file, tensor, 0, tensor->elements, DTYPE_F32, values));
    THEN(status, q->request->change(q->request->context, &vector));
    if (!status && vector.is_changed) {
        q->parts[0] = malloc((size_t)tensor->bytes + 1);
        status = status_allocated(q->parts[0]);
        for (int64_t i = 0; i < tensor->elements && !status; i++)
            if (tensor->dtype == DTYPE_F32)
                ((float *)q->parts[0])[i] = values[i];
            else
                ((uint16_t *)q->parts[0])[i] =
                    tensor->dtype == DTYPE_BF16 ? bf16_from_float(values[i]) : f16_from_float(values[i]);
    }
    free(values);
    q->current = !status && vector.is_changed ? number : -1;
    return status;
}

static int prepare(void *context, size_t index) {
    struct quantizer *q = context;
    int64_t number = q->tensors[index].item;
    const struct item *item = &q->items[number];
    if (number == q->current)
        return STATUS_OK;
    if (!item->is_plain)
        return round_linear(q, number);
    bool may_change = q->request->change && item->entry->tensor->dims == 1 && item->entry->tensor->dtype <= DTYPE_F16;
    return may_change ? change_vector(q, number) : STATUS_OK;
}

static int read_bytes(void *context, size_t index, int64_t first, size_t length, void *out) {
    struct quantizer *q = context;
    const struct written_tensor *tensor = &q->tensors[index];
    const struct tensor_entry *entry = q->items[tensor->item].entry;
    if (tensor->part < 0 && tensor->item != q->current)
        return safetensors_read_bytes(entry->file, entry->tensor, first, (int64_t)length, out);
    memcpy(out, (const char *)q->parts[tensor->part < 0 ? 0 : tensor->part] + first, length);
    return STATUS_OK;
}

static void keep_open(void *context) {
    (void)context;
}

/* ---- the directory ---- */

/* Adds the key to the configuration's text. */
static int make_config(const struct quantizer *q, char **text) {
    json_t *config = NULL;
    const char *source = q->request->config_text, *head_name = q->request->table->files->head;
    char head[PARAM_NAME_BYTES];
    snprintf(head, sizeof head, "%.*s", (int)(strrchr(head_name, '.') - head_name), head_name);
    TRY(json_object_parse(CONFIG_FILE, 0, source, strlen(source), &config));
    json_begin();
    json_t *ignored = json_array();
    for (int64_t i = 0; i < q->item_count; i++)
        if (q->items[i].is_linear && q->items[i].is_plain)
            json_array_append_new(ignored, json_string(q->items[i].facts.name));
    json_object_set_new(config, "quantization_config", q->request->format->config(&q->rounding, head, ignored));
    return json_end(config, JSON_INDENT(2), text);
}

static int write_directory(struct quantizer *q) {
    struct tensor_source source = {.prepare = prepare, .read = read_bytes, .close = keep_open, .context = q};
    struct ckpt_tensors *tensors = NULL;
    char *config = NULL;
    size_t *order = calloc(q->count + 1, sizeof *order);
    int status = status_allocated(order);
    THEN(status, make_config(q, &config));
    THEN(status, ckpt_open_source(q->request->output, q->list, q->count, &source, &tensors));
    for (size_t i = 0; i < q->count && !status; i++)
        order[tensors->entries[i].tensor->start] = i;
    THEN(status, exchange_write_tensors(&(struct exchange_files){.directory = q->request->output,
                                                                 .tensors = tensors,
                                                                 .order = order,
                                                                 .config_text = config,
                                                                 .texts = q->request->texts,
                                                                 .text_count = q->request->text_count,
                                                                 .tokenizer = q->request->tokenizer}));
    ckpt_close(tensors);
    free(config);
    free(order);
    return status;
}

/* Rounds the linears as write_directory does, without writing them. */
static int follow(struct quantizer *q) {
    int status = STATUS_OK;
    for (size_t i = 0; i < q->count && !status; i++)
        status = prepare(q, i);
    return status;
}

int ckpt_quantize(const struct quantize_request *request) {
    struct quantizer q = {.request = request, .rounding = *rounding_find(request->format->rounding), .current = -1};
    if (request->format->facts.has_half_scales)
        q.rounding.encoding.scale_type = DTYPE_F16;
    if (request->has_zeros) {
        q.rounding.encoding.shift = ENCODED_ZEROS;
        q.rounding.encoding.bias = 0;
        q.rounding.lowest_zero = request->format->facts.packs_both;
    }
    const struct ckpt_quantization *present = ckpt_quantization(request->tensors);
    int status = present->method ? status_fail(STATUS_USAGE, "the model is quantised already: %s", present->text)
                                 : list_tensors(&q);
    status = comm_agree(request->world, status);
    THEN(status, request->world->rank == 0 ? write_directory(&q) : follow(&q));
    drop_linear(&q);
    for (size_t i = 0; i < q.count; i++)
        free((char *)q.list[i].name);
    free(q.list);
    free(q.tensors);
    free(q.items);
    free(q.is_kept);
    return status;
}
