/* Files that come into a directory with other files, as one generation. They are linked into place, so the generation
 * in the box stays whole until all of them are there. Every step can be repeated, by any writer that continues after a
 * kill. */
#include "staging-internal.h"

#include "file.h"
#include "log.h"
#include "status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The old keys go first, then the other files come, and the new keys come last. */
enum step { STEP_WITHDRAW, STEP_PLACE, STEP_COMPLETE };

struct placing {
    const struct staging_files *files;
    const char *box;
};

static bool ends_with(const char *name, const char *end) {
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && !strcmp(name + length - tail, end);
}

static int remove_file(const char *directory, const char *name) {
    char path[PATH_MAX];
    int status = file_join(path, sizeof path, directory, name);
    THEN_IF(status, unlink(path) && errno != ENOENT && errno != ENOTDIR, status_fail_errno("cannot remove %s", path));
    return status;
}

/* A rename over a link to the same file does nothing, so the second name is removed by itself. */
static int place_file(const struct placing *placing, const char *from, const char *to) {
    char second[PATH_MAX];
    box_path(placing->box, "link", second);
    unlink(second);
    if (link(from,
             second)) { /* a file system without hard links: only another program's reader could see the difference */
        if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK)
            return status_fail_errno("cannot link %s to %s", from, second);
        return rename(from, to) ? status_fail_errno("cannot rename %s to %s", from, to) : STATUS_OK;
    }
    int status = rename(second, to) ? status_fail_errno("cannot rename %s to %s", second, to) : STATUS_OK;
    unlink(second);
    return status;
}

/* Removes files that an older generation had next to a key and this one lacks. */
static int remove_stale(const struct placing *placing, const char *to, char **names, size_t count) {
    bool has_key = false;
    int status = STATUS_OK;
    for (size_t i = 0; i < count; i++)
        has_key = has_key || ends_with(names[i], placing->files->key);
    for (const char *const *name = placing->files->names; has_key && *name && !status; name++) {
        bool is_new = false;
        for (size_t i = 0; i < count; i++)
            is_new = is_new || !strcmp(names[i], *name);
        if (!is_new)
            status = remove_file(to, *name);
    }
    return status;
}

static int take_step(const struct placing *placing, const char *from, const char *to, enum step step) {
    char **names, source[PATH_MAX], target[PATH_MAX];
    size_t count;
    int status = file_list(from, &names, &count);
    TRY(status);
    if (step == STEP_PLACE)
        status = file_make_directories(to);
    if (step == STEP_PLACE && !status)
        status = remove_stale(placing, to, names, count);
    for (size_t i = 0; i < count && !status; i++) {
        bool is_key = ends_with(names[i], placing->files->key);
        status = file_join(source, sizeof source, from, names[i]);
        THEN(status, file_join(target, sizeof target, to, names[i]));
        if (status)
            break;
        if (file_is_directory(source))
            status = take_step(placing, source, target, step);
        else if (step == STEP_WITHDRAW)
            status = is_key ? remove_file(to, names[i]) : STATUS_OK;
        else if (is_key == (step == STEP_COMPLETE))
            status = place_file(placing, source, target);
    }
    file_list_free(names, count);
    return !status && file_is_directory(to) ? file_sync(to) : status;
}

int files_place(const char *directory, const char *box, const struct staging_files *files) {
    struct placing placing = {files, box};
    char ready[PATH_MAX], done[PATH_MAX];
    int status = STATUS_OK;
    box_path(box, "ready", ready);
    for (enum step step = STEP_WITHDRAW; step <= STEP_COMPLETE && !status; step++)
        status = take_step(&placing, ready, directory, step);
    /* After this rename readers no longer look here. */
    if (!status && rename(ready, box_path(box, "done", done)))
        status = status_fail_errno("cannot rename %s to %s", ready, done);
    return status;
}

/* True when the entry is a box of this kind that is ready. */
static bool is_ready(const char *directory, const char *name, const struct staging_files *files, char ready[PATH_MAX]) {
    struct box_mark mark;
    char box[PATH_MAX];
    if (!file_is_drawn_name(name) || !box_read(directory, name, &mark) || strcmp(mark.kind, files->kind) != 0)
        return false;
    return file_is_directory(box_path(box_path(directory, name, box), "ready", ready));
}

static int finish_box(const char *directory, const char *name, const struct staging_files *files) {
    struct box_mark mark;
    char box[PATH_MAX];
    int descriptor = -1;
    enum box_owner owner = box_take(directory, name, &mark, &descriptor);
    if (owner != BOX_IS_DEAD && owner != BOX_HAS_NO_LOCK)
        return STATUS_OK;
    box_path(directory, name, box);
    log_info("%s: putting in place files that a stopped writer had made ready", directory);
    int status = files_place(directory, box, files);
    if (status)
        close(descriptor);
    else
        box_remove(box, descriptor);
    return status;
}

int staging_finish(const char *directory, const struct staging_files *files) {
    char **names, ready[PATH_MAX];
    size_t count;
    if (!file_is_directory(directory))
        return STATUS_OK;
    int status = file_list(directory, &names, &count);
    TRY(status);
    for (size_t i = 0; i < count && !status; i++)
        if (is_ready(directory, names[i], files, ready))
            status = finish_box(directory, names[i], files);
    file_list_free(names, count);
    return status;
}

int staging_is_ready(const char *directory, const struct staging_files *files, const char *name, char path[PATH_MAX],
                     bool *is_there) {
    char **names, file[PATH_MAX];
    size_t count;
    *is_there = false;
    int status = file_list(directory, &names, &count);
    if (status)
        return status == STATUS_MEMORY ? status : STATUS_OK;
    for (size_t i = 0; i < count && !*is_there; i++)
        *is_there = is_ready(directory, names[i], files, path) && (!name || file_exists(box_path(path, name, file)));
    file_list_free(names, count);
    return STATUS_OK;
}
