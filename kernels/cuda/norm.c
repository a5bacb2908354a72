/* Launches of the normalisations. */
#include "cuda/norm.h"
#include "cuda/kernels.h"

enum { ACCESS_BYTES = 16 };

int cuda_norm_forward(const struct exec *exec, const struct norm *a) {
    int64_t bytes = a->cols * (a->type == DTYPE_F32 ? 4 : 2), accesses = bytes / ACCESS_BYTES;
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = CUDA_norm_forward,
                                                         .type = a->type,
                                                         .blocks = a->rows * (a->heads > 1 ? a->heads : 1),
                                                         .threads = accesses <= 32    ? 32
                                                                    : accesses <= 128 ? 128
                                                                                      : 256,
                                                         .shared_bytes = NORM_SUM_BYTES +
                                                                         (bytes <= NORM_KEPT_BYTES ? (size_t)bytes : 0),
                                                         .arguments = a});
}
