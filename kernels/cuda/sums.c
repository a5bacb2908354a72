/* Launches of sums of squares, weighted sums and sums of columns, and of the clip factor. The order of additions
 * depends only on sizes. */
#include "cuda/sums.h"
#include "cuda/kernels.h"
#include "cuda/partial_sums.h"

enum { THREADS = 256 };

static int64_t squares_blocks(int64_t count) {
    return (count + SQUARES_BLOCK - 1) / SQUARES_BLOCK;
}

size_t cuda_sum_of_squares_workspace(struct device *device, const struct sum_of_squares *a) {
    return (size_t)squares_blocks(a->count) * sizeof(double);
}

int cuda_sum_of_squares(const struct exec *exec, const struct sum_of_squares *a) {
    int64_t blocks = squares_blocks(a->count);
    const struct block_squares squares = {a->count, a->x, exec->workspace};
    const struct sum_to_one join = {
        .count = blocks, .partial = exec->workspace, .accumulate = a->accumulate, .sum = a->sum};
    TRY(cuda_launch_blocks(exec, CUDA_sum_of_squares, DTYPE_F32, blocks, THREADS, &squares));
    return cuda_launch_blocks(exec, CUDA_sum_to_one, DTYPE_F32, 1, THREADS, &join);
}

int cuda_weighted_sum(const struct exec *exec, const struct weighted_sum *a) {
    const struct sum_to_one call = {
        .count = a->count, .x = a->x, .weight = a->weight, .accumulate = a->accumulate, .sum = a->sum};
    return cuda_launch_blocks(exec, CUDA_sum_to_one, DTYPE_F32, 1, THREADS, &call);
}

int cuda_clip_factor(const struct exec *exec, const struct clip_factor *a) {
    return cuda_launch_blocks(exec, CUDA_clip_factor, DTYPE_F32, 1, 32, a);
}

size_t cuda_column_sum_workspace(struct device *device, const struct column_sum *a) {
    return (size_t)(partial_blocks(a->rows) * a->cols) * sizeof(float);
}

int cuda_column_sum(const struct exec *exec, const struct column_sum *a) {
    int64_t rows = partial_rows(a->rows) > COLUMN_ROWS ? partial_rows(a->rows) : COLUMN_ROWS;
    int64_t parts = (a->rows + rows - 1) / rows, cols = a->cols, access = a->type == DTYPE_F32 ? 4 : 8;
    bool has_accesses = (cols | a->stride) % access == 0 && (uintptr_t)a->x % 16 == 0;
    int64_t tile = has_accesses ? 32 * access : 32;
    const struct column_sum_call call = {.sum = *a,
                                         .block_rows = rows,
                                         .tiles = (cols + tile - 1) / tile,
                                         .has_accesses = has_accesses,
                                         .partial = exec->workspace};
    const struct partial_sums sums = {
        .blocks = parts, .cols = cols, .stride = cols, .partial = exec->workspace, .out = a->out};
    TRY(cuda_launch_blocks(exec, CUDA_column_sum, a->type, parts * call.tiles, COLUMN_WARPS * 32, &call));
    return parts ? cuda_partial_sums(exec, &sums) : STATUS_OK;
}
