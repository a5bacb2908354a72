/* One level's table of operations. */
#include "cpu/level/gemm_level.h"

static const struct gemm_level level = {
    .epilogue = LEVEL(gemm_epilogue),
    .column_sum = LEVEL(cpu_column_sum),
    .column_sum_workspace = LEVEL(cpu_column_sum_workspace),
    .packed_workspace = LEVEL(gemm_packed_workspace),
    .packed_gemm = LEVEL(gemm_packed),
    .unpack = LEVEL(gemm_unpack),
};

size_t LEVEL(cpu_gemm_workspace)(struct device *device, const struct gemm *gemm) {
    return gemm_workspace(&level, device, gemm);
}

int LEVEL(cpu_gemm)(const struct exec *exec, const struct gemm *gemm) {
    return gemm_run(&level, exec, gemm);
}

extern const struct ops LEVEL(cpu_ops);

#define WORKSPACE_MEMBER(op, type)       .op##_workspace = LEVEL(cpu_##op##_workspace),
#define MEMBER(op, type, workspace, ...) .op = LEVEL(cpu_##op), OPS_WITH_##workspace(WORKSPACE_MEMBER, op, type)
const struct ops LEVEL(cpu_ops) = {.name = "cpu-" LEVEL_TEXT(KERNEL_LEVEL),
                                   .sizes = cpu_sizes,
                                   .gemm_supports = cpu_gemm_supports,
                                   .packed_bytes = LEVEL(cpu_packed_bytes),
                                   .kv_page_elements = cpu_kv_page_elements,
                                   OPS(MEMBER)};
