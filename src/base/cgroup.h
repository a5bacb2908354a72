/* The control groups of this process (version 1 and version 2), and the groups that enclose them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Examines one directory of a control group. `is_second`: its files are those of version 2. */
typedef void cgroup_look(const char *directory, bool is_second, void *context);

/* Calls `look` for each group that limits `controller` ("memory", "cpu") for this process, from its own group outwards.
 * `root` is put before /proc and /sys/fs/cgroup; it is "" for this system. */
void cgroup_walk(const char *root, const char *controller, cgroup_look *look, void *context);

/* Reads the first line of `directory`/`name` into line [bytes]. Returns false when there is no such file, or it is
 * empty. */
bool cgroup_read(const char *directory, const char *name, char *line, size_t bytes);
