/* Reads tensors of files into the parameters of a table. Everything is checked first; then values are read in bounded
 * blocks. */
#include "codec-internal.h"
#include "exchange.h"
#include "halves.h"

enum { PROBLEMS_NAMED = 8, COMPARE_ELEMENTS = 1 << 14 };

/* Problems of one kind on one line: the first few named, the rest counted. */
struct problems {
    struct strbuf text;
    int count;
};

static void problem_add(struct problems *problems, const char *text) {
    if (problems->count++ < PROBLEMS_NAMED)
        strbuf_format(&problems->text, "%s%s", problems->count > 1 ? ", " : "", text);
}

static void problems_end(struct problems *problems) {
    if (problems->count > PROBLEMS_NAMED)
        strbuf_format(&problems->text, " and %d more", problems->count - PROBLEMS_NAMED);
}

static bool is_readable(enum dtype type) {
    return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16 || type == DTYPE_F64;
}

/* True when the tensor of a slice is [in, out]. */
static bool is_transposed(const struct safetensors *file, const struct param_slice *slice) {
    return slice->is_transposed && !(file->source && file->source->is_out_in);
}

/* Adds what is wrong with the tensor of a slice to `wrong`. STATUS_INVALID for a weight in few bits. */
static int check_entry(const struct ckpt_tensors *tensors, const struct tensor_entry *entry, const struct param *param,
                       const struct param_slice *slice, struct problems *wrong) {
    const struct safetensor *tensor = entry->tensor;
    const struct codec_linear *linear = codec_of(tensors, entry);
    int64_t shape[2];
    char text[3 * SHOWN_BYTES], expected[SHOWN_BYTES], found[SHOWN_BYTES], word[SHOWN_BYTES];
    bool is_turned = is_transposed(entry->file, slice);
    int dims = slice_file_shape(param, slice, is_turned, shape);
    if (linear) { /* it has [out, in] in all files */
        shape[0] = slice->file_rows;
        shape[1] = param->shape[1];
    }
    bool has_shape = tensor->dims == dims && !memcmp(tensor->shape, shape, (size_t)dims * sizeof *shape);
    if (has_shape && is_readable(tensor->dtype))
        return STATUS_OK;
    shape_text(expected, sizeof expected, dims, shape);
    shape_text(found, sizeof found, tensor->dims, tensor->shape);
    if (linear)
        return codec_fail(linear, 0, "has values of shape %s (expected %s%s%s)", found, expected,
                          linear->units ? "; " : "", linear->units ? linear->units : "");
    if (!has_shape)
        snprintf(text, sizeof text, "%s has shape %s (expected %s)", shown(tensor->name, word), found, expected);
    else
        snprintf(text, sizeof text, "%s has dtype %s (expected F32, BF16, F16 or F64)", shown(tensor->name, word),
                 tensor->type);
    problem_add(wrong, text);
    return STATUS_OK;
}

static bool is_wanted(const struct ckpt_array *array, const struct param *param) {
    return param->is_trainable || !array->only_trainable;
}

static const struct tensor_entry *find_entry(const struct ckpt_tensors *tensors, const struct param_table *table,
                                             const struct ckpt_array *array, const char *name, bool is_tied) {
    const struct tensor_entry *entry = tensors_find(tensors, table->files, array->prefix, name, is_tied);
    char other[PARAM_NAME_BYTES];
    if (entry || !array->find_name || !array->find_name(array->names, tensors, name, other))
        return entry;
    return tensors_find(tensors, table->files, array->prefix, other, is_tied);
}

/* Marks the tensors that the array uses in is_used[] and lists what is missing or wrong. */
static int check_array(const struct ckpt_tensors *tensors, const struct param_table *table,
                       const struct ckpt_array *array, bool *is_used, struct problems *missing,
                       struct problems *wrong) {
    bool is_tied = table_is_tied(table);
    for (int i = 0; i < table->count; i++) {
        const struct param *param = &table->rows[i];
        const char *last = "";
        TRY(slices_check(param));
        for (int s = 0; s < param->slice_count && is_wanted(array, param); s++) {
            const struct param_slice *slice = &param->slices[s];
            const struct tensor_entry *entry = find_entry(tensors, table, array, slice->name, is_tied);
            char name[TENSOR_NAME_BYTES];
            if (entry)
                is_used[entry - tensors->entries] = true;
            if (!strcmp(last, slice->name)) /* q, k and v are slices of one tensor */
                continue;
            last = slice->name;
            tensor_file_name(table->files, array->prefix, slice->name, name);
            if (entry)
                TRY(check_entry(tensors, entry, param, slice, wrong));
            else
                problem_add(missing, name);
        }
    }
    return STATUS_OK;
}

/* Buffers, and the head of a tied model. */
static bool is_silent(const struct param_files *files, const char *name, bool is_tied) {
    for (size_t i = 0, length = strlen(name); files && files->buffers[i]; i++) {
        size_t end = strlen(files->buffers[i]);
        if (length >= end && !strcmp(name + length - end, files->buffers[i]))
            return true;
    }
    return is_tied && !strcmp(name, files->head);
}

static int compare(const struct tensor_entry *a, const struct tensor_entry *b, bool *differs) {
    float x[COMPARE_ELEMENTS], y[COMPARE_ELEMENTS];
    int64_t elements = a->tensor->elements;
    *differs = a->tensor->dims != b->tensor->dims ||
               memcmp(a->tensor->shape, b->tensor->shape, sizeof *a->tensor->shape * (size_t)a->tensor->dims) != 0;
    for (int64_t at = 0; at < elements && !*differs; at += COMPARE_ELEMENTS) {
        int64_t n = elements - at < COMPARE_ELEMENTS ? elements - at : COMPARE_ELEMENTS;
        TRY(safetensors_read(a->file, a->tensor, at, n, DTYPE_F32, x));
        TRY(safetensors_read(b->file, b->tensor, at, n, DTYPE_F32, y));
        *differs = memcmp(x, y, (size_t)n * sizeof *x) != 0;
    }
    return STATUS_OK;
}

int ckpt_equals(const struct ckpt_tensors *tensors, size_t index, const struct ckpt_tensors *model,
                const struct param_table *table, const char *name, bool *is_equal) {
    bool is_tied = table_is_tied(table), differs = true;
    name = is_tied && !strcmp(name, table->files->head) ? table->files->embedding : name;
    const struct tensor_entry *entry = &tensors->entries[index];
    const struct tensor_entry *other = tensors_find(model, table->files, "", name, is_tied);
    int status = other && is_readable(entry->tensor->dtype) ? compare(entry, other, &differs) : STATUS_OK;
    *is_equal = !differs;
    return status;
}

/* AdapterHub's files name the norm in front of an adapter twice. */
static int is_repeated(const struct ckpt_tensors *tensors, const struct tensor_entry *entry, bool *is_so) {
    static const char again[] = ".adapter_norm_before.", first[] = ".adapter_down.0.";
    char name[PARAM_NAME_BYTES];
    const char *at = strstr(entry->tensor->name, again);
    bool differs = true;
    int n = at ? snprintf(name, sizeof name, "%.*s%s%s", (int)(at - entry->tensor->name), entry->tensor->name, first,
                          at + strlen(again))
               : 0;
    const struct tensor_entry *other =
        n > 0 && (size_t)n < sizeof name ? tensors_find(tensors, NULL, "", name, false) : NULL;
    int status = other ? compare(entry, other, &differs) : STATUS_OK;
    *is_so = !differs;
    return status;
}

/* Refuses a tensor that is a model's parameter but has no row. */
static int check_claimed(const struct param_table *table, const struct ckpt_array *arrays, int array_count,
                         const struct tensor_entry *entry) {
    const char *name = entry->tensor->name;
    for (int a = 0; a < array_count && table->files && table->files->claims; a++) {
        char reason[PARAM_REASON_BYTES], word[SHOWN_BYTES];
        size_t length = strlen(arrays[a].prefix);
        if (!strncmp(name, arrays[a].prefix, length) && table->files->claims(table, name + length, reason))
            return status_fail(STATUS_INVALID, "%s: tensor '%s' %s: one of the two is wrong", entry->file->path,
                               shown(name, word), reason);
    }
    return STATUS_OK;
}

/* True for what the optimizer of a checkpoint keeps of one of these tensors. */
static bool is_of_optimizer(const struct ckpt_tensors *tensors, const char *name) {
    size_t length = ckpt_optimizer_prefix(name);
    return length && !tensors->is_strict && ckpt_has_tensor(tensors, name + length);
}

/* Reports tensors without a row: an error for a model's parameter or in an adapter, else one warning. */
static int tell_unknown(const struct ckpt_tensors *tensors, const struct param_table *table,
                        const struct ckpt_array *arrays, int array_count, const bool *is_used) {
    bool is_tied = table_is_tied(table);
    int status = STATUS_OK;
    char first[SHOWN_BYTES] = "", word[SHOWN_BYTES];
    struct problems unknown = {0};
    for (size_t i = 0; i < tensors->count && !status; i++) {
        const char *name = tensors->entries[i].tensor->name;
        bool is_known = is_used[i] || is_silent(table->files, name, is_tied) || is_of_optimizer(tensors, name);
        for (int a = 0; a < array_count; a++)
            is_known |= arrays[a].is_allowed && arrays[a].is_allowed(arrays[a].names, name);
        if (!is_known)
            status = is_repeated(tensors, &tensors->entries[i], &is_known);
        if (!is_known && !status)
            status = check_claimed(table, arrays, array_count, &tensors->entries[i]);
        if (!is_known && !unknown.count)
            snprintf(first, sizeof first, "%s", shown(name, word));
        if (!is_known)
            problem_add(&unknown, shown(name, word));
    }
    problems_end(&unknown);
    if (!status && unknown.count && tensors->is_strict)
        status = status_fail(STATUS_INVALID, "%s: unknown tensor%s: %s", tensors->directory,
                             unknown.count == 1 ? "" : "s", strbuf_text(&unknown.text));
    else if (!status && unknown.count == 1)
        log_warning("%s: tensor '%s' is not a parameter of a model and is ignored", tensors->directory, first);
    else if (!status && unknown.count)
        log_warning("%s: %d tensors are not parameters of a model and are ignored, the first is '%s'",
                    tensors->directory, unknown.count, first);
    strbuf_free(&unknown.text);
    return status;
}

/* Sets *is_so when a tensor's values are all zero. */
static int is_all_zero(const struct tensor_entry *entry, bool *is_so) {
    float values[COMPARE_ELEMENTS];
    *is_so = true;
    for (int64_t at = 0; at < entry->tensor->elements && *is_so; at += COMPARE_ELEMENTS) {
        int64_t left = entry->tensor->elements - at, n = left < COMPARE_ELEMENTS ? left : COMPARE_ELEMENTS;
        TRY(safetensors_read(entry->file, entry->tensor, at, n, DTYPE_F32, values));
        for (int64_t i = 0; i < n; i++)
            *is_so &= values[i] == 0;
    }
    return STATUS_OK;
}

/* Checks that weights that the model lacks are zero in its files. */
static int check_zeros(const struct ckpt_tensors *tensors, const struct param_table *table,
                       const struct ckpt_array *array) {
    for (int i = 0; i < table->count && !*array->prefix; i++)
        for (int s = 0; s < table->rows[i].slice_count && table->rows[i].is_zero; s++) {
            char word[SHOWN_BYTES];
            bool is_zero;
            const struct tensor_entry *entry = find_entry(tensors, table, array, table->rows[i].slices[s].name, false);
            int status = entry ? is_all_zero(entry, &is_zero) : STATUS_OK;
            if (entry && !status && !is_zero)
                status = status_fail(STATUS_INVALID,
                                     "%s: tensor '%s' is not zero, but the configuration denies this bias: one of the "
                                     "two is wrong",
                                     entry->file->path, shown(entry->tensor->name, word));
            TRY(status);
        }
    return STATUS_OK;
}

/* Refuses a tied model's head, which has no row, when its values differ from the embedding's. */
static int check_head(const struct ckpt_tensors *tensors, const struct param_files *files) {
    const struct tensor_entry *head = tensors_find(tensors, files, "", files->head, false);
    const struct tensor_entry *embedding = tensors_find(tensors, files, "", files->embedding, false);
    bool differs = false;
    int status = head && embedding ? compare(head, embedding, &differs) : STATUS_OK;
    if (!status && differs)
        status = status_fail(STATUS_INVALID,
                             "%s: tensor '%s' differs from '%s', but config.json ties them (\"tie_word_embeddings\"): "
                             "one of the two is wrong",
                             head->file->path, head->tensor->name, embedding->tensor->name);
    return status;
}

int ckpt_check(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *arrays,
               int array_count) {
    struct problems missing = {0}, wrong = {0};
    bool *is_used = calloc(tensors->count + 1, sizeof *is_used);
    int status = status_allocated(is_used);
    for (int a = 0; a < array_count && !status; a++)
        status = check_array(tensors, table, &arrays[a], is_used, &missing, &wrong);
    problems_end(&missing);
    problems_end(&wrong);
    if (!status && (missing.count || wrong.count))
        status =
            status_fail(STATUS_INVALID, "%s: %s%s%s%s", tensors->directory, missing.count ? "missing tensors: " : "",
                        strbuf_text(&missing.text), missing.count && wrong.count ? "; " : "", strbuf_text(&wrong.text));
    THEN_IF(status, table_is_tied(table), check_head(tensors, table->files));
    for (int a = 0; a < array_count && !status; a++)
        status = check_zeros(tensors, table, &arrays[a]);
    THEN(status, tell_unknown(tensors, table, arrays, array_count, is_used));
    strbuf_free(&missing.text);
    strbuf_free(&wrong.text);
    free(is_used);
    return status;
}

/* Reads blocks of one array from these tensors. */
struct reading {
    const struct ckpt_tensors *tensors;
    const struct param_table *table;
    const struct ckpt_array *array;
    bool is_tied;
    char *scratch; /* as large as a block */
};

/* Reads a rectangle of one slice of a weight in few bits, which has [out, in] in all files. */
static int read_encoded_part(const struct reading *reading, const struct codec_linear *linear,
                             const struct param_slice *slice, const struct ckpt_block *part, char *out) {
    const struct codec_rect rect = {slice->file_start + part->row - slice->row, part->rows, part->column,
                                    part->columns};
    bool is_turned = slice->is_transposed && reading->array->is_as_in_files;
    enum dtype dtype = reading->array->dtype;
    TRY(codec_read_values(linear, &rect, dtype, is_turned ? reading->scratch : out));
    if (is_turned)
        transpose(reading->scratch, part->rows, part->columns, dtype_bytes(dtype), out, part->rows);
    return STATUS_OK;
}

/* Reads the rectangle `part` of one slice into `out`, dense. */
static int read_part(const struct reading *reading, const struct tensor_entry *entry, const struct param_slice *slice,
                     const struct ckpt_block *part, char *out) {
    const struct ckpt_array *array = reading->array;
    int (*read)(const struct safetensors *, const struct safetensor *, int64_t, int64_t, enum dtype, void *) =
        array->must_be_finite ? safetensors_read_finite : safetensors_read;
    int64_t width = (int64_t)dtype_bytes(array->dtype);
    int64_t file_row = slice->file_start + part->row - slice->row;
    /* runs in the file: rows of the tensor, or of its transposition */
    bool is_by_columns = is_transposed(entry->file, slice);
    int64_t stride = is_by_columns ? slice->file_rows : reading->table->rows[part->param].shape[1];
    int64_t runs = is_by_columns ? part->columns : part->rows, count = runs;
    int64_t run = is_by_columns ? part->rows : part->columns, length = run;
    int64_t at = is_by_columns ? part->column * stride + file_row : file_row * stride + part->column;
    bool is_turned = is_by_columns != (slice->is_transposed && array->is_as_in_files);
    char *to = is_turned ? reading->scratch : out;
    if (run == stride) { /* one run after the other */
        run *= runs;
        runs = 1;
    }
    for (int64_t i = 0; i < runs; i++) {
        TRY(read(entry->file, entry->tensor, at + i * stride, run, array->dtype, to + i * run * width));
    }
    if (is_turned)
        transpose(reading->scratch, count, length, (size_t)width, out, count);
    return STATUS_OK;
}

static int read_block(const struct reading *reading, const struct ckpt_block *block, char *out) {
    const struct ckpt_array *array = reading->array;
    const struct param *param = &reading->table->rows[block->param];
    for (int s = 0; s < param->slice_count; s++) {
        const struct param_slice *slice = &param->slices[s];
        struct ckpt_block part;
        if (!slice_cut(slice, block, &part))
            continue;
        const struct tensor_entry *entry =
            find_entry(reading->tensors, reading->table, array, slice->name, reading->is_tied);
        if (!entry)
            return status_fail(STATUS_INVALID, "%s: missing tensor %s%s", reading->tensors->directory, array->prefix,
                               slice->name);
        const struct codec_linear *linear = codec_of(reading->tensors, entry);
        int64_t before = (part.row - block->row) * block->columns * (int64_t)dtype_bytes(array->dtype);
        TRY(linear ? read_encoded_part(reading, linear, slice, &part, out + before)
                   : read_part(reading, entry, slice, &part, out + before));
    }
    return STATUS_OK;
}

int ckpt_read_block(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *array,
                    const struct ckpt_block *block, void *values) {
    char *scratch = malloc((size_t)(block->rows * block->columns) * dtype_bytes(array->dtype) + 1);
    TRY(status_allocated(scratch));
    const struct reading reading = {tensors, table, array, table_is_tied(table), scratch};
    int status = read_block(&reading, block, values);
    free(scratch);
    return status;
}

/* Reads a block into the next half, and gives it to the array. */
static int deliver_block(const struct reading *reading, const struct ckpt_block *block, struct halves *halves) {
    const struct ckpt_array *array = reading->array;
    char *half;
    int status = halves_next(halves, &half);
    THEN(status, read_block(reading, block, half));
    THEN(status, array->put(array->context, block, half));
    return status ? status : halves_queued(halves);
}

static int read_param(const struct ckpt_tensors *tensors, const struct param_table *table,
                      const struct ckpt_array *array, int index, struct halves *halves, char *scratch) {
    const struct param *param = &table->rows[index];
    const struct reading reading = {tensors, table, array, table_is_tied(table), scratch};
    int status = STATUS_OK;
    for (int s = 0; s < param->slice_count; s++) {
        struct ckpt_block rects[CKPT_MAX_RECTS];
        int count = slice_rects(array, param, &param->slices[s], index, rects);
        for (int i = 0; i < count; i++) {
            struct ckpt_block block = {0};
            while (!status && slice_next_block(&param->slices[s], &rects[i], &block)) {
                char *place = array->find_place ? array->find_place(array->context, &block) : NULL;
                status = place ? read_block(&reading, &block, place) : deliver_block(&reading, &block, halves);
            }
        }
    }
    return status;
}

/* Room for blocks of parameters on their way: as they are delivered, and as a transposed tensor has them. */
struct blocks {
    struct halves halves;
    char *scratch;
};

/* Pinned memory is dear: a small parameter gets little. */
static int open_blocks(struct blocks *blocks, const struct ckpt_array *array, int64_t largest_param) {
    size_t bytes = (size_t)(largest_param < CKPT_BLOCK_ELEMENTS ? largest_param : CKPT_BLOCK_ELEMENTS) * sizeof(float);
    blocks->scratch = malloc(bytes);
    int status = halves_open(&blocks->halves, array->stream, bytes);
    return status || blocks->scratch ? status : status_no_memory();
}

static int close_blocks(struct blocks *blocks, int status) {
    free(blocks->scratch);
    return halves_close(&blocks->halves, status);
}

int ckpt_read_param(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *array,
                    int param) {
    struct blocks blocks;
    int status = open_blocks(&blocks, array, param_elements(&table->rows[param]));
    THEN(status, read_param(tensors, table, array, param, &blocks.halves, blocks.scratch));
    return close_blocks(&blocks, status);
}

int ckpt_read(const struct ckpt_tensors *tensors, const struct param_table *table, const struct ckpt_array *arrays,
              int array_count) {
    int status = ckpt_check(tensors, table, arrays, array_count);
    for (int a = 0; a < array_count && !status; a++) {
        struct blocks blocks;
        int64_t largest = 1;
        for (int i = 0; i < table->count; i++)
            if (is_wanted(&arrays[a], &table->rows[i]) && param_elements(&table->rows[i]) > largest)
                largest = param_elements(&table->rows[i]);
        status = open_blocks(&blocks, &arrays[a], largest);
        for (int i = 0; i < table->count && !status; i++)
            if (is_wanted(&arrays[a], &table->rows[i])) {
                status = arrays[a].heeds_stop ? stop_check("while the model was loaded") : STATUS_OK;
                THEN(status, read_param(tensors, table, &arrays[a], i, &blocks.halves, blocks.scratch));
            }
        status = close_blocks(&blocks, status);
    }
    return status;
}

int ckpt_check_finite(const struct ckpt_tensors *tensors) {
    size_t bytes = CKPT_BLOCK_ELEMENTS * sizeof(float);
    float *values = malloc(bytes);
    int status = status_allocated(values);
    for (size_t i = 0; i < tensors->count && !status; i++) {
        const struct tensor_entry *entry = &tensors->entries[i];
        int64_t elements = is_readable(entry->tensor->dtype) ? entry->tensor->elements : 0;
        for (int64_t at = 0; at < elements && !status; at += CKPT_BLOCK_ELEMENTS) {
            int64_t left = elements - at, count = left < CKPT_BLOCK_ELEMENTS ? left : CKPT_BLOCK_ELEMENTS;
            status = safetensors_read_finite(entry->file, entry->tensor, at, count, DTYPE_F32, values);
        }
    }
    free(values);
    return status;
}
