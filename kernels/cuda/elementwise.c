/* Operations that work on their elements, or on the rows of a table, one by one. */
#include "cuda/fp8.h"
#include "cuda/kernels.h"
#include "cuda/rows.h"

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
    if (fp8_is_wanted(&a->fp8))
        return cuda_fp8_gelu(exec, a, false);
    return elements(exec, CUDA_gelu_forward, a->type, a->count, a);
}

int cuda_gelu_backward(const struct exec *exec, const struct gelu *a) {
    if (fp8_is_wanted(&a->fp8))
        return cuda_fp8_gelu(exec, a, true);
    return elements(exec, CUDA_gelu_backward, a->type, a->count, a);
}

int cuda_unit_forward(const struct exec *exec, const struct unit_call *a) {
    return elements(exec, CUDA_unit_forward, a->type, a->count, a);
}

int cuda_unit_backward(const struct exec *exec, const struct unit_call *a) {
    return elements(exec, CUDA_unit_backward, a->type, a->count, a);
}

int cuda_swiglu_forward(const struct exec *exec, const struct swiglu *a) {
    if (fp8_is_wanted(&a->fp8))
        return cuda_fp8_swiglu(exec, a, false);
    return rows(exec, CUDA_swiglu_forward, a->type, a->rows, a->cols, a);
}

int cuda_swiglu_backward(const struct exec *exec, const struct swiglu *a) {
    if (fp8_is_wanted(&a->fp8))
        return cuda_fp8_swiglu(exec, a, true);
    return rows(exec, CUDA_swiglu_backward, a->type, a->rows, a->cols, a);
}

int cuda_rotary(const struct exec *exec, const struct rotary *a) {
    if (a->rotary < 0 || a->rotary % 2 || a->rotary > a->head_size)
        return status_fail(STATUS_INVALID, "rotary: %d of a head's %d features cannot be rotated in pairs", a->rotary,
                           a->head_size);
    return elements(exec, CUDA_rotary, a->type, a->rows * a->heads * (a->rotary / 2), a);
}

int cuda_add(const struct exec *exec, const struct add_call *a) {
    return elements(exec, CUDA_add, a->type, a->count, a);
}

int cuda_scale_add(const struct exec *exec, const struct scale_add *a) {
    return rows(exec, CUDA_scale_add, a->type, a->rows, a->cols, a);
}

static bool is_float(enum dtype type) {
    return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16;
}

/* A type that does not change is copied, NaN included. */
int cuda_cast(const struct exec *exec, const struct cast_call *a) {
    if (!is_float(a->from_type) || !is_float(a->to_type))
        return status_fail(STATUS_UNSUPPORTED, "cast: no %s to %s on cuda (fp32, bf16 and fp16 only)",
                           dtype_name(a->from_type), dtype_name(a->to_type));
    if (a->from_type == a->to_type)
        return stream_copy(exec->stream, a->to, a->from, (size_t)a->count * dtype_bytes(a->to_type));
    return elements(exec, CUDA_cast, DTYPE_F32, a->count, a);
}

int cuda_gather_rows(const struct exec *exec, const struct gather_rows *a) {
    const struct gather_bytes call = {a->rows, a->cols * (int64_t)dtype_bytes(a->type), a->x, a->index, a->out};
    return rows(exec, CUDA_gather_rows, DTYPE_F32, a->rows, (call.row_bytes + 3) / 4, &call);
}

static int require_activation(const char *op, enum dtype type) {
    return type == DTYPE_F32 || type == DTYPE_BF16
               ? STATUS_OK
               : status_fail(STATUS_UNSUPPORTED, "%s: no %s activations on cuda (fp32, bf16)", op, dtype_name(type));
}

int cuda_scatter_add_rows(const struct exec *exec, const struct scatter_add_rows *a) {
    int status = require_activation("scatter_add_rows", a->y_type);
    return status ? status : rows(exec, CUDA_scatter_add_rows, a->x_type, a->rows, a->cols, a);
}

int cuda_change_ids(const struct exec *exec, const struct change_ids *a) {
    return elements(exec, CUDA_change_ids, DTYPE_F32, a->count, a);
}
