/* The system's memory figures. */
#include "memory.h"

#include "cgroup.h"
#include "status.h"

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

size_t memory_of_program(size_t planned) {
    enum { LATER_CODE = 3 << 20 }; /* pages of libraries that only steps run: 2.5 to 2.9 MiB in pretrain and serve */
    size_t now = read_kibibytes("/proc/self/status", "VmRSS:") + LATER_CODE, peak = memory_peak();
    return peak > planned && peak - planned > now ? peak - planned : now;
}

/* Stores a group's number. False when there is none: "max" is not a number. */
static bool read_number(const char *directory, const char *name, size_t *value) {
    char line[64], *end = line;
    if (cgroup_read(directory, name, line, sizeof line))
        *value = (size_t)strtoull(line, &end, 10);
    return end != line;
}

/* Returns what the processes of a group hold, without the pages of files, which the system takes back. */
static size_t read_use(const char *directory, bool is_second) {
    char path[PATH_MAX];
    size_t use = 0, files;
    read_number(directory, is_second ? "memory.current" : "memory.usage_in_bytes", &use);
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    files = read_kibibytes(path, is_second ? "active_file " : "total_active_file ") +
            read_kibibytes(path, is_second ? "inactive_file " : "total_inactive_file ");
    files /= 1024; /* they are in bytes there */
    return use > files ? use - files : 0;
}

/* Lowers *context, the minimum limit and the least that is free so far, to those of one group. */
static void look_at_group(const char *directory, bool is_second, void *context) {
    struct memory_limit *least = context;
    size_t bytes = 0;
    if (!read_number(directory, is_second ? "memory.max" : "memory.limit_in_bytes", &bytes))
        return;
    size_t use = read_use(directory, is_second), available = bytes > use ? bytes - use : 0;
    least->bytes = bytes < least->bytes ? bytes : least->bytes;
    least->available = available < least->available ? available : least->available;
}

struct memory_limit memory_limit_find(const char *root) {
    char path[PATH_MAX];
    struct memory_limit allowed = {.bytes = SIZE_MAX, .available = SIZE_MAX};
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    size_t total = read_kibibytes(path, "MemTotal:");
    size_t available = read_kibibytes(path, "MemAvailable:");
    struct memory_limit limit = {.bytes = total ? total : SIZE_MAX};
    cgroup_walk(root, "memory", look_at_group, &allowed);
    if (allowed.bytes < limit.bytes)
        limit = (struct memory_limit){.bytes = allowed.bytes, .is_cgroup = true};
    limit.available = available && available < limit.bytes ? available : limit.bytes;
    if (allowed.available < limit.available)
        limit.available = allowed.available;
    return limit;
}

int memory_refuse(size_t planned, const char *where, size_t has, const char *help) {
    static const double gibibyte = 1 << 30;
    return status_fail(STATUS_MEMORY, "not enough memory: %.1f GiB are planned on %s %.1f GiB; what would help: %s",
                       (double)planned / gibibyte, where, (double)has / gibibyte, help);
}

int memory_check(size_t planned, const struct memory_limit *limit, const char *help) {
    if (planned <= limit->bytes)
        return STATUS_OK;
    return memory_refuse(planned,
                         limit->is_cgroup ? "this host, which allows its control group" : "this host, which has",
                         limit->bytes, help);
}
