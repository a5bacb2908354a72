/* Boxes: directories beside a target in which its new contents are made, locked and marked by their owner. */
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
    THEN(status, file_write_all(*descriptor, text, (size_t)length, path));
    THEN_IF(status, fsync(*descriptor), status_fail_errno("cannot sync %s", path));
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
            status = status_no_memory();
        }
        THEN(status, try_box(*box, name, mark, descriptor, &is_made));
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
    THEN(status, file_remove_tree(box_path(box, mark_name, path)));
    THEN_IF(status, rmdir(box) && errno != ENOENT, status_fail_errno("cannot remove %s", box));
    if (status)
        log_warning("%s", status_text());
    if (descriptor >= 0)
        close(descriptor);
}
