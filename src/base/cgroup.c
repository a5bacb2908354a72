/* Control groups: each limit stands in a file of one line, in the directory of a group or in those of the groups around
 * it. /proc/self/cgroup names the groups of this process. */
#include "cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 4096 + 64 };

bool cgroup_read(const char *directory, const char *name, char *line, int bytes) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
    bool is_read = file && fgets(line, bytes, file);
    if (file)
        fclose(file);
    return is_read;
}

/* The group `group` ("/a/b") below `mount`, and those around it. */
static void walk_outwards(const char *mount, const char *group, bool is_second, cgroup_look *look, void *context) {
    char directory[PATH_MAX];
    size_t mount_length = strlen(mount);
    bool is_outside = strstr(group, "/..") != NULL; /* a group that this process's view does not reach */
    int n = snprintf(directory, sizeof directory, "%s%s", mount, is_outside ? "" : group);
    if (n < 0 || (size_t)n >= sizeof directory)
        return;
    for (;;) {
        look(directory, is_second, context);
        char *last = strrchr(directory, '/');
        if (strlen(directory) <= mount_length || !last)
            return;
        *last = 0;
    }
}

/* Reports whether `name` is one of a list "cpu,memory". */
static bool lists(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, length) && (at[length] == ',' || !at[length]))
            return true;
    return false;
}

/* A line of /proc/self/cgroup: "0::/group" of version 2, "5:cpu,memory:/group" of version 1. Version 1 mounts a
 * hierarchy under the list of its controllers ("cpu,cpuacct"), or under a link with the controller's name. */
static void walk_line(const char *root, char *line, const char *controller, cgroup_look *look, void *context) {
    char mount[PATH_MAX], *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return;
    *group++ = 0;
    controllers++;
    group[strcspn(group, "\n")] = 0;
    bool is_second = !*controllers;
    if (!is_second && !lists(controllers, controller))
        return;
    int n =
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, is_second ? "" : "/", is_second ? "" : controller);
    if (n > 0 && (size_t)n < sizeof mount)
        walk_outwards(mount, group, is_second, look, context);
}

void cgroup_walk(const char *root, const char *controller, cgroup_look *look, void *context) {
    char path[PATH_MAX], line[LINE_BYTES];
    int n = snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
    while (file && fgets(line, sizeof line, file))
        walk_line(root, line, controller, look, context);
    if (file)
        fclose(file);
}
