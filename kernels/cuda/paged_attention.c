/* Launches of the operations on the pages of the KV cache. */
#include "cuda/paged_attention.h"
#include "attention_check.h"
#include "cuda/attention.h"
#include "cuda/kernels.h"

/* Above these sizes there are warps enough without dividing sequences into parts. Results have the same bits. */
enum { FEW_ROWS = 64, PARTS_MOST_BYTES = 64 << 20 };

static int64_t parts_of(const struct paged_attention *a) {
    return (a->max_pages * KV_PAGE_TOKENS + PAGED_PART_TOKENS - 1) / PAGED_PART_TOKENS;
}

/* Returns the bytes of the parts' results; 0 if sequences are not divided. */
static size_t parts_bytes(const struct paged_attention *a) {
    int64_t parts = parts_of(a), bytes = a->rows * a->heads * parts * (a->head_size + 2) * (int64_t)sizeof(float);
    return parts > 1 && a->rows <= FEW_ROWS && bytes <= PARTS_MOST_BYTES ? (size_t)bytes : 0;
}

size_t cuda_paged_attention_workspace(struct device *device, const struct paged_attention *a) {
    (void)device;
    return parts_bytes(a);
}

static int launch(const struct exec *exec, enum cuda_kernel kernel, const struct paged_attention *a, int64_t parts,
                  const void *arguments) {
    int group = a->heads / a->kv_heads;
    return cuda_launch(
        exec, &(const struct cuda_launch){.kernel = kernel,
                                          .type = a->type,
                                          .blocks = a->rows * a->kv_heads * attention_slabs(a->head_size) * parts,
                                          .threads = 32 * (group < PAGED_WARPS ? group : PAGED_WARPS),
                                          .arguments = arguments});
}

int cuda_paged_attention(const struct exec *exec, const struct paged_attention *a) {
    int status = paged_attention_check(a);
    if (!status && a->type == DTYPE_BF16 && a->page_stride % 2)
        status =
            status_fail(STATUS_INVALID, "paged attention over pages of an odd stride, %lld", (long long)a->page_stride);
    if (!status)
        status = attention_check_workspace(exec, parts_bytes(a), "paged attention");
    if (status)
        return status;
    if (!parts_bytes(a))
        return launch(exec, CUDA_paged_attention, a, 1, a);
    struct paged_parts parts = {.a = *a, .count = (int)parts_of(a), .result = exec->workspace};
    status = launch(exec, CUDA_paged_attention_parts, a, parts.count, &parts);
    return status ? status : launch(exec, CUDA_paged_attention_merge, a, 1, &parts);
}

int64_t cuda_kv_page_elements(struct device *device, int kv_heads, int head_size, enum dtype type) {
    (void)device;
    (void)type;
    return (int64_t)2 * KV_PAGE_TOKENS * kv_heads * head_size;
}

int cuda_kv_append(const struct exec *exec, const struct kv_append *a) {
    int cols = a->kv_heads * a->head_size;
    return cuda_launch(exec, &(const struct cuda_launch){.kernel = CUDA_kv_append,
                                                         .type = a->type,
                                                         .blocks = a->rows,
                                                         .threads = cols <= 32    ? 32
                                                                    : cols <= 128 ? 128
                                                                                  : 256,
                                                         .arguments = a});
}
