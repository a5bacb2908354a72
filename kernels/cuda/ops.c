/* The table of the card's operations. device.c fills in ops_absent for those that it lacks. */
#include "cuda/cuda-internal.h"

const struct ops cuda_ops = {
    .name = "cuda",
    .norm_forward = cuda_norm_forward,
    .gelu_forward = cuda_gelu_forward,
    .gelu_backward = cuda_gelu_backward,
    .unit_forward = cuda_unit_forward,
    .unit_backward = cuda_unit_backward,
    .swiglu_forward = cuda_swiglu_forward,
    .swiglu_backward = cuda_swiglu_backward,
    .embedding_forward = cuda_embedding_forward,
};
