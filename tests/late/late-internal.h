/* Inside the backend `late`. A late device has the CPU's device below it, and one thread that runs the work of its
 * streams.
 *
 *     backend.c   devices and copies
 *     memory.c    device memory, closed to the host
 *     stream.c    the queues, and the order in which their work runs
 *     event.c     the marks in the queues
 *     record.c    recordings
 *     ops.c       operations */
#pragma once

#include "backend.h"
#include "late/late.h"

#include <pthread.h>
#include <stdatomic.h>

enum { LATE_ARGUMENT_BYTES = 768, LATE_POISON = 0xff /* not a number, in every floating type */ };

enum late_kind { LATE_OPERATION, LATE_COPY, LATE_MARK, LATE_AWAIT };

/* Work in a queue, with a copy of its arguments. */
struct late_entry {
    const char *name;
    enum late_kind kind;
    int (*run)(const struct exec *exec, const void *arguments);
    struct exec exec; /* on the CPU's stream */
    _Alignas(16) unsigned char arguments[LATE_ARGUMENT_BYTES];
};
struct late_list {
    struct late_entry *entries;
    size_t count, capacity;
};

struct late_stream {
    struct stream stream;
    struct stream *cpu;
    struct late_stream *next; /* in the device's list */
    struct late_list list;
    size_t run;      /* entries of the list that have run, or are running */
    uint64_t before; /* entries removed from the list so far; an entry's number counts all that were ever queued */
    uint64_t wanted; /* entries with lower numbers must run, because someone waits for them */
    bool is_running; /* the entry before list.entries[run] runs now, outside the lock */
    char *workspace; /* of the last entry that had one */
    size_t workspace_bytes;
    struct late_recording *recording; /* receives the work instead of the queue; NULL: the stream is not recorded */
};

/* The time when a stream last ran past an event. The arguments of a LATE_MARK point to it. It is reference-counted: the
 * event and each queued entry hold it, and any of them may be released first. */
struct late_mark {
    atomic_int holders;
    double seconds; /* as clock_seconds */
};

/* The arguments of a LATE_AWAIT: entries of another stream with numbers below `number` must have run. */
struct late_await {
    struct late_stream *stream; /* NULL: those entries have run, and the stream is closed */
    uint64_t number;
};

struct late_recording {
    struct recording recording;
    struct late_list list;
};

struct late_block {
    char *start;
    size_t bytes;     /* whole pages */
    size_t requested; /* without the rest of the last page */
    struct late_block *next;
};

/* The lock guards all members after it, and the streams. */
struct late_device {
    struct device device;
    struct device *cpu;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_thread, ends;
    bool is_working; /* work runs, and memory is open */
    struct late_block *blocks;
    struct late_stream *streams;
    uint32_t choices; /* random choices of an order so far, which key the next one */
    struct late_counts counts;
};

static inline struct late_device *late(const struct device *device) {
    return (struct late_device *)(uintptr_t)device;
}
static inline struct late_stream *late_stream(const struct stream *stream) {
    return (struct late_stream *)(uintptr_t)stream;
}
/* Returns the CPU's device below a late one. */
static inline struct device *late_cpu(const struct device *device) {
    return late(device)->cpu;
}

/* Work to queue. */
struct late_work {
    const char *name;
    int (*run)(const struct exec *exec, const void *arguments); /* `exec` is the CPU's */
    const void *arguments;                                      /* copied */
    size_t bytes;
    const void *const *pointers; /* of the arguments: they lead to device memory, or are NULL */
    int pointer_count;
    bool is_once; /* a recording cannot have it */
    enum late_kind kind;
};

/* ---- stream.c ---- */

/* Queues or records the work. STATUS_INVALID if a pointer leads to memory other than the device's, which the host may
 * change or free before the work runs, or if another stream uses the workspace. STATUS_MEMORY, or the device's
 * failure. */
int late_queue(const struct exec *exec, const struct late_work *work);
/* Adds a copy of the entry to the list. STATUS_MEMORY. */
int late_list_add(struct late_list *list, const struct late_entry *entry);
/* Queues an entry that was recorded on this stream or another. Errors as late_queue. */
int late_queue_entry(struct late_stream *stream, const struct late_entry *entry);
/* Returns the number that the next entry will have. */
uint64_t late_queued(struct late_stream *stream);
/* Returns when all entries with lower numbers have run. The device's failure. */
int late_wait_for(struct late_stream *stream, uint64_t number);
/* Starts the device's thread. STATUS_MEMORY. */
int late_start_thread(struct late_device *device);
/* Ends the device's thread, and waits for that. */
void late_end_thread(struct late_device *device);

/* As stream_open, stream_close and stream_wait of device.h. */
int late_stream_open(struct device *device, struct stream **stream);
void late_stream_close(struct stream *stream);
int late_stream_wait(struct stream *stream);

/* Releases one holder's reference; the last one frees the mark. */
void late_release_mark(struct late_mark *mark);
/* As recording_close of device.h. */
void late_recording_close(struct recording *recording);

/* ---- memory.c ---- */

/* As device_alloc and device_free of device.h. */
int late_alloc(struct device *device, size_t bytes, bool is_zeroed, void **memory);
void late_free(struct device *device, void *memory);
/* Opens or closes all device memory to the process (mprotect). The caller holds the lock. */
void late_protect(struct late_device *device, int protection);
/* Returns true if the pointer leads to memory of the device. */
bool late_owns(struct late_device *device, const void *pointer);

/* ---- event.c: as the functions of device.h ---- */

int late_event_open(struct device *device, struct event **event);
void late_event_close(struct event *event);
int late_event_record(struct event *event, struct stream *stream);
int late_event_wait(struct event *event);
int late_event_seconds(const struct event *from, const struct event *to, double *seconds);
int late_stream_wait_event(struct stream *stream, struct event *event);

/* ---- record.c: as the functions of device.h ---- */

int late_record_begin(struct stream *stream);
int late_record_end(struct stream *stream, struct recording **recording);
int late_replay(struct stream *stream, const struct recording *recording);

extern const struct ops late_ops;
