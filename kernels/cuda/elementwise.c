/* Operations that work on their elements, or on the rows of a table, one by one. */
#include "cuda/kernels.h"

static int elements(const struct exec *exec, enum cuda_kernel kernel, enum dtype type, int64_t count,
                    const void *arguments) {
    return cuda_launch_elements(
        exec, &(const struct cuda_launch){.kernel = kernel, .type = type, .arguments = arguments}, count);
}

static int rows(const struct exec *exec, enum cuda_kernel kernel, enum dtype type, int64_t count, int64_t cols,
                const void *arguments) {
    return cuda_launch_rows(exec, &(const struct cuda_launch){.kernel = kernel, .type = type, .arguments = arguments},
                            count, cols);
}

int cuda_gelu_forward(const struct exec *exec, const struct gelu *a) {
    return elements(exec, CUDA_gelu_forward, a->type, a->count, a);
}

int cuda_gelu_backward(const struct exec *exec, const struct gelu *a) {
    return elements(exec, CUDA_gelu_backward, a->type, a->count, a);
}

int cuda_unit_forward(const struct exec *exec, const struct unit_call *a) {
    return elements(exec, CUDA_unit_forward, a->type, a->count, a);
}

int cuda_unit_backward(const struct exec *exec, const struct unit_call *a) {
    return elements(exec, CUDA_unit_backward, a->type, a->count, a);
}

int cuda_swiglu_forward(const struct exec *exec, const struct swiglu *a) {
    return rows(exec, CUDA_swiglu_forward, a->type, a->rows, a->cols, a);
}

int cuda_swiglu_backward(const struct exec *exec, const struct swiglu *a) {
    return rows(exec, CUDA_swiglu_backward, a->type, a->rows, a->cols, a);
}

int cuda_rotary(const struct exec *exec, const struct rotary *a) {
    if (a->rotary < 0 || a->rotary % 2 || a->rotary > a->head_size)
        return status_fail(STATUS_INVALID, "rotary: %d of a head's %d features cannot be rotated in pairs", a->rotary,
                           a->head_size);
    return elements(exec, CUDA_rotary, a->type, a->rows * a->heads * (a->rotary / 2), a);
}
