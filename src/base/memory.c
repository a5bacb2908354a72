/* The system's figures of memory. Each limit stands in a file of one number, in the directory of a control group or in
 * those of the groups around it. */
#include "memory.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 4096 + 64 };

/* The number of kibibytes behind `key` at a line's start, in bytes; 0: there is none. */
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

/* SIZE_MAX where there is no such file, or "max" in it. */
static size_t read_limit(const char *directory, const char *name) {
    char path[PATH_MAX], line[64], *end;
    size_t limit = SIZE_MAX;
    int n = snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
    if (file && fgets(line, sizeof line, file)) {
        unsigned long long value = strtoull(line, &end, 10);
        if (end != line)
            limit = (size_t)value;
    }
    if (file)
        fclose(file);
    return limit;
}

/* The least limit of the group `group` ("/a/b") below `mount`, and of those around it. */
static size_t group_limit(const char *mount, const char *group, const char *name) {
    char directory[PATH_MAX];
    size_t least = SIZE_MAX, mount_length = strlen(mount);
    bool is_outside = strstr(group, "/..") != NULL; /* a group that this process's view does not reach */
    int n = snprintf(directory, sizeof directory, "%s%s", mount, is_outside ? "" : group);
    if (n < 0 || (size_t)n >= sizeof directory)
        return SIZE_MAX;
    for (;;) {
        size_t limit = read_limit(directory, name);
        least = limit < least ? limit : least;
        char *last = strrchr(directory, '/');
        if (strlen(directory) <= mount_length || !last)
            return least;
        *last = 0;
    }
}

/* Whether `name` is one of a list "cpu,memory". */
static bool lists(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, length) && (at[length] == ',' || !at[length]))
            return true;
    return false;
}

/* A line of /proc/self/cgroup: "0::/group" of version 2, "5:cpu,memory:/group" of version 1. */
static size_t line_limit(const char *root, char *line) {
    char mount[PATH_MAX], *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return SIZE_MAX;
    *group++ = 0;
    controllers++;
    group[strcspn(group, "\n")] = 0;
    bool is_second = !*controllers;
    if (!is_second && !lists(controllers, "memory"))
        return SIZE_MAX;
    int n = snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s", root, is_second ? "" : "/memory");
    if (n < 0 || (size_t)n >= sizeof mount)
        return SIZE_MAX;
    return group_limit(mount, group, is_second ? "memory.max" : "memory.limit_in_bytes");
}

struct memory_limit memory_limit_find(const char *root) {
    char path[PATH_MAX], line[LINE_BYTES];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    size_t total = read_kibibytes(path, "MemTotal:");
    size_t available = read_kibibytes(path, "MemAvailable:");
    struct memory_limit limit = {.bytes = total ? total : SIZE_MAX};
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        size_t allowed = line_limit(root, line);
        if (allowed < limit.bytes)
            limit = (struct memory_limit){.bytes = allowed, .is_cgroup = true};
    }
    if (file)
        fclose(file);
    limit.available = available && available < limit.bytes ? available : limit.bytes;
    return limit;
}
