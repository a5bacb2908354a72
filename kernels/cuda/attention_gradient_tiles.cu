/* Gradients of attention of bf16 by tiles. */
#include "cuda/attention_gradient.cuh"

#define KERNELS(size)                                                                                                  \
    GRADIENT_KERNELS(attention_backward_queries_tiles_##size, attention_backward_keys_tiles_##size, size, bf16)
ATTENTION_TILE_SIZES(KERNELS)
