/* The list of operations (ops.h) as data: facts, workspaces, and stand-ins for operations that a backend lacks. Those
 * return STATUS_UNSUPPORTED; their workspaces have no bytes, and sizes are 1. */
#include "backend.h"

/* ---- facts ---- */

#define POINTERS(type, ...)                                                                                            \
    static int pointers_of_##type(const void *arguments, const void *pointers[OP_POINTERS_MOST]) {                     \
        const struct type *a = arguments;                                                                              \
        const void *const all[] = {__VA_ARGS__};                                                                       \
        _Static_assert(sizeof all / sizeof *all <= OP_POINTERS_MOST, "struct op_facts has room");                      \
        memcpy(pointers, all, sizeof all);                                                                             \
        return (int)(sizeof all / sizeof *all);                                                                        \
    }
OP_ARGUMENTS(POINTERS)

#define HAS_WORKSPACE(op, type) .has_workspace = true,
#define IS_NEEDED               .is_recordable = true,
#define IS_ONCE
#define IS_OPTIONAL .may_be_absent = true,
#define FACTS(op, type, workspace, presence, spends, ...)                                                              \
    {.name = #op,                                                                                                      \
     .cost = OP_##spends,                                                                                              \
     .bytes = sizeof(struct type),                                                                                     \
     IS_##presence OPS_WITH_##workspace(HAS_WORKSPACE, op, type).pointers = pointers_of_##type},
const struct op_facts op_facts[OP_COUNT] = {OPS(FACTS)};

size_t ops_workspace(const struct ops *ops, enum op op, struct device *device, const void *arguments) {
#define IT(op, type) return ops->op##_workspace(device, arguments);
#define WORKSPACE_OF(op, type, workspace, ...)                                                                         \
    case OP_##op:                                                                                                      \
        OPS_WITH_##workspace(IT, op, type) return 0;
    switch (op) { OPS(WORKSPACE_OF) case OP_COUNT : return 0; }
    return 0;
}

/* ---- what a backend lacks ---- */

static const struct ops_sizes *absent_sizes(struct device *device) {
    static const struct ops_sizes one = {1, 1, 1, 1, 1};
    return &one;
}

static bool absent_gemm_supports(struct device *device, const struct gemm *gemm) {
    return false;
}

static size_t absent_packed_bytes(struct device *device, const struct matrix_view *plain) {
    return 0;
}

static int64_t absent_kv_page_elements(struct device *device, int kv_heads, int head_size, enum dtype type) {
    return 0;
}

#define NO_WORKSPACE(op, type)                                                                                         \
    static size_t absent_##op##_workspace(struct device *device, const struct type *a) {                               \
        return 0;                                                                                                      \
    }
#define ABSENT(op, type, workspace, ...)                                                                               \
    static int absent_##op(const struct exec *exec, const struct type *a) {                                            \
        return status_fail(STATUS_UNSUPPORTED, "device '%s' has no operation %s", exec->stream->device->backend->name, \
                           #op);                                                                                       \
    }                                                                                                                  \
    OPS_WITH_##workspace(NO_WORKSPACE, op, type)
OPS(ABSENT)

#define WORKSPACE_MEMBER(op, type)       .op##_workspace = absent_##op##_workspace,
#define MEMBER(op, type, workspace, ...) .op = absent_##op, OPS_WITH_##workspace(WORKSPACE_MEMBER, op, type)
const struct ops ops_absent = {.name = "absent",
                               .sizes = absent_sizes,
                               .gemm_supports = absent_gemm_supports,
                               .packed_bytes = absent_packed_bytes,
                               .kv_page_elements = absent_kv_page_elements,
                               OPS(MEMBER)};

bool ops_fill(struct ops *ops) {
    const struct ops before = *ops;
#define FILL(member)                        ops->member = ops->member ? ops->member : ops_absent.member;
#define FILL_WORKSPACE(op, type)            FILL(op##_workspace)
#define FILL_BOTH(op, type, workspace, ...) FILL(op) OPS_WITH_##workspace(FILL_WORKSPACE, op, type)
    FILL(sizes)
    FILL(gemm_supports)
    FILL(packed_bytes)
    FILL(kv_page_elements)
    OPS(FILL_BOTH)
    return memcmp(&before, ops, sizeof before) != 0;
}

bool ops_lacks(const struct ops *ops, enum op op) {
#define LACKS(op, ...)                                                                                                 \
    case OP_##op:                                                                                                      \
        return !ops->op || ops->op == ops_absent.op;
    switch (op) { OPS(LACKS) case OP_COUNT : return true; }
    return true;
}

const char *ops_missing(const struct ops *ops, int number) {
    for (int op = 0; op < OP_COUNT; op++)
        if (!op_facts[op].may_be_absent && ops_lacks(ops, (enum op)op) && number-- == 0)
            return op_facts[op].name;
    return NULL;
}
