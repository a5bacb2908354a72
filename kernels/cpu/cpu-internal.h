/* Inside the CPU backend: a device is a number of OpenMP threads of this process, and a stream runs each call at once.
 */
#pragma once

#include "backend.h"
#include "cpu/waits.h"

struct gemm_cache; /* oneDNN primitives by shape and thread count (gemm_cache.c) */

struct cpu_device {
    struct device device;
    struct gemm_cache *gemms;
    bool has_team;          /* it has threads, and waits.h watches them; false for a sketch */
    struct waits_team team; /* if it has */
    bool is_elsewhere;      /* a sketch of another machine's */
};

static inline struct gemm_cache *cpu_gemms(const struct device *device) {
    return ((const struct cpu_device *)device)->gemms;
}

static inline int exec_threads(const struct exec *exec) {
    return exec->stream->device->threads;
}

/* ---- gemm_cache.c and gemm.c ---- */

/* Opens an empty cache, which the caller closes. STATUS_MEMORY; STATUS_UNSUPPORTED if oneDNN does not run here. */
int gemm_cache_open(struct gemm_cache **cache);
/* Frees the cache and its primitives; NULL is allowed. */
void gemm_cache_close(struct gemm_cache *cache);
/* As gemm_supports of ops.h. */
bool cpu_gemm_supports(struct device *device, const struct gemm *gemm);

/* ---- backend.c: as the members of struct ops ---- */

const struct ops_sizes *cpu_sizes(struct device *device);
int64_t cpu_kv_page_elements(struct device *device, int kv_heads, int head_size, enum dtype type);

/* ---- measure.c: as device_measure_gemm and device_time_read ---- */

int cpu_measure_gemm(struct device *device, enum dtype dtype, bool is_tf32, double max_seconds, double *flops);
int cpu_time_read(struct device *device, size_t bytes, void **memory, double *seconds);

extern const struct ops cpu_ops_v2, cpu_ops_v3, cpu_ops_v4, cpu_ops_v4bf16, cpu_ops_v4amx;
