/* Launches of AdamW and of zeroing. A table of ranges lies in device memory, so as many blocks as the GPU runs at a
 * time divide it. */
#include "cuda/adamw.h"
#include "cuda/cuda-internal.h"

#include <math.h>

enum { BLOCKS_EACH = 4, THREADS = 256 };

static int launch(const struct exec *exec, enum cuda_kernel kernel, enum dtype type, int64_t range_count,
                  const void *arguments) {
    int64_t blocks = (int64_t)cuda(exec->stream->device)->multiprocessors * BLOCKS_EACH;
    return cuda_launch_blocks(exec, kernel, type, range_count ? blocks : 0, THREADS, arguments);
}

static struct adamw_pair pair(double value) {
    float high = (float)value;
    return (struct adamw_pair){high, (float)(value - (double)high)};
}

int cuda_adamw(const struct exec *exec, const struct adamw *a) {
    const struct adamw_step step = {
        .call = *a,
        .lr = pair(a->lr),
        .inverse = pair(1.0 / (1.0 - pow((double)a->beta1, (double)a->step))),
        .root_factor = (float)(1.0 / sqrt(1.0 - pow((double)a->beta2, (double)a->step))),
        .rest1 = (float)(1.0 - (double)a->beta1),
        .rest2 = (float)(1.0 - (double)a->beta2),
    };
    return launch(exec, CUDA_adamw, a->weights ? a->weights_type : DTYPE_F32, a->range_count, &step);
}

int cuda_zero_ranges(const struct exec *exec, const struct zero_ranges *a) {
    return launch(exec, CUDA_zero_ranges, DTYPE_F32, a->range_count, a);
}
