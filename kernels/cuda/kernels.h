/* The kernels of the backend `cuda`, and how they are launched. The file images.c carries their fat binaries. The name
 * of a kernel begins with its operation's, and ends with the type of its elements: norm_forward_bf16. */
#pragma once

#include "cuda/driver.h"
#include "kernels/ops.h"

/* TYPED(file, kernel, begin): kernels/cuda/FILE.cu has KERNEL_fp32 and KERNEL_bf16. PLAIN: it has KERNEL.
 *
 * begin: EARLY for a kernel that may begin before the one before it has ended, and calls wait_for_last for that. Before
 * it waits, it reads only what no EARLY kernel writes: weights, and places, positions and page tables of the KV cache.
 * ORDERED for all others. */
enum cuda_begin { ORDERED, EARLY };
#define CUDA_KERNELS(TYPED, PLAIN)                                                                                     \
    TYPED(adamw, adamw, ORDERED)                                                                                       \
    TYPED(attention, attention_backward_keys, ORDERED)                                                                 \
    TYPED(attention, attention_backward_queries, ORDERED)                                                              \
    TYPED(attention, attention_forward, ORDERED)                                                                       \
    TYPED(paged_attention, attention_forward_pages, EARLY)                                                             \
    TYPED(column_scale, column_scale_backward, ORDERED)                                                                \
    TYPED(column_scale, column_scale_forward, ORDERED)                                                                 \
    TYPED(column_scale, magnitude_ratio, ORDERED)                                                                      \
    TYPED(column_scale, row_squares, ORDERED)                                                                          \
    TYPED(cross_entropy, cross_entropy_backward, ORDERED)                                                              \
    TYPED(cross_entropy, cross_entropy_forward, ORDERED)                                                               \
    TYPED(cross_entropy, cross_entropy_fused, ORDERED)                                                                 \
    TYPED(cross_entropy, cross_entropy_part, ORDERED)                                                                  \
    TYPED(cross_entropy, cross_entropy_part_backward, ORDERED)                                                         \
    TYPED(embedding, embedding_backward, ORDERED)                                                                      \
    TYPED(embedding, embedding_forward, EARLY)                                                                         \
    TYPED(encoded, encoded_gather, EARLY)                                                                              \
    TYPED(encoded, encoded_squares, ORDERED)                                                                           \
    TYPED(encoded, encoded_values, ORDERED)                                                                            \
    TYPED(gelu, gelu_backward, ORDERED)                                                                                \
    TYPED(gelu, gelu_forward, EARLY)                                                                                   \
    TYPED(gemm_finish, gemm_finish, ORDERED)                                                                           \
    TYPED(group_scale, group_scale, ORDERED)                                                                           \
    TYPED(grouped_gemm, grouped_gemm, ORDERED)                                                                         \
    TYPED(kv_append, kv_append, EARLY)                                                                                 \
    TYPED(norm, grouped_norm, ORDERED)                                                                                 \
    TYPED(norm, norm_backward, ORDERED)                                                                                \
    TYPED(norm, norm_forward, EARLY)                                                                                   \
    TYPED(norm_rows, norm_few_forward, EARLY)                                                                          \
    TYPED(norm_rows_backward, norm_narrow_backward, ORDERED)                                                           \
    TYPED(norm_rows, norm_narrow_forward, EARLY)                                                                       \
    TYPED(norm_rows_backward, norm_wide_backward, ORDERED)                                                             \
    TYPED(norm_rows, norm_wide_forward, EARLY)                                                                         \
    TYPED(paged_attention, paged_attention, EARLY)                                                                     \
    TYPED(paged_attention, paged_attention_merge, EARLY)                                                               \
    TYPED(paged_attention, paged_attention_parts, EARLY)                                                               \
    TYPED(residual_dropout, residual_dropout, EARLY)                                                                   \
    TYPED(rotary, rotary, EARLY)                                                                                       \
    TYPED(rows, add, ORDERED)                                                                                          \
    TYPED(rows, scale_add, ORDERED)                                                                                    \
    TYPED(rows, scatter_add_rows, ORDERED)                                                                             \
    TYPED(sample, sample, EARLY)                                                                                       \
    TYPED(sums, column_sum, ORDERED)                                                                                   \
    TYPED(swiglu, swiglu_backward, ORDERED)                                                                            \
    TYPED(swiglu, swiglu_forward, EARLY)                                                                               \
    TYPED(transpose, transpose, ORDERED)                                                                               \
    TYPED(unit, unit_backward, ORDERED)                                                                                \
    TYPED(unit, unit_forward, ORDERED)                                                                                 \
    PLAIN(adamw, zero_ranges, ORDERED)                                                                                 \
    PLAIN(attention_gradient_tf32, attention_backward_keys_tf32_tiles_64, ORDERED)                                     \
    PLAIN(attention_gradient_tf32, attention_backward_keys_tf32_tiles_128, ORDERED)                                    \
    PLAIN(attention_gradient_tiles, attention_backward_keys_tiles_32, ORDERED)                                         \
    PLAIN(attention_gradient_tiles, attention_backward_keys_tiles_64, ORDERED)                                         \
    PLAIN(attention_gradient_tiles, attention_backward_keys_tiles_96, ORDERED)                                         \
    PLAIN(attention_gradient_tiles, attention_backward_keys_tiles_128, ORDERED)                                        \
    PLAIN(attention_gradient_tiles, attention_backward_keys_tiles_256, ORDERED)                                        \
    PLAIN(attention_gradient_tf32, attention_backward_queries_tf32_tiles_64, ORDERED)                                  \
    PLAIN(attention_gradient_tf32, attention_backward_queries_tf32_tiles_128, ORDERED)                                 \
    PLAIN(attention_gradient_tiles, attention_backward_queries_tiles_32, ORDERED)                                      \
    PLAIN(attention_gradient_tiles, attention_backward_queries_tiles_64, ORDERED)                                      \
    PLAIN(attention_gradient_tiles, attention_backward_queries_tiles_96, ORDERED)                                      \
    PLAIN(attention_gradient_tiles, attention_backward_queries_tiles_128, ORDERED)                                     \
    PLAIN(attention_gradient_tiles, attention_backward_queries_tiles_256, ORDERED)                                     \
    PLAIN(attention_kept, attention_kept, ORDERED)                                                                     \
    PLAIN(paged_attention_tiles, attention_forward_pages_64, EARLY)                                                    \
    PLAIN(paged_attention_tiles, attention_forward_pages_128, EARLY)                                                   \
    PLAIN(paged_attention_tiles, attention_forward_pages_256, EARLY)                                                   \
    PLAIN(attention_tf32, attention_forward_tf32_tiles_64, ORDERED)                                                    \
    PLAIN(attention_tf32, attention_forward_tf32_tiles_128, ORDERED)                                                   \
    PLAIN(attention_tiles, attention_forward_tiles_32, ORDERED)                                                        \
    PLAIN(attention_tiles, attention_forward_dropout_tiles_32, ORDERED)                                                \
    PLAIN(attention_tiles, attention_forward_tiles_64, ORDERED)                                                        \
    PLAIN(attention_tiles, attention_forward_dropout_tiles_64, ORDERED)                                                \
    PLAIN(attention_tiles, attention_forward_tiles_96, ORDERED)                                                        \
    PLAIN(attention_tiles, attention_forward_dropout_tiles_96, ORDERED)                                                \
    PLAIN(attention_tiles, attention_forward_tiles_128, ORDERED)                                                       \
    PLAIN(attention_tiles, attention_forward_dropout_tiles_128, ORDERED)                                               \
    PLAIN(attention_tiles, attention_forward_tiles_256, ORDERED)                                                       \
    PLAIN(attention_tiles, attention_forward_dropout_tiles_256, ORDERED)                                               \
    PLAIN(cast, cast, ORDERED)                                                                                         \
    PLAIN(cross_entropy, cross_entropy_join, ORDERED)                                                                  \
    PLAIN(embedding, embedding_backward_order, ORDERED)                                                                \
    PLAIN(encoded, encoded_inputs, ORDERED)                                                                            \
    PLAIN(encoded_rows, encoded_rows_nibbles_1, EARLY)                                                                 \
    PLAIN(encoded_rows, encoded_rows_nibbles_2, EARLY)                                                                 \
    PLAIN(encoded_rows, encoded_rows_nibbles_4, EARLY)                                                                 \
    PLAIN(encoded_rows, encoded_rows_nibbles_8, EARLY)                                                                 \
    PLAIN(encoded_rows, encoded_rows_tables_1, EARLY)                                                                  \
    PLAIN(encoded_rows, encoded_rows_tables_2, EARLY)                                                                  \
    PLAIN(encoded_rows, encoded_rows_tables_4, EARLY)                                                                  \
    PLAIN(encoded_rows, encoded_rows_tables_8, EARLY)                                                                  \
    PLAIN(encoded_rows, encoded_rows_bytes_1, EARLY)                                                                   \
    PLAIN(encoded_rows, encoded_rows_bytes_2, EARLY)                                                                   \
    PLAIN(encoded_rows, encoded_rows_bytes_4, EARLY)                                                                   \
    PLAIN(encoded_rows, encoded_rows_bytes_8, EARLY)                                                                   \
    PLAIN(encoded_rows, encoded_rows_e4m3_1, EARLY)                                                                    \
    PLAIN(encoded_rows, encoded_rows_e4m3_2, EARLY)                                                                    \
    PLAIN(encoded_rows, encoded_rows_e4m3_4, EARLY)                                                                    \
    PLAIN(encoded_rows, encoded_rows_e4m3_8, EARLY)                                                                    \
    PLAIN(few_rows, few_rows_4_1, EARLY)                                                                               \
    PLAIN(few_rows, few_rows_4_2, EARLY)                                                                               \
    PLAIN(few_rows, few_rows_8_1, EARLY)                                                                               \
    PLAIN(few_rows, few_rows_8_2, EARLY)                                                                               \
    PLAIN(fp8, fp8_cast_e4m3, ORDERED)                                                                                 \
    PLAIN(fp8, fp8_cast_e5m2, ORDERED)                                                                                 \
    PLAIN(fp8, fp8_scales, ORDERED)                                                                                    \
    PLAIN(fp8_results, fp8_gelu, ORDERED)                                                                              \
    PLAIN(fp8_results, fp8_gelu_gradient, ORDERED)                                                                     \
    PLAIN(fp8_results, fp8_norm, ORDERED)                                                                              \
    PLAIN(fp8_results, fp8_swiglu, ORDERED)                                                                            \
    PLAIN(fp8_results, fp8_swiglu_gradient, ORDERED)                                                                   \
    PLAIN(lstm, lstm_backward, ORDERED)                                                                                \
    PLAIN(lstm, lstm_forward, ORDERED)                                                                                 \
    PLAIN(norm, norm_long_fp8, ORDERED)                                                                                \
    PLAIN(norm_rows, norm_rows_fp8, ORDERED)                                                                           \
    PLAIN(paged_attention_tiles, paged_attention_tiles_64, EARLY)                                                      \
    PLAIN(paged_attention_tiles, paged_attention_tiles_128, EARLY)                                                     \
    PLAIN(paged_attention_tiles, paged_attention_tiles_256, EARLY)                                                     \
    PLAIN(partial_sums, partial_sums, ORDERED)                                                                         \
    PLAIN(reduce, reduce, ORDERED)                                                                                     \
    PLAIN(rows, change_ids, ORDERED)                                                                                   \
    PLAIN(rows, gather_rows, EARLY)                                                                                    \
    PLAIN(sums, clip_factor, ORDERED)                                                                                  \
    PLAIN(sums, sum_of_squares, ORDERED)                                                                               \
    PLAIN(sums, sum_to_one, ORDERED)

#define CUDA_KERNEL_NUMBER(file, kernel, begin) CUDA_##kernel,
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

/* The same without shared memory. For elements or rows of 16-byte accesses: one thread for each access, and for a row
 * one block as large as it needs. All fail as cuda_launch. */
int cuda_launch_blocks(const struct exec *exec, enum cuda_kernel kernel, enum dtype type, int64_t blocks, int threads,
                       const void *arguments);
int cuda_launch_elements(const struct exec *exec, enum cuda_kernel kernel, enum dtype type, int64_t count,
                         const void *arguments);
int cuda_launch_rows(const struct exec *exec, enum cuda_kernel kernel, enum dtype type, int64_t rows, int64_t cols,
                     const void *arguments);
/* Fails as cuda_launch does for types of another operand. */
int cuda_require_activation(const char *op, enum dtype type);
/* Returns the threads of a block for one row. */
int cuda_row_threads(enum dtype type, int64_t cols);

/* The operations, which ops.h describes. The backend has none of the optional ones. */
#define CUDA_WORKSPACE(op, type) size_t cuda_##op##_workspace(struct device *device, const struct type *a);
#define CUDA_OPERATION(op, type, workspace, ...)                                                                       \
    int cuda_##op(const struct exec *exec, const struct type *a);                                                      \
    OPS_WITH_##workspace(CUDA_WORKSPACE, op, type)
OPS(CUDA_OPERATION)
#undef CUDA_OPERATION
#undef CUDA_WORKSPACE
bool cuda_gemm_supports(struct device *device, const struct gemm *gemm);
int64_t cuda_kv_page_elements(struct device *device, int kv_heads, int head_size, enum dtype type);
