/* Launch of the vectors of each row's adapter: a block for each row. */
#include "cuda/kernels.h"

int cuda_group_scale(const struct exec *exec, const struct group_scale *a) {
    enum { THREADS = 128 };
    if (a->y_type != DTYPE_F32 && a->y_type != DTYPE_BF16)
        return status_fail(STATUS_UNSUPPORTED, "group_scale: no %s activations on cuda (fp32, bf16)",
                           dtype_name(a->y_type));
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = CUDA_group_scale,
                                                         .type = a->x_type,
                                                         .blocks = a->count ? a->rows : 0,
                                                         .threads = THREADS,
                                                         .arguments = a});
}
