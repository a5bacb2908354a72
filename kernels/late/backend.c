/* A backend for tests of what device.h promises to nobody: the CPU's operations, run as late as they may.
 *
 * Work is queued, and runs on a thread of the stream's own while the host waits for it. Device memory is poisoned when
 * it is new, and closed to the whole process except while work runs. So a host that reads device memory crashes; one
 * that reads a result, or refills the source of a copy, before it has waited gets wrong numbers every time. */
#include "late/late-internal.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FIRST_ENTRIES = 1024, ARGUMENT_BYTES = 768, POISON = 0xff /* no number, in every floating type */ };
_Static_assert(sizeof(struct gemm) <= ARGUMENT_BYTES, "an entry holds the longest of arguments");

struct entry {
    int (*run)(const struct exec *exec, const void *arguments);
    struct exec exec;
    _Alignas(16) unsigned char arguments[ARGUMENT_BYTES];
};

struct block {
    char *start;
    size_t bytes; /* whole pages */
    struct block *next;
};

struct late_device {
    struct device device;
    struct device *cpu;
    pthread_mutex_t lock;
    struct block *blocks;
    int working; /* streams that run */
};

struct late_stream {
    struct stream stream;
    struct stream *cpu;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct entry *entries;
    size_t count, run, capacity; /* entries in the list, and those of them that have run */
    uint64_t before;             /* entries that were in the list earlier: numbers count all */
    uint64_t wanted;             /* run up to this number */
    bool ends;
    int status; /* the first failure since the last wait, and its text */
    char text[256];
};

/* When a stream last ran past an event. The event holds it, and so does each entry that will: either may go first. */
struct late_mark {
    atomic_int holders;
    double seconds; /* by the clock */
};

struct late_event {
    struct event event;
    struct late_stream *stream; /* NULL: not recorded yet */
    uint64_t number;
    struct late_mark *mark;
};

static struct late_device *late(const struct device *device) {
    return (struct late_device *)(uintptr_t)device;
}

struct device *late_cpu(const struct device *device) {
    return late(device)->cpu;
}

/* ---- memory ---- */

/* Memory that stays closed shows when work runs. */
static void protect_block(const struct block *block, int protection) {
    int refused = mprotect(block->start, block->bytes, protection);
    assert(!refused);
    (void)refused;
}

/* Opens or closes all memory; the lock is held. */
static void protect(struct late_device *device, int protection) {
    for (const struct block *block = device->blocks; block; block = block->next)
        protect_block(block, protection);
}

static void work_begins(struct late_device *device) {
    pthread_mutex_lock(&device->lock);
    if (device->working++ == 0)
        protect(device, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&device->lock);
}

static void work_ends(struct late_device *device) {
    pthread_mutex_lock(&device->lock);
    if (--device->working == 0)
        protect(device, PROT_NONE);
    pthread_mutex_unlock(&device->lock);
}

static int late_alloc(struct device *device, size_t bytes, bool is_zeroed, void **memory) {
    struct late_device *own = late(device);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page) / page * page;
    struct block *block = malloc(sizeof *block);
    void *start = block && whole > bytes ? mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                         : MAP_FAILED;
    *memory = NULL;
    if (start == MAP_FAILED) {
        free(block);
        return status_fail(STATUS_MEMORY, "cannot allocate %.1f MB", (double)bytes / 1e6);
    }
    madvise(start, whole, MADV_HUGEPAGE); /* opened and closed far sooner; a wish, which may fail */
    if (!is_zeroed)
        memset(start, POISON, whole);
    pthread_mutex_lock(&own->lock);
    *block = (struct block){.start = start, .bytes = whole, .next = own->blocks};
    own->blocks = block;
    if (!own->working)
        protect_block(block, PROT_NONE);
    pthread_mutex_unlock(&own->lock);
    *memory = start;
    return STATUS_OK;
}

static void late_free(struct device *device, void *memory) {
    struct late_device *own = late(device);
    pthread_mutex_lock(&own->lock);
    struct block **at = &own->blocks;
    while (*at && (*at)->start != memory)
        at = &(*at)->next;
    struct block *block = *at;
    assert(block); /* neither foreign nor freed twice */
    *at = block->next;
    pthread_mutex_unlock(&own->lock);
    munmap(block->start, block->bytes);
    free(block);
}

static bool is_device_memory(const struct device *device, const void *pointer) {
    struct late_device *own = late(device);
    const char *at = pointer;
    bool is_ours = false;
    pthread_mutex_lock(&own->lock);
    for (const struct block *block = own->blocks; block && !is_ours; block = block->next)
        is_ours = at >= block->start && at < block->start + block->bytes;
    pthread_mutex_unlock(&own->lock);
    return is_ours;
}

static int late_host_alloc(struct device *device, size_t bytes, void **memory) {
    return device_host_alloc(late_cpu(device), bytes, memory);
}

static void late_host_free(struct device *device, void *memory) {
    device_host_free(late_cpu(device), memory);
}

/* ---- streams ---- */

static struct late_stream *late_stream(struct stream *stream) {
    return (struct late_stream *)stream;
}

static void release_mark(struct late_mark *mark) {
    if (atomic_fetch_sub(&mark->holders, 1) == 1)
        free(mark);
}

static int run_mark(const struct exec *exec, const void *arguments) {
    struct late_mark *mark = *(struct late_mark *const *)arguments;
    (void)exec;
    mark->seconds = clock_seconds();
    release_mark(mark);
    return STATUS_OK;
}

/* For an entry that will not run. */
static void drop_entry(const struct entry *entry) {
    if (entry->run == run_mark)
        release_mark(*(struct late_mark *const *)entry->arguments);
}

/* Runs the next entry, unless one before it has failed. The lock is held, but not while it runs. */
static void run_next(struct late_stream *stream) {
    struct entry *entry = &stream->entries[stream->run++];
    if (stream->status) {
        drop_entry(entry);
        return;
    }
    pthread_mutex_unlock(&stream->lock);
    int status = entry->run(&entry->exec, entry->arguments);
    pthread_mutex_lock(&stream->lock);
    if (status) {
        stream->status = status;
        snprintf(stream->text, sizeof stream->text, "%s", status_text());
    }
}

static bool has_work(const struct late_stream *stream) {
    return stream->before + stream->run < stream->wanted;
}

/* Nobody queues meanwhile: the stream's owner waits. */
static void *run_stream(void *context) {
    struct late_stream *stream = context;
    struct late_device *device = late(stream->stream.device);
    pthread_mutex_lock(&stream->lock);
    while (!stream->ends) {
        if (!has_work(stream)) {
            pthread_cond_wait(&stream->changed, &stream->lock);
            continue;
        }
        work_begins(device);
        while (has_work(stream))
            run_next(stream);
        work_ends(device);
        if (stream->run == stream->count) {
            stream->before += stream->count;
            stream->run = stream->count = 0;
        }
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* Returns when all entries before `number` have run, with the first failure since the last wait. */
static int wait_for(struct late_stream *stream, uint64_t number) {
    pthread_mutex_lock(&stream->lock);
    if (number > stream->wanted)
        stream->wanted = number;
    pthread_cond_broadcast(&stream->changed);
    while (has_work(stream))
        pthread_cond_wait(&stream->changed, &stream->lock);
    int status = stream->status;
    stream->status = STATUS_OK;
    pthread_mutex_unlock(&stream->lock);
    return status ? status_fail(status, "%s", stream->text) : STATUS_OK;
}

static void free_stream(struct late_stream *stream) {
    for (size_t i = stream->run; i < stream->count; i++)
        drop_entry(&stream->entries[i]);
    stream_close(stream->cpu);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream->entries);
    free(stream);
}

static int late_stream_open(struct device *device, struct stream **out) {
    struct late_stream *stream = calloc(1, sizeof *stream);
    *out = NULL;
    if (!stream)
        return status_fail(STATUS_MEMORY, "out of memory");
    stream->stream.device = device;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->capacity = FIRST_ENTRIES;
    stream->entries = malloc(stream->capacity * sizeof *stream->entries);
    int status =
        stream->entries ? stream_open(late_cpu(device), &stream->cpu) : status_fail(STATUS_MEMORY, "out of memory");
    if (!status && pthread_create(&stream->thread, NULL, run_stream, stream))
        status = status_fail(STATUS_MEMORY, "cannot start the thread of a stream");
    if (status) {
        free_stream(stream);
        return status;
    }
    *out = &stream->stream;
    return STATUS_OK;
}

static int late_stream_wait(struct stream *stream) {
    struct late_stream *own = late_stream(stream);
    return wait_for(own, own->before + own->count);
}

static void late_stream_close(struct stream *stream) {
    struct late_stream *own = late_stream(stream);
    pthread_mutex_lock(&own->lock);
    own->ends = true;
    pthread_cond_broadcast(&own->changed);
    pthread_mutex_unlock(&own->lock);
    pthread_join(own->thread, NULL);
    free_stream(own);
}

int late_queue(const struct exec *exec, const struct late_work *work) {
    struct late_stream *stream = late_stream(exec->stream);
    struct device *device = stream->stream.device;
    if (exec->workspace && exec->workspace_bytes && !is_device_memory(device, exec->workspace))
        return status_fail(STATUS_INVALID, "%s: the workspace is no device memory", work->name);
    for (int i = 0; i < work->pointer_count; i++) {
        const void *pointer;
        memcpy(&pointer, (const char *)work->arguments + work->pointers[i], sizeof pointer);
        if (pointer && !is_device_memory(device, pointer))
            return status_fail(STATUS_INVALID, "%s: the pointer at byte %zu of its arguments is no device memory",
                               work->name, work->pointers[i]);
    }
    if (work->bytes > ARGUMENT_BYTES)
        return status_fail(STATUS_INVALID, "%s: more arguments than an entry holds", work->name);
    if (stream->count == stream->capacity) {
        size_t capacity = 2 * stream->capacity;
        struct entry *entries = realloc(stream->entries, capacity * sizeof *entries);
        if (!entries)
            return status_fail(STATUS_MEMORY, "out of memory");
        stream->entries = entries;
        stream->capacity = capacity;
    }
    struct entry *entry = &stream->entries[stream->count++];
    entry->run = work->run;
    entry->exec = *exec;
    entry->exec.stream = stream->cpu;
    memcpy(entry->arguments, work->arguments, work->bytes);
    return STATUS_OK;
}

/* ---- copies ---- */

static int run_copy(const struct exec *exec, const void *arguments) {
    return stream_copy_rows(exec->stream, arguments);
}

static int late_copy(struct stream *stream, const struct copy_call *copy) {
    static const size_t to[] = {offsetof(struct copy_call, to)}, from[] = {offsetof(struct copy_call, from)},
                        both[] = {offsetof(struct copy_call, to), offsetof(struct copy_call, from)};
    static const size_t *const pointers[] = {[COPY_TO_DEVICE] = to, [COPY_TO_HOST] = from, [COPY_ON_DEVICE] = both};
    return late_queue(&(const struct exec){.stream = stream},
                      &(const struct late_work){.name = "copy",
                                                .run = run_copy,
                                                .arguments = copy,
                                                .bytes = sizeof *copy,
                                                .pointers = pointers[copy->kind],
                                                .pointer_count = copy->kind == COPY_ON_DEVICE ? 2 : 1});
}

struct zero {
    void *memory;
    size_t bytes;
};

static int run_zero(const struct exec *exec, const void *arguments) {
    const struct zero *zero = arguments;
    return stream_zero(exec->stream, zero->memory, zero->bytes);
}

static int late_zero(struct stream *stream, void *memory, size_t bytes) {
    static const size_t pointer = offsetof(struct zero, memory);
    struct zero zero = {.memory = memory, .bytes = bytes};
    return late_queue(&(const struct exec){.stream = stream}, &(const struct late_work){.name = "zero",
                                                                                        .run = run_zero,
                                                                                        .arguments = &zero,
                                                                                        .bytes = sizeof zero,
                                                                                        .pointers = &pointer,
                                                                                        .pointer_count = 1});
}

/* ---- events ---- */

static struct late_event *late_event(struct event *event) {
    return (struct late_event *)event;
}

static int late_event_open(struct device *device, struct event **out) {
    struct late_event *event = calloc(1, sizeof *event);
    struct late_mark *mark = calloc(1, sizeof *mark);
    *out = NULL;
    if (!event || !mark) {
        free(event);
        free(mark);
        return status_fail(STATUS_MEMORY, "out of memory");
    }
    atomic_init(&mark->holders, 1);
    event->event.device = device;
    event->mark = mark;
    *out = &event->event;
    return STATUS_OK;
}

static void late_event_close(struct event *event) {
    release_mark(late_event(event)->mark);
    free(event);
}

static int late_event_record(struct event *event, struct stream *stream) {
    struct late_event *own = late_event(event);
    int status =
        late_queue(&(const struct exec){.stream = stream},
                   &(const struct late_work){
                       .name = "event_record", .run = run_mark, .arguments = &own->mark, .bytes = sizeof own->mark});
    if (status)
        return status;
    atomic_fetch_add(&own->mark->holders, 1);
    own->stream = late_stream(stream);
    own->number = own->stream->before + own->stream->count;
    return STATUS_OK;
}

static int late_event_wait(struct event *event) {
    const struct late_event *own = late_event(event);
    return own->stream ? wait_for(own->stream, own->number) : STATUS_OK;
}

static int late_event_seconds(const struct event *from, const struct event *to, double *seconds) {
    *seconds = ((const struct late_event *)to)->mark->seconds - ((const struct late_event *)from)->mark->seconds;
    return STATUS_OK;
}

/* ---- the device ---- */

static int late_open(int index, int threads, struct device **out) {
    struct late_device *own = calloc(1, sizeof *own);
    if (!own)
        return status_fail(STATUS_MEMORY, "out of memory");
    int status = device_open("cpu", index, threads, &own->cpu);
    if (status) {
        free(own);
        return status;
    }
    pthread_mutex_init(&own->lock, NULL);
    own->device = (struct device){.backend = &backend_late, .ops = &late_ops, .threads = own->cpu->threads};
    snprintf(own->device.description, sizeof own->device.description, "late, over %.80s", own->cpu->description);
    *out = &own->device;
    return STATUS_OK;
}

static void late_close(struct device *device) {
    struct late_device *own = late(device);
    device_close(own->cpu);
    pthread_mutex_destroy(&own->lock);
    free(own);
}

/* Tests of the CPU's narrower tables are the CPU's. */
static const struct ops *late_ops_for_level(const struct device *device, const char *level) {
    (void)device;
    (void)level;
    return NULL;
}

static int late_measure_gemm(struct device *device, enum dtype dtype, double max_seconds, double *flops) {
    return device_measure_gemm(late_cpu(device), dtype, max_seconds, flops);
}

static int late_measure_read(struct device *device, double max_seconds, double *bytes_per_s) {
    return device_measure_read(late_cpu(device), max_seconds, bytes_per_s);
}

const struct backend backend_late = {
    .name = "late",
    .open = late_open,
    .close = late_close,
    .ops_for_level = late_ops_for_level,
    .alloc = late_alloc,
    .free = late_free,
    .host_alloc = late_host_alloc,
    .host_free = late_host_free,
    .measure_gemm = late_measure_gemm,
    .measure_read = late_measure_read,
    .stream_open = late_stream_open,
    .stream_close = late_stream_close,
    .stream_wait = late_stream_wait,
    .copy = late_copy,
    .zero = late_zero,
    .event_open = late_event_open,
    .event_close = late_event_close,
    .event_record = late_event_record,
    .event_wait = late_event_wait,
    .event_seconds = late_event_seconds,
};
