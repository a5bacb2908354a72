/* Each limit of a control group is a file of one line, in the directory of that group or of an enclosing one.
 * /proc/self/cgroup names the groups of this process. */
#include "cgroup.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { GROUPS_BYTES = 16384 };

/* Reads `directory`/`name` into text [bytes]. It uses no stream, because a limit must be found even when memory is
 * short. */
static bool read_file(const char *directory, const char *name, char *text, size_t bytes) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", directory, name);
    int file = n > 0 && (size_t)n < sizeof path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t length = file < 0 ? -1 : read(file, text, bytes - 1);
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = 0;
    return length > 0;
}

bool cgroup_read(const char *directory, const char *name, char *line, size_t bytes) {
    if (!read_file(directory, name, line, bytes))
        return false;
    line[strcspn(line, "\n")] = 0;
    return true;
}

/* Visits the group `group` ("/a/b") below `mount`, then the groups that enclose it. */
static void walk_outwards(const char *mount, const char *group, bool is_second, cgroup_look *look, void *context) {
    char directory[PATH_MAX];
    size_t mount_length = strlen(mount);
    bool is_outside = strstr(group, "/..") != NULL; /* a group that is outside this process's view */
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

/* Handles a line of /proc/self/cgroup: "0::/group" of version 2, "5:cpu,memory:/group" of version 1. Version 1 mounts a
 * hierarchy under the list of its controllers ("cpu,cpuacct"), or under a link named after one controller. */
static void walk_line(const char *root, char *line, const char *controller, cgroup_look *look, void *context) {
    char mount[PATH_MAX], *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return;
    *group++ = 0;
    controllers++;
    bool is_second = !*controllers;
    if (!is_second && !lists(controllers, controller))
        return;
    int n =
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, is_second ? "" : "/", is_second ? "" : controller);
    if (n > 0 && (size_t)n < sizeof mount)
        walk_outwards(mount, group, is_second, look, context);
}

void cgroup_walk(const char *root, const char *controller, cgroup_look *look, void *context) {
    char directory[PATH_MAX], text[GROUPS_BYTES], *rest = text;
    int n = snprintf(directory, sizeof directory, "%s/proc/self", root);
    if (n < 0 || (size_t)n >= sizeof directory || !read_file(directory, "cgroup", text, sizeof text))
        return;
    for (char *line; (line = strsep(&rest, "\n"));)
        walk_line(root, line, controller, look, context);
}
