/* The table of the card's operations. device.c fills in ops_absent for those that it lacks. */
#include "cuda/cuda-internal.h"

const struct ops cuda_ops = {
    .name = "cuda",
    .norm_forward = cuda_norm_forward,
    .norm_backward_workspace = cuda_norm_backward_workspace,
    .norm_backward = cuda_norm_backward,
    .gelu_forward = cuda_gelu_forward,
    .gelu_backward = cuda_gelu_backward,
    .unit_forward = cuda_unit_forward,
    .unit_backward = cuda_unit_backward,
    .swiglu_forward = cuda_swiglu_forward,
    .swiglu_backward = cuda_swiglu_backward,
    .rotary = cuda_rotary,
    .residual_dropout_forward = cuda_residual_dropout_forward,
    .residual_dropout_backward = cuda_residual_dropout_backward,
    .embedding_forward = cuda_embedding_forward,
    .embedding_backward_workspace = cuda_embedding_backward_workspace,
    .embedding_backward = cuda_embedding_backward,
    .cross_entropy_forward = cuda_cross_entropy_forward,
    .cross_entropy_backward = cuda_cross_entropy_backward,
    .cross_entropy_fused = cuda_cross_entropy_fused,
    .cross_entropy_part = cuda_cross_entropy_part,
    .cross_entropy_join = cuda_cross_entropy_join,
    .cross_entropy_part_backward = cuda_cross_entropy_part_backward,
};
