/* From the parameters of a table to the tensors of files: the plan of tensors, their shards, then values piece by
 * piece. */
#include "ckpt-internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct file_tensor {
    char name[TENSOR_NAME_BYTES];
    enum dtype dtype;
    int dims, shard, number;       /* number: in its shard's writer */
    int64_t shape[2], rows, bytes; /* rows: along the axis of the slices */
};

/* One slice of one parameter of one array. */
struct piece {
    int array, param, slice, tensor;
    int64_t start;
};

struct plan {
    struct file_tensor *tensors; /* in the table's order, which is transformers' order of modules */
    struct piece *pieces;        /* sorted by tensor, then place */
    int tensor_count, piece_count, shard_count;
    int64_t total_bytes, total_elements;
};

static int plan_fail(const struct file_tensor *tensor, const char *problem) {
    return status_fail(STATUS_INVALID, "cannot write tensor %s: %s", tensor->name, problem);
}

static int plan_tensor(struct plan *plan, json_t *numbers, const struct ckpt_array *array, const struct param *param,
                       const struct param_slice *slice, int *number) {
    struct file_tensor tensor = {.dtype = array->dtype, .rows = slice->file_rows};
    tensor.dims = slice_file_shape(param, slice, tensor.shape);
    tensor_file_name(array->prefix, slice->name, tensor.name);
    json_t *known = json_object_get(numbers, tensor.name);
    if (known) {
        *number = (int)json_integer_value(known);
        const struct file_tensor *first = &plan->tensors[*number];
        bool is_same = first->dims == tensor.dims && !memcmp(first->shape, tensor.shape, sizeof tensor.shape) &&
                       first->dtype == tensor.dtype;
        return is_same ? STATUS_OK : plan_fail(&tensor, "its slices disagree about its shape");
    }
    int64_t elements;
    if (__builtin_mul_overflow(param->shape[1], slice->file_rows, &elements) ||
        __builtin_mul_overflow(elements, (int64_t)dtype_bytes(tensor.dtype), &tensor.bytes) ||
        __builtin_add_overflow(plan->total_bytes, tensor.bytes, &plan->total_bytes))
        return plan_fail(&tensor, "more bytes than fit 64 bits");
    plan->total_elements += elements;
    *number = plan->tensor_count++;
    plan->tensors[*number] = tensor;
    return json_object_set_new(numbers, tensor.name, json_integer(*number))
               ? status_fail(STATUS_MEMORY, "out of memory")
               : STATUS_OK;
}

static int compare_pieces(const void *a, const void *b) {
    const struct piece *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor - y->tensor;
    return (x->start > y->start) - (x->start < y->start);
}

static int plan_array(struct plan *plan, json_t *numbers, const struct write_request *request, int a) {
    const struct ckpt_array *array = &request->arrays[a];
    for (int i = 0; i < request->table->count; i++) {
        const struct param *param = &request->table->rows[i];
        int status = slices_check(param);
        for (int s = 0; s < param->slice_count && !status && (param->is_trainable || !array->only_trainable); s++) {
            const struct param_slice *slice = &param->slices[s];
            struct piece *piece = &plan->pieces[plan->piece_count++];
            *piece = (struct piece){.array = a, .param = i, .slice = s, .start = slice->file_start};
            status = plan_tensor(plan, numbers, array, param, slice, &piece->tensor);
        }
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* The pieces of a tensor must lie side by side, from its first row to its last. */
static int check_pieces(const struct plan *plan, const struct write_request *request) {
    int64_t end = 0;
    for (int i = 0; i < plan->piece_count; i++) {
        const struct piece *piece = &plan->pieces[i];
        const struct file_tensor *tensor = &plan->tensors[piece->tensor];
        bool is_last = i + 1 == plan->piece_count || plan->pieces[i + 1].tensor != piece->tensor;
        if (piece->start != end)
            return plan_fail(tensor, "the table leaves holes in it or writes parts of it twice");
        end += request->table->rows[piece->param].slices[piece->slice].rows;
        if (is_last && end != tensor->rows)
            return plan_fail(tensor, "the table leaves its last rows out");
        if (is_last)
            end = 0;
    }
    return STATUS_OK;
}

/* huggingface_hub's split: in order, a tensor above the limit alone, a new shard where the next one does not fit. */
static void assign_shards(struct plan *plan, int64_t limit) {
    int64_t filled = 0;
    int waiting = 0; /* tensors [first, i) that belong to the shard being filled have shard -1 */
    for (int i = 0; i <= plan->tensor_count; i++) {
        int64_t bytes = i < plan->tensor_count ? plan->tensors[i].bytes : 0;
        bool is_end = i == plan->tensor_count;
        if (!is_end && limit > 0 && bytes > limit) {
            plan->tensors[i].shard = plan->shard_count++;
            continue;
        }
        if (waiting > 0 && (is_end || (limit > 0 && filled + bytes > limit))) {
            for (int t = 0; t < i; t++)
                if (plan->tensors[t].shard < 0)
                    plan->tensors[t].shard = plan->shard_count;
            plan->shard_count++;
            filled = 0;
            waiting = 0;
        }
        if (!is_end) {
            plan->tensors[i].shard = -1;
            filled += bytes;
            waiting++;
        }
    }
    if (plan->shard_count == 0)
        plan->shard_count = 1;
}

static int plan_make(struct plan *plan, const struct write_request *request) {
    size_t most = 1;
    for (int i = 0; i < request->table->count; i++)
        most += (size_t)request->table->rows[i].slice_count;
    most *= (size_t)request->array_count + 1;
    json_t *numbers = json_object();
    plan->tensors = calloc(most, sizeof *plan->tensors);
    plan->pieces = calloc(most, sizeof *plan->pieces);
    int status = numbers && plan->tensors && plan->pieces ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int a = 0; a < request->array_count && !status; a++)
        status = plan_array(plan, numbers, request, a);
    json_decref(numbers);
    if (status)
        return status;
    if (plan->piece_count)
        qsort(plan->pieces, (size_t)plan->piece_count, sizeof *plan->pieces, compare_pieces);
    status = check_pieces(plan, request);
    if (!status)
        assign_shards(plan, request->max_shard_bytes);
    return status;
}

static int shard_name(const struct plan *plan, const char *name, int shard, char *out, size_t bytes) {
    int n = plan->shard_count == 1
                ? snprintf(out, bytes, "%s.safetensors", name)
                : snprintf(out, bytes, "%s-%05d-of-%05d.safetensors", name, shard + 1, plan->shard_count);
    return n > 0 && (size_t)n < bytes ? STATUS_OK : status_fail(STATUS_INVALID, "name too long: %s", name);
}

/* A dense block into its place in the file; `scratch` has its size too. */
static int write_block(const struct safetensors_writer *writer, int number, const struct param *param,
                       const struct param_slice *slice, const struct ckpt_block *block, size_t width,
                       const char *values, char *scratch) {
    int64_t file_row = slice->file_start + block->row - slice->row;
    int64_t stride = slice->is_transposed ? slice->file_rows : param->shape[1];
    int64_t runs = slice->is_transposed ? block->columns : block->rows;
    int64_t run = slice->is_transposed ? block->rows : block->columns;
    int64_t at = slice->is_transposed ? block->column * stride + file_row : file_row * stride + block->column;
    if (slice->is_transposed) {
        transpose(values, block->rows, block->columns, width, scratch);
        values = scratch;
    }
    if (run == stride) {
        run *= runs;
        runs = 1;
    }
    int status = STATUS_OK;
    for (int64_t i = 0; i < runs && !status; i++)
        status = safetensors_writer_write(writer, number, at + i * stride, run, values + i * run * (int64_t)width);
    return status;
}

static int write_piece(const struct write_request *request, const struct piece *piece,
                       const struct safetensors_writer *writer, int number, char *values, char *scratch) {
    const struct ckpt_array *array = &request->arrays[piece->array];
    const struct param *param = &request->table->rows[piece->param];
    const struct param_slice *slice = &param->slices[piece->slice];
    struct ckpt_block rects[CKPT_MAX_RECTS];
    int count = slice_rects(array, param, slice, piece->param, rects), status = STATUS_OK;
    for (int i = 0; i < count; i++) {
        struct ckpt_block block = {0};
        while (!status && slice_next_block(slice, &rects[i], &block)) {
            status = array->get(array->context, &block, values);
            if (!status)
                status = write_block(writer, number, param, slice, &block, dtype_bytes(array->dtype), values, scratch);
        }
    }
    return status;
}

static int write_shard(struct plan *plan, const struct write_request *request, int shard, char *values) {
    char name[NAME_MAX + 1], path[PATH_MAX];
    struct safetensors_writer *writer = NULL;
    int status = shard_name(plan, request->name, shard, name, sizeof name);
    if (!status)
        status = file_join(path, sizeof path, request->directory, name);
    if (!status)
        status = safetensors_writer_new(&writer);
    for (int i = 0; i < plan->tensor_count && !status; i++) {
        struct file_tensor *tensor = &plan->tensors[i];
        if (tensor->shard != shard)
            continue;
        tensor->number = safetensors_writer_add(writer, tensor->name, tensor->dtype, tensor->dims, tensor->shape);
        status = tensor->number < 0 ? tensor->number : STATUS_OK;
    }
    if (!status)
        status = safetensors_writer_create(writer, path);
    for (int i = 0; i < plan->piece_count && !status; i++) {
        const struct file_tensor *tensor = &plan->tensors[plan->pieces[i].tensor];
        if (tensor->shard == shard)
            status = write_piece(request, &plan->pieces[i], writer, tensor->number, values,
                                 values + CKPT_BLOCK_ELEMENTS * sizeof(float));
    }
    if (!status)
        status = safetensors_writer_finish(writer);
    safetensors_writer_free(writer);
    return status;
}

/* The index as transformers writes it: sorted keys, two spaces, a line feed at the end. */
static int write_index(const struct plan *plan, const struct write_request *request) {
    char name[NAME_MAX + 1], path[PATH_MAX];
    json_t *map = json_object();
    int status = map ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < plan->tensor_count && !status; i++) {
        status = shard_name(plan, request->name, plan->tensors[i].shard, name, sizeof name);
        if (!status && json_object_set_new(map, plan->tensors[i].name, json_string(name)))
            status = status_fail(STATUS_MEMORY, "out of memory");
    }
    json_t *index = json_pack("{s:{s:I, s:I}, s:O}", "metadata", "total_parameters", (json_int_t)plan->total_elements,
                              "total_size", (json_int_t)plan->total_bytes, "weight_map", map);
    char *text = index ? json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    if (!status && !text)
        status = status_fail(STATUS_MEMORY, "out of memory");
    struct strbuf lines = STRBUF_INIT;
    if (!status) {
        strbuf_format(&lines, "%s\n", text);
        snprintf(name, sizeof name, "%s.safetensors.index.json", request->name);
        status = strbuf_status(&lines);
    }
    if (!status)
        status = file_join(path, sizeof path, request->directory, name);
    if (!status)
        status = file_write_atomic(path, strbuf_text(&lines), lines.length);
    strbuf_free(&lines);
    free(text);
    json_decref(index);
    json_decref(map);
    return status;
}

int write_tensors(const struct write_request *request) {
    struct plan plan = {0};
    char *values = malloc(2 * CKPT_BLOCK_ELEMENTS * sizeof(float));
    int status = values ? plan_make(&plan, request) : status_fail(STATUS_MEMORY, "out of memory");
    for (int shard = 0; shard < plan.shard_count && !status; shard++)
        status = write_shard(&plan, request, shard, values);
    if (!status && plan.shard_count > 1)
        status = write_index(&plan, request);
    free(values);
    free(plan.tensors);
    free(plan.pieces);
    return status;
}
