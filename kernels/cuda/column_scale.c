/* Launches of columns scaled by a vector, and of the norms of rows from which DoRA computes its vector. */
#include "cuda/column_scale.h"
#include "cuda/kernels.h"
#include "cuda/partial_sums.h"

static int require_types(const char *op, const struct column_scale *a) {
    return a->scale_type == a->type || a->scale_type == DTYPE_F32
               ? STATUS_OK
               : status_fail(STATUS_UNSUPPORTED, "%s: a vector of %s for rows of %s", op, dtype_name(a->scale_type),
                             dtype_name(a->type));
}

int cuda_column_scale_forward(const struct exec *exec, const struct column_scale *a) {
    int status = require_types("column_scale_forward", a);
    return status ? status
                  : cuda_launch_rows(exec,
                                     &(const struct cuda_launch){
                                         .kernel = CUDA_column_scale_forward, .type = a->type, .arguments = a},
                                     a->rows, a->cols);
}

size_t cuda_column_scale_backward_workspace(struct device *device, const struct column_scale *a) {
    (void)device;
    return a->dscale ? (size_t)(partial_blocks(a->rows) * a->cols) * sizeof(float) : 0;
}

int cuda_column_scale_backward(const struct exec *exec, const struct column_scale *a) {
    const struct column_scale_backward k = {
        .call = *a, .block_rows = a->dscale ? partial_rows(a->rows) : 1, .partial = a->dscale ? exec->workspace : NULL};
    int64_t blocks = (a->rows + k.block_rows - 1) / k.block_rows;
    int status = require_types("column_scale_backward", a);
    if (!status)
        status = cuda_launch_rows(
            exec, &(const struct cuda_launch){.kernel = CUDA_column_scale_backward, .type = a->type, .arguments = &k},
            blocks, a->cols);
    if (status || !k.partial || !blocks)
        return status;
    return cuda_partial_sums(exec, &(const struct partial_sums){.blocks = blocks,
                                                                .cols = a->cols,
                                                                .stride = a->cols,
                                                                .partial = k.partial,
                                                                .out = a->dscale,
                                                                .factor = a->factor});
}

int cuda_row_squares(const struct exec *exec, const struct row_squares *a) {
    if (a->weight.scale)
        return status_fail(STATUS_UNSUPPORTED, "row_squares: a weight with scales");
    if (a->weight.form == MATRIX_PACKED)
        return status_fail(STATUS_UNSUPPORTED, "row_squares: a packed weight");
    return cuda_launch_rows(
        exec, &(const struct cuda_launch){.kernel = CUDA_row_squares, .type = a->weight.type, .arguments = a}, a->rows,
        a->weight.columns);
}

int cuda_magnitude_ratio(const struct exec *exec, const struct magnitude_ratio *a) {
    return cuda_launch_elements(
        exec, &(const struct cuda_launch){.kernel = CUDA_magnitude_ratio, .type = a->type, .arguments = a}, a->count);
}
