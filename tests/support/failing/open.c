/* Loaded before a program. The FAIL_OPEN_AT-th time (from 1) that this process opens a path below the directory
 * FAIL_OPEN_BELOW that ends with FAIL_OPEN_END, there is no such file. Its path goes into the file FAIL_OPEN_TOLD. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int opener(const char *path, int flags, ...);
typedef FILE *stream_opener(const char *path, const char *mode);
typedef DIR *directory_opener(const char *path);

static bool ends_with(const char *path, const char *end) {
    size_t length = strlen(path), tail = strlen(end);
    return length >= tail && !strcmp(path + length - tail, end);
}

static bool fails(const char *path) {
    static atomic_long count;
    const char *below = getenv("FAIL_OPEN_BELOW"), *end = getenv("FAIL_OPEN_END"), *at = getenv("FAIL_OPEN_AT"),
               *report = getenv("FAIL_OPEN_TOLD");
    if (!below || !end || !at || !report || strncmp(path, below, strlen(below)) || !ends_with(path, end) ||
        atomic_fetch_add(&count, 1) + 1 != atol(at))
        return false;
    opener *next = (opener *)dlsym(RTLD_NEXT, "open");
    int file = next(report, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file < 0 || write(file, path, strlen(path)) < 0 || close(file))
        abort();
    errno = ENOENT;
    return true;
}

static int open_as(const char *name, const char *path, int flags, mode_t mode) {
    opener *next = (opener *)dlsym(RTLD_NEXT, name);
    return fails(path) ? -1 : next(path, flags, mode);
}

#define OPENER(name)                                                                                                   \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;                                        \
        va_end(list);                                                                                                  \
        return open_as(#name, path, flags, mode);                                                                      \
    }
OPENER(open)
OPENER(open64)

FILE *fopen(const char *path, const char *mode) {
    stream_opener *next = (stream_opener *)dlsym(RTLD_NEXT, "fopen");
    return fails(path) ? NULL : next(path, mode);
}

FILE *fopen64(const char *path, const char *mode) {
    stream_opener *next = (stream_opener *)dlsym(RTLD_NEXT, "fopen64");
    return fails(path) ? NULL : next(path, mode);
}

DIR *opendir(const char *path) {
    directory_opener *next = (directory_opener *)dlsym(RTLD_NEXT, "opendir");
    return fails(path) ? NULL : next(path);
}
