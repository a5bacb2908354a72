/* The backend `late` inside: the CPU's device, whose work is queued and runs on a thread of its own when the host waits
 * for it. */
#ifndef CAMBIUM_KERNELS_LATE_INTERNAL_H
#define CAMBIUM_KERNELS_LATE_INTERNAL_H

#include "backend.h"

/* The CPU's device below a late one. */
struct device *late_cpu(const struct device *device);

/* A piece of work and the arguments that it gets; `exec` is the CPU's by then. */
struct late_work {
    const char *name;
    int (*run)(const struct exec *exec, const void *arguments);
    const void *arguments; /* copied */
    size_t bytes;
    const size_t *pointers; /* offsets of the arguments that point to device memory, or are NULL */
    int pointer_count;
};

/* Queues the work. STATUS_INVALID where a pointer leads to other memory: the host may change or free that before the
 * work runs. */
int late_queue(const struct exec *exec, const struct late_work *work);

extern const struct ops late_ops;

#endif
