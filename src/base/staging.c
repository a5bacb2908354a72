/* Boxes, and directories that appear whole. */
#include "staging-internal.h"

#include "file.h"
#include "log.h"
#include "status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char mark_name[] = "mark", title[] = "cambium staging";
enum { ATTEMPTS = 100, MARK_BYTES = 64 + FILE_DRAWN_BYTES + NAME_MAX };

/* ---- marks ---- */

const char *box_path(const char *box, const char *name, char out[PATH_MAX]) {
    int n = snprintf(out, PATH_MAX, "%s/%s", box, name);
    if (n < 0 || n >= PATH_MAX)
        *out = 0;
    return out;
}

static int format_mark(const char *name, const struct box_mark *mark, char out[MARK_BYTES]) {
    int n = snprintf(out, MARK_BYTES, "%s %s %s\n%s\n", title, name, mark->kind, mark->target);
    return n < MARK_BYTES ? n : status_fail(STATUS_INVALID, "name too long: %s", mark->target);
}

/* A mark names its own box, so a copy that the user made under another name is no box. */
static bool parse_mark(const char *name, const char *text, struct box_mark *mark) {
    char again[MARK_BYTES];
    *mark = (struct box_mark){0};
    const char *kind = strchr(text, ' '), *line = strchr(text, '\n');
    kind = kind ? strchr(kind + 1, ' ') : NULL; /* the title has two words */
    kind = kind ? strchr(kind + 1, ' ') : NULL;
    const char *end = line ? strrchr(line + 1, '\n') : NULL;
    if (!kind || !line || kind > line || !end || (size_t)(line - kind) > sizeof mark->kind ||
        (size_t)(end - line) > sizeof mark->target)
        return false;
    memcpy(mark->kind, kind + 1, (size_t)(line - kind - 1));
    memcpy(mark->target, line + 1, (size_t)(end - line - 1));
    return *mark->target && !strchr(mark->target, '/') && format_mark(name, mark, again) > 0 && !strcmp(text, again);
}

/* Opens the mark of an entry that is named like a box; follows no links. */
static int open_mark(const char *parent, const char *name, int flags) {
    char path[PATH_MAX];
    if (!file_is_drawn_name(name) || !*box_path(parent, name, path)) {
        errno = EINVAL;
        return -1;
    }
    int box = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int descriptor = box < 0 ? -1 : openat(box, mark_name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int error = box >= 0 && errno == ENOENT ? ENOENT : EINVAL;
    if (box >= 0)
        close(box);
    errno = error;
    return descriptor;
}

static bool read_mark(int descriptor, const char *name, struct box_mark *mark) {
    char text[MARK_BYTES + 1];
    struct stat info;
    if (fstat(descriptor, &info) || !S_ISREG(info.st_mode) || info.st_nlink == 0 || info.st_size > MARK_BYTES)
        return false;
    ssize_t n = pread(descriptor, text, MARK_BYTES, 0);
    text[n < 0 ? 0 : n] = 0;
    return parse_mark(name, text, mark);
}

bool box_read(const char *parent, const char *name, struct box_mark *mark) {
    int descriptor = open_mark(parent, name, O_RDONLY);
    bool is_ours = descriptor >= 0 && read_mark(descriptor, name, mark);
    if (descriptor >= 0)
        close(descriptor);
    return is_ours;
}

/* ---- boxes ---- */

static int lock(int descriptor, int how) {
    int result;
    do
        result = flock(descriptor, LOCK_EX | how);
    while (result && errno == EINTR);
    return result;
}

static bool is_empty_file(int descriptor) {
    struct stat info;
    return fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0;
}

/* A writer may be killed before its mark has contents. The box is then empty otherwise, and rmdir removes only empty
 * ones. */
static void remove_begun(const char *box, bool has_mark) {
    char path[PATH_MAX], **names;
    size_t count = 0;
    if (has_mark && !file_list(box, &names, &count)) {
        if (count == 1)
            unlink(box_path(box, mark_name, path));
        file_list_free(names, count);
    }
    rmdir(box);
}

enum box_owner box_take(const char *parent, const char *name, struct box_mark *mark, int *out) {
    char box[PATH_MAX];
    int descriptor = open_mark(parent, name, O_RDWR);
    if (descriptor < 0 && errno == ENOENT)
        remove_begun(box_path(parent, name, box), false);
    if (descriptor < 0)
        return BOX_NOT_OURS;
    int unlocked = lock(descriptor, LOCK_NB) ? errno : 0;
    bool is_ours = read_mark(descriptor, name, mark);
    if (!is_ours && !unlocked && is_empty_file(descriptor))
        remove_begun(box_path(parent, name, box), true);
    if (is_ours && unlocked != EWOULDBLOCK) {
        *out = descriptor;
        return unlocked ? BOX_HAS_NO_LOCK : BOX_IS_DEAD;
    }
    close(descriptor);
    return is_ours ? BOX_LIVES : BOX_NOT_OURS;
}

/* Sets is_made when the box was made. It was not when the name is taken, or when another writer found the box before it
 * had its mark and took it for a dead one. */
static int try_box(const char *box, const char *name, const struct box_mark *mark, int *descriptor, bool *is_made) {
    char path[PATH_MAX], text[MARK_BYTES];
    struct stat info;
    int length = format_mark(name, mark, text), status = STATUS_OK;
    *is_made = false;
    if (length < 0)
        return length;
    if (!*box_path(box, mark_name, path))
        return status_fail(STATUS_INVALID, "path too long: %.200s", box);
    if (mkdir(box, 0777))
        return errno == EEXIST ? STATUS_OK : status_fail_errno("cannot make directory %s", box);
    *descriptor = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (*descriptor < 0 && errno == ENOENT)
        return STATUS_OK;
    if (*descriptor < 0)
        status = status_fail_errno("cannot create %s", path);
    else
        lock(*descriptor, 0); /* a file system without locks: only the writer removes its box */
    if (!status && fstat(*descriptor, &info) == 0 && info.st_nlink == 0) {
        close(*descriptor);
        *descriptor = -1;
        return STATUS_OK;
    }
    if (!status)
        status = file_write_all(*descriptor, text, (size_t)length, path);
    if (!status && fsync(*descriptor))
        status = status_fail_errno("cannot sync %s", path);
    *is_made = !status;
    if (status && *descriptor >= 0)
        close(*descriptor);
    if (status) {
        *descriptor = -1;
        unlink(path);
        rmdir(box);
    }
    return status;
}

int box_make(const char *parent, const struct box_mark *mark, char **box, int *descriptor) {
    int status = STATUS_OK;
    *box = NULL;
    *descriptor = -1;
    for (int i = 0; i < ATTEMPTS && !status; i++) {
        char name[FILE_DRAWN_BYTES];
        bool is_made = false;
        status = file_draw_name(name);
        if (!status && asprintf(box, "%s/%s", parent, name) < 0) {
            *box = NULL;
            status = status_fail(STATUS_MEMORY, "out of memory");
        }
        if (!status)
            status = try_box(*box, name, mark, descriptor, &is_made);
        if (is_made)
            return STATUS_OK;
        free(*box);
        *box = NULL;
    }
    return status ? status : status_fail(STATUS_IO, "cannot make a directory to build in under %s", parent);
}

/* The mark is removed last: until then the box is known as ours. */
void box_remove(const char *box, int descriptor) {
    char **names, path[PATH_MAX];
    size_t count;
    int status = file_list(box, &names, &count);
    for (size_t i = 0; !status && i < count; i++)
        if (strcmp(names[i], mark_name) != 0)
            status = file_remove_tree(box_path(box, names[i], path));
    if (names)
        file_list_free(names, count);
    if (!status)
        status = file_remove_tree(box_path(box, mark_name, path));
    if (!status && rmdir(box) && errno != ENOENT)
        status = status_fail_errno("cannot remove %s", box);
    if (status)
        log_warning("%s", status_text());
    if (descriptor >= 0)
        close(descriptor);
}

/* ---- what dead writers left ---- */

/* Returns false when the directory must stay in the box for now. */
static bool put_back(const char *parent, const char *box, const struct box_mark *mark) {
    char old[PATH_MAX], target[PATH_MAX];
    if (!file_exists(box_path(box, "old", old)) || file_exists(box_path(parent, mark->target, target)))
        return true;
    if (rename(old, target)) {
        log_warning("cannot rename %s to %s: %s", old, target, strerror(errno));
        return false;
    }
    log_info("%s is back: the writer that was to replace it was stopped", target);
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
        log_warning("%s stays: without locks on this file system nobody knows whether its writer lives", box);
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
    int status = file_list(directory, &names, &count);
    if (status)
        return status;
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
        return status_fail(STATUS_INVALID, "%s is no name for a directory", path);
    if (strlen(base) >= sizeof mark->target)
        return status_fail(STATUS_INVALID, "name too long: %.200s", base);
    snprintf(mark->target, sizeof mark->target, "%s", base);
    return file_parent(path, parent, PATH_MAX);
}

static int begin(struct staging *staging, const char *parent, const struct box_mark *mark) {
    int status = box_make(parent, mark, &staging->box, &staging->mark);
    if (!status && asprintf(&staging->directory, "%s/new", staging->box) < 0) {
        staging->directory = NULL;
        status = status_fail(STATUS_MEMORY, "out of memory");
    }
    if (!status && mkdir(staging->directory, 0777))
        status = status_fail_errno("cannot make directory %s", staging->directory);
    return status;
}

int staging_begin(struct staging *staging, const char *target) {
    char parent[PATH_MAX];
    struct box_mark mark;
    *staging = (struct staging){.mark = -1, .target = resolve(target)};
    int status = staging->target ? split(staging->target, parent, &mark) : status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = file_make_directories(parent);
    if (!status)
        status = staging_clean(parent);
    if (!status)
        status = begin(staging, parent, &mark);
    if (status)
        staging_abort(staging);
    return status;
}

int staging_begin_files(struct staging *staging, const char *directory, const struct staging_files *files) {
    struct box_mark mark = {.target = BOX_FILES};
    snprintf(mark.kind, sizeof mark.kind, "%s", files->kind);
    *staging = (struct staging){.mark = -1, .target = strdup(directory), .files = files};
    int status = staging->target ? file_make_directories(directory) : status_fail(STATUS_MEMORY, "out of memory");
    if (!status)
        status = staging_clean(directory);
    if (!status)
        status = staging_finish(directory, files);
    if (!status)
        status = begin(staging, directory, &mark);
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
        log_warning("the earlier %s waits as %s", target, old);
    return status;
}

/* Syncs directories only. */
static int sync_tree(const char *path) {
    char **names, child[PATH_MAX];
    size_t count;
    int status = file_list(path, &names, &count);
    for (size_t i = 0; !status && i < count; i++) {
        status = file_join(child, sizeof child, path, names[i]);
        if (!status && file_is_directory(child))
            status = sync_tree(child);
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
    if (!status)
        status = files_place(staging->target, staging->box, staging->files);
    staging->is_committed = status != STATUS_OK; /* else nothing is left to keep */
    return status;
}

int staging_commit(struct staging *staging) {
    int status = sync_tree(staging->directory);
    if (!status)
        status = staging->files ? commit_files(staging) : commit_directory(staging);
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
    if (!status)
        status = box_make(parent, &mark, &box, &descriptor);
    if (status)
        return status;
    if (rename(target, box_path(box, "gone", gone)))
        status = status_fail_errno("cannot rename %s to %s", target, gone);
    box_remove(box, descriptor);
    free(box);
    return status;
}
