/* The operations at one instruction-set level. Every file of this folder is compiled once per level, and LEVEL(name)
 * gives each copy its own name. The function of an operation is LEVEL(cpu_OPERATION); table.c collects them in a table.
 * Loops are plain C for the compiler to vectorise. A file that needs intrinsics takes them from simd.h, which each
 * level has in its folder. */
#ifndef CAMBIUM_KERNELS_CPU_LEVEL_H
#define CAMBIUM_KERNELS_CPU_LEVEL_H

#include "cpu/cpu-internal.h"

#define LEVEL_JOIN_(a, b)         a##_##b
#define LEVEL_JOIN(a, b)          LEVEL_JOIN_(a, b)
#define LEVEL(name)               LEVEL_JOIN(name, KERNEL_LEVEL)
#define LEVEL_TEXT_(name)         #name
#define LEVEL_TEXT(name)          LEVEL_TEXT_(name)
#define LEVEL_OP(op, type)        int LEVEL(cpu_##op)(const struct exec *exec, const struct type *a)
#define LEVEL_WORKSPACE(op, type) size_t LEVEL(cpu_##op##_workspace)(struct device * device, const struct type *a)

/* ---- members of struct ops, with their shapes, ownership and errors: see ops.h ---- */

size_t LEVEL(cpu_gemm_workspace)(struct device *device, const struct gemm *gemm);
int LEVEL(cpu_gemm)(const struct exec *exec, const struct gemm *gemm);
size_t LEVEL(cpu_packed_bytes)(struct device *device, const struct matrix_view *plain);
int LEVEL(cpu_pack)(const struct exec *exec, const struct matrix_view *plain, void *out, struct matrix_view *packed);
LEVEL_OP(norm_forward, norm);
LEVEL_WORKSPACE(norm_backward, norm);
LEVEL_OP(norm_backward, norm);
LEVEL_OP(gelu_forward, gelu);
LEVEL_OP(gelu_backward, gelu);
LEVEL_OP(unit_forward, unit_call);
LEVEL_OP(unit_backward, unit_call);
LEVEL_OP(swiglu_forward, swiglu);
LEVEL_OP(swiglu_backward, swiglu);
LEVEL_OP(rotary, rotary);
LEVEL_OP(column_scale_forward, column_scale);
LEVEL_WORKSPACE(column_scale_backward, column_scale);
LEVEL_OP(column_scale_backward, column_scale);
LEVEL_OP(row_squares, row_squares);
LEVEL_OP(magnitude_ratio, magnitude_ratio);
LEVEL_OP(lstm_forward, lstm);
LEVEL_WORKSPACE(lstm_backward, lstm);
LEVEL_OP(lstm_backward, lstm);
LEVEL_OP(residual_dropout_forward, residual_dropout);
LEVEL_OP(residual_dropout_backward, residual_dropout);
LEVEL_WORKSPACE(attention_forward, attention);
LEVEL_OP(attention_forward, attention);
LEVEL_WORKSPACE(attention_backward, attention);
LEVEL_OP(attention_backward, attention);
LEVEL_OP(kv_append, kv_append);
LEVEL_WORKSPACE(paged_attention, paged_attention);
LEVEL_OP(paged_attention, paged_attention);
LEVEL_OP(embedding_forward, embedding);
LEVEL_WORKSPACE(embedding_backward, embedding);
LEVEL_OP(embedding_backward, embedding);
LEVEL_OP(cross_entropy_forward, cross_entropy);
LEVEL_OP(cross_entropy_backward, cross_entropy);
LEVEL_OP(cross_entropy_fused, cross_entropy);
LEVEL_OP(cross_entropy_part, cross_entropy);
int LEVEL(cpu_cross_entropy_join)(const struct exec *exec, const struct cross_entropy *a, int ranks,
                                  const struct cross_entropy_part *parts);
LEVEL_OP(cross_entropy_part_backward, cross_entropy);
LEVEL_OP(zero_ranges, zero_ranges);
LEVEL_OP(adamw, adamw);
size_t LEVEL(cpu_sum_of_squares_workspace)(struct device *device, int64_t count);
int LEVEL(cpu_sum_of_squares)(const struct exec *exec, int64_t count, const float *x, bool accumulate, double *sum);
LEVEL_OP(clip_factor, clip_factor);
int LEVEL(cpu_weighted_sum)(const struct exec *exec, int64_t count, const float *x, const float *weight,
                            bool accumulate, double *sum);
size_t LEVEL(cpu_column_sum_workspace)(struct device *device, const struct column_sum *a);
LEVEL_OP(column_sum, column_sum);
int LEVEL(cpu_cast)(const struct exec *exec, int64_t count, enum dtype from_type, const void *from, enum dtype to_type,
                    void *to);
int LEVEL(cpu_add)(const struct exec *exec, int64_t count, enum dtype type, const void *x, void *y);
LEVEL_OP(fp8_cast, fp8_cast);
LEVEL_OP(fp8_scales, fp8_scales);
LEVEL_OP(scale_add, scale_add);
int LEVEL(cpu_gather_rows)(const struct exec *exec, int64_t rows, int64_t cols, enum dtype type, const void *x,
                           const int32_t *index, void *out);
LEVEL_OP(scatter_add_rows, scatter_add_rows);
LEVEL_OP(change_ids, change_ids);
LEVEL_OP(transpose, transpose);
LEVEL_OP(grouped_gemm, grouped_gemm);
LEVEL_OP(group_scale, group_scale);
LEVEL_OP(grouped_norm, grouped_norm);
LEVEL_WORKSPACE(sample, sample);
LEVEL_OP(sample, sample);

/* ---- parts of operations ---- */

/* The bf16 result of an operation. x may be to->y. */
struct fp8_result {
    int64_t rows, cols;
    const void *x; /* [rows, cols] */
    const struct fp8_output *to;
};
/* Casts it to FP8, if the operation's call wants that. */
int LEVEL(cpu_fp8_result)(const struct exec *exec, const struct fp8_result *a);

#endif
