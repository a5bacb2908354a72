/* The operations of `late`. Each copies its arguments to the stream's queue; the CPU's operation runs from there. */
#include "late/late-internal.h"

#define WORKSPACE(op, type)                                                                                            \
    static size_t late_##op##_workspace(struct device *device, const struct type *a) {                                 \
        return ops_for(late_cpu(device))->op##_workspace(late_cpu(device), a);                                         \
    }
#define OPERATION(op, type, workspace, ...)                                                                            \
    static int run_##op(const struct exec *exec, const void *arguments) {                                              \
        return ops_for(exec->stream->device)->op(exec, arguments);                                                     \
    }                                                                                                                  \
    static int late_##op(const struct exec *exec, const struct type *a) {                                              \
        return late_queue_operation(exec, OP_##op, run_##op, a);                                                       \
    }                                                                                                                  \
    OPS_WITH_##workspace(WORKSPACE, op, type)

static int late_queue_operation(const struct exec *exec, enum op op,
                                int (*run)(const struct exec *exec, const void *arguments), const void *arguments) {
    const struct op_facts *facts = &op_facts[op];
    const void *pointers[OP_POINTERS_MOST];
    return late_queue(exec, &(const struct late_work){.name = facts->name,
                                                      .run = run,
                                                      .arguments = arguments,
                                                      .bytes = facts->bytes,
                                                      .pointers = pointers,
                                                      .pointer_count = facts->pointers(arguments, pointers),
                                                      .is_once = !facts->is_recordable});
}

OPS(OPERATION)

static const struct ops_sizes *late_sizes(struct device *device) {
    return ops_for(late_cpu(device))->sizes(late_cpu(device));
}

static bool late_gemm_supports(struct device *device, const struct gemm *gemm) {
    return ops_for(late_cpu(device))->gemm_supports(late_cpu(device), gemm);
}

static size_t late_packed_bytes(struct device *device, const struct matrix_view *plain) {
    return ops_for(late_cpu(device))->packed_bytes(late_cpu(device), plain);
}

static int64_t late_kv_page_elements(struct device *device, int kv_heads, int head_size, enum dtype type) {
    return ops_for(late_cpu(device))->kv_page_elements(late_cpu(device), kv_heads, head_size, type);
}

#define WORKSPACE_MEMBER(op, type)       .op##_workspace = late_##op##_workspace,
#define MEMBER(op, type, workspace, ...) .op = late_##op, OPS_WITH_##workspace(WORKSPACE_MEMBER, op, type)
const struct ops late_ops = {.name = "late",
                             .sizes = late_sizes,
                             .gemm_supports = late_gemm_supports,
                             .packed_bytes = late_packed_bytes,
                             .kv_page_elements = late_kv_page_elements,
                             OPS(MEMBER)};
