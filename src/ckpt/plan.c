/* Assigns the tensors of a table's arrays to files, and the slices of its parameters to tensors. The plan follows only
 * from the table and the arrays: every rank makes the same one. */
#include "ckpt-internal.h"

static int plan_fail(const struct file_tensor *tensor, const char *problem) {
    return status_fail(STATUS_INVALID, "cannot write tensor %s: %s", tensor->name, problem);
}

static int plan_tensor(struct write_plan *plan, json_t *numbers, const struct ckpt_array *array,
                       const struct param *param, const struct param_slice *slice, int *number) {
    struct file_tensor tensor = {.dtype = array->dtype, .rows = slice->file_rows, .columns = param->shape[1]};
    tensor.dims = slice_file_shape(param, slice, slice->is_transposed, tensor.shape);
    tensor_file_name(plan->request.table->files, array->prefix, slice->name, tensor.name);
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
    return json_object_set_new(numbers, tensor.name, json_integer(*number)) ? status_no_memory() : STATUS_OK;
}

static int compare_pieces(const void *a, const void *b) {
    const struct write_piece *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor - y->tensor;
    return (x->start > y->start) - (x->start < y->start);
}

static int plan_array(struct write_plan *plan, json_t *numbers, int a) {
    const struct write_request *request = &plan->request;
    const struct ckpt_array *array = &request->arrays[a];
    for (int i = 0; i < request->table->count; i++) {
        const struct param *param = &request->table->rows[i];
        int status = slices_check(param);
        for (int s = 0; s < param->slice_count && !status && (param->is_trainable || !array->only_trainable); s++) {
            const struct param_slice *slice = &param->slices[s];
            struct write_piece *piece = &plan->pieces[plan->piece_count++];
            *piece = (struct write_piece){.array = a, .param = i, .slice = s, .start = slice->file_start};
            status = plan_tensor(plan, numbers, array, param, slice, &piece->tensor);
        }
        TRY(status);
    }
    return STATUS_OK;
}

/* Checks that the pieces of a tensor cover it without gaps, from its first row to its last. */
static int check_pieces(const struct write_plan *plan) {
    int64_t end = 0;
    for (int i = 0; i < plan->piece_count; i++) {
        const struct write_piece *piece = &plan->pieces[i];
        const struct file_tensor *tensor = &plan->tensors[piece->tensor];
        bool is_last = i + 1 == plan->piece_count || plan->pieces[i + 1].tensor != piece->tensor;
        if (piece->start != end)
            return plan_fail(tensor, "the table leaves holes in it or writes parts of it twice");
        end += plan->request.table->rows[piece->param].slices[piece->slice].rows;
        if (is_last && end != tensor->rows)
            return plan_fail(tensor, "the table leaves its last rows out");
        if (is_last)
            end = 0;
    }
    return STATUS_OK;
}

/* huggingface_hub's split: in order, a tensor above the limit by itself, a new shard where the next one does not fit.
 */
static void assign_shards(struct write_plan *plan, int64_t limit) {
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

static int plan_all(struct write_plan *plan, json_t *numbers) {
    for (int a = 0; a < plan->request.array_count; a++) {
        TRY(plan_array(plan, numbers, a));
    }
    if (plan->piece_count)
        qsort(plan->pieces, (size_t)plan->piece_count, sizeof *plan->pieces, compare_pieces);
    int status = check_pieces(plan);
    if (!status)
        assign_shards(plan, plan->request.max_shard_bytes);
    return status;
}

int write_plan_make(const struct write_request *request, struct write_plan *plan) {
    size_t most = 1;
    for (int i = 0; i < request->table->count; i++)
        most += (size_t)request->table->rows[i].slice_count;
    most *= (size_t)request->array_count + 1;
    *plan = (struct write_plan){.request = *request,
                                .tensors = calloc(most, sizeof *plan->tensors),
                                .pieces = calloc(most, sizeof *plan->pieces),
                                .shares = calloc(most, sizeof *plan->shares)};
    json_t *numbers = json_object();
    int status =
        numbers && plan->tensors && plan->pieces && plan->shares ? plan_all(plan, numbers) : status_no_memory();
    json_decref(numbers);
    return status;
}

void write_plan_free(struct write_plan *plan) {
    free(plan->tensors);
    free(plan->pieces);
    free(plan->shares);
    *plan = (struct write_plan){0};
}

int write_plan_shard_name(const struct write_plan *plan, int shard, char *out, size_t bytes) {
    const char *name = plan->request.name;
    int n = plan->shard_count == 1
                ? snprintf(out, bytes, "%s.safetensors", name)
                : snprintf(out, bytes, "%s-%05d-of-%05d.safetensors", name, shard + 1, plan->shard_count);
    return n > 0 && (size_t)n < bytes ? STATUS_OK : status_fail(STATUS_INVALID, "name too long: %s", name);
}
/* The index as transformers writes it: sorted keys, two spaces, a line feed at the end. */
int write_plan_index(const struct write_plan *plan, const char *directory) {
    char name[NAME_MAX + 1], path[PATH_MAX];
    if (plan->shard_count == 1)
        return STATUS_OK;
    json_begin();
    json_t *map = json_object();
    int status = STATUS_OK;
    for (int i = 0; i < plan->tensor_count && !status; i++) {
        status = write_plan_shard_name(plan, plan->tensors[i].shard, name, sizeof name);
        if (!status)
            json_object_set_new(map, plan->tensors[i].name, json_string(name));
    }
    json_t *index = json_pack("{s:{s:I, s:I}, s:O}", "metadata", "total_parameters", (json_int_t)plan->total_elements,
                              "total_size", (json_int_t)plan->total_bytes, "weight_map", map);
    char *text;
    int ended = json_end(index, JSON_INDENT(2) | JSON_SORT_KEYS, &text);
    THEN(status, ended);
    struct strbuf lines = STRBUF_INIT;
    if (!status) {
        strbuf_format(&lines, "%s\n", text);
        snprintf(name, sizeof name, "%s.safetensors.index.json", plan->request.name);
        status = strbuf_status(&lines);
    }
    THEN(status, file_join(path, sizeof path, directory, name));
    THEN(status, file_write_atomic(path, strbuf_text(&lines), lines.length));
    strbuf_free(&lines);
    free(text);
    json_decref(map);
    return status;
}
