/* Launches of sums of squares, weighted sums and sums of columns, and of the clip factor. The order of additions
 * depends only on sizes. */
#include "cuda/sums.h"
#include "cuda/kernels.h"
#include "cuda/partial_sums.h"

enum { THREADS = 256 };

static int64_t squares_blocks(int64_t count) {
    return (count + SQUARES_BLOCK - 1) / SQUARES_BLOCK;
}

static int launch(const struct exec *exec, enum cuda_kernel kernel, int64_t blocks, int threads,
                  const void *arguments) {
    return cuda_launch(
        exec, &(const struct cuda_launch){
                  .kernel = kernel, .type = DTYPE_F32, .blocks = blocks, .threads = threads, .arguments = arguments});
}

size_t cuda_sum_of_squares_workspace(struct device *device, const struct sum_of_squares *a) {
    (void)device;
    return (size_t)squares_blocks(a->count) * sizeof(double);
}

int cuda_sum_of_squares(const struct exec *exec, const struct sum_of_squares *a) {
    int64_t blocks = squares_blocks(a->count);
    const struct block_squares squares = {a->count, a->x, exec->workspace};
    const struct sum_to_one join = {
        .count = blocks, .partial = exec->workspace, .accumulate = a->accumulate, .sum = a->sum};
    TRY(launch(exec, CUDA_sum_of_squares, blocks, THREADS, &squares));
    return launch(exec, CUDA_sum_to_one, 1, THREADS, &join);
}

int cuda_weighted_sum(const struct exec *exec, const struct weighted_sum *a) {
    const struct sum_to_one call = {
        .count = a->count, .x = a->x, .weight = a->weight, .accumulate = a->accumulate, .sum = a->sum};
    return launch(exec, CUDA_sum_to_one, 1, THREADS, &call);
}

int cuda_clip_factor(const struct exec *exec, const struct clip_factor *a) {
    return launch(exec, CUDA_clip_factor, 1, 32, a);
}

size_t cuda_column_sum_workspace(struct device *device, const struct column_sum *a) {
    (void)device;
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
    int status = cuda_launch(exec, &(const struct cuda_launch){.kernel = CUDA_column_sum,
                                                               .type = a->type,
                                                               .blocks = parts * call.tiles,
                                                               .threads = COLUMN_WARPS * 32,
                                                               .arguments = &call});
    return status || !parts
               ? status
               : cuda_partial_sums(
                     exec,
                     &(const struct partial_sums){
                         .blocks = parts, .cols = cols, .stride = cols, .partial = exec->workspace, .out = a->out});
}
