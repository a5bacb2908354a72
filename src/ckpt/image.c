/* A file of tensors in memory: the bytes that ckpt_write_model would write for one part. */
#include "ckpt-internal.h"
#include "safetensors.h"

struct image {
    struct write_plan plan;
    struct safetensors_header *header;
    char *data, *scratch;
    size_t header_bytes;
    int64_t bytes;
};

static int place(struct image *image, const char *name) {
    struct write_plan *plan = &image->plan;
    TRY(safetensors_header_new(&image->header));
    for (int i = 0; i < plan->tensor_count; i++) {
        const struct file_tensor *tensor = &plan->tensors[i];
        int added = safetensors_header_add(image->header, tensor->name, safetensors_type_name(tensor->dtype),
                                           tensor->dims, tensor->shape);
        if (added < 0)
            return added;
    }
    TRY(safetensors_header_place(image->header, name));
    for (int i = 0; i < plan->tensor_count; i++)
        plan->tensors[i].start = safetensors_header_start(image->header, i);
    return STATUS_OK;
}

/* Copies a block of a slice from memory to its place in its tensor. */
static int copy_block(struct image *image, const struct write_piece *piece, const struct ckpt_block *block) {
    const struct write_request *request = &image->plan.request;
    const struct ckpt_array *array = &request->arrays[piece->array];
    const struct param_slice *slice = &request->table->rows[piece->param].slices[piece->slice];
    const struct file_tensor *tensor = &image->plan.tensors[piece->tensor];
    size_t width = dtype_bytes(array->dtype), line = (size_t)block->columns * width;
    int64_t row = block->row - slice->row + slice->file_start, stride = tensor->dims == 2 ? tensor->shape[1] : 1;
    int status = array->queue ? array->queue(array->context, block,
                                             &(const struct ckpt_target){image->scratch, line, COPY_TO_HOST})
                              : array->get(array->context, block, image->scratch);
    THEN_IF(status, array->stream, stream_wait(array->stream));
    TRY(status);
    char *to = image->data + tensor->start;
    if (slice->is_transposed) {
        transpose(image->scratch, block->rows, block->columns, width,
                  to + (size_t)(block->column * stride + row) * width, stride);
        return STATUS_OK;
    }
    for (int64_t r = 0; r < block->rows; r++)
        memcpy(to + (size_t)((row + r) * stride + block->column) * width, image->scratch + (size_t)r * line, line);
    return STATUS_OK;
}

static int copy_piece(struct image *image, const struct write_piece *piece) {
    const struct write_request *request = &image->plan.request;
    const struct param *param = &request->table->rows[piece->param];
    struct ckpt_block rects[CKPT_MAX_RECTS];
    int count = slice_rects(&request->arrays[piece->array], param, &param->slices[piece->slice], piece->param, rects);
    for (int i = 0; i < count; i++)
        for (struct ckpt_block block = {0}; slice_next_block(&param->slices[piece->slice], &rects[i], &block);)
            TRY(copy_block(image, piece, &block));
    return STATUS_OK;
}

/* Every byte has one owner, and the others have zeros. */
static int fill(struct image *image, struct comm *world) {
    const char *header = safetensors_header_bytes(image->header, &image->header_bytes, &image->bytes);
    int64_t words = (image->bytes + 7) / 8;
    image->data = calloc((size_t)words, 8);
    image->scratch = malloc(CKPT_BLOCK_ELEMENTS * sizeof(float));
    int status = status_allocated(image->data && image->scratch);
    if (!status && together_is_first(world))
        memcpy(image->data, header, image->header_bytes);
    for (int i = 0; i < image->plan.piece_count && !status; i++)
        status = copy_piece(image, &image->plan.pieces[i]);
    TRY(together_agree(world, status));
    struct comm_data sum = {.send = image->data, .receive = image->data, .count = words, .dtype = DTYPE_I64};
    return world ? comm_all_reduce(world, &sum, COMM_SUM) : STATUS_OK;
}

int ckpt_write_image(const struct ckpt_image *of, char **bytes, size_t *length) {
    struct image image = {0};
    const struct write_request request = {
        .name = of->name, .table = of->table, .arrays = of->arrays, .array_count = of->array_count};
    int status = write_plan_make(&request, &image.plan);
    THEN(status, write_plan_check_owners(&image.plan, of->world));
    THEN(status, place(&image, of->name));
    THEN(status, fill(&image, of->world));
    *bytes = status ? NULL : image.data;
    *length = status ? 0 : (size_t)image.bytes;
    if (status)
        free(image.data);
    free(image.scratch);
    safetensors_header_free(image.header);
    write_plan_free(&image.plan);
    return status;
}
