/* Launches of kernels that need no more than the shape of their arguments: of elements, of rows, and of tiles. */
#include "cuda/encoded.h"
#include "cuda/fp8.h"
#include "cuda/kernels.h"
#include "cuda/partial_sums.h"
#include "cuda/rows.h"
#include "cuda/transpose.h"

#define ELEMENTS(op, arguments, type, count)                                                                           \
    int cuda_##op(const struct exec *exec, const struct arguments *a) {                                                \
        return cuda_launch_elements(exec, CUDA_##op, type, count, a);                                                  \
    }
#define ROWS(op, arguments, type, rows, cols)                                                                          \
    int cuda_##op(const struct exec *exec, const struct arguments *a) {                                                \
        return cuda_launch_rows(exec, CUDA_##op, type, rows, cols, a);                                                 \
    }

ELEMENTS(add, add_call, a->type, a->count)
ELEMENTS(change_ids, change_ids, DTYPE_F32, a->count)
ELEMENTS(magnitude_ratio, magnitude_ratio, a->type, a->count)
ELEMENTS(unit_forward, unit_call, a->type, a->count)
ELEMENTS(unit_backward, unit_call, a->type, a->count)
ROWS(scale_add, scale_add, a->type, a->rows, a->cols)
ROWS(cross_entropy_forward, cross_entropy, a->type, a->rows, a->stride)
ROWS(cross_entropy_part, cross_entropy, a->type, a->rows, a->stride)
ROWS(cross_entropy_backward, cross_entropy, a->type, a->rows, a->stride)
ROWS(cross_entropy_fused, cross_entropy, a->type, a->rows, a->stride)
ROWS(cross_entropy_part_backward, cross_entropy, a->type, a->rows, a->stride)

int cuda_cross_entropy_join(const struct exec *exec, const struct cross_entropy_join *a) {
    enum { THREADS = 128 };
    return cuda_launch_blocks(exec, CUDA_cross_entropy_join, DTYPE_F32, (a->call.rows + THREADS - 1) / THREADS, THREADS,
                              a);
}

/* ---- some of them in FP8 ---- */

int cuda_gelu_forward(const struct exec *exec, const struct gelu *a) {
    return fp8_is_wanted(&a->fp8) ? cuda_fp8_gelu(exec, a, false)
                                  : cuda_launch_elements(exec, CUDA_gelu_forward, a->type, a->count, a);
}

int cuda_gelu_backward(const struct exec *exec, const struct gelu *a) {
    return fp8_is_wanted(&a->fp8) ? cuda_fp8_gelu(exec, a, true)
                                  : cuda_launch_elements(exec, CUDA_gelu_backward, a->type, a->count, a);
}

int cuda_swiglu_forward(const struct exec *exec, const struct swiglu *a) {
    return fp8_is_wanted(&a->fp8) ? cuda_fp8_swiglu(exec, a, false)
                                  : cuda_launch_rows(exec, CUDA_swiglu_forward, a->type, a->rows, a->cols, a);
}

int cuda_swiglu_backward(const struct exec *exec, const struct swiglu *a) {
    return fp8_is_wanted(&a->fp8) ? cuda_fp8_swiglu(exec, a, true)
                                  : cuda_launch_rows(exec, CUDA_swiglu_backward, a->type, a->rows, a->cols, a);
}

/* ---- arguments that a kernel does not take ---- */

int cuda_embedding_forward(const struct exec *exec, const struct embedding *a) {
    if (a->token_table.form == MATRIX_PACKED)
        return cuda_packed_bytes(NULL, &a->token_table)
                   ? cuda_encoded_gather(exec, a)
                   : status_fail(STATUS_UNSUPPORTED, "embedding_forward: no packed form of this table on cuda");
    return cuda_launch_rows(exec, CUDA_embedding_forward, a->type, a->rows, a->cols, a);
}

int cuda_rotary(const struct exec *exec, const struct rotary *a) {
    if (a->rotary < 0 || a->rotary % 2 || a->rotary > a->head_size)
        return status_fail(STATUS_INVALID, "rotary: %d of a head's %d features cannot be rotated in pairs", a->rotary,
                           a->head_size);
    return cuda_launch_elements(exec, CUDA_rotary, a->type, a->rows * a->heads * (a->rotary / 2), a);
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
    return cuda_launch_elements(exec, CUDA_cast, DTYPE_F32, a->count, a);
}

int cuda_gather_rows(const struct exec *exec, const struct gather_rows *a) {
    const struct gather_bytes call = {a->rows, a->cols * (int64_t)dtype_bytes(a->type), a->x, a->index, a->out};
    return cuda_launch_rows(exec, CUDA_gather_rows, DTYPE_F32, a->rows, (call.row_bytes + 3) / 4, &call);
}

int cuda_require_activation(const char *op, enum dtype type) {
    return type == DTYPE_F32 || type == DTYPE_BF16
               ? STATUS_OK
               : status_fail(STATUS_UNSUPPORTED, "%s: no %s activations on cuda (fp32, bf16)", op, dtype_name(type));
}

int cuda_scatter_add_rows(const struct exec *exec, const struct scatter_add_rows *a) {
    TRY(cuda_require_activation("scatter_add_rows", a->y_type));
    return cuda_launch_rows(exec, CUDA_scatter_add_rows, a->x_type, a->rows, a->cols, a);
}

/* A block for each row. */
int cuda_group_scale(const struct exec *exec, const struct group_scale *a) {
    TRY(cuda_require_activation("group_scale", a->y_type));
    return cuda_launch_blocks(exec, CUDA_group_scale, a->x_type, a->count ? a->rows : 0, 128, a);
}

int cuda_row_squares(const struct exec *exec, const struct row_squares *a) {
    if (a->weight.form == MATRIX_PACKED)
        return cuda_packed_bytes(NULL, &a->weight)
                   ? cuda_encoded_squares(exec, a)
                   : status_fail(STATUS_UNSUPPORTED, "row_squares: no packed form of this weight on cuda");
    return cuda_launch_rows(exec, CUDA_row_squares, a->weight.type, a->rows, a->weight.columns, a);
}

/* ---- tiles ---- */

int cuda_transpose(const struct exec *exec, const struct transpose *a) {
    int64_t down = (a->rows + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE,
            across = (a->cols + TRANSPOSE_TILE - 1) / TRANSPOSE_TILE;
    return cuda_launch_blocks(exec, CUDA_transpose, a->type, down * across, TRANSPOSE_TILE * TRANSPOSE_ROWS, a);
}

int cuda_partial_sums(const struct exec *exec, const struct partial_sums *a) {
    return cuda_launch_blocks(exec, CUDA_partial_sums, DTYPE_F32, (a->stride + PARTIAL_COLUMNS - 1) / PARTIAL_COLUMNS,
                              PARTIAL_COLUMNS * PARTIAL_SLICES, a);
}
