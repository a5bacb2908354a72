/* Chooses the compilation of level/reduce.c for this processor. */
#include "comm-internal.h"

void comm_reduce(const struct comm_reduction *reduction) {
    __builtin_cpu_init();
    bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
    bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512cd");
    (has_v4 ? comm_reduce_v4 : has_v3 ? comm_reduce_v3 : comm_reduce_v2)(reduction);
}
