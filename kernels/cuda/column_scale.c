/* Launches of columns scaled by a vector. */
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
    TRY(require_types("column_scale_forward", a));
    return cuda_launch_rows(exec, CUDA_column_scale_forward, a->type, a->rows, a->cols, a);
}

size_t cuda_column_scale_backward_workspace(struct device *device, const struct column_scale *a) {
    return a->dscale ? (size_t)(partial_blocks(a->rows) * a->cols) * sizeof(float) : 0;
}

int cuda_column_scale_backward(const struct exec *exec, const struct column_scale *a) {
    const struct column_scale_backward k = {
        .call = *a, .block_rows = a->dscale ? partial_rows(a->rows) : 1, .partial = a->dscale ? exec->workspace : NULL};
    int64_t blocks = (a->rows + k.block_rows - 1) / k.block_rows;
    TRY(require_types("column_scale_backward", a));
    TRY(cuda_launch_rows(exec, CUDA_column_scale_backward, a->type, blocks, a->cols, &k));
    if (!k.partial || !blocks)
        return STATUS_OK;
    return cuda_partial_sums(exec, &(const struct partial_sums){.blocks = blocks,
                                                                .cols = a->cols,
                                                                .stride = a->cols,
                                                                .partial = k.partial,
                                                                .out = a->dscale,
                                                                .factor = a->factor});
}
