/* Gradients of attention of fp32 in TF32, by tiles. */
#include "cuda/attention_gradient.cuh"

#define KERNELS(size)                                                                                                  \
    GRADIENT_KERNELS(attention_backward_queries_tf32_tiles_##size, attention_backward_keys_tf32_tiles_##size, size,    \
                     float)
ATTENTION_TF32_SIZES(KERNELS)
