/* Launch of the kernel that draws tokens: a block for each row of logits. */
#include "cuda/sample.h"
#include "cuda/kernels.h"

static int64_t distance_stride(const struct sample *a) {
    return (a->vocab + 63) / 64 * 64;
}

size_t cuda_sample_workspace(struct device *device, const struct sample *a) {
    return (size_t)(a->rows * distance_stride(a)) * sizeof(float);
}

int cuda_sample(const struct exec *exec, const struct sample *a) {
    if (a->vocab > SAMPLE_VOCAB_MOST)
        return status_fail(STATUS_UNSUPPORTED, "sample: no vocabulary of %lld on cuda (%d at most)",
                           (long long)a->vocab, SAMPLE_VOCAB_MOST);
    const struct sample_call k = {*a, exec->workspace, distance_stride(a)};
    int threads = 32; /* of a block, each with at least some 16 tokens to read */
    while (threads < SAMPLE_THREADS_MOST && 16 * threads < a->vocab)
        threads *= 2;
    return cuda_launch_blocks(exec, CUDA_sample, a->type, a->rows, threads, &k);
}
