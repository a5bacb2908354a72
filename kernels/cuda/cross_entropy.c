/* Launches of the cross-entropies: a block for each row of logits. */
#include "cuda/kernels.h"

static int launch(const struct exec *exec, enum cuda_kernel kernel, const struct cross_entropy *a) {
    return cuda_launch_rows(exec, &(const struct cuda_launch){.kernel = kernel, .type = a->type, .arguments = a},
                            a->rows, a->stride);
}

int cuda_cross_entropy_forward(const struct exec *exec, const struct cross_entropy *a) {
    return launch(exec, CUDA_cross_entropy_forward, a);
}

int cuda_cross_entropy_backward(const struct exec *exec, const struct cross_entropy *a) {
    return launch(exec, CUDA_cross_entropy_backward, a);
}

int cuda_cross_entropy_fused(const struct exec *exec, const struct cross_entropy *a) {
    return launch(exec, CUDA_cross_entropy_fused, a);
}

int cuda_cross_entropy_part(const struct exec *exec, const struct cross_entropy *a) {
    return launch(exec, CUDA_cross_entropy_part, a);
}

int cuda_cross_entropy_part_backward(const struct exec *exec, const struct cross_entropy *a) {
    return launch(exec, CUDA_cross_entropy_part_backward, a);
}

int cuda_cross_entropy_join(const struct exec *exec, const struct cross_entropy_join *a) {
    enum { THREADS = 128 };
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = CUDA_cross_entropy_join,
                                                         .type = DTYPE_F32,
                                                         .blocks = (a->call.rows + THREADS - 1) / THREADS,
                                                         .threads = THREADS,
                                                         .arguments = a});
}
