/* Memory of this process and of its host. */
#ifndef CAMBIUM_BASE_MEMORY_H
#define CAMBIUM_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Returns the peak memory of this process in bytes, or 0 when the system does not say. */
size_t memory_peak(void);

/* The memory that the processes of a host may hold together. */
struct memory_limit {
    size_t bytes;     /* SIZE_MAX when the system does not say */
    size_t available; /* the part of `bytes` that a new process can get, at most MemAvailable; equals `bytes` when the
                         system does not say */
    bool is_cgroup;   /* a control group allows less than the host has */
};
/* Returns the host's memory, or the limit of this process's control groups (version 1 or 2) if that is lower. `root` is
 * put before /proc and /sys/fs/cgroup; it is "" for this system. */
struct memory_limit memory_limit_find(const char *root);

#endif
