/* The CPU backend inside: a device is a number of OpenMP threads of this process, a stream runs at once. */
#ifndef CAMBIUM_KERNELS_CPU_INTERNAL_H
#define CAMBIUM_KERNELS_CPU_INTERNAL_H

#include "kernels/ops.h"

struct gemm_cache; /* oneDNN primitives by shape and thread count (gemm_cache.c) */

struct device {
    int threads;
    const char *level;     /* the widest level of this processor: "v2", "v3", "v4", "v4bf16" */
    const struct ops *ops; /* its table */
    struct gemm_cache *gemms;
    char description[96];
};

struct stream {
    struct device *device;
};

static inline int exec_threads(const struct exec *exec) {
    return exec->stream->device->threads;
}

/* gemm_cache.c and gemm.c. */
int gemm_cache_open(struct device *device);
void gemm_cache_close(struct device *device);
bool cpu_gemm_supports(struct device *device, const struct gemm *gemm);

extern const struct ops cpu_ops_v2, cpu_ops_v3, cpu_ops_v4, cpu_ops_v4bf16;

#endif
