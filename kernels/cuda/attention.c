/* Launches of attention. */
#include "cuda/attention.h"
#include "attention_check.h"
#include "cuda/kernels.h"

/* One warp for each row, or key, of each of `heads` heads, and for each slab of features. */
static int launch_warps(const struct exec *exec, enum cuda_kernel kernel, const struct attention *a, int64_t rows,
                        int heads, const void *arguments) {
    int64_t blocks = (rows + ATTENTION_WARPS - 1) / ATTENTION_WARPS * heads * attention_slabs(a->head_size);
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = kernel,
                                                         .type = a->type,
                                                         .blocks = blocks,
                                                         .threads = ATTENTION_WARPS * 32,
                                                         .arguments = arguments});
}

size_t cuda_attention_forward_workspace(struct device *device, const struct attention *a) {
    (void)device;
    (void)a;
    return 0;
}

int cuda_attention_forward(const struct exec *exec, const struct attention *a) {
    int status = attention_check(a);
    return status ? status : launch_warps(exec, CUDA_attention_forward, a, a->rows, a->heads, a);
}

static size_t delta_bytes(const struct attention *a) {
    return (size_t)(a->rows * a->heads) * sizeof(float);
}

size_t cuda_attention_backward_workspace(struct device *device, const struct attention *a) {
    (void)device;
    return delta_bytes(a);
}

int cuda_attention_backward(const struct exec *exec, const struct attention *a) {
    int status = attention_check(a);
    if (!status)
        status = attention_check_workspace(exec, delta_bytes(a), "attention backward");
    if (status)
        return status;
    struct attention_gradient gradient = {.a = *a, .delta = exec->workspace};
    status = launch_warps(exec, CUDA_attention_backward_queries, a, a->rows, a->heads, &gradient);
    int64_t keys = a->rows + (a->dprefix_k || a->dprefix_v ? a->prefix : 0);
    return status ? status : launch_warps(exec, CUDA_attention_backward_keys, a, keys, a->kv_heads, &gradient);
}
