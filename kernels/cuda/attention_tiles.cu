/* Attention of bf16 by tiles. */
#include "cuda/attention_forward.cuh"

#define KERNELS(size)                                                                                                  \
    FORWARD_KERNEL(attention_forward_tiles_##size, size, bf16, DROPS_NEVER)                                            \
    FORWARD_KERNEL(attention_forward_dropout_tiles_##size, size, bf16, DROPS_ALWAYS)
ATTENTION_TILE_SIZES(KERNELS)
