/* A backend: a const table of functions, found by name. device.c calls them for the public functions of device.h, whose
 * comments are the contracts with callers. Those of the operations are in ops.h. The first member of a backend's own
 * device is struct device below; likewise for its streams, events and recordings.
 *
 * device.c calls a function that queues, waits, opens or allocates only while the device has no failure. Functions that
 * return int return STATUS_OK or a negative status with its text. One that cannot do its work for a lack of memory
 * returns STATUS_MEMORY and leaves everything as it was. A failure of the device itself is stored with
 * device_set_failure as well. Any thread may call; only one at a time uses the same stream, event or recording. */
#pragma once

#include "ops.h"

#include <stdatomic.h>

struct backend {
    const char *name;
    bool host_reads_memory; /* device memory is plain memory of the host, which may read it when no work runs */
    bool has_numbers;       /* "NAME:1" is a device's number, "NAME:sm_90" a sketch; otherwise a level follows */
    /* One line for a backend that this build lacks; then nothing below is set. NULL: it is built. */
    const char *how_to_build;

    /* ---- devices ---- */

    /* Fails unless `open` would find device `number`; opens nothing that lasts. STATUS_UNSUPPORTED with the reason if
     * this machine lacks it. NULL: every machine has the device. */
    int (*find)(int number);
    /* Returns how many devices there are, or 0 after a failure, without its text. NULL: one device serves all numbers.
     */
    int (*count)(void);
    /* Opens a device: sets *device to its own memory, with all of struct device but `number` and `filled`, where an
     * empty `kind` becomes the name that was asked for. After a failure *device is NULL, or what `close` takes.
     * `threads` is as for device_open. STATUS_UNSUPPORTED if this machine lacks the device. */
    int (*open)(int number, int threads, struct device **device);
    /* Makes a device whose arithmetic functions (`sizes`, workspaces, gemm_supports, packed_bytes) answer as those of a
     * device with these facts. It may need neither driver nor threads. device.c lets no work reach it. Otherwise as
     * `open`. */
    int (*sketch)(const struct device_facts *facts, struct device **device);
    /* Closes a device that `open` or `sketch` returned, broken ones included, also if they failed. It may assume that
     * streams, events, recordings and memory are closed and freed. It cannot fail. */
    void (*close)(struct device *device);
    /* Returns the const table of a level by its name, or NULL if this machine cannot run it, or there is none. The
     * table may have holes, which device.c fills in the device's own only. */
    const struct ops *(*ops_for_level)(const struct device *device, const char *level);

    /* ---- memory ---- */

    /* Returns the bytes of the device's own memory. NULL: it uses the host's. */
    size_t (*memory)(const struct device *device);
    /* Stores how many of them no process uses. Called, and set, only where `memory` is. */
    int (*free_memory)(struct device *device, size_t *bytes);
    /* Sets *memory to `bytes` bytes of device memory, aligned to 64 bytes: zeros with is_zeroed, before any stream can
     * use them. `bytes` may be 0. STATUS_MEMORY with the size, and *memory is NULL. */
    int (*alloc)(struct device *device, size_t bytes, bool is_zeroed, void **memory);
    /* Frees what `alloc` returned, never NULL. It may assume that no queued work uses it, and may wait for the device.
     * It works on a broken device. */
    void (*free)(struct device *device, void *memory);
    /* Sets *memory to zeroed memory of the host, from and to which copies are fastest. Errors as `alloc`. */
    int (*host_alloc)(struct device *device, size_t bytes, void **memory);
    /* Frees what `host_alloc` returned, as `free` does. */
    void (*host_free)(struct device *device, void *memory);

    /* ---- ceilings ---- */

    /* Measures as device_measure_gemm says, with its own memory and streams, which it frees after a failure too.
     * STATUS_UNSUPPORTED for a type without products. */
    int (*measure_gemm)(struct device *device, enum dtype dtype, bool is_tf32, double max_seconds, double *flops);
    /* As device_time_read. */
    int (*time_read)(struct device *device, size_t bytes, void **memory, double *seconds);

    /* ---- streams ---- */

    /* Sets *stream to a queue that is empty, and independent of all others; NULL after a failure. */
    int (*stream_open)(struct device *device, struct stream **stream);
    /* Closes it, never NULL, with or without queued work, and ends its recording. Work that another stream waits for
     * must still run; other work may be dropped. It works on a broken device. */
    void (*stream_close)(struct stream *stream);
    /* Returns when all queued work has run, whose results the host may then see. The first failure of that work.
     * STATUS_INVALID while the stream is recorded. */
    int (*stream_wait)(struct stream *stream);
    /* Queues a copy, and may return before it runs; *copy may then be gone. Neither rows nor bytes are 0, and a single
     * row has strides of 0. Host memory belongs to the copy until the host has waited. */
    int (*copy)(struct stream *stream, const struct copy_call *copy);
    /* Queues zeroing of `bytes` bytes, above 0, of device memory. */
    int (*zero)(struct stream *stream, void *memory, size_t bytes);
    /* Queues a reduction of at least one element, over arrays of any devices of the GPU. STATUS_UNSUPPORTED for other
     * types. NULL: devices share nothing, and device_card is -1. */
    int (*reduce)(struct stream *stream, const struct reduce_call *call);

    /* ---- events ---- */

    /* Sets *event to a mark that is nowhere yet; NULL after a failure. */
    int (*event_open)(struct device *device, struct event **event);
    /* Closes it, never NULL. Streams may still wait for its last mark. It works on a broken device. */
    void (*event_close)(struct event *event);
    /* Moves the mark to the present end of the stream's queue. Earlier waits keep the old one. */
    int (*event_record)(struct event *event, struct stream *stream);
    /* Returns when all work before the mark has run; at once if there is none. The failure of that work. */
    int (*event_wait)(struct event *event);
    /* Stores the seconds between two marks. It may assume that both were recorded with work around them, and waited
     * for. */
    int (*event_seconds)(const struct event *from, const struct event *to, double *seconds);
    /* Queues a wait for the mark that the event has now, and never blocks the host. The event may be of any stream of
     * this process's devices on the GPU, and without a mark it is nothing to wait for. */
    int (*stream_wait_event)(struct stream *stream, struct event *event);

    /* ---- recordings: all four are NULL if the backend cannot record ---- */

    /* Makes later work of the stream be recorded instead of run. STATUS_INVALID if it is recorded already. */
    int (*record_begin)(struct stream *stream);
    /* Ends that, and sets *recording to the work with its arguments; NULL after a failure. STATUS_INVALID without
     * record_begin. */
    int (*record_end)(struct stream *stream, struct recording **recording);
    /* Queues recorded work, any number of times, on any stream of the device. It may not change the recording.
     * STATUS_INVALID while the stream is recorded. */
    int (*replay)(struct stream *stream, const struct recording *recording);
    /* Closes it, never NULL. It may assume that its replays have run. It works on a broken device. */
    void (*recording_close)(struct recording *recording);
};

/* Fills the places of a table that are NULL with functions of ops_absent. Returns true if there were any. */
bool ops_fill(struct ops *ops);

extern const struct backend backend_cpu, backend_cuda;
/* The backend of a build with tests (tests/late/); NULL in any other. */
extern const struct backend *const backend_for_tests;

struct device {
    const struct backend *backend;
    const struct ops *ops; /* the backend's table, or `filled` */
    struct ops filled;     /* device.c's copy of that table, without holes */
    char kind[32];         /* set by device.c if the backend did not; device.c sets the number */
    int number, threads;
    bool is_batch_invariant; /* device_make_batch_invariant; the CPU always is */
    char description[96];
    atomic_int failure; /* the status of the first queued work that failed; 0: none did */
    char failure_text[256];
};

/* Stores a failure of work: `status` and the calling thread's text. The first failure stays. The caller holds the
 * backend's lock, so that no other thread does this at the same time. */
void device_set_failure(struct device *device, int status);

struct stream {
    struct device *device;
};

struct event {
    struct device *device;
};

struct recording {
    struct device *device;
};
