/* Directories that appear whole: built under TARGET.tmp-PID, synced, renamed. The builder holds a lock on its directory
 * while it lives (a process number alone may have been given to somebody else), so that the next writer knows a dead
 * one's leftovers from work in progress. Where the file system cannot exchange two names at once, the old directory
 * waits under TARGET.old-PID for the moment between two renames; readers and the next writer know that name. */
#include "ckpt-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum leftover { LEFTOVER_NONE, LEFTOVER_TEMPORARY, LEFTOVER_OLD };

/* What kind of name BASE.tmp-DIGITS or BASE.old-DIGITS is; *base_length is the length of BASE. */
static enum leftover leftover_kind(const char *name, size_t *base_length) {
    const char *dot = strrchr(name, '.');
    if (!dot || dot == name || (strncmp(dot, ".tmp-", 5) && strncmp(dot, ".old-", 5)))
        return LEFTOVER_NONE;
    if (!dot[5] || dot[5 + strspn(dot + 5, "0123456789")])
        return LEFTOVER_NONE;
    *base_length = (size_t)(dot - name);
    return dot[1] == 't' ? LEFTOVER_TEMPORARY : LEFTOVER_OLD;
}

bool checkpoint_is_displaced(const char *name, int64_t *iteration) {
    char base[NAME_MAX + 1];
    size_t length;
    if (leftover_kind(name, &length) != LEFTOVER_OLD || length > NAME_MAX)
        return false;
    memcpy(base, name, length);
    base[length] = 0;
    *iteration = checkpoint_iteration(base);
    return *iteration >= 0;
}

/* Locks a directory; -1 with errno when that is not possible. */
static int lock_directory(const char *path) {
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor >= 0 && flock(descriptor, LOCK_EX | LOCK_NB)) {
        int error = errno;
        close(descriptor);
        errno = error;
        return -1;
    }
    return descriptor;
}

static void clean_one(const char *path, const char *base, enum leftover kind) {
    if (kind == LEFTOVER_OLD && !file_exists(base)) {
        if (rename(path, base))
            log_warning("cannot rename %s to %s: %s", path, base, strerror(errno));
        return;
    }
    int lock = lock_directory(path);
    if (lock < 0 && errno == EWOULDBLOCK)
        return;
    log_info("removing %s, left by a writer that was stopped", path);
    if (file_remove_tree(path))
        log_warning("%s", status_text());
    if (lock >= 0)
        close(lock);
}

/* What cannot be removed is no reason not to save. */
static int clean(const char *parent, const char *own_base, bool is_checkpoint) {
    char **names;
    size_t count;
    int status = file_list(parent, &names, &count);
    if (status)
        return status;
    for (size_t i = 0; i < count && !status; i++) {
        char path[PATH_MAX], base[PATH_MAX];
        size_t length;
        enum leftover kind = leftover_kind(names[i], &length);
        if (kind == LEFTOVER_NONE)
            continue;
        status = file_join(path, sizeof path, parent, names[i]);
        if (status)
            break;
        snprintf(base, sizeof base, "%.*s", (int)length, names[i]);
        bool is_ours = is_checkpoint ? checkpoint_iteration(base) >= 0 : !strcmp(base, own_base);
        memcpy(base, path, strlen(path) + 1);
        base[strlen(path) - strlen(names[i]) + length] = 0;
        if (is_ours)
            clean_one(path, base, kind);
    }
    file_list_free(names, count);
    return status;
}

static char *name_beside(const char *target, const char *mark) {
    char *name;
    return asprintf(&name, "%s.%s-%ld", target, mark, (long)getpid()) < 0 ? NULL : name;
}

static char *without_slashes(const char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    return strndup(path, length);
}

/* The directory that holds `path`, in a caller's buffer. */
static int parent_of(const char *path, char *out, size_t bytes) {
    const char *slash = strrchr(path, '/');
    size_t length = !slash ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (length >= bytes || bytes < 2)
        return status_fail(STATUS_INVALID, "path too long: %.200s", path);
    memcpy(out, slash ? path : ".", slash ? length : 1);
    out[slash ? length : 1] = 0;
    return STATUS_OK;
}

int staging_begin(struct staging *staging, const char *target, bool is_checkpoint) {
    char parent[PATH_MAX];
    *staging = (struct staging){.lock = -1};
    staging->target = without_slashes(target);
    staging->temporary = staging->target ? name_beside(staging->target, "tmp") : NULL;
    int status = staging->temporary ? STATUS_OK : status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = parent_of(staging->target, parent, sizeof parent);
    if (!status)
        status = file_make_directories(parent);
    if (!status) {
        const char *slash = strrchr(staging->target, '/');
        status = clean(parent, slash ? slash + 1 : staging->target, is_checkpoint);
    }
    if (!status && mkdir(staging->temporary, 0777))
        status = status_fail_errno("cannot make directory %s", staging->temporary);
    if (status) { /* nothing was made: what stands under that name is not ours */
        free(staging->temporary);
        staging->temporary = NULL;
        staging_abort(staging);
        return status;
    }
    staging->lock = lock_directory(staging->temporary); /* without locks on this file system nobody is waited for */
    return STATUS_OK;
}

/* Puts the new directory in place of the old one, which then stands under the temporary name (or is gone). */
static int exchange(struct staging *staging) {
    if (renameat2(AT_FDCWD, staging->temporary, AT_FDCWD, staging->target, RENAME_EXCHANGE) == 0)
        return STATUS_OK;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return status_fail_errno("cannot rename %s to %s", staging->temporary, staging->target);
    char *old = name_beside(staging->target, "old");
    int status = STATUS_OK;
    if (!old)
        return status_fail(STATUS_MEMORY, "out of memory");
    if (rename(staging->target, old))
        status = status_fail_errno("cannot rename %s to %s", staging->target, old);
    else if (rename(staging->temporary, staging->target)) {
        status = status_fail_errno("cannot rename %s to %s", staging->temporary, staging->target);
        if (rename(old, staging->target)) /* then the next writer does it */
            log_warning("the earlier %s waits as %s", staging->target, old);
    } else if (file_remove_tree(old)) {
        log_warning("%s", status_text());
    }
    free(old);
    return status;
}

int staging_commit(struct staging *staging) {
    char parent[PATH_MAX];
    int status = parent_of(staging->target, parent, sizeof parent);
    if (!status)
        status = file_sync(staging->temporary);
    if (status)
        return status;
    if (rename(staging->temporary, staging->target) == 0) {
        free(staging->temporary);
        staging->temporary = NULL;
    } else if (errno == ENOTEMPTY || errno == EEXIST) {
        status = exchange(staging);
    } else {
        status = status_fail_errno("cannot rename %s to %s", staging->temporary, staging->target);
    }
    return status ? status : file_sync(parent);
}

void staging_abort(struct staging *staging) {
    char text[2048]; /* the failure that led here stays the one reported */
    snprintf(text, sizeof text, "%s", status_text());
    if (staging->temporary && file_remove_tree(staging->temporary)) {
        log_warning("%s", status_text());
        status_fail(STATUS_IO, "%s", text);
    }
    if (staging->lock >= 0)
        close(staging->lock);
    free(staging->temporary);
    free(staging->target);
    *staging = (struct staging){.lock = -1};
}

int staging_remove(const char *target) {
    char *temporary = name_beside(target, "tmp");
    if (!temporary)
        return status_fail(STATUS_MEMORY, "out of memory");
    int status = rename(target, temporary) ? status_fail_errno("cannot rename %s to %s", target, temporary)
                                           : file_remove_tree(temporary);
    free(temporary);
    return status;
}
