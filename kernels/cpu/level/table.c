/* One level's table of operations. */
#include "cpu/level/level.h"

extern const struct ops LEVEL(cpu_ops);

#define WORKSPACE_MEMBER(op, type)       .op##_workspace = LEVEL(cpu_##op##_workspace),
#define MEMBER(op, type, workspace, ...) .op = LEVEL(cpu_##op), OPS_WITH_##workspace(WORKSPACE_MEMBER, op, type)
const struct ops LEVEL(cpu_ops) = {.name = "cpu-" LEVEL_TEXT(KERNEL_LEVEL),
                                   .sizes = cpu_sizes,
                                   .gemm_supports = cpu_gemm_supports,
                                   .packed_bytes = LEVEL(cpu_packed_bytes),
                                   .kv_page_elements = cpu_kv_page_elements,
                                   OPS(MEMBER)};
