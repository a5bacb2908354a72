#include "lock.h"

#include "log.h"
#include "status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Finds the process that holds a file's lock in the system's own list; 0 when the list does not say. */
static long find_holder(const struct stat *info) {
    FILE *locks = fopen("/proc/locks", "re");
    char line[256], kind[16];
    unsigned device_major, device_minor;
    unsigned long inode;
    long process, found = 0;
    while (locks && !found && fgets(line, sizeof line, locks))
        if (sscanf(line, "%*d: %15s %*s %*s %ld %x:%x:%lu", kind, &process, &device_major, &device_minor, &inode) ==
                5 &&
            !strcmp(kind, "FLOCK") && device_major == major(info->st_dev) && device_minor == minor(info->st_dev) &&
            inode == info->st_ino)
            found = process;
    if (locks)
        fclose(locks);
    return found;
}

static int fail_taken(int descriptor, const char *path) {
    struct stat info;
    long holder = fstat(descriptor, &info) ? 0 : find_holder(&info);
    char name[48] = "";
    if (holder > 0)
        snprintf(name, sizeof name, " (process %ld)", holder);
    return status_fail(STATUS_IO, "%s is in use by another run%s: wait for its end, or name another place", path, name);
}

int lock_take(int descriptor, const char *path) {
    int result;
    do
        result = flock(descriptor, LOCK_EX | LOCK_NB);
    while (result && errno == EINTR);
    if (!result)
        return STATUS_OK;
    if (errno == EWOULDBLOCK)
        return fail_taken(descriptor, path);
    log_warning("%s cannot be locked (%s): another run that writes to it would not be noticed", path, strerror(errno));
    return STATUS_OK;
}

int lock_open_directory(const char *path, int *descriptor) {
    *descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*descriptor < 0)
        return status_fail_errno("cannot open %s", path);
    int status = lock_take(*descriptor, path);
    if (status) {
        close(*descriptor);
        *descriptor = -1;
    }
    return status;
}
