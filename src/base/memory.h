/* Memory of this process and of its host. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns the peak memory of this process in bytes, or 0 when the system does not say. */
size_t memory_peak(void);

/* Returns what this process takes besides `planned` bytes: what it holds now and the code that runs later, and no less
 * than its peak so far. Call it when all is planned and nothing of the plan is taken: libraries, files that were read
 * and compiled products count in. */
size_t memory_of_program(size_t planned);

/* The memory that the processes of a host may hold together. */
struct memory_limit {
    size_t bytes;     /* SIZE_MAX when the system does not say */
    size_t available; /* the part of `bytes` that a new process can get: at most MemAvailable, and what no process of
                         the groups uses, but for their files' pages; equals `bytes` when the system does not say */
    bool is_cgroup;   /* a control group allows less than the host has */
};
/* Returns the host's memory, or the limit of this process's control groups (version 1 or 2) if that is lower. `root` is
 * put before /proc and /sys/fs/cgroup; it is "" for this system. */
struct memory_limit memory_limit_find(const char *root);
/* Refuses a plan beyond the limit. `help` lists what would make it smaller. STATUS_MEMORY. */
int memory_check(size_t planned, const struct memory_limit *limit, const char *help);
/* Refuses a plan in any case; `where` completes "are planned on ... 1.5 GiB". STATUS_MEMORY. */
int memory_refuse(size_t planned, const char *where, size_t has, const char *help);
