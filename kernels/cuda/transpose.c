/* Launch of transposes: a block for each tile. */
#include "cuda/transpose.h"
#include "cuda/kernels.h"

/* Returns the tiles along a side of `count` elements. */
static int64_t tiles(int64_t count) {
    return (count + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE;
}

int cuda_transpose(const struct exec *exec, const struct transpose *a) {
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = CUDA_transpose,
                                                         .type = a->type,
                                                         .blocks = tiles(a->rows) * tiles(a->cols),
                                                         .threads = TRANSPOSE_TILE * TRANSPOSE_ROWS,
                                                         .arguments = a});
}
