/* Operations that work on their elements, or on the rows of a table, one by one. */
#include "cuda/kernels.h"

enum { THREADS = 256, ACCESS_BYTES = 16 };

/* One thread for each 16 bytes. */
static int launch_elements(const struct exec *exec, enum cuda_kernel kernel, enum dtype type, int64_t count,
                           const void *arguments) {
    int64_t elements = THREADS * (int64_t)(ACCESS_BYTES / (type == DTYPE_F32 ? 4 : 2));
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = kernel,
                                                         .type = type,
                                                         .blocks = (count + elements - 1) / elements,
                                                         .threads = THREADS,
                                                         .arguments = arguments});
}

/* One block for each row, as large as a row of 16-byte accesses needs. */
static int launch_rows(const struct exec *exec, enum cuda_kernel kernel, enum dtype type, int64_t rows, int64_t cols,
                       const void *arguments) {
    int64_t accesses = cols * (type == DTYPE_F32 ? 4 : 2) / ACCESS_BYTES;
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = kernel,
                                                         .type = type,
                                                         .blocks = cols ? rows : 0,
                                                         .threads = accesses <= 32    ? 32
                                                                    : accesses <= 128 ? 128
                                                                                      : THREADS,
                                                         .arguments = arguments});
}

int cuda_gelu_forward(const struct exec *exec, const struct gelu *a) {
    return launch_elements(exec, CUDA_gelu_forward, a->type, a->count, a);
}

int cuda_gelu_backward(const struct exec *exec, const struct gelu *a) {
    return launch_elements(exec, CUDA_gelu_backward, a->type, a->count, a);
}

int cuda_unit_forward(const struct exec *exec, const struct unit_call *a) {
    return launch_elements(exec, CUDA_unit_forward, a->type, a->count, a);
}

int cuda_unit_backward(const struct exec *exec, const struct unit_call *a) {
    return launch_elements(exec, CUDA_unit_backward, a->type, a->count, a);
}

int cuda_swiglu_forward(const struct exec *exec, const struct swiglu *a) {
    return launch_rows(exec, CUDA_swiglu_forward, a->type, a->rows, a->cols, a);
}

int cuda_swiglu_backward(const struct exec *exec, const struct swiglu *a) {
    return launch_rows(exec, CUDA_swiglu_backward, a->type, a->rows, a->cols, a);
}

int cuda_embedding_forward(const struct exec *exec, const struct embedding *a) {
    return launch_rows(exec, CUDA_embedding_forward, a->type, a->rows, a->cols, a);
}
