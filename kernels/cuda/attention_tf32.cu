/* Attention of fp32 in TF32, by tiles. */
#include "cuda/attention_forward.cuh"

#define KERNELS(size) FORWARD_KERNEL(attention_forward_tf32_tiles_##size, size, float, DROPS_SOMETIMES)
ATTENTION_TF32_SIZES(KERNELS)
