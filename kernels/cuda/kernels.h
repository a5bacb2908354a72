/* The kernels of the backend `cuda`, and how they are launched. The file images.c carries their fat binaries. The name
 * of a kernel begins with its operation's, and ends with the type of its elements: norm_forward_bf16. */
#ifndef CAMBIUM_KERNELS_CUDA_KERNELS_H
#define CAMBIUM_KERNELS_CUDA_KERNELS_H

#include "cuda/driver.h"
#include "kernels/ops.h"

/* TYPED(file, kernel): kernels/cuda/FILE.cu has KERNEL_fp32 and KERNEL_bf16. PLAIN(file, kernel): it has KERNEL. */
#define CUDA_KERNELS(TYPED, PLAIN)                                                                                     \
    TYPED(adamw, adamw)                                                                                                \
    TYPED(attention, attention_backward_keys)                                                                          \
    TYPED(attention, attention_backward_queries)                                                                       \
    TYPED(attention, attention_forward)                                                                                \
    TYPED(column_scale, column_scale_backward)                                                                         \
    TYPED(column_scale, column_scale_forward)                                                                          \
    TYPED(column_scale, magnitude_ratio)                                                                               \
    TYPED(column_scale, row_squares)                                                                                   \
    TYPED(cross_entropy, cross_entropy_backward)                                                                       \
    TYPED(cross_entropy, cross_entropy_forward)                                                                        \
    TYPED(cross_entropy, cross_entropy_fused)                                                                          \
    TYPED(cross_entropy, cross_entropy_part)                                                                           \
    TYPED(cross_entropy, cross_entropy_part_backward)                                                                  \
    TYPED(embedding, embedding_backward)                                                                               \
    TYPED(embedding, embedding_forward)                                                                                \
    TYPED(gelu, gelu_backward)                                                                                         \
    TYPED(gelu, gelu_forward)                                                                                          \
    TYPED(gemm_finish, gemm_finish)                                                                                    \
    TYPED(group_scale, group_scale)                                                                                    \
    TYPED(grouped_gemm, grouped_gemm)                                                                                  \
    TYPED(kv_append, kv_append)                                                                                        \
    TYPED(norm, grouped_norm)                                                                                          \
    TYPED(norm, norm_backward)                                                                                         \
    TYPED(norm, norm_forward)                                                                                          \
    TYPED(norm_rows, norm_few_forward)                                                                                 \
    TYPED(norm_rows_backward, norm_narrow_backward)                                                                    \
    TYPED(norm_rows, norm_narrow_forward)                                                                              \
    TYPED(norm_rows_backward, norm_wide_backward)                                                                      \
    TYPED(norm_rows, norm_wide_forward)                                                                                \
    TYPED(paged_attention, paged_attention)                                                                            \
    TYPED(paged_attention, paged_attention_merge)                                                                      \
    TYPED(paged_attention, paged_attention_parts)                                                                      \
    TYPED(residual_dropout, residual_dropout)                                                                          \
    TYPED(rotary, rotary)                                                                                              \
    TYPED(rows, add)                                                                                                   \
    TYPED(rows, scale_add)                                                                                             \
    TYPED(rows, scatter_add_rows)                                                                                      \
    TYPED(sample, sample)                                                                                              \
    TYPED(sums, column_sum)                                                                                            \
    TYPED(swiglu, swiglu_backward)                                                                                     \
    TYPED(swiglu, swiglu_forward)                                                                                      \
    TYPED(transpose, transpose)                                                                                        \
    TYPED(unit, unit_backward)                                                                                         \
    TYPED(unit, unit_forward)                                                                                          \
    PLAIN(adamw, zero_ranges)                                                                                          \
    PLAIN(attention_gradient_tf32, attention_backward_keys_tf32_tiles_64)                                              \
    PLAIN(attention_gradient_tf32, attention_backward_keys_tf32_tiles_128)                                             \
    PLAIN(attention_gradient_tiles, attention_backward_keys_tiles_32)                                                  \
    PLAIN(attention_gradient_tiles, attention_backward_keys_tiles_64)                                                  \
    PLAIN(attention_gradient_tiles, attention_backward_keys_tiles_96)                                                  \
    PLAIN(attention_gradient_tiles, attention_backward_keys_tiles_128)                                                 \
    PLAIN(attention_gradient_tiles, attention_backward_keys_tiles_256)                                                 \
    PLAIN(attention_gradient_tf32, attention_backward_queries_tf32_tiles_64)                                           \
    PLAIN(attention_gradient_tf32, attention_backward_queries_tf32_tiles_128)                                          \
    PLAIN(attention_gradient_tiles, attention_backward_queries_tiles_32)                                               \
    PLAIN(attention_gradient_tiles, attention_backward_queries_tiles_64)                                               \
    PLAIN(attention_gradient_tiles, attention_backward_queries_tiles_96)                                               \
    PLAIN(attention_gradient_tiles, attention_backward_queries_tiles_128)                                              \
    PLAIN(attention_gradient_tiles, attention_backward_queries_tiles_256)                                              \
    PLAIN(attention_kept, attention_kept)                                                                              \
    PLAIN(attention_tf32, attention_forward_tf32_tiles_64)                                                             \
    PLAIN(attention_tf32, attention_forward_tf32_tiles_128)                                                            \
    PLAIN(attention_tiles, attention_forward_tiles_32)                                                                 \
    PLAIN(attention_tiles, attention_forward_dropout_tiles_32)                                                         \
    PLAIN(attention_tiles, attention_forward_tiles_64)                                                                 \
    PLAIN(attention_tiles, attention_forward_dropout_tiles_64)                                                         \
    PLAIN(attention_tiles, attention_forward_tiles_96)                                                                 \
    PLAIN(attention_tiles, attention_forward_dropout_tiles_96)                                                         \
    PLAIN(attention_tiles, attention_forward_tiles_128)                                                                \
    PLAIN(attention_tiles, attention_forward_dropout_tiles_128)                                                        \
    PLAIN(attention_tiles, attention_forward_tiles_256)                                                                \
    PLAIN(attention_tiles, attention_forward_dropout_tiles_256)                                                        \
    PLAIN(cast, cast)                                                                                                  \
    PLAIN(cross_entropy, cross_entropy_join)                                                                           \
    PLAIN(embedding, embedding_backward_order)                                                                         \
    PLAIN(few_rows, few_rows_4_1)                                                                                      \
    PLAIN(few_rows, few_rows_4_2)                                                                                      \
    PLAIN(few_rows, few_rows_8_1)                                                                                      \
    PLAIN(few_rows, few_rows_8_2)                                                                                      \
    PLAIN(fp8, fp8_cast_e4m3)                                                                                          \
    PLAIN(fp8, fp8_cast_e5m2)                                                                                          \
    PLAIN(fp8, fp8_scales)                                                                                             \
    PLAIN(fp8_results, fp8_gelu)                                                                                       \
    PLAIN(fp8_results, fp8_gelu_gradient)                                                                              \
    PLAIN(fp8_results, fp8_norm)                                                                                       \
    PLAIN(fp8_results, fp8_swiglu)                                                                                     \
    PLAIN(fp8_results, fp8_swiglu_gradient)                                                                            \
    PLAIN(gemm_deltas, gemm_deltas)                                                                                    \
    PLAIN(lstm, lstm_backward)                                                                                         \
    PLAIN(lstm, lstm_forward)                                                                                          \
    PLAIN(norm, norm_long_fp8)                                                                                         \
    PLAIN(norm_rows, norm_rows_fp8)                                                                                    \
    PLAIN(paged_attention_tiles, paged_attention_tiles_64)                                                             \
    PLAIN(paged_attention_tiles, paged_attention_tiles_128)                                                            \
    PLAIN(paged_attention_tiles, paged_attention_tiles_256)                                                            \
    PLAIN(partial_sums, partial_sums)                                                                                  \
    PLAIN(reduce, reduce)                                                                                              \
    PLAIN(rows, change_ids)                                                                                            \
    PLAIN(rows, gather_rows)                                                                                           \
    PLAIN(sums, clip_factor)                                                                                           \
    PLAIN(sums, sum_of_squares)                                                                                        \
    PLAIN(sums, sum_to_one)

#define CUDA_KERNEL_NUMBER(file, kernel) CUDA_##kernel,
enum cuda_kernel { CUDA_KERNELS(CUDA_KERNEL_NUMBER, CUDA_KERNEL_NUMBER) CUDA_KERNEL_COUNT };
#undef CUDA_KERNEL_NUMBER
enum { CUDA_KERNEL_TYPES = 2 /* fp32, bf16 */, CUDA_IMAGES_MOST = 64 };

/* One fat binary in the program's read-only data. */
struct cuda_image {
    const char *file; /* "norm" */
    const void *start;
};
/* All of them; the last one has no file. */
extern const struct cuda_image cuda_images[];

/* Kernels in a device's memory. */
struct cuda_kernels {
    struct CUmod_st *modules[CUDA_IMAGES_MOST]; /* in the order of cuda_images */
    struct CUfunc_st *functions[CUDA_KERNEL_COUNT][CUDA_KERNEL_TYPES];
};

/* Loads all fat binaries and finds all kernels. The device's context is current. Fails as cuda_check. */
int cuda_kernels_load(struct device *device, struct cuda_kernels *kernels);
/* Unloads what was loaded. */
void cuda_kernels_unload(struct device *device, struct cuda_kernels *kernels);

/* One launch: `blocks` blocks of `threads` threads. A kernel takes one argument, a struct that is copied. */
struct cuda_launch {
    enum cuda_kernel kernel;
    enum dtype type; /* of the elements; DTYPE_F32 for a kernel without a type */
    int64_t blocks;  /* 0: nothing is launched */
    int threads;     /* whole warps */
    size_t shared_bytes;
    const void *arguments;
};
/* Queues the launch. STATUS_UNSUPPORTED for types other than fp32 and bf16; otherwise fails as cuda_check, with the
 * operation's name. */
int cuda_launch(const struct exec *exec, const struct cuda_launch *launch);

/* Launches for elements or rows of 16-byte accesses: one thread for each access, and for a row one block as large as it
 * needs. Both fail as cuda_launch. */
int cuda_launch_elements(const struct exec *exec, const struct cuda_launch *launch, int64_t count);
int cuda_launch_rows(const struct exec *exec, const struct cuda_launch *launch, int64_t rows, int64_t cols);
/* Returns the threads of a block for one row. */
int cuda_row_threads(enum dtype type, int64_t cols);

/* The operations, which ops.h describes. */
#define CUDA_OPERATION(op, type) int cuda_##op(const struct exec *exec, const struct type *a);
CUDA_OPERATION(attention_forward, attention)
CUDA_OPERATION(attention_backward, attention)
CUDA_OPERATION(column_scale_forward, column_scale)
CUDA_OPERATION(column_scale_backward, column_scale)
CUDA_OPERATION(row_squares, row_squares)
CUDA_OPERATION(magnitude_ratio, magnitude_ratio)
CUDA_OPERATION(cross_entropy_forward, cross_entropy)
CUDA_OPERATION(cross_entropy_backward, cross_entropy)
CUDA_OPERATION(cross_entropy_fused, cross_entropy)
CUDA_OPERATION(cross_entropy_part, cross_entropy)
CUDA_OPERATION(cross_entropy_part_backward, cross_entropy)
CUDA_OPERATION(embedding_forward, embedding)
CUDA_OPERATION(embedding_backward, embedding)
CUDA_OPERATION(fp8_cast, fp8_cast)
CUDA_OPERATION(fp8_scales, fp8_scales)
CUDA_OPERATION(gelu_forward, gelu)
CUDA_OPERATION(gelu_backward, gelu)
CUDA_OPERATION(group_scale, group_scale)
CUDA_OPERATION(grouped_gemm, grouped_gemm)
CUDA_OPERATION(grouped_norm, grouped_norm)
CUDA_OPERATION(kv_append, kv_append)
CUDA_OPERATION(lstm_forward, lstm)
CUDA_OPERATION(lstm_backward, lstm)
CUDA_OPERATION(norm_forward, norm)
CUDA_OPERATION(norm_backward, norm)
CUDA_OPERATION(paged_attention, paged_attention)
CUDA_OPERATION(residual_dropout_forward, residual_dropout)
CUDA_OPERATION(residual_dropout_backward, residual_dropout)
CUDA_OPERATION(rotary, rotary)
CUDA_OPERATION(swiglu_forward, swiglu)
CUDA_OPERATION(swiglu_backward, swiglu)
CUDA_OPERATION(unit_forward, unit_call)
CUDA_OPERATION(unit_backward, unit_call)
CUDA_OPERATION(zero_ranges, zero_ranges)
CUDA_OPERATION(adamw, adamw)
CUDA_OPERATION(clip_factor, clip_factor)
CUDA_OPERATION(scale_add, scale_add)
CUDA_OPERATION(scatter_add_rows, scatter_add_rows)
CUDA_OPERATION(change_ids, change_ids)
CUDA_OPERATION(sample, sample)
CUDA_OPERATION(transpose, transpose)
CUDA_OPERATION(column_sum, column_sum)
CUDA_OPERATION(gemm, gemm)
#undef CUDA_OPERATION
int cuda_cross_entropy_join(const struct exec *exec, const struct cross_entropy *a, int ranks,
                            const struct cross_entropy_part *parts);
size_t cuda_attention_forward_workspace(struct device *device, const struct attention *a);
size_t cuda_attention_backward_workspace(struct device *device, const struct attention *a);
size_t cuda_column_scale_backward_workspace(struct device *device, const struct column_scale *a);
size_t cuda_embedding_backward_workspace(struct device *device, const struct embedding *a);
size_t cuda_lstm_backward_workspace(struct device *device, const struct lstm *a);
size_t cuda_norm_backward_workspace(struct device *device, const struct norm *a);
size_t cuda_paged_attention_workspace(struct device *device, const struct paged_attention *a);
int64_t cuda_kv_page_elements(struct device *device, int kv_heads, int head_size, enum dtype type);
size_t cuda_sample_workspace(struct device *device, const struct sample *a);
size_t cuda_sum_of_squares_workspace(struct device *device, int64_t count);
int cuda_sum_of_squares(const struct exec *exec, int64_t count, const float *x, bool accumulate, double *sum);
int cuda_weighted_sum(const struct exec *exec, int64_t count, const float *x, const float *weight, bool accumulate,
                      double *sum);
bool cuda_gemm_supports(struct device *device, const struct gemm *gemm);
size_t cuda_gemm_workspace(struct device *device, const struct gemm *gemm);
size_t cuda_packed_bytes(struct device *device, const struct matrix_view *plain);
int cuda_pack(const struct exec *exec, const struct matrix_view *plain, void *out, struct matrix_view *packed);
size_t cuda_column_sum_workspace(struct device *device, const struct column_sum *a);
int cuda_cast(const struct exec *exec, int64_t count, enum dtype from_type, const void *from, enum dtype to_type,
              void *to);
int cuda_add(const struct exec *exec, int64_t count, enum dtype type, const void *x, void *y);
int cuda_gather_rows(const struct exec *exec, int64_t count, int64_t cols, enum dtype type, const void *x,
                     const int32_t *index, void *out);
#endif
