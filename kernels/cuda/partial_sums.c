/* Launch of the kernel that adds the sums of blocks. */
#include "cuda/partial_sums.h"
#include "cuda/kernels.h"

int cuda_partial_sums(const struct exec *exec, const struct partial_sums *a) {
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = CUDA_partial_sums,
                                                         .type = DTYPE_F32,
                                                         .blocks = (a->stride + PARTIAL_COLUMNS - 1) / PARTIAL_COLUMNS,
                                                         .threads = PARTIAL_COLUMNS * PARTIAL_SLICES,
                                                         .arguments = a});
}
