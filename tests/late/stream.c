/* The queues of late's streams. One thread runs their work while the host waits for some of it. The order is any that
 * the events allow: work that no one waits for runs first, last, or in between. */
#include "late/late-internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { FIRST_ENTRIES = 256 };
/* Which streams run first. The order is drawn anew each time that the host finds work to wait for. */
enum order { ORDER_NEEDED_ALONE, ORDER_OTHERS_FIRST, ORDER_MIXED, ORDERS };

/* ---- entries ---- */

/* Returns the stream that the entry waits for, or NULL. That stream's entries below *number must have run. */
static struct late_stream *awaited(const struct late_entry *entry, uint64_t *number) {
    const struct late_await *await = (const void *)entry->arguments;
    if (entry->kind != LATE_AWAIT)
        return NULL;
    *number = await->number;
    return await->stream;
}

void late_release_mark(struct late_mark *mark) {
    if (atomic_fetch_sub(&mark->holders, 1) == 1)
        free(mark);
}

/* Releases an entry that will never run. */
static void drop(const struct late_entry *entry) {
    if (entry->kind == LATE_MARK)
        late_release_mark(*(struct late_mark *const *)(const void *)entry->arguments);
}

/* Poisons the host memory that a copy will fill. */
static void poison_target(const struct late_entry *entry) {
    const struct copy_call *copy = (const void *)entry->arguments;
    if (entry->kind == LATE_COPY && copy->kind == COPY_TO_HOST)
        for (size_t i = 0; i < copy->rows; i++)
            memset((char *)copy->to + i * copy->to_stride, LATE_POISON, copy->bytes);
}

static void count_copy(struct late_counts *counts, const struct late_entry *entry) {
    const struct copy_call *copy = (const void *)entry->arguments;
    bool is_copy = entry->kind == LATE_COPY;
    counts->uploads += is_copy && copy->kind == COPY_TO_DEVICE;
    counts->downloads += is_copy && copy->kind == COPY_TO_HOST;
    counts->moves += is_copy && copy->kind == COPY_ON_DEVICE;
}

/* ---- the order ---- */

static uint64_t next_number(const struct late_stream *stream) {
    return stream->before + stream->run;
}

/* Returns true if all entries with lower numbers have run. */
static bool has_run(const struct late_stream *stream, uint64_t number) {
    return next_number(stream) - stream->is_running >= number;
}

/* Marks the entries below `number` as wanted, and all entries of other streams that they wait for. */
static void want(struct late_stream *stream, uint64_t number) {
    uint64_t from = stream->wanted > next_number(stream) ? stream->wanted : next_number(stream);
    if (number > stream->wanted)
        stream->wanted = number;
    for (uint64_t i = from; i < number; i++) {
        uint64_t needed;
        struct late_stream *other = awaited(&stream->list.entries[i - stream->before], &needed);
        if (other)
            want(other, needed);
    }
}

static bool is_wanted(const struct late_stream *stream) {
    return next_number(stream) < stream->wanted;
}

static bool has_wanted(const struct late_device *device) {
    bool is_any = false;
    for (const struct late_stream *stream = device->streams; stream && !is_any; stream = stream->next)
        is_any = is_wanted(stream);
    return is_any;
}

static bool is_ready(const struct late_stream *stream) {
    if (stream->run == stream->list.count)
        return false;
    uint64_t number;
    const struct late_stream *other = awaited(&stream->list.entries[stream->run], &number);
    return !other || has_run(other, number);
}

static uint32_t draw(struct late_device *device, uint32_t choices) {
    return choices > 1 ? philox(0, device->choices++, 0, 0, 0).word[0] % choices : 0;
}

/* Returns the stream whose next entry runs. There is one while any entry is wanted, because events are recorded before
 * they are waited for. */
static struct late_stream *choose(struct late_device *device, enum order order) {
    struct late_stream *chosen = NULL;
    uint32_t count = 0;
    for (struct late_stream *stream = device->streams; stream; stream = stream->next) {
        if (!is_ready(stream) || (order == ORDER_NEEDED_ALONE && !is_wanted(stream)))
            continue;
        bool is_better = order == ORDER_OTHERS_FIRST && chosen && is_wanted(chosen) && !is_wanted(stream);
        bool is_worse = order == ORDER_OTHERS_FIRST && chosen && !is_wanted(chosen) && is_wanted(stream);
        if (is_better)
            count = 0;
        if (!is_worse && draw(device, ++count) == 0)
            chosen = stream;
    }
    return chosen;
}

/* ---- the thread ---- */

/* Runs the next entry, unless work has failed. The caller holds the lock, which is released while the entry runs. */
static void run_next(struct late_device *device, struct late_stream *stream) {
    struct late_entry entry = stream->list.entries[stream->run++];
    if (device_status(&device->device)) {
        drop(&entry);
    } else {
        stream->is_running = true;
        pthread_mutex_unlock(&device->lock);
        int status = entry.run(&entry.exec, entry.arguments);
        pthread_mutex_lock(&device->lock);
        stream->is_running = false;
        if (status)
            device_set_failure(&device->device, status);
    }
    if (stream->run == stream->list.count) {
        stream->before += stream->list.count;
        stream->run = stream->list.count = 0;
    }
}

static void *run_device(void *context) {
    struct late_device *device = context;
    pthread_mutex_lock(&device->lock);
    while (!device->ends) {
        if (!has_wanted(device)) {
            pthread_cond_wait(&device->changed, &device->lock);
            continue;
        }
        enum order order = draw(device, ORDERS);
        device->is_working = true;
        late_protect(device, PROT_READ | PROT_WRITE);
        while (has_wanted(device))
            run_next(device, choose(device, order));
        device->is_working = false;
        late_protect(device, PROT_NONE);
        pthread_cond_broadcast(&device->changed);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

int late_start_thread(struct late_device *device) {
    device->has_thread = !pthread_create(&device->thread, NULL, run_device, device);
    return device->has_thread ? STATUS_OK : status_fail(STATUS_MEMORY, "cannot start the thread of a device");
}

void late_end_thread(struct late_device *device) {
    if (!device->has_thread)
        return;
    pthread_mutex_lock(&device->lock);
    device->ends = true;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
    pthread_join(device->thread, NULL);
}

/* Runs entries until those below `number` have run. The caller holds the lock. */
static void run_until(struct late_device *device, struct late_stream *stream, uint64_t number) {
    want(stream, number);
    pthread_cond_broadcast(&device->changed);
    while (!has_run(stream, number))
        pthread_cond_wait(&device->changed, &device->lock);
}

int late_wait_for(struct late_stream *stream, uint64_t number) {
    struct late_device *device = late(stream->stream.device);
    if (stream->recording)
        return status_fail(STATUS_INVALID, "a wait for a stream that is being recorded");
    pthread_mutex_lock(&device->lock);
    if (!has_run(stream, number)) {
        device->counts.waits++;
        run_until(device, stream, number);
    }
    pthread_mutex_unlock(&device->lock);
    return device_status(&device->device);
}

/* ---- streams ---- */

int late_stream_open(struct device *device, struct stream **out) {
    struct late_device *own = late(device);
    struct late_stream *stream = calloc(1, sizeof *stream);
    *out = NULL;
    if (!stream)
        return status_fail(STATUS_MEMORY, "out of memory");
    stream->stream.device = device;
    int status = stream_open(own->cpu, &stream->cpu);
    if (status) {
        free(stream);
        return status;
    }
    pthread_mutex_lock(&own->lock);
    stream->next = own->streams;
    own->streams = stream;
    pthread_mutex_unlock(&own->lock);
    *out = &stream->stream;
    return STATUS_OK;
}

/* Returns an entry of another stream that waits for this one, and up to which number; NULL if there is none. The caller
 * holds the lock. */
static struct late_entry *find_waiting(struct late_device *device, const struct late_stream *target, uint64_t *number) {
    for (struct late_stream *stream = device->streams; stream; stream = stream->next)
        for (size_t i = stream->run; i < stream->list.count; i++)
            if (awaited(&stream->list.entries[i], number) == target)
                return &stream->list.entries[i];
    return NULL;
}

/* Runs the work that other streams wait for, and ends their waits. The caller holds the lock. */
static void release_waiting(struct late_device *device, struct late_stream *closing) {
    struct late_entry *entry;
    uint64_t number;
    while ((entry = find_waiting(device, closing, &number)))
        if (has_run(closing, number))
            ((struct late_await *)(void *)entry->arguments)->stream = NULL;
        else
            run_until(device, closing, number);
}

void late_recording_close(struct recording *recording) {
    free(((struct late_recording *)recording)->list.entries);
    free(recording);
}

void late_stream_close(struct stream *stream) {
    struct late_stream *own = late_stream(stream);
    struct late_device *device = late(stream->device);
    pthread_mutex_lock(&device->lock);
    release_waiting(device, own);
    while (device->is_working) /* the thread may be running work of this stream */
        pthread_cond_wait(&device->changed, &device->lock);
    struct late_stream **at = &device->streams;
    while (*at != own)
        at = &(*at)->next;
    *at = own->next;
    pthread_mutex_unlock(&device->lock);
    for (size_t i = own->run; i < own->list.count; i++)
        drop(&own->list.entries[i]);
    if (own->recording)
        late_recording_close(&own->recording->recording);
    stream_close(own->cpu);
    free(own->list.entries);
    free(own);
}

uint64_t late_queued(struct late_stream *stream) {
    struct late_device *device = late(stream->stream.device);
    pthread_mutex_lock(&device->lock);
    uint64_t number = stream->before + stream->list.count;
    pthread_mutex_unlock(&device->lock);
    return number;
}

int late_stream_wait(struct stream *stream) {
    return late_wait_for(late_stream(stream), late_queued(late_stream(stream)));
}

/* ---- queueing ---- */

int late_list_add(struct late_list *list, const struct late_entry *entry) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : FIRST_ENTRIES;
        struct late_entry *entries = realloc(list->entries, capacity * sizeof *entries);
        if (!entries)
            return status_fail(STATUS_MEMORY, "out of memory");
        list->entries = entries;
        list->capacity = capacity;
    }
    list->entries[list->count++] = *entry;
    return STATUS_OK;
}

static bool overlaps(const struct late_stream *stream, const struct exec *exec) {
    const char *workspace = exec->workspace;
    return workspace < stream->workspace + stream->workspace_bytes &&
           stream->workspace < workspace + exec->workspace_bytes;
}

/* Checks that no other stream uses the workspace, because the work of both could run at once. The caller holds the
 * lock.
 */
static int check_workspace(struct late_device *device, struct late_stream *stream, const struct late_entry *entry) {
    if (!entry->exec.workspace_bytes)
        return STATUS_OK;
    for (const struct late_stream *other = device->streams; other; other = other->next)
        if (other != stream && (other->run < other->list.count || other->is_running) && overlaps(other, &entry->exec))
            return status_fail(STATUS_INVALID, "%s: another stream uses its workspace", entry->name);
    stream->workspace = entry->exec.workspace;
    stream->workspace_bytes = entry->exec.workspace_bytes;
    return STATUS_OK;
}

int late_queue_entry(struct late_stream *stream, const struct late_entry *entry) {
    struct late_device *device = late(stream->stream.device);
    pthread_mutex_lock(&device->lock);
    int status = check_workspace(device, stream, entry);
    poison_target(entry);
    count_copy(&device->counts, entry);
    if (!status)
        status = late_list_add(&stream->list, entry);
    if (!status)
        stream->list.entries[stream->list.count - 1].exec.stream = stream->cpu;
    pthread_mutex_unlock(&device->lock);
    return status;
}

static int check_pointers(struct late_device *device, const struct exec *exec, const struct late_work *work) {
    if (exec->workspace && exec->workspace_bytes && !late_owns(device, exec->workspace))
        return status_fail(STATUS_INVALID, "%s: the workspace is not device memory", work->name);
    for (int i = 0; i < work->pointer_count; i++)
        if (work->pointers[i] && !late_owns(device, work->pointers[i]))
            return status_fail(STATUS_INVALID, "%s: pointer %d of its arguments (ops.h) is not device memory",
                               work->name, i);
    return STATUS_OK;
}

int late_queue(const struct exec *exec, const struct late_work *work) {
    struct late_stream *stream = late_stream(exec->stream);
    struct late_device *device = late(stream->stream.device);
    int status = device_status(&device->device);
    if (!status)
        status = check_pointers(device, exec, work);
    if (!status && work->bytes > LATE_ARGUMENT_BYTES)
        status = status_fail(STATUS_INVALID, "%s: more arguments than an entry holds", work->name);
    if (!status && stream->recording && (work->kind == LATE_MARK || work->kind == LATE_AWAIT))
        status = status_fail(STATUS_INVALID, "%s: a recording cannot have events", work->name);
    if (!status && stream->recording && work->is_once)
        status = status_fail(STATUS_INVALID, "%s: a recording cannot have this operation", work->name);
    if (status)
        return status;
    struct late_entry entry = {.name = work->name, .kind = work->kind, .run = work->run, .exec = *exec};
    memcpy(entry.arguments, work->arguments, work->bytes);
    if (!stream->recording) {
        pthread_mutex_lock(&device->lock);
        device->counts.operations += work->kind == LATE_OPERATION;
        pthread_mutex_unlock(&device->lock);
        return late_queue_entry(stream, &entry);
    }
    poison_target(&entry);
    return late_list_add(&stream->recording->list, &entry);
}
