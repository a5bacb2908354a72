/* The system's memory figures. */
#include "memory.h"

#include "cgroup.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 4096 + 64 };

/* Returns the kibibytes that follow `key` at the start of a line, converted to bytes; 0 when there is no such line. */
static size_t read_kibibytes(const char *path, const char *key) {
    char line[LINE_BYTES];
    unsigned long long kibibytes = 0;
    size_t length = strlen(key);
    FILE *file = fopen(path, "re");
    while (file && !kibibytes && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length))
            kibibytes = strtoull(line + length, NULL, 10);
    if (file)
        fclose(file);
    return (size_t)kibibytes * 1024;
}

size_t memory_peak(void) {
    return read_kibibytes("/proc/self/status", "VmHWM:");
}

/* Lowers *context, the least limit so far, to that of one group. */
static void look_at_group(const char *directory, bool is_second, void *context) {
    size_t *least = context;
    char line[64], *end;
    if (!cgroup_read(directory, is_second ? "memory.max" : "memory.limit_in_bytes", line, sizeof line))
        return;
    unsigned long long value = strtoull(line, &end, 10); /* "max" is not a number */
    if (end != line && value < *least)
        *least = (size_t)value;
}

struct memory_limit memory_limit_find(const char *root) {
    char path[PATH_MAX];
    size_t allowed = SIZE_MAX;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    size_t total = read_kibibytes(path, "MemTotal:");
    size_t available = read_kibibytes(path, "MemAvailable:");
    struct memory_limit limit = {.bytes = total ? total : SIZE_MAX};
    cgroup_walk(root, "memory", look_at_group, &allowed);
    if (allowed < limit.bytes)
        limit = (struct memory_limit){.bytes = allowed, .is_cgroup = true};
    limit.available = available && available < limit.bytes ? available : limit.bytes;
    return limit;
}
