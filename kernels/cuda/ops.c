/* The table of the GPU's operations. device.c fills in ops_absent for those that it lacks. */
#include "cuda/cuda-internal.h"
#include "cuda/encoded.h"

/* The head's products need rows enough for every multiprocessor. Its logits stay below 0.5 GB in bf16 with GPT-2's
 * vocabulary. A sum over ranks of 64 MB fills the links of a GPU, and GPT-2 124M has six such sums in a step. No GPU
 * has measured these sizes. */
static const struct ops_sizes *cuda_sizes(struct device *device) {
    static const struct ops_sizes sizes = {.head_rows = 4096,
                                           .head_rows_multiple = 64,
                                           .step_rows = 256,
                                           .bank_scratch_bytes = 32 << 20,
                                           .bucket_elements = 16 << 20};
    return &sizes;
}

#define WORKSPACE_MEMBER(op, type) .op##_workspace = cuda_##op##_workspace,
#define IF_NEEDED(op)              .op = cuda_##op,
#define IF_ONCE                    IF_NEEDED
#define IF_OPTIONAL(op)
#define MEMBER(op, type, workspace, presence, ...) IF_##presence(op) OPS_WITH_##workspace(WORKSPACE_MEMBER, op, type)
const struct ops cuda_ops = {.name = "cuda",
                             .sizes = cuda_sizes,
                             .gemm_supports = cuda_gemm_supports,
                             .packed_bytes = cuda_packed_bytes,
                             .pack = cuda_pack,
                             .kv_page_elements = cuda_kv_page_elements,
                             OPS(MEMBER)};
