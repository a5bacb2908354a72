/* Writes from memory to the disk during training: one thread per save and rank, independent of other ranks. It bypasses
 * the page cache if the file system allows that. A copy into the cache costs the cores more than everything else here,
 * and its writing back would come in one lump with the sync. */
#include "save-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* A file that is being written; `direct` is -1 when that is not possible. */
struct open_file {
    char path[PATH_MAX];
    int direct, plain;
};

static int open_both(const struct save_writer *writer, const struct save_file *file, struct open_file *out) {
    out->direct = out->plain = -1;
    TRY(file_join(out->path, sizeof out->path, writer->directory, file->name));
    out->plain = open(out->path, O_WRONLY | O_CLOEXEC);
    if (out->plain < 0)
        return status_fail_errno("cannot open %s", out->path);
    out->direct = open(out->path, O_WRONLY | O_CLOEXEC | O_DIRECT);
    return STATUS_OK;
}

static int close_both(struct open_file *file, int status) {
    THEN_IF(status, fsync(file->plain), status_fail_errno("cannot sync %s", file->path));
    if (file->direct >= 0)
        close(file->direct);
    if (file->plain >= 0 && close(file->plain) && !status)
        status = status_fail_errno("cannot write %s", file->path);
    return status;
}

/* Writes whole blocks past the cache, and the end of a file through it. */
static int write_chunk(struct open_file *file, const char *bytes, int64_t length, int64_t at) {
    int64_t done = 0, blocks = length / BLOCK_BYTES * BLOCK_BYTES;
    while (file->direct >= 0 && done < blocks) {
        ssize_t n = pwrite(file->direct, bytes + done, (size_t)(blocks - done), at + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EINVAL)
            return status_fail_errno("cannot write %s", file->path);
        if (n < 0 || n % BLOCK_BYTES) { /* larger blocks than ours, or a disk that is nearly full */
            close(file->direct);
            file->direct = -1;
        }
        done += n < 0 ? 0 : n;
    }
    if (done == length)
        return STATUS_OK;
    int status = file_pwrite_all(file->plain, bytes + done, (size_t)(length - done), at + done, file->path);
    if (!status && file->direct < 0) /* begins the writing back, without waiting */
        sync_file_range(file->plain, at, length, SYNC_FILE_RANGE_WRITE);
    return status;
}

/* Waits for chunk `n`; returns false when there is no point any more. */
static bool wait_filled(struct save_writer *writer, int64_t n) {
    pthread_mutex_lock(&writer->lock);
    while (writer->filled <= n && !writer->is_cancelled)
        pthread_cond_wait(&writer->changed, &writer->lock);
    bool is_wanted = !writer->is_cancelled;
    pthread_mutex_unlock(&writer->lock);
    return is_wanted;
}

/* Writes this rank's chunks of a file, numbered from *next on. */
static int write_file(struct save_writer *writer, const struct save_file *file, int64_t *next) {
    const struct save_files *files = writer->files;
    int64_t first, end;
    struct open_file open;
    save_file_chunks(files, file, writer->rank, &first, &end);
    if (first == end)
        return STATUS_OK;
    int status = open_both(writer, file, &open);
    for (int64_t chunk = first; chunk < end && !status; chunk++, ++*next) {
        if (!wait_filled(writer, *next)) {
            status = status_fail(STATUS_INTERRUPTED, "writing was given up");
            break;
        }
        int64_t at = chunk * files->chunk_bytes;
        int64_t length = file->bytes - at < files->chunk_bytes ? file->bytes - at : files->chunk_bytes;
        const char *buffer = writer->buffers + *next % writer->buffer_count * files->chunk_bytes;
        status = write_chunk(&open, buffer, length, at);
        pthread_mutex_lock(&writer->lock);
        writer->written = *next + 1;
        pthread_cond_broadcast(&writer->changed);
        pthread_mutex_unlock(&writer->lock);
    }
    return close_both(&open, status);
}

static int write_all(void *context) {
    struct save_writer *writer = context;
    int64_t next = 0;
    int status = STATUS_OK;
    for (int f = 0; f < writer->files->count && !status; f++)
        status = write_file(writer, &writer->files->items[f], &next);
    writer->end = clock_seconds(); /* read only after the thread was joined */
    return status;
}

/* ---- the thread ---- */

struct task {
    struct save_writer *writer;
    int (*function)(void *context);
    void *context;
};

static void *run_task(void *argument) {
    struct task task = *(struct task *)argument;
    struct save_writer *writer = task.writer;
    free(argument);
    int status = task.function(task.context);
    pthread_mutex_lock(&writer->lock);
    writer->is_done = true;
    writer->status = status;
    if (status)
        snprintf(writer->text, sizeof writer->text, "%s", status_text());
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
    return NULL;
}

int save_writer_run(struct save_writer *writer, int (*function)(void *context), void *context) {
    struct task *task = malloc(sizeof *task);
    TRY(status_allocated(task));
    *task = (struct task){writer, function, context};
    writer->is_done = writer->is_cancelled = false;
    writer->status = STATUS_OK;
    int error = pthread_create(&writer->thread, NULL, run_task, task);
    if (error) {
        free(task);
        return status_fail(STATUS_MEMORY, "cannot start a thread to write with: %s", strerror(error));
    }
    writer->has_thread = true;
    return STATUS_OK;
}

int save_writer_start(struct save_writer *writer) {
    writer->filled = writer->written = 0;
    return save_writer_run(writer, write_all, writer);
}

int save_writer_init(struct save_writer *writer) {
    if (pthread_mutex_init(&writer->lock, NULL))
        return status_no_memory();
    if (!pthread_cond_init(&writer->changed, NULL))
        return STATUS_OK;
    pthread_mutex_destroy(&writer->lock);
    return status_no_memory();
}

void save_writer_destroy(struct save_writer *writer) {
    pthread_cond_destroy(&writer->changed);
    pthread_mutex_destroy(&writer->lock);
}

char *save_writer_buffer(struct save_writer *writer, int64_t n) {
    pthread_mutex_lock(&writer->lock);
    while (writer->written + writer->buffer_count <= n && !writer->is_done)
        pthread_cond_wait(&writer->changed, &writer->lock);
    bool is_free = writer->written + writer->buffer_count > n;
    pthread_mutex_unlock(&writer->lock);
    return is_free ? writer->buffers + n % writer->buffer_count * writer->files->chunk_bytes : NULL;
}

void save_writer_filled(struct save_writer *writer, int64_t n) {
    pthread_mutex_lock(&writer->lock);
    writer->filled = n + 1;
    pthread_cond_broadcast(&writer->changed);
    pthread_mutex_unlock(&writer->lock);
}

bool save_writer_is_done(struct save_writer *writer, int *status) {
    pthread_mutex_lock(&writer->lock);
    bool is_done = writer->is_done;
    *status = writer->status;
    pthread_mutex_unlock(&writer->lock);
    return is_done;
}

void save_writer_wait(struct save_writer *writer) {
    pthread_mutex_lock(&writer->lock);
    while (writer->has_thread && !writer->is_done)
        pthread_cond_wait(&writer->changed, &writer->lock);
    pthread_mutex_unlock(&writer->lock);
}

int save_writer_join(struct save_writer *writer, bool is_cancelled) {
    if (writer->has_thread) {
        pthread_mutex_lock(&writer->lock);
        writer->is_cancelled = is_cancelled;
        pthread_cond_broadcast(&writer->changed);
        pthread_mutex_unlock(&writer->lock);
        pthread_join(writer->thread, NULL);
        writer->has_thread = false;
    }
    return writer->status ? status_fail(writer->status, "%s", writer->text) : STATUS_OK;
}
