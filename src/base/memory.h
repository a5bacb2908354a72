/* Memory of this process and of the host that it runs on. */
#ifndef CAMBIUM_BASE_MEMORY_H
#define CAMBIUM_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* The most that this process has held at once, in bytes; 0 where the system does not tell. */
size_t memory_peak(void);

/* The memory that the processes of a host may hold together. */
struct memory_limit {
    size_t bytes;     /* SIZE_MAX where the system does not tell */
    size_t available; /* of them, to what starts now: MemAvailable at most; as `bytes` where the system does not tell */
    bool is_cgroup;   /* a control group allows less than the host has */
};
/* The host's memory, or what the control groups (version 1 or 2) of this process allow, whichever is less. The files
 * are those below `root`/proc and `root`/sys/fs/cgroup: "" for this system. */
struct memory_limit memory_limit_find(const char *root);

#endif
