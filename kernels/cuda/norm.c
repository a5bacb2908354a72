/* Launches of the normalisations. */
#include "cuda/norm.h"
#include "cuda/kernels.h"
#include "cuda/partial_sums.h"

static int64_t vector_bytes(const struct norm *a) {
    return a->cols * (a->type == DTYPE_F32 ? 4 : 2);
}

static int64_t heads_of(const struct norm *a) {
    return a->heads > 1 ? a->heads : 1;
}

int cuda_norm_forward(const struct exec *exec, const struct norm *a) {
    int64_t bytes = vector_bytes(a);
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = CUDA_norm_forward,
                                                         .type = a->type,
                                                         .blocks = a->rows * heads_of(a),
                                                         .threads = cuda_row_threads(a->type, a->cols),
                                                         .shared_bytes = NORM_SUM_BYTES +
                                                                         (bytes <= NORM_KEPT_BYTES ? (size_t)bytes : 0),
                                                         .arguments = a});
}

/* Returns the sums of one block: of the gain, and of the bias if there is one. */
static int64_t block_sums(const struct norm *a) {
    return (a->kind == NORM_RMS ? 1 : 2) * a->cols;
}

size_t cuda_norm_backward_workspace(struct device *device, const struct norm *a) {
    (void)device;
    return a->dgain ? (size_t)(partial_blocks(a->rows) * block_sums(a)) * sizeof(float) : 0;
}

int cuda_norm_backward(const struct exec *exec, const struct norm *a) {
    struct norm_backward k = {.call = *a,
                              .block_rows = a->dgain ? partial_rows(a->rows) : 1,
                              .partial = a->dgain ? exec->workspace : NULL,
                              .sums = block_sums(a),
                              .kept_row = (vector_bytes(a) + 15) / 16 * 16};
    int64_t rows = 2 * k.kept_row, sums = k.partial ? k.sums * (int64_t)sizeof(float) : 0;
    k.keeps_rows = rows <= NORM_KEPT_BYTES;
    k.keeps_sums = sums && k.keeps_rows && rows + sums <= NORM_KEPT_BYTES;
    int64_t blocks = (a->rows + k.block_rows - 1) / k.block_rows;
    int status = cuda_launch(
        exec, &(const struct cuda_launch){
                  .kernel = CUDA_norm_backward,
                  .type = a->type,
                  .blocks = blocks,
                  .threads = cuda_row_threads(a->type, a->cols),
                  .shared_bytes = (size_t)(NORM_SUM_BYTES + (k.keeps_rows ? rows : 0) + (k.keeps_sums ? sums : 0)),
                  .arguments = &k});
    if (status || !k.partial || !blocks)
        return status;
    return cuda_partial_sums(exec, &(const struct partial_sums){.blocks = blocks,
                                                                .cols = a->cols,
                                                                .stride = k.sums,
                                                                .partial = k.partial,
                                                                .out = a->dgain,
                                                                .out2 = a->kind == NORM_LAYER ? a->dbias : NULL});
}
