#include "file.h"

#include "status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

int file_open_to_read(const char *path, int *descriptor, int64_t *bytes) {
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused below, not waited for */
    if (*descriptor < 0) {
        int status = errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO;
        status_fail_errno("cannot open %s", path);
        return status;
    }
    struct stat info;
    int status = STATUS_OK;
    if (fstat(*descriptor, &info))
        status = status_fail_errno("cannot stat %s", path);
    else if (!S_ISREG(info.st_mode))
        status = status_fail(STATUS_INVALID, "%s is not a regular file", path);
    if (status)
        close(*descriptor);
    else
        *bytes = info.st_size;
    return status;
}

int file_read(const char *path, size_t limit, struct strbuf *out) {
    int descriptor;
    int64_t bytes;
    int status = file_open_to_read(path, &descriptor, &bytes);
    TRY(status);
    if ((uint64_t)bytes > limit)
        status =
            status_fail(STATUS_INVALID, "%s has %lld bytes, more than the %zu allowed", path, (long long)bytes, limit);
    else
        status = strbuf_reserve(out, (size_t)bytes + 1);
    while (!status) {
        char buffer[1 << 16];
        ssize_t n = read(descriptor, buffer, sizeof buffer);
        if (n == 0)
            break;
        if (n < 0)
            status = status_fail_errno("cannot read %s", path);
        else
            strbuf_add(out, buffer, (size_t)n);
    }
    close(descriptor);
    return status ? status : strbuf_status(out);
}

bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

bool file_is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

int64_t file_size(const char *path) {
    struct stat info;
    if (stat(path, &info)) {
        int status = errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO;
        status_fail_errno("cannot stat %s", path);
        return status;
    }
    if (!S_ISREG(info.st_mode))
        return status_fail(STATUS_INVALID, "%s is not a regular file", path);
    return info.st_size;
}

int file_parent(const char *path, char *out, size_t bytes) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') /* removes slashes after the last name */
        length--;
    while (length > 0 && path[length - 1] != '/')
        length--;
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length >= bytes || bytes < 2)
        return status_fail(STATUS_INVALID, "path too long: %.200s", path);
    memcpy(out, length ? path : ".", length ? length : 1);
    out[length ? length : 1] = 0;
    return STATUS_OK;
}

static int sync_parent(const char *path) {
    char parent[PATH_MAX];
    int status = file_parent(path, parent, sizeof parent);
    return status ? status : file_sync(parent);
}

int file_make_directories(const char *path) {
    char part[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return status_fail(STATUS_INVALID, "cannot make directory '%s': bad length of path", path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != 0)
            continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) == 0) {
            TRY(sync_parent(part));
        } else if (errno != EEXIST) {
            return status_fail_errno("cannot make directory %s", part);
        }
    }
    return file_is_directory(path) ? STATUS_OK : status_fail(STATUS_IO, "%s is not a directory", path);
}

int file_join(char *out, size_t bytes, const char *directory, const char *name) {
    int n = snprintf(out, bytes, "%s/%s", directory, name);
    if (n < 0 || (size_t)n >= bytes)
        return status_fail(STATUS_INVALID, "path too long: %.200s/%.200s", directory, name);
    return STATUS_OK;
}

int file_remove_tree(const char *path) {
    struct stat info;
    if (lstat(path, &info))
        return errno == ENOENT ? STATUS_OK : status_fail_errno("cannot stat %s", path);
    if (!S_ISDIR(info.st_mode))
        return unlink(path) && errno != ENOENT ? status_fail_errno("cannot remove %s", path) : STATUS_OK;
    char **names;
    size_t count;
    int status = file_list(path, &names, &count);
    TRY(status);
    for (size_t i = 0; i < count && !status; i++) {
        char child[PATH_MAX];
        status = file_join(child, sizeof child, path, names[i]);
        THEN(status, file_remove_tree(child));
    }
    file_list_free(names, count);
    THEN_IF(status, rmdir(path) && errno != ENOENT, status_fail_errno("cannot remove %s", path));
    return status;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int file_list(const char *path, char ***names, size_t *count) {
    *names = NULL;
    *count = 0;
    DIR *directory = opendir(path);
    if (!directory)
        return status_fail_errno("cannot open directory %s", path);
    size_t capacity = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (*count == capacity) {
            capacity = capacity ? capacity * 2 : 16;
            char **more = realloc(*names, capacity * sizeof *more);
            if (!more)
                goto no_memory;
            *names = more;
        }
        if (!((*names)[*count] = strdup(entry->d_name)))
            goto no_memory;
        ++*count;
    }
    closedir(directory);
    if (*count)
        qsort(*names, *count, sizeof **names, compare_names);
    return STATUS_OK;
no_memory:
    closedir(directory);
    file_list_free(*names, *count);
    *names = NULL;
    *count = 0;
    return status_no_memory();
}

void file_list_free(char **names, size_t count) {
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

int file_find_other(const char *directory, bool (*is_ours)(const char *name), char **other) {
    char **names = NULL, path[PATH_MAX];
    size_t count = 0, i = 0;
    int status = file_exists(directory) ? file_list(directory, &names, &count) : STATUS_OK;
    struct stat info;
    for (; !status && i < count; i++) {
        status = file_join(path, sizeof path, directory, names[i]);
        if (!status && (!is_ours(names[i]) || lstat(path, &info) || !S_ISREG(info.st_mode)))
            break;
    }
    *other = status ? NULL : strdup(i < count ? names[i] : "");
    file_list_free(names, count);
    return status || *other ? status : status_no_memory();
}

int file_write_all(int descriptor, const void *bytes, size_t length, const char *path) {
    const char *p = bytes;
    while (length > 0) {
        ssize_t n = write(descriptor, p, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return status_fail_errno("cannot write %s", path);
        p += n;
        length -= (size_t)n;
    }
    return STATUS_OK;
}

int file_pwrite_all(int descriptor, const void *bytes, size_t length, off_t offset, const char *path) {
    const char *p = bytes;
    while (length > 0) {
        ssize_t n = pwrite(descriptor, p, length, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return status_fail_errno("cannot write %s", path);
        p += n;
        offset += n;
        length -= (size_t)n;
    }
    return STATUS_OK;
}

int file_pread_all(int descriptor, void *bytes, size_t length, off_t offset, const char *path) {
    char *p = bytes;
    while (length > 0) {
        ssize_t n = pread(descriptor, p, length, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return status_fail_errno("cannot read %s", path);
        if (n == 0)
            return status_fail(STATUS_INVALID, "%s ends at byte %lld, %zu bytes early", path, (long long)offset,
                               length);
        p += n;
        offset += n;
        length -= (size_t)n;
    }
    return STATUS_OK;
}

int file_copy(const char *from, const char *to) {
    int source = open(from, O_RDONLY | O_CLOEXEC);
    if (source < 0)
        return status_fail_errno("cannot open %s", from);
    int target = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int status = target < 0 ? status_fail_errno("cannot create %s", to) : STATUS_OK;
    while (!status) {
        char buffer[1 << 16];
        ssize_t n = read(source, buffer, sizeof buffer);
        if (n == 0)
            break;
        status = n < 0 ? status_fail_errno("cannot read %s", from) : file_write_all(target, buffer, (size_t)n, to);
    }
    close(source);
    if (target >= 0 && close(target) && !status)
        status = status_fail_errno("cannot write %s", to);
    return status;
}

int file_sync(const char *path) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return status_fail_errno("cannot open %s", path);
    int status = fsync(descriptor) ? status_fail_errno("cannot sync %s", path) : STATUS_OK;
    close(descriptor);
    return status;
}

static const char drawn_prefix[] = ".cambium-";
enum { DRAWN_DIGITS = 16 };

int file_draw_name(char name[FILE_DRAWN_BYTES]) {
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return status_fail_errno("cannot draw a random name");
    snprintf(name, FILE_DRAWN_BYTES, "%s%016llx", drawn_prefix, (unsigned long long)number);
    return STATUS_OK;
}

bool file_is_drawn_name(const char *name) {
    size_t prefix = sizeof drawn_prefix - 1;
    return !strncmp(name, drawn_prefix, prefix) && strlen(name) == prefix + DRAWN_DIGITS &&
           strspn(name + prefix, "0123456789abcdef") == DRAWN_DIGITS;
}

/* Creates the temporary file in the directory of `path`. Sets *descriptor to -1 when the name is taken. */
static int create_temporary(struct file_writer *writer, const char *parent, int *descriptor) {
    char name[FILE_DRAWN_BYTES];
    TRY(file_draw_name(name));
    free(writer->temporary);
    if (asprintf(&writer->temporary, "%s/%s", parent, name) < 0) {
        writer->temporary = NULL;
        return status_no_memory();
    }
    *descriptor = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (*descriptor >= 0 || errno == EEXIST)
        return STATUS_OK;
    int status = status_fail_errno("cannot create %s", writer->path);
    free(writer->temporary);
    writer->temporary = NULL;
    return status;
}

/* The path that a writer replaces: a link stands for its file. A device or a pipe is written in place. */
static int find_target(struct file_writer *writer, const char *path, bool *is_in_place) {
    char real[PATH_MAX];
    struct stat found;
    bool exists = stat(path, &found) == 0;
    if (exists && S_ISDIR(found.st_mode))
        return status_fail(STATUS_IO, "cannot create %s: it is a directory", path);
    *is_in_place = exists && !S_ISREG(found.st_mode);
    bool is_file = exists && !*is_in_place;
    if (is_file && !realpath(path, real))
        return status_fail_errno("cannot create %s", path);
    writer->path = strdup(is_file ? real : path);
    return status_allocated(writer->path);
}

static int create_beside(struct file_writer *writer, int *descriptor) {
    char parent[PATH_MAX];
    int status = file_parent(writer->path, parent, sizeof parent);
    while (!status && *descriptor < 0)
        status = create_temporary(writer, parent, descriptor);
    return status;
}

int file_writer_open(struct file_writer *writer, const char *path) {
    int descriptor = -1;
    bool is_in_place = false;
    *writer = (struct file_writer){0};
    int status = find_target(writer, path, &is_in_place);
    if (!status && !is_in_place)
        status = create_beside(writer, &descriptor);
    else if (!status && (descriptor = open(path, O_WRONLY | O_CLOEXEC)) < 0)
        status = status_fail_errno("cannot open %s", path);
    if (!status && !(writer->stream = fdopen(descriptor, "wb"))) {
        status = status_fail_errno("cannot create %s", path);
        close(descriptor);
    }
    if (status)
        file_writer_abort(writer);
    return status;
}

int file_writer_commit(struct file_writer *writer) {
    int status = STATUS_OK;
    if (fflush(writer->stream) || ferror(writer->stream) || (writer->temporary && fsync(fileno(writer->stream))))
        status = status_fail_errno("cannot write %s", writer->path);
    if (fclose(writer->stream) && !status)
        status = status_fail_errno("cannot write %s", writer->path);
    writer->stream = NULL;
    if (!status && writer->temporary && rename(writer->temporary, writer->path))
        status = status_fail_errno("cannot rename %s to %s", writer->temporary, writer->path);
    if (!status && writer->temporary) {
        free(writer->temporary);
        writer->temporary = NULL;
        status = sync_parent(writer->path);
    }
    file_writer_abort(writer);
    return status;
}

void file_writer_abort(struct file_writer *writer) {
    if (writer->stream)
        fclose(writer->stream);
    if (writer->temporary)
        unlink(writer->temporary);
    free(writer->temporary);
    free(writer->path);
    *writer = (struct file_writer){0};
}

int file_write_atomic(const char *path, const void *bytes, size_t length) {
    struct file_writer writer;
    TRY(file_writer_open(&writer, path));
    fwrite(bytes, 1, length, writer.stream); /* the commit reports an error */
    return file_writer_commit(&writer);
}
