/* The values of arrays into planned files: one rank creates them, then each writes the rectangles that it owns. */
#include "ckpt-internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

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

static int write_piece(const struct write_request *request, const struct write_piece *piece,
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

/* A writer for the tensors of a shard, and the path of its file. */
static int plan_shard(struct write_plan *plan, int shard, const char *directory, char path[PATH_MAX],
                      struct safetensors_writer **writer) {
    char name[NAME_MAX + 1];
    *writer = NULL;
    int status = write_plan_shard_name(plan, shard, name, sizeof name);
    if (!status)
        status = file_join(path, PATH_MAX, directory, name);
    if (!status)
        status = safetensors_writer_new(writer);
    for (int i = 0; i < plan->tensor_count && !status; i++) {
        struct file_tensor *tensor = &plan->tensors[i];
        if (tensor->shard != shard)
            continue;
        tensor->number = safetensors_writer_add(*writer, tensor->name, tensor->dtype, tensor->dims, tensor->shape);
        status = tensor->number < 0 ? tensor->number : STATUS_OK;
    }
    return status;
}

int write_create(struct write_plan *plan, const char *directory) {
    int status = STATUS_OK;
    for (int shard = 0; shard < plan->shard_count && !status; shard++) {
        struct safetensors_writer *writer;
        char path[PATH_MAX];
        status = plan_shard(plan, shard, directory, path, &writer);
        if (!status)
            status = safetensors_writer_create(writer, path);
        if (!status)
            status = safetensors_writer_leave(writer);
        safetensors_writer_free(writer);
    }
    return status;
}

static int write_shard(struct write_plan *plan, int shard, const char *directory, char *values) {
    struct safetensors_writer *writer;
    char path[PATH_MAX];
    int status = plan_shard(plan, shard, directory, path, &writer);
    if (!status)
        status = safetensors_writer_open(writer, path);
    for (int i = 0; i < plan->piece_count && !status; i++) {
        const struct file_tensor *tensor = &plan->tensors[plan->pieces[i].tensor];
        if (tensor->shard == shard)
            status = write_piece(&plan->request, &plan->pieces[i], writer, tensor->number, values,
                                 values + CKPT_BLOCK_ELEMENTS * sizeof(float));
    }
    if (!status)
        status = safetensors_writer_finish(writer);
    safetensors_writer_free(writer);
    return status;
}

int write_values(struct write_plan *plan, const char *directory, bool is_creator) {
    char *values = malloc(2 * CKPT_BLOCK_ELEMENTS * sizeof(float));
    int status = values ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int shard = 0; shard < plan->shard_count && !status; shard++) {
        bool is_mine = is_creator; /* its headers go to the disk too */
        for (int i = 0; i < plan->tensor_count && !is_mine; i++)
            is_mine = plan->tensors[i].shard == shard && plan->tensors[i].owned > 0;
        if (is_mine)
            status = write_shard(plan, shard, directory, values);
    }
    free(values);
    return status;
}

/* The index as transformers writes it: sorted keys, two spaces, a line feed at the end. */
int write_index(const struct write_plan *plan, const char *directory) {
    char name[NAME_MAX + 1], path[PATH_MAX];
    if (plan->shard_count == 1)
        return STATUS_OK;
    json_t *map = json_object();
    int status = map ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    for (int i = 0; i < plan->tensor_count && !status; i++) {
        status = write_plan_shard_name(plan, plan->tensors[i].shard, name, sizeof name);
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
        snprintf(name, sizeof name, "%s.safetensors.index.json", plan->request.name);
        status = strbuf_status(&lines);
    }
    if (!status)
        status = file_join(path, sizeof path, directory, name);
    if (!status)
        status = file_write_atomic(path, strbuf_text(&lines), lines.length);
    strbuf_free(&lines);
    free(text);
    json_decref(index);
    json_decref(map);
    return status;
}
