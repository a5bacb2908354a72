/* Directories and files that appear whole, by way of boxes. */
#include "staging-internal.h"

#include "file.h"
#include "log.h"
#include "status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- boxes of dead writers ---- */

/* Returns false when the directory must stay in the box for now. */
static bool put_back(const char *parent, const char *box, const struct box_mark *mark) {
    char old[PATH_MAX], target[PATH_MAX];
    if (!file_exists(box_path(box, "old", old)) || file_exists(box_path(parent, mark->target, target)))
        return true;
    if (rename(old, target)) {
        log_warning("cannot rename %s to %s: %s", old, target, strerror(errno));
        return false;
    }
    log_info("%s is restored: the writer that was to replace it was stopped", target);
    if (file_sync(parent))
        log_warning("%s", status_text());
    return true;
}

static void clean_box(const char *parent, const char *name) {
    struct box_mark mark;
    char box[PATH_MAX], ready[PATH_MAX];
    int descriptor = -1;
    enum box_owner owner = box_take(parent, name, &mark, &descriptor);
    if (owner != BOX_IS_DEAD && owner != BOX_HAS_NO_LOCK)
        return;
    box_path(parent, name, box);
    bool is_directory = !strcmp(mark.kind, BOX_DIRECTORY);
    if (owner == BOX_HAS_NO_LOCK)
        log_warning("%s is kept: this file system has no locks, so its writer may still be alive", box);
    bool is_left = is_directory ? put_back(parent, box, &mark) : !file_exists(box_path(box, "ready", ready));
    if (owner == BOX_HAS_NO_LOCK || !is_left) {
        close(descriptor);
        return;
    }
    log_info("removing %s, left by a writer that was stopped", box);
    box_remove(box, descriptor);
}

int staging_clean(const char *directory) {
    char **names;
    size_t count;
    TRY(file_list(directory, &names, &count));
    for (size_t i = 0; i < count; i++)
        if (file_is_drawn_name(names[i]))
            clean_box(directory, names[i]);
    file_list_free(names, count);
    return STATUS_OK;
}

bool staging_displaced(const char *parent, const char *name, char path[PATH_MAX], char target[NAME_MAX + 1]) {
    struct box_mark mark;
    char box[PATH_MAX];
    if (!box_read(parent, name, &mark) || strcmp(mark.kind, BOX_DIRECTORY) != 0)
        return false;
    box_path(box_path(parent, name, box), "old", path);
    snprintf(target, NAME_MAX + 1, "%s", mark.target);
    return file_is_directory(path);
}

/* ---- a directory that appears ---- */

/* Removes slashes at the end. Resolves a link, "." and ".." to the directory that is meant. NULL: no memory. */
static char *resolve(const char *path) {
    struct stat info;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    char *plain = strndup(path, length);
    const char *slash = plain ? strrchr(plain, '/') : NULL, *base = slash ? slash + 1 : plain;
    bool is_other = plain && (!*base || !strcmp(base, ".") || !strcmp(base, "..") ||
                              (lstat(plain, &info) == 0 && S_ISLNK(info.st_mode)));
    errno = 0;
    char *real = is_other ? realpath(plain, NULL) : NULL;
    if (!real && errno != ENOMEM)
        return plain;
    free(plain);
    return real;
}

/* Writes the directory that holds `path` into a caller's buffer, and its last name into the mark. */
static int split(const char *path, char parent[PATH_MAX], struct box_mark *mark) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    *mark = (struct box_mark){.kind = BOX_DIRECTORY};
    if (!*base || !strcmp(base, ".") || !strcmp(base, ".."))
        return status_fail(STATUS_INVALID, "%s is not a name for a directory", path);
    if (strlen(base) >= sizeof mark->target)
        return status_fail(STATUS_INVALID, "name too long: %.200s", base);
    snprintf(mark->target, sizeof mark->target, "%s", base);
    return file_parent(path, parent, PATH_MAX);
}

static int begin(struct staging *staging, const char *parent, const struct box_mark *mark) {
    int status = box_make(parent, mark, &staging->box, &staging->mark);
    if (!status && asprintf(&staging->directory, "%s/new", staging->box) < 0) {
        staging->directory = NULL;
        status = status_no_memory();
    }
    THEN_IF(status, mkdir(staging->directory, 0777), status_fail_errno("cannot make directory %s", staging->directory));
    return status;
}

int staging_begin(struct staging *staging, const char *target) {
    char parent[PATH_MAX];
    struct box_mark mark;
    *staging = (struct staging){.mark = -1, .target = resolve(target)};
    int status = staging->target ? split(staging->target, parent, &mark) : status_no_memory();
    THEN(status, file_make_directories(parent));
    THEN(status, staging_clean(parent));
    THEN(status, begin(staging, parent, &mark));
    if (status)
        staging_abort(staging);
    return status;
}

int staging_begin_files(struct staging *staging, const char *directory, const struct staging_files *files) {
    struct box_mark mark = {.target = BOX_FILES};
    snprintf(mark.kind, sizeof mark.kind, "%s", files->kind);
    *staging = (struct staging){.mark = -1, .target = strdup(directory), .files = files};
    int status = staging->target ? file_make_directories(directory) : status_no_memory();
    THEN(status, staging_clean(directory));
    THEN(status, staging_finish(directory, files));
    THEN(status, begin(staging, directory, &mark));
    if (status)
        staging_abort(staging);
    return status;
}

/* Exchanges the new directory with the old one, which is then in the box. */
static int exchange(const struct staging *staging) {
    const char *fresh = staging->directory, *target = staging->target;
    char old[PATH_MAX];
    if (renameat2(AT_FDCWD, fresh, AT_FDCWD, target, RENAME_EXCHANGE) == 0)
        return STATUS_OK;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return status_fail_errno("cannot rename %s to %s", fresh, target);
    if (rename(target, box_path(staging->box, "old", old)))
        return status_fail_errno("cannot rename %s to %s", target, old);
    if (rename(fresh, target) == 0)
        return STATUS_OK;
    int status = status_fail_errno("cannot rename %s to %s", fresh, target);
    if (rename(old, target)) /* the next writer does it */
        log_warning("the earlier %s is kept as %s", target, old);
    return status;
}

/* Syncs directories only. */
static int sync_tree(const char *path) {
    char **names, child[PATH_MAX];
    size_t count;
    int status = file_list(path, &names, &count);
    for (size_t i = 0; !status && i < count; i++) {
        status = file_join(child, sizeof child, path, names[i]);
        THEN_IF(status, file_is_directory(child), sync_tree(child));
    }
    if (names)
        file_list_free(names, count);
    return status ? status : file_sync(path);
}

static int commit_directory(struct staging *staging) {
    char parent[PATH_MAX];
    int status = file_parent(staging->target, parent, sizeof parent);
    if (!status && rename(staging->directory, staging->target))
        status = errno == ENOTEMPTY || errno == EEXIST
                     ? exchange(staging)
                     : status_fail_errno("cannot rename %s to %s", staging->directory, staging->target);
    return status ? status : file_sync(parent);
}

/* After the rename this generation is the current one, whatever happens. */
static int commit_files(struct staging *staging) {
    char ready[PATH_MAX];
    if (!*box_path(staging->box, "ready", ready))
        return status_fail(STATUS_INVALID, "path too long: %.200s", staging->box);
    if (rename(staging->directory, ready))
        return status_fail_errno("cannot rename %s to %s", staging->directory, ready);
    staging->is_committed = true;
    int status = file_sync(staging->box);
    THEN(status, files_place(staging->target, staging->box, staging->files));
    staging->is_committed = status != STATUS_OK; /* else nothing is left to keep */
    return status;
}

int staging_commit(struct staging *staging) {
    int status = sync_tree(staging->directory);
    THEN(status, staging->files ? commit_files(staging) : commit_directory(staging));
    if (!status)
        staging_abort(staging);
    return status;
}

/* True when the box holds something that exists nowhere else. */
static bool is_needed(const struct staging *staging) {
    char old[PATH_MAX];
    return staging->is_committed ||
           (!staging->files && file_exists(box_path(staging->box, "old", old)) && !file_exists(staging->target));
}

void staging_abort(struct staging *staging) {
    char text[2048]; /* keeps the text of the failure that led here */
    snprintf(text, sizeof text, "%s", status_text());
    if (staging->box && is_needed(staging))
        close(staging->mark);
    else if (staging->box)
        box_remove(staging->box, staging->mark);
    status_fail(STATUS_IO, "%s", text);
    free(staging->box);
    free(staging->directory);
    free(staging->target);
    *staging = (struct staging){.mark = -1};
}

int staging_remove(const char *target) {
    char parent[PATH_MAX], gone[PATH_MAX], *box;
    struct box_mark mark;
    int descriptor, status = split(target, parent, &mark);
    THEN(status, box_make(parent, &mark, &box, &descriptor));
    TRY(status);
    if (rename(target, box_path(box, "gone", gone)))
        status = status_fail_errno("cannot rename %s to %s", target, gone);
    box_remove(box, descriptor);
    free(box);
    return status;
}
