/* Stand-ins for operations that a backend lacks. Operations return STATUS_UNSUPPORTED, functions that compute bytes
 * return 0, and sizes are 1. */
#include "backend.h"

#include <stdint.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wunused-parameter" /* they take the arguments of their operations, and read none */

static int fail_absent(const struct exec *exec, const char *op) {
    return status_fail(STATUS_UNSUPPORTED, "device '%s' has no operation %s", exec->stream->device->backend->name, op);
}

#define ABSENT(op, ...)                                                                                                \
    static int absent_##op(const struct exec *exec, __VA_ARGS__) {                                                     \
        return fail_absent(exec, #op);                                                                                 \
    }
#define ABSENT_BYTES(op, ...)                                                                                          \
    static size_t absent_##op(struct device *device, __VA_ARGS__) {                                                    \
        return 0;                                                                                                      \
    }

static const struct ops_sizes *absent_sizes(struct device *device) {
    static const struct ops_sizes one = {1, 1, 1, 1, 1};
    return &one;
}

static bool absent_gemm_supports(struct device *device, const struct gemm *gemm) {
    return false;
}

static int64_t absent_kv_page_elements(struct device *device, int kv_heads, int head_size, enum dtype type) {
    return 0;
}

ABSENT(gemm, const struct gemm *gemm)
ABSENT(pack, const struct matrix_view *plain, void *out, struct matrix_view *packed)
ABSENT(norm_forward, const struct norm *a)
ABSENT(norm_backward, const struct norm *a)
ABSENT(gelu_forward, const struct gelu *a)
ABSENT(gelu_backward, const struct gelu *a)
ABSENT(unit_forward, const struct unit_call *a)
ABSENT(unit_backward, const struct unit_call *a)
ABSENT(swiglu_forward, const struct swiglu *a)
ABSENT(swiglu_backward, const struct swiglu *a)
ABSENT(rotary, const struct rotary *a)
ABSENT(column_scale_forward, const struct column_scale *a)
ABSENT(column_scale_backward, const struct column_scale *a)
ABSENT(row_squares, const struct row_squares *a)
ABSENT(magnitude_ratio, const struct magnitude_ratio *a)
ABSENT(lstm_forward, const struct lstm *a)
ABSENT(lstm_backward, const struct lstm *a)
ABSENT(residual_dropout_forward, const struct residual_dropout *a)
ABSENT(residual_dropout_backward, const struct residual_dropout *a)
ABSENT(attention_forward, const struct attention *a)
ABSENT(attention_backward, const struct attention *a)
ABSENT(kv_append, const struct kv_append *a)
ABSENT(paged_attention, const struct paged_attention *a)
ABSENT(embedding_forward, const struct embedding *a)
ABSENT(embedding_backward, const struct embedding *a)
ABSENT(cross_entropy_forward, const struct cross_entropy *a)
ABSENT(cross_entropy_backward, const struct cross_entropy *a)
ABSENT(cross_entropy_fused, const struct cross_entropy *a)
ABSENT(cross_entropy_part, const struct cross_entropy *a)
ABSENT(cross_entropy_join, const struct cross_entropy *a, int ranks, const struct cross_entropy_part *parts)
ABSENT(cross_entropy_part_backward, const struct cross_entropy *a)
ABSENT(zero_ranges, const struct zero_ranges *a)
ABSENT(adamw, const struct adamw *a)
ABSENT(sum_of_squares, int64_t count, const float *x, bool accumulate, double *sum)
ABSENT(clip_factor, const struct clip_factor *a)
ABSENT(weighted_sum, int64_t count, const float *x, const float *weight, bool accumulate, double *sum)
ABSENT(column_sum, const struct column_sum *a)
ABSENT(cast, int64_t count, enum dtype from_type, const void *from, enum dtype to_type, void *to)
ABSENT(add, int64_t count, enum dtype type, const void *x, void *y)
ABSENT(fp8_cast, const struct fp8_cast *a)
ABSENT(fp8_scales, const struct fp8_scales *a)
ABSENT(scale_add, const struct scale_add *a)
ABSENT(gather_rows, int64_t rows, int64_t cols, enum dtype type, const void *x, const int32_t *index, void *out)
ABSENT(scatter_add_rows, const struct scatter_add_rows *a)
ABSENT(change_ids, const struct change_ids *a)
ABSENT(transpose, const struct transpose *a)
ABSENT(grouped_gemm, const struct grouped_gemm *a)
ABSENT(group_scale, const struct group_scale *a)
ABSENT(grouped_norm, const struct grouped_norm *a)
ABSENT(sample, const struct sample *a)

ABSENT_BYTES(gemm_workspace, const struct gemm *gemm)
ABSENT_BYTES(packed_bytes, const struct matrix_view *plain)
ABSENT_BYTES(norm_backward_workspace, const struct norm *a)
ABSENT_BYTES(column_scale_backward_workspace, const struct column_scale *a)
ABSENT_BYTES(lstm_backward_workspace, const struct lstm *a)
ABSENT_BYTES(attention_forward_workspace, const struct attention *a)
ABSENT_BYTES(attention_backward_workspace, const struct attention *a)
ABSENT_BYTES(paged_attention_workspace, const struct paged_attention *a)
ABSENT_BYTES(embedding_backward_workspace, const struct embedding *a)
ABSENT_BYTES(sum_of_squares_workspace, int64_t count)
ABSENT_BYTES(column_sum_workspace, const struct column_sum *a)
ABSENT_BYTES(sample_workspace, const struct sample *a)

#define OPERATIONS(ROW)                                                                                                \
    ROW(gemm)                                                                                                          \
    ROW(pack)                                                                                                          \
    ROW(norm_forward)                                                                                                  \
    ROW(norm_backward)                                                                                                 \
    ROW(gelu_forward)                                                                                                  \
    ROW(gelu_backward)                                                                                                 \
    ROW(unit_forward)                                                                                                  \
    ROW(unit_backward)                                                                                                 \
    ROW(swiglu_forward)                                                                                                \
    ROW(swiglu_backward)                                                                                               \
    ROW(rotary)                                                                                                        \
    ROW(column_scale_forward)                                                                                          \
    ROW(column_scale_backward)                                                                                         \
    ROW(row_squares)                                                                                                   \
    ROW(magnitude_ratio)                                                                                               \
    ROW(lstm_forward)                                                                                                  \
    ROW(lstm_backward)                                                                                                 \
    ROW(residual_dropout_forward)                                                                                      \
    ROW(residual_dropout_backward)                                                                                     \
    ROW(attention_forward)                                                                                             \
    ROW(attention_backward)                                                                                            \
    ROW(kv_append)                                                                                                     \
    ROW(paged_attention)                                                                                               \
    ROW(embedding_forward)                                                                                             \
    ROW(embedding_backward)                                                                                            \
    ROW(cross_entropy_forward)                                                                                         \
    ROW(cross_entropy_backward)                                                                                        \
    ROW(cross_entropy_fused)                                                                                           \
    ROW(cross_entropy_part)                                                                                            \
    ROW(cross_entropy_join)                                                                                            \
    ROW(cross_entropy_part_backward)                                                                                   \
    ROW(zero_ranges)                                                                                                   \
    ROW(adamw)                                                                                                         \
    ROW(sum_of_squares)                                                                                                \
    ROW(clip_factor)                                                                                                   \
    ROW(weighted_sum)                                                                                                  \
    ROW(column_sum)                                                                                                    \
    ROW(cast)                                                                                                          \
    ROW(add)                                                                                                           \
    ROW(fp8_cast)                                                                                                      \
    ROW(fp8_scales)                                                                                                    \
    ROW(scale_add)                                                                                                     \
    ROW(gather_rows)                                                                                                   \
    ROW(scatter_add_rows)                                                                                              \
    ROW(change_ids)                                                                                                    \
    ROW(transpose)                                                                                                     \
    ROW(grouped_gemm)                                                                                                  \
    ROW(group_scale)                                                                                                   \
    ROW(grouped_norm)                                                                                                  \
    ROW(sample)
#define ARITHMETIC(ROW)                                                                                                \
    ROW(sizes)                                                                                                         \
    ROW(gemm_supports)                                                                                                 \
    ROW(gemm_workspace)                                                                                                \
    ROW(packed_bytes)                                                                                                  \
    ROW(norm_backward_workspace)                                                                                       \
    ROW(column_scale_backward_workspace)                                                                               \
    ROW(lstm_backward_workspace)                                                                                       \
    ROW(attention_forward_workspace)                                                                                   \
    ROW(attention_backward_workspace)                                                                                  \
    ROW(kv_page_elements)                                                                                              \
    ROW(paged_attention_workspace)                                                                                     \
    ROW(embedding_backward_workspace)                                                                                  \
    ROW(sum_of_squares_workspace)                                                                                      \
    ROW(column_sum_workspace)                                                                                          \
    ROW(sample_workspace)

#define MEMBER(op) .op = absent_##op,
const struct ops ops_absent = {.name = "absent", OPERATIONS(MEMBER) ARITHMETIC(MEMBER)};

#define ONE(op) +1
_Static_assert(sizeof(struct ops) ==
                   sizeof(const char *) + (0 OPERATIONS(ONE) ARITHMETIC(ONE)) * sizeof(void (*)(void)),
               "every member of struct ops is listed");

const char *ops_missing(const struct ops *ops, int number) {
#define COUNT_MISSING(op)                                                                                              \
    if ((!ops->op || ops->op == ops_absent.op) && number-- == 0)                                                       \
        return #op;
    OPERATIONS(COUNT_MISSING)
    return NULL;
}

void ops_fill(struct ops *ops) {
#define FILL(op)                                                                                                       \
    if (!ops->op)                                                                                                      \
        ops->op = ops_absent.op;
    OPERATIONS(FILL)
    ARITHMETIC(FILL)
}
