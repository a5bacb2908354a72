/* A library to preload. It watches the calls with which a program changes names below a directory, and reports whether
 * the published files were synced. It can kill the program before any of these calls. The environment controls it:
 *
 * - CAMBIUM_CALLS_ROOT: only paths below it count.
 * - CAMBIUM_CALLS_LOG: a file of lines: "call PATH" before any of the calls, "sync PATH", "make PATH", "publish FROM
 * TO". Before the last there is "unsynced PATH" for every file and directory that changed since its last sync.
 * - CAMBIUM_CALLS_KILL: the number of the call, from 1, before which the program kills itself.
 * - CAMBIUM_CALLS_PLAIN: if set, the file system cannot exchange two names, and has no hard links.
 * - CAMBIUM_CALLS_UNLOCKED: if set, it has no locks. */
#undef _FILE_OFFSET_BITS /* else `open` would be the other name of `open64` */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_SYNCED = 1 << 16 };

static struct synced {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
} synced[MAX_SYNCED];
static int synced_count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_int calls;

static bool counts(const char *path) {
    const char *root = getenv("CAMBIUM_CALLS_ROOT");
    char real[PATH_MAX], directory[PATH_MAX];
    if (!root || !path)
        return false;
    if (*path == '/')
        return !strncmp(path, root, strlen(root));
    return getcwd(directory, sizeof directory) && snprintf(real, sizeof real, "%s/%s", directory, path) > 0 &&
           !strncmp(real, root, strlen(root));
}

static void tell(const char *what, const char *first, const char *second) {
    const char *log = getenv("CAMBIUM_CALLS_LOG");
    char line[3 * PATH_MAX];
    int n = snprintf(line, sizeof line, "%s\t%s\t%s\n", what, first, second ? second : "");
    int descriptor = log ? (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    if (descriptor >= 0 && syscall(SYS_write, descriptor, line, (size_t)n) != n)
        abort();
    if (descriptor >= 0)
        syscall(SYS_close, descriptor);
}

/* Before a call that changes a name. */
static void step(const char *path) {
    const char *kill_at = getenv("CAMBIUM_CALLS_KILL");
    if (!counts(path))
        return;
    tell("call", path, NULL);
    if (atomic_fetch_add(&calls, 1) + 1 == (kill_at ? atoi(kill_at) : 0))
        raise(SIGKILL);
}

/* ---- what is on the disk ---- */

static void note(const struct stat *info) {
    pthread_mutex_lock(&mutex);
    int i = 0;
    while (i < synced_count && (synced[i].device != info->st_dev || synced[i].inode != info->st_ino))
        i++;
    if (i == MAX_SYNCED)
        abort();
    synced_count += i == synced_count;
    synced[i] = (struct synced){info->st_dev, info->st_ino, info->st_size, info->st_mtim};
    pthread_mutex_unlock(&mutex);
}

static bool is_noted(const struct stat *info) {
    bool is = false;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < synced_count && !is; i++)
        is = synced[i].device == info->st_dev && synced[i].inode == info->st_ino && synced[i].size == info->st_size &&
             synced[i].changed.tv_sec == info->st_mtim.tv_sec && synced[i].changed.tv_nsec == info->st_mtim.tv_nsec;
    pthread_mutex_unlock(&mutex);
    return is;
}

static void check_tree(const char *path) {
    struct stat info;
    if (lstat(path, &info))
        return;
    if (!is_noted(&info))
        tell("unsynced", path, NULL);
    DIR *directory = S_ISDIR(info.st_mode) ? opendir(path) : NULL;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char child[PATH_MAX];
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") &&
            snprintf(child, sizeof child, "%s/%s", path, entry->d_name) < (int)sizeof child)
            check_tree(child);
    }
    if (directory)
        closedir(directory);
}

static int sync_one(int descriptor, long number) {
    char link[64], path[PATH_MAX];
    struct stat info;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    step(path);
    int result = (int)syscall(number, descriptor);
    if (!result && counts(path) && !fstat(descriptor, &info)) {
        note(&info);
        tell("sync", path, NULL);
    }
    return result;
}

/* ---- the calls ---- */

int fsync(int descriptor) {
    return sync_one(descriptor, SYS_fsync);
}

int fdatasync(int descriptor) {
    return sync_one(descriptor, SYS_fdatasync);
}

int flock(int descriptor, int operation) {
    if (!getenv("CAMBIUM_CALLS_UNLOCKED"))
        return (int)syscall(SYS_flock, descriptor, operation);
    errno = ENOLCK;
    return -1;
}

static int publish(const char *from, const char *to, long number, unsigned flags) {
    bool is_ours = counts(to);
    step(to);
    if (is_ours)
        check_tree(from);
    int result = number == SYS_linkat ? (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0)
                                      : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
    int error = errno;
    if (is_ours && !result)
        tell("publish", from, to);
    errno = error;
    return result;
}

int rename(const char *from, const char *to) {
    return publish(from, to, SYS_renameat2, 0);
}

int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    if (from_directory != AT_FDCWD || to_directory != AT_FDCWD)
        abort();
    if (getenv("CAMBIUM_CALLS_PLAIN")) {
        errno = EINVAL;
        return -1;
    }
    return publish(from, to, SYS_renameat2, flags);
}

int link(const char *from, const char *to) {
    if (getenv("CAMBIUM_CALLS_PLAIN")) {
        errno = EPERM;
        return -1;
    }
    return publish(from, to, SYS_linkat, 0);
}

int unlink(const char *path) {
    step(path);
    return (int)syscall(SYS_unlink, path);
}

int rmdir(const char *path) {
    step(path);
    return (int)syscall(SYS_rmdir, path);
}

int mkdir(const char *path, mode_t mode) {
    step(path);
    int result = (int)syscall(SYS_mkdir, path, mode), error = errno;
    if (!result && counts(path))
        tell("make", path, NULL);
    errno = error;
    return result;
}

int open(const char *path, int flags, ...) {
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list arguments;
        va_start(arguments, flags);
        mode = (mode_t)va_arg(arguments, int);
        va_end(arguments);
        step(path);
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

ssize_t write(int descriptor, const void *bytes, size_t count) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n > 0) {
        path[n] = 0;
        step(path);
    }
    return syscall(SYS_write, descriptor, bytes, count);
}
