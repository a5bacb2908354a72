/* The work of each operation: shape, FLOPs and bytes, from the sizes and types of its call only. No pointer is
 * followed, so plans need neither memory nor a device. An optional operand counts if a training step has it.
 *
 * A function NAME_work takes the arguments of operation NAME in ops.h, without its exec. Numbers that the operation
 * finds in device memory are extra arguments. The functions are pure arithmetic, cannot fail, and run on any thread. */
#ifndef CAMBIUM_KERNELS_WORK_H
#define CAMBIUM_KERNELS_WORK_H

#include "kernels/ops.h"

struct op_work {
    int64_t shape[3]; /* rows, columns and, of a product, the inner dimension; 0 where there is none */
    double flops;     /* of matrix products, two for each multiplication with its addition; 0 for others */
    double fp8_flops; /* the part of `flops` whose operands are FP8 */
    double bytes;     /* operands read and results written, each at least once */
    double lasting;   /* the part of `bytes` that no step makes: weights read whole, and cached keys and values */
    double weights;   /* elements of weights that every row is multiplied with: two model FLOPs each for every row */
};

/* ---- products ---- */

struct op_work gemm_work(const struct gemm *a);
/* Does not count entries, which lie in device memory. */
struct op_work grouped_gemm_work(const struct grouped_gemm *a);
/* Does not count entries, which lie in device memory. */
struct op_work group_scale_work(const struct group_scale *a);
/* Does not count entries, which lie in device memory. */
struct op_work grouped_norm_work(const struct grouped_norm *a);
struct op_work lstm_forward_work(const struct lstm *a);
struct op_work lstm_backward_work(const struct lstm *a);
/* Counts the pairs of a query and a key that it sees: two products forward, five backward. It takes all segments as
 * equally long. */
struct op_work attention_forward_work(const struct attention *a);
struct op_work attention_backward_work(const struct attention *a);
/* `seen` is the mean number of tokens that a row sees, which the operation finds in device memory. */
struct op_work paged_attention_work(const struct paged_attention *a, double seen);
struct op_work kv_append_work(const struct kv_append *a);

/* ---- element by element ---- */

struct op_work norm_forward_work(const struct norm *a);
struct op_work norm_backward_work(const struct norm *a);
struct op_work gelu_forward_work(const struct gelu *a);
struct op_work gelu_backward_work(const struct gelu *a);
struct op_work unit_forward_work(const struct unit_call *a);
struct op_work unit_backward_work(const struct unit_call *a);
struct op_work swiglu_forward_work(const struct swiglu *a);
struct op_work swiglu_backward_work(const struct swiglu *a);
struct op_work rotary_work(const struct rotary *a);
struct op_work column_scale_forward_work(const struct column_scale *a);
struct op_work column_scale_backward_work(const struct column_scale *a);
struct op_work row_squares_work(const struct row_squares *a);
struct op_work magnitude_ratio_work(const struct magnitude_ratio *a);
struct op_work residual_dropout_forward_work(const struct residual_dropout *a);
struct op_work residual_dropout_backward_work(const struct residual_dropout *a);
struct op_work scale_add_work(const struct scale_add *a);
struct op_work cast_work(int64_t count, enum dtype from_type, const void *from, enum dtype to_type, void *to);
struct op_work add_work(int64_t count, enum dtype type, const void *x, void *y);
struct op_work fp8_cast_work(const struct fp8_cast *a);
struct op_work fp8_scales_work(const struct fp8_scales *a);

/* ---- rows, losses and draws ---- */

struct op_work embedding_forward_work(const struct embedding *a);
struct op_work embedding_backward_work(const struct embedding *a);
struct op_work gather_rows_work(int64_t rows, int64_t cols, enum dtype type, const void *x, const int32_t *index,
                                void *out);
struct op_work scatter_add_rows_work(const struct scatter_add_rows *a);
struct op_work change_ids_work(const struct change_ids *a);
struct op_work transpose_work(const struct transpose *a);
struct op_work cross_entropy_forward_work(const struct cross_entropy *a);
struct op_work cross_entropy_fused_work(const struct cross_entropy *a);
struct op_work cross_entropy_part_work(const struct cross_entropy *a);
struct op_work cross_entropy_join_work(const struct cross_entropy *a, int ranks,
                                       const struct cross_entropy_part *parts);
struct op_work cross_entropy_part_backward_work(const struct cross_entropy *a);
struct op_work weighted_sum_work(int64_t count, const float *x, const float *weight, bool accumulate, double *sum);
struct op_work column_sum_work(const struct column_sum *a);
struct op_work sample_work(const struct sample *a);

/* ---- parameters: zero_ranges and adamw take the number of elements, as their ranges lie in device memory ---- */

struct op_work zero_ranges_work(int64_t elements);
struct op_work adamw_work(int64_t elements, enum dtype weights_type);
struct op_work sum_of_squares_work(int64_t count, const float *x, bool accumulate, double *sum);
struct op_work clip_factor_work(const struct clip_factor *a);

#endif
